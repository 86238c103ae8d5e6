"""What the daemon recorded of its GPUs over the last day. See `docs/architecture.md`."""
