"""Training of the values in `carmad.models`, from plain tables. It needs `carma[policies]` and
time, and runs in a process of its own: the daemon imports nothing of it."""
