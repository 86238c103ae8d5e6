"""The carmad of the node that a job runs on, asked in the job's own allocation, as the user."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from cli.cluster import slurm
from cli.problems import Problem

WITHIN_S = 30.0
# The command by its path here, if the node has it there, too.
CARMA = 'carma=$0; [ -x "$carma" ] || carma=carma; exec "$carma" "$@"'


def ask(row: slurm.Row, *words: str) -> str:
    """What `carma WORDS` prints there. Raises Problem."""
    own = os.path.abspath(sys.argv[0])  # noqa: PTH100
    step = ("--overlap", "--nodes=1", "--ntasks=1", "--quiet")
    return slurm.ask(
        *("srun", f"--jobid={row.id}", *step, "sh", "-c", CARMA, own, *words), within_s=WITHIN_S
    )


def label_of(row: slurm.Row) -> str:
    """The job's id there. Raises Problem if it is not known there."""
    try:
        listed = json.loads(ask(row, "queue", "--me", "--json"))["jobs"]
        for job in listed:
            shown: dict[str, Any] = json.loads(ask(row, "show", job["label"], "--json"))
            if shown.get("slurm_job") == row.id:
                return str(shown["label"])
    except (ValueError, KeyError, TypeError):
        raise Problem("the node's carma gives no answer that can be read") from None
    raise Problem(
        "the node's carmad does not have it",
        "it may not have asked for its GPUs yet; a job that does not call carma run never does",
    )
