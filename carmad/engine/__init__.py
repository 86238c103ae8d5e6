"""The thread that drives the core, and the way into it."""
