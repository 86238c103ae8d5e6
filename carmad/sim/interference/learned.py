"""Interference as a regression on what the loads ask of the GPU, with committed coefficients.

`python -m benchmarks.interference` fits them and says how far off they are: on streams it explains
two fifths of the variance between pairs of unseen models, under MPS none. The data on MPS (Gavel)
tell of no utilisation, and what slows its jobs is often the CPU.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from math import fsum

from carmad.core.types import Mode
from carmad.sim.interference.base import Sharing
from carmad.sim.task import Load


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What a neighbour that keeps the whole GPU busy costs one that would do so too, ≥ 0."""

    sm: float
    dram: float


class Learned(Sharing):
    """Slowdown = 1 + own SM · (sm · SMs + (1 - sm) · excess) + dram · own DRAM · DRAMs.

    "SMs" and "DRAMs" are what the neighbours ask for together; "excess" is what of it exceeds one
    whole GPU: that much is sure to wait for its full share, so that however many jobs meet, the
    GPU does hardly more than two busy ones get out of it. The fit has pairs only and no excess.
    """

    name = "learned"

    def __init__(self, coefficients: dict[Mode, Coefficients] | None = None) -> None:
        super().__init__()
        self._coefficients = coefficients or _COMMITTED

    def shared(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        fitted = self._coefficients[mode]
        return tuple(_speed(own, loads[:i] + loads[i + 1 :], fitted) for i, own in enumerate(loads))


def _speed(own: Load, others: tuple[Load, ...], fitted: Coefficients) -> float:
    # fsum rounds once, at the end: the order of the neighbours makes no difference.
    sm = fsum(other.sm_active for other in others)
    dram = fsum(other.dram_active for other in others)
    excess = max(0.0, sm - 1.0)
    wait = own.sm_active * (fitted.sm * sm + (1.0 - fitted.sm) * excess)
    return 1.0 / (1.0 + wait + fitted.dram * own.dram_active * dram)


def _committed() -> dict[Mode, Coefficients]:
    text = files("carmad.sim").joinpath("coefficients/interference.json").read_text()
    fits = json.loads(text)["modes"]
    return {Mode(mode): Coefficients(fit["sm"], fit["dram"]) for mode, fit in fits.items()}


_COMMITTED = _committed()
