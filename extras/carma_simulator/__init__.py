"""The simulator: the daemon's core, driven by a virtual clock and modelled GPUs over a trace."""
