"""Slurm alone and Slurm with CARMA on its nodes, on a cluster that is all on this machine."""
