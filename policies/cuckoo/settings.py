"""Settings of `policy = "cuckoo"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

_Share = Annotated[float, Interval(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class CuckooSettings:
    """`policy = "cuckoo"` (Cuckoo paper, 3)."""

    weight: _Share = 0.6  # w: of a pair's efficiency; the rest is for close deadlines
