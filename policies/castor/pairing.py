"""When the new of two jobs starts: at once beside a running one, or when that has ended; and how
its batch is split.

Castor paper, theorem 1 (5.1), algorithm 2 (5.2.3) and the time model of a step (3.1). A is the
running job, B the new one; xi is the duration of a job's steps when sharing, relative to alone
(equations 4 and 5). All times are in seconds from now; remaining times are those of the job running
alone.

**The theorem holds**, for every xi ≥ 1, but the paper's proof lacks half a case. Its case 1
(B ends first) covers kappa = 0 only; with kappa, A's end does not depend on it at all, and

    T_A = t_A i_A + xi_B t_B i_B (1 − 1/xi_A),    T_B = kappa + xi_B t_B i_B.

So the mean over both rises with kappa (slope 1/2) as long as B would end first, which is up to
kappa = t_A i_A − xi_B t_B i_B / xi_A. From there on it is the paper's case 2, linear again with
half the slope 2 − 2 xi_A + xi_A / xi_B, which is never above 2 − xi_A ≤ 1: of the two linear pieces
the second is no steeper, so the mean is concave in kappa, and a concave function has its minimum at
an end. The paper's condition, the sign of case 2's slope, is decisive only if all of it is case 2.
If B would end first, it is not, and both ends must be compared, as is always done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from carmad.plugin import StepTime

FIXED_SHARE = 0.25  # see `StepModel.assume`

Ratios = tuple[float, float]  # xi of the running job and of the new one, each ≥ 1


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
        first, last = max(ends, key=lambda pair: pair[1].parts - pair[0].parts)
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


def _overlap(compute_s: float, comm_s: float, delta: float) -> float:
    longer, shorter = max(compute_s, comm_s), min(compute_s, comm_s)
    if not longer:
        return 0.0
    norm: float = (1 + (shorter / longer) ** delta) ** (1 / delta)  # no power of tiny seconds
    return longer * norm


@dataclass(frozen=True, slots=True)
class Start:
    """When to start the new job, and the resulting completion times."""

    share: bool  # start now, beside the running job; otherwise when that has ended
    running_jct_s: float
    new_jct_s: float
    accumulation: int = 1  # passes per batch of the new job

    @property
    def pair_jct_s(self) -> float:
        return (self.running_jct_s + self.new_jct_s) / 2


def ends(running_s: float, new_s: float, ratios: Ratios, kappa_s: float) -> tuple[float, float]:
    """When the running and the new job end if the new one joins at `kappa_s` (0 to `running_s`)."""
    xi_running, xi_new = ratios
    running_left_s, new_left_s = (running_s - kappa_s) * xi_running, new_s * xi_new
    together_s = min(running_left_s, new_left_s)
    running_end_s = kappa_s + together_s + (running_left_s - together_s) / xi_running
    new_end_s = kappa_s + together_s + (new_left_s - together_s) / xi_new
    return running_end_s, new_end_s


def later(running_s: float, new_s: float) -> Start:
    """kappa = t_A i_A: the new job waits, and then runs its whole batch in one pass."""
    end_s = running_s + new_s
    return Start(False, running_s, end_s)


def at_once(
    running_s: float, new_s: float, ratios: Ratios, slowdown: float = 1.0, accumulation: int = 1
) -> Start:
    """kappa = 0. The new job keeps its passes, and thus the `slowdown` (≥ 1), until its end."""
    running_end_s, new_end_s = ends(running_s, new_s * slowdown, ratios, 0.0)
    return Start(True, running_end_s, new_end_s, accumulation)


def best_split(
    running_s: float,
    new_s: float,
    batch: int,
    steps: StepModel,
    ratios: Callable[[int], Ratios],
    fits: Callable[[int], bool],
) -> Start:
    """Algorithm 2. `ratios`, and `fits` (into the free memory), are functions of the number of
    passes.

    The listing's errors are corrected: its `return` is inside the loop, so that only the whole
    batch would ever be tried; a sub-batch of 1 is never tried; and half a sample is rounded up. It
    also compares a start now with the same sub-batch later; but a job that waits needs no
    sub-batches, so it would share where waiting is better. In a tie the larger sub-batch wins (in
    the listing, with its "≤", the smaller), so that no batch is split for nothing. If `ratios` is
    constant, that is the largest one that fits.
    """
    starts = [later(running_s, new_s)]
    for passes in accumulations(batch):
        if fits(passes):
            slowdown = steps.slowdown(batch, passes)
            starts.append(at_once(running_s, new_s, ratios(passes), slowdown, passes))
    return min(starts, key=attrgetter("pair_jct_s"))  # in a tie, the first


def accumulations(batch: int) -> Iterator[int]:
    """1, 2, 4 … passes, while they divide `batch` evenly: then all gradients have equal weight, and
    their mean over the passes is that of the whole batch."""
    passes = 1
    while passes <= batch and batch % passes == 0:
        yield passes
        passes *= 2
