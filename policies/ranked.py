"""The base of policies that place one job at a time, by rules that filter and rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carmad.plugin import GpuId, Job, Proposal, View
from policies.backfilling import backfill, hold_line
from policies.rules import Fit, Rules

Turn = tuple[tuple[GpuId, ...], Sequence[Proposal]]  # the GPUs that a job takes, and all proposals


def down_the_line(view: View, turn: Callable[[Job, View], Turn]) -> tuple[Proposal, ...]:
    """The proposals of `turn` for each job in order, each seeing the placements before it.

    The first job that gets no GPUs blocks the queue, as in the CARMA paper. With backfill set to k,
    the k jobs behind it may start before it, until it has been overtaken k times.
    """
    plan: list[Proposal] = []
    steps_past_the_head: int | None = None
    queue = view.queue
    for job in queue:
        gpus, proposals = turn(job, view)
        plan += proposals
        if gpus:
            if job is not queue[-1]:
                view = view.with_placement(job, gpus)
        elif steps_past_the_head is None:
            steps_past_the_head = (view.settings.limits.backfill or 0) - job.overtaken
            if steps_past_the_head <= 0 and job is not queue[-1]:
                plan = [hold_line(each, job, view) for each in plan]
        if steps_past_the_head is not None:
            if steps_past_the_head <= 0:
                break
            steps_past_the_head -= 1
    return tuple(plan)


@dataclass(frozen=True, slots=True, eq=False)
class Ranked(Rules):
    """Places jobs in queue order, each as the rules say."""

    def plan(self, view: View) -> tuple[Proposal, ...]:
        first, view = self.place_on_reserved(view)
        if view.settings.limits.backfill is None:
            return (*first, *backfill(self, view))
        return (*first, *down_the_line(view, self._turn))

    def _turn(self, job: Job, view: View) -> Turn:
        placement = self.place(job, view)
        return placement.gpus, (placement,)


@dataclass(frozen=True, slots=True, eq=False)
class RoundRobin(Ranked):
    """Cycles through the GPUs by index, continuing after the one used last: first through the idle
    ones."""

    def choose(self, fits: Sequence[Fit], gpus: int, view: View) -> tuple[GpuId, ...]:
        last = view.last_placed
        if last is None or last not in view.node_of:
            return Ranked.choose(self, fits, gpus, view)
        idle_ones = [fit.idle() for fit in fits]
        cycle = idle_ones if any(fit.gpus for fit in idle_ones) else fits
        return self._next(cycle, gpus, view, last) or Ranked.choose(self, fits, gpus, view)

    def _next(self, fits: Sequence[Fit], gpus: int, view: View, last: GpuId) -> tuple[GpuId, ...]:
        at = view.node_of[last]
        order = [gpu.id for gpu in view.nodes[at].gpus]
        begin = order.index(last) + 1
        later = [gpu for gpu in order[begin:] if gpu in fits[at].gpus]
        earlier = [gpu for gpu in order[:begin] if gpu in fits[at].gpus]
        others = [fit.gpus for fit in (*fits[at + 1 :], *fits[:at])]
        for candidates in (later, *others, [*later, *earlier]):
            if len(candidates) >= gpus:
                return tuple(candidates[:gpus])
        return ()
