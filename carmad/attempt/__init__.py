"""One run of a job on this machine: starting, watching and stopping it, and its records on disk."""
