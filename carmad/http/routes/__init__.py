"""What each path of the HTTP API answers."""
