"""The HTTP API on a unix socket: identity, permissions, routes and answers."""
