"""The thread that drives the core, and its inbox."""
