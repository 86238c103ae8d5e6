"""Interference as a regression on the loads' demands, with fixed coefficients.

`python -m lab.simulator.interference` fits them and measures the error: on streams it
explains two fifths of the variance between pairs of unseen models, under MPS nothing. The MPS data
(Gavel) have no utilisation, and its jobs are often slowed by the CPU. A term for DRAM was tried,
too: on streams, where the traffic is known, it did not help with unseen models (RMSE of the speed
0.082 with it, 0.081 without).
"""

from __future__ import annotations

import json
from importlib.resources import files
from math import fsum

from carmad.core.types import Mode
from carmad.sim.interference.base import Sharing
from carmad.sim.task import Load


class Learned(Sharing):
    """Slowdown = 1 + own SM · (c · SMs + (1 - c) · excess).

    The coefficient c depends on the mode: what a neighbour that keeps the whole GPU busy costs
    a job that would do so too, 0–1. "SMs" is the neighbours' total demand; "excess" is the part
    beyond one whole GPU, which has to wait in full, so that however many jobs share, the GPU does
    hardly more work than with two busy ones. The fit is on pairs only, without excess.
    """

    def __init__(self, coefficients: dict[Mode, float] | None = None) -> None:
        super().__init__()
        self._coefficients = coefficients or _COMMITTED

    def shared(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        fitted = self._coefficients[mode]
        return tuple(_speed(own, loads[:i] + loads[i + 1 :], fitted) for i, own in enumerate(loads))


def _speed(own: Load, others: tuple[Load, ...], fitted: float) -> float:
    # fsum rounds once, at the end: the order of the neighbours does not matter.
    sm = fsum(other.sm_active for other in others)
    excess = max(0.0, sm - 1.0)
    return 1.0 / (1.0 + own.sm_active * (fitted * sm + (1.0 - fitted) * excess))


def _committed() -> dict[Mode, float]:
    text = files("carmad.sim").joinpath("coefficients/interference.json").read_text()
    return {Mode(mode): fit["sm"] for mode, fit in json.loads(text)["modes"].items()}


_COMMITTED = _committed()
