"""The daemon: the shell that drives the core with real GPUs, real processes and the wall clock."""
