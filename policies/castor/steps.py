"""How long a training step takes, in one pass or in several (Castor paper, 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from carmad.plugin import StepTime

FIXED_SHARE = 0.25  # see `StepModel.assume`


@dataclass(frozen=True, slots=True)
class StepModel:
    """Equations 1 to 3 for one job and placement.

    Equation 2, alpha_comm + beta_comm · M, is one number here: the size of a job's gradients, M, is
    constant, so no measurement of one placement could separate the two terms.
    """

    alpha_comp_s: float  # per pass, whatever its batch
    beta_comp_s: float  # per sample
    comm_s: float = 0.0  # all-reduce of the gradients, without overlap
    delta: float = 1.0  # ≥ 1; 1: communication does not overlap computation; ∞: it does fully

    @classmethod
    def assume(cls, step_s: float, batch: int) -> StepModel:
        """For a job with only a known step duration: FIXED_SHARE of it is alpha.

        That is the median share of the six applications on four kinds of GPU that the Sia
        artifact measured, each at its largest batch that fits (`python -m
        lab.castor.models`). Communication counts as computation: splitting never saves any.
        """
        return cls(FIXED_SHARE * step_s, (1 - FIXED_SHARE) * step_s / batch)

    @classmethod
    def fit(cls, steps: Sequence[StepTime], batch: int) -> StepModel | None:
        """Fitted to step times that runs of the job reported with different numbers of parts on
        one kind of GPU, that with the widest range of parts: each further part costs another alpha.
        Only communication without overlap would show, and it counts as computation. None if there
        is no such kind."""
        if len(steps) < 2:  # mostly, and this is asked of every job in line
            return None
        by_kind = groupby(sorted(steps, key=attrgetter("gpu", "parts")), attrgetter("gpu"))
        ends = [(each[0], each[-1]) for _, its in by_kind if (each := list(its))]
        first, last = max(ends, key=_range)
        if first.parts == last.parts:
            return None
        alpha_s = max(0.0, (last.seconds - first.seconds) / (last.parts - first.parts))
        whole_s = max(alpha_s, first.seconds - (first.parts - 1) * alpha_s)
        return cls(alpha_s, (whole_s - alpha_s) / batch)

    def compute_s(self, samples: float) -> float:
        """A forward and backward pass over `samples` on each GPU (equation 1)."""
        return self.alpha_comp_s + self.beta_comp_s * samples

    def step_s(self, batch: int, accumulation: int = 1) -> float:
        """A step over `batch` samples on each GPU, in `accumulation` passes (equation 3).

        Gradients are exchanged only in the last pass."""
        compute = self.compute_s(batch / accumulation)
        return (accumulation - 1) * compute + _overlap(compute, self.comm_s, self.delta)

    def slowdown(self, batch: int, accumulation: int) -> float:
        """≥ 1, and growing with the number of passes: each costs another alpha, and the last one,
        being shorter, hides less of the communication."""
        whole_s = self.step_s(batch)
        return self.step_s(batch, accumulation) / whole_s if whole_s else 1.0


def _range(ends: tuple[StepTime, StepTime]) -> int:
    return ends[1].parts - ends[0].parts


def _overlap(compute_s: float, comm_s: float, delta: float) -> float:
    longer, shorter = max(compute_s, comm_s), min(compute_s, comm_s)
    if not longer:
        return 0.0
    norm: float = (1 + (shorter / longer) ** delta) ** (1 / delta)  # no power of tiny seconds
    return longer * norm
