"""Settings of `policy = "lucid"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge


@dataclass(frozen=True, slots=True)
class LucidSettings:
    """`policy = "lucid"` (Lucid paper, 3.2 to 3.4)."""

    sharing_capacity: Annotated[int, Ge(0)] = 2  # GSS: limit for the sum of sharing scores on a GPU
    utilization_capacity: Annotated[float, Ge(0)] = 1.2  # limit for the sum of GPU utilisations
    apathetic_below: Annotated[float, Ge(0)] = 0.0  # GPUs requested in 10 min: below, it is 1
    off_below: Annotated[float, Ge(0)] = 0.0  # GPUs requested in 10 min: below, sharing is off
