"""The carmad of the node that a job runs on, asked in the job's own allocation, as the user."""

from __future__ import annotations

import os
import sys

from cli.client import SLURM
from cli.cluster import slurm

WITHIN_S = 30.0
# The command by its path here, if the node has it there, too.
CARMA = 'carma=$0; [ -x "$carma" ] || carma=carma; exec "$carma" "$@"'


def ask(row: slurm.Row, verb: str, *options: str) -> str:
    """What `carma VERB` says there about the job. Raises Problem."""
    own = os.path.abspath(sys.argv[0])  # noqa: PTH100
    step = ("--overlap", "--nodes=1", "--ntasks=1", "--quiet")
    return slurm.ask(
        *("srun", f"--jobid={row.id}", *step, "sh", "-c", CARMA, own),
        *(verb, *options, f"{SLURM}{row.id}"),
        within_s=WITHIN_S,
    )
