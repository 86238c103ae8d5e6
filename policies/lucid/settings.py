"""What `policy = "lucid"` can be set to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge


@dataclass(frozen=True, slots=True)
class LucidSettings:
    """Of `policy = "lucid"` (Lucid paper, 3.2 to 3.4)."""

    sharing_capacity: Annotated[int, Ge(0)] = 2  # GSS: what sharing scores on a GPU may add up to
    apathetic_below: Annotated[float, Ge(0)] = 0.0  # GPUs asked for in 10 min for which it is 1
    off_below: Annotated[float, Ge(0)] = 0.0  # and for which nobody shares
