"""Slurm's commands and the verbs about them, for the entry points of `carma.commands`."""

from __future__ import annotations

from cli.verbs import Group, Verb, Word

_RUN = "cli.slurm.words:run"

SBATCH = Word("sbatch", _RUN)
SQUEUE = Word("squeue", _RUN)
SCANCEL = Word("scancel", _RUN)
SACCT = Word("sacct", _RUN)
SCONTROL = Word("scontrol", _RUN)
SINFO = Word("sinfo", _RUN)
SRUN = Word("srun", _RUN)
SALLOC = Word("salloc", _RUN)

SLURM_COMMANDS = Group(
    "slurm-commands",
    "Put sbatch, squeue and others on PATH, done by CARMA, or remove them.",
    (
        Verb(
            "slurm-commands install",
            "cli.commands.slurm_commands",
            "Put Slurm's commands on PATH, as links to carma.",
        ),
        Verb("slurm-commands remove", "cli.commands.slurm_commands", "Remove these links."),
    ),
    section="Administration",
)
