"""What each release left on disk: a zip per release, made by its own code with `make`."""
