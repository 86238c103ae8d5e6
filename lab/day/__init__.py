"""A lab's day: 163 jobs of six users in eight minutes on eight emulated GPUs, with debug runs,
sweeps, trainings, wide jobs, hangs and wrong sizes. It is played on the real daemon, or simulated,
and read by one set of figures."""
