"""Settings of `policy = "cuckoo"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval

_Share = Annotated[float, Interval(ge=0, le=1)]
_Slowdown = Annotated[float, Ge(1)]

Joins = Literal["any", "partner"]


@dataclass(frozen=True, slots=True)
class CuckooSettings:
    """`policy = "cuckoo"` (Cuckoo paper, 3)."""

    weight: _Share = 0.6  # w: of a pair's efficiency; the rest is for close deadlines
    # Who may join a running job: any job that gains, or only its partner in the queue, as in the
    # paper.
    joins: Joins = "any"
    lambda_gpu: _Slowdown = 1.3  # λ: how much slower two jobs compute at the same time
    lambda_network: _Slowdown = 2.0  # λ: how much slower they communicate at the same time
