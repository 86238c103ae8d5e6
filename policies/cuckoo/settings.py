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
    joins: Joins = "any"  # who may join a job: any that gains, or only its partner (the paper)
    lambda_gpu: _Slowdown = 1.3  # λ: how many times as long two jobs take that compute at once
    lambda_network: _Slowdown = 2.0  # λ: how many times as long if they communicate at once
