"""One run of a job on this machine: started, watched, stopped, and what is left of it on disk."""
