"""The simulator: the very same core, driven by a virtual clock and modelled GPUs over a trace."""
