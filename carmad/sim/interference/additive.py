"""Interference as a sum of demands: the simplest model with a capacity."""

from __future__ import annotations

from math import fsum

from carmad.core.types import Mode
from carmad.sim.interference.base import Sharing
from carmad.sim.task import Load


class Additive(Sharing):
    """No slowdown while the SM demands and the DRAM demands each add up to at most 1.

    Beyond that all jobs slow down equally, by the larger sum, under MPS as on streams.
    """

    def shared(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        sm = fsum(load.sm_active for load in loads)
        dram = fsum(load.dram_active for load in loads)
        return (1.0 / max(1.0, sm, dram),) * len(loads)
