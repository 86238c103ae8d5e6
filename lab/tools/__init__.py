"""Whether tools that know only Slurm work with CARMA's commands."""
