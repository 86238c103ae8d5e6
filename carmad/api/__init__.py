"""The wire format of the HTTP API: shapes, and pure functions from CARMA's values to them."""
