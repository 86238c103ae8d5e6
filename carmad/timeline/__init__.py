"""What the daemon recorded of its GPUs over the last day. See `docs/decisions/0032`."""
