"""Decides whether a new job starts at once next to a running one, or when that has ended.

Castor paper, theorem 1 (5.1) and algorithm 2 (5.2.3). A is the running job, B the new one; xi is
the duration of a job's steps when sharing, relative to alone (equations 4 and 5). All times are in
seconds from now; remaining times are those of the job running alone.

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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from policies.castor.steps import StepModel

Ratios = tuple[float, float]  # xi of the running job and of the new one, each ≥ 1


@dataclass(frozen=True, slots=True)
class Start:
    """When to start the new job, and the resulting completion times."""

    share: bool  # start now, beside the running job; otherwise when that has ended
    running_jct_s: float
    new_jct_s: float
    waiting_jct_s: float  # of the new job if it waits
    accumulation: int = 1  # passes per batch of the new job

    @property
    def pair_jct_s(self) -> float:
        return (self.running_jct_s + self.new_jct_s) / 2

    @property
    def benefit(self) -> float:
        return sharing_benefit(self.waiting_jct_s, self.new_jct_s)


def sharing_benefit(waiting_jct_s: float, jct_s: float) -> float:
    """Equation 24: how many times sooner the new job ends than if it waits for its own GPUs."""
    return waiting_jct_s / jct_s


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
    return Start(False, running_s, end_s, end_s)


def at_once(
    running_s: float, new_s: float, ratios: Ratios, slowdown: float = 1.0, accumulation: int = 1
) -> Start:
    """kappa = 0. The new job keeps its passes, and thus the `slowdown` (≥ 1), until its end."""
    running_end_s, new_end_s = ends(running_s, new_s * slowdown, ratios, 0.0)
    return Start(True, running_end_s, new_end_s, running_s + new_s, accumulation)


def best_start(running_s: float, new_s: float, ratios: Ratios) -> Start:
    """Theorem 1. In a tie the new job waits, as in its "otherwise": sharing would gain nothing, and
    is a risk."""
    return _sooner((later(running_s, new_s), at_once(running_s, new_s, ratios)))


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
    return _sooner(starts)


def _sooner(starts: Iterable[Start]) -> Start:
    """The start with the lowest mean JCT; in a tie, the first."""
    return min(starts, key=attrgetter("pair_jct_s"))


def accumulations(batch: int) -> Iterator[int]:
    """1, 2, 4 … passes, while they divide `batch` evenly: then all gradients have equal weight, and
    their mean over the passes is that of the whole batch."""
    passes = 1
    while passes <= batch and batch % passes == 0:
        yield passes
        passes *= 2
