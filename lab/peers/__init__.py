"""CARMA beside gflow, Slurm and task-spooler on this machine: what people wait for all day."""
