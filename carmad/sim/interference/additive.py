"""Interference as a sum of demands: the simplest model that has a capacity."""

from __future__ import annotations

from math import fsum

from carmad.core.types import Mode
from carmad.sim.interference.base import Sharing
from carmad.sim.task import Load


class Additive(Sharing):
    """Nobody slows while all SM demands and all DRAM demands each sum to 1 at most.

    Beyond that all slow alike, by the larger sum. MPS or streams makes no difference.
    """

    def shared(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        sm = fsum(load.sm_active for load in loads)
        dram = fsum(load.dram_active for load in loads)
        return (1.0 / max(1.0, sm, dram),) * len(loads)
