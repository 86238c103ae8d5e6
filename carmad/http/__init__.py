"""The HTTP API on a unix socket: who may ask what, and what is answered."""
