"""Slurm's commands, done by CARMA on its one server, for tools and scripts that know only these.

A link to `carma` that has the name of one of `WORDS` is that command: `cli.main` comes here then.
`carma slurm-commands` makes the links. `carma_slurm.login` is the opposite: CARMA's verbs, done by
Slurm.
Imports stay light.
"""

from __future__ import annotations

WORDS = ("sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo", "srun", "salloc")
VERSION = "slurm 22.05.8"  # whose output ours has the form of
PARTITION = "carma"
CLUSTER = "carma"
FORGETS_S = 300.0  # squeue shows jobs that long after their end, if asked for them (MinJobAge)
STEP_PID = "CARMA_STEP_PID"  # in a task's environment: the srun that passes signals on to it
