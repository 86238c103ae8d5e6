"""The runs of a Slurm job ask for no more GPU memory together than Slurm gave it.

Slurm goes by what it gave: for accounts, fair share, and what else fits on the node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from carmad.core.types import JobSpec
from carmad.errors import CarmaError

MIB_PER_GIB = 1024


def hold_to(granted_gib: int, spec: JobSpec, others: Iterable[JobSpec]) -> None:
    """Raises CarmaError. `others`: the job's runs that have not ended."""
    taken = sum(_mib(one) for one in others)
    asked = math.ceil((taken + _mib(spec)) / MIB_PER_GIB)
    if 0 < granted_gib >= asked:
        return
    runs = "its runs here ask" if taken else "this run asks"
    raise CarmaError(
        f"Slurm gave job {spec.slurm_job} {granted_gib} GiB of GPU memory, and {runs}"
        f" for {asked or 'some'}",
        f"Ask Slurm for what they need together: --gres=gpumem:{asked or 'GIB'}.",
    )


def _mib(spec: JobSpec) -> int:
    """As declared; what is estimated may change."""
    return spec.gpus * (spec.memory_mib or 0)
