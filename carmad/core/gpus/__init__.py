"""What the GPUs are, what their readings say, and who shares them at what cost."""
