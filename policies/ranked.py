"""Filter, rank, take the best: the base of policies that place one job at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, Self

from carmad.plugin import (
    Demand,
    GpuId,
    GpuView,
    Job,
    NodeView,
    Placement,
    Proposal,
    Reason,
    Verdict,
    View,
    idle,
)
from policies.backfilling import backfill, hold_line
from policies.views import Promise, available_s, without_jobs, without_reservations

Filter = Callable[[Demand, GpuView], Reason | None]
Rank = Callable[[GpuView], float]
Order = Callable[[Job], float]
Turn = tuple[tuple[GpuId, ...], Sequence[Proposal]]  # the GPUs that a job takes, and all proposals


IDLE_FIRST = Reason("idle_first")
NOT_RESERVED = Reason("reservation")  # nobody sees it: the job also has its turn in the line


FULL = frozenset({"memory", "min_free", "exclusive", "busy", "jobs_per_gpu"})  # only an end helps


class Fit(NamedTuple):
    """A node's GPUs that fit a demand, best first, and the verdicts on all of its GPUs."""

    ranks: tuple[tuple[bool, float], ...]  # whether it comes after the idle ones, and its rank
    gpus: tuple[GpuId, ...]
    verdicts: tuple[Verdict, ...]

    def without(self, refuse: Filter, wanted: Demand, node: NodeView) -> Fit:
        """Those that this filter does not refuse, too."""
        fits = set(self.gpus)
        found = {gpu.id: refuse(wanted, gpu) for gpu in node.gpus if gpu.id in fits}
        if not any(found.values()):
            return self
        left = [
            (rank, gpu) for rank, gpu in zip(self.ranks, self.gpus, strict=True) if not found[gpu]
        ]
        verdicts = tuple(
            Verdict(each.gpu, (reason,)) if (reason := found.get(each.gpu)) else each
            for each in self.verdicts
        )
        return Fit(tuple(rank for rank, _ in left), tuple(gpu for _, gpu in left), verdicts)

    def after_idle(self, gpus: int) -> int:
        """How many of the first `gpus` come after the idle ones."""
        return sum(after for after, _ in self.ranks[:gpus])

    def idle(self) -> Fit:
        """Those that are idle."""
        end = bisect_left(self.ranks, (True,))
        return Fit(self.ranks[:end], self.gpus[:end], ())


def by_arrival(job: Job) -> float:
    return 0.0


def needs_empty(job: Job, placement: Placement, wide: int) -> bool:
    """Whether it would wait for ever if others kept joining whoever is there; so would any job of
    `wide` GPUs. 0: nobody does."""
    codes = [{reason.code for reason in each.refused} for each in placement.verdicts]
    kept_out = any("mps_user" in each for each in codes) or all(FULL & each for each in codes)
    return bool(wide) and (job.spec.gpus >= wide or job.exclusive or kept_out)


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


def _not_own_reservation(wanted: Demand, gpu: GpuView) -> Reason | None:
    if any(not slot.in_s and wanted.user in slot.of.users for slot in gpu.reserved):
        return None
    return NOT_RESERVED


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Places jobs in queue order, each on its best-ranked GPUs; ties go to the lower index.

    A job gets its GPUs on one node if any has enough, and among nodes of equal rank on the one with
    the fewest that fit, to keep room for larger jobs; otherwise on as few nodes as possible.

    `idle_first`: a node's idle GPUs come before those that are in use, whatever their rank.
    """

    name: str
    filters: tuple[Filter, ...]
    rank: Rank
    ordered: Order = by_arrival
    idle_first: bool = False

    def order(self, job: Job) -> float:
        return self.ordered(job)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        first, view = self.place_on_reserved(view)
        if view.settings.limits.backfill is None:
            return (*first, *backfill(self, view))
        return (*first, *down_the_line(view, self._turn))

    def by(self, rank: Rank) -> Ranked:
        """The same filters, but this rank alone."""
        return Ranked(self.name, self.filters, rank)

    def without(self, promise: Promise, now: float) -> Self:
        """The same, off the GPUs that are promised."""
        reason = Reason("held_for", promise.at - now, unit="s", detail=f"job {promise.job}")

        def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
            return reason if gpu.id in promise.gpus else None

        return replace(self, filters=(*self.filters, refuse))

    def place_on_reserved(self, view: View) -> tuple[tuple[Placement, ...], View]:
        """The jobs of users for whom GPUs are reserved now start there before the line is looked
        at: whoever is first in it cannot use these GPUs. Also the view after that."""
        if not view.reserved:
            return (), view
        plan: list[Placement] = []
        now = (slot for gpu in view.gpus for slot in gpu.reserved if not slot.in_s)
        owners = {user for slot in now for user in slot.of.users}
        on_own = replace(self, filters=(*self.filters, _not_own_reservation))
        for job in view.queue:
            if job.spec.user in owners:
                placement = on_own.place(job, view)
                if placement.gpus:
                    plan.append(placement)
                    view = view.with_placement(job, placement.gpus)
        return tuple(plan), view

    def promise(self, job: Job, view: View, left_s: Callable[[Job], float]) -> Promise | None:
        """The GPUs that will be empty first, of those that would do then; None if there are too
        few.

        `left_s`: how long a running job will take, in seconds. GPUs that are reserved for others
        are empty when the reservation is over, if the job does not end before it begins.
        """
        uid = view.demand(job).mps_uid

        def in_use(gpu: GpuView) -> tuple[GpuView, ...]:
            """What must be empty before: another user's MPS server may be the whole node's."""
            if uid is None or gpu.mps_user is None or gpu.mps_user[0] == uid:
                return (gpu,)
            return view.nodes[view.node_of[gpu.id]].gpus

        def empty_s(gpu: GpuView) -> float:
            used = in_use(view.gpu(gpu.id))
            empty = max((left_s(each) for one in used for each in one.residents), default=0.0)
            return available_s(view.gpu(gpu.id), job, view, empty)

        later = without_reservations(without_jobs(view, lambda _: True))
        gpus = self.by(empty_s).place(job, later).gpus
        if not gpus:
            return None
        needed = [view.gpu(gpu) for gpu in gpus]
        promised = dict.fromkeys(each.id for gpu in needed for each in in_use(gpu))
        return Promise(job.id, tuple(promised), view.now + max(map(empty_s, needed)))

    def choose(self, fits: Sequence[Fit], gpus: int, view: View) -> tuple[GpuId, ...]:
        """The GPUs to take among those that fit, node by node; none if there are too few."""
        enough = [fit for fit in fits if len(fit.gpus) >= gpus]
        if enough:
            return min(enough, key=lambda fit: (fit.after_idle(gpus), fit.ranks)).gpus[:gpus]
        fullest_first = sorted(fits, key=lambda fit: -len(fit.gpus))
        spread = tuple(chain.from_iterable(fit.gpus for fit in fullest_first))
        return spread[:gpus] if len(spread) >= gpus else ()

    def place(self, job: Job, view: View, unless: Filter | None = None) -> Placement:
        """`unless`: a further filter, which need not depend on the demand and the GPU alone."""
        wanted = view.demand(job)
        question = (self, wanted)
        fits = [node.memo.recall(question, self._fit, node, wanted, view) for node in view.nodes]
        if unless is not None:
            each = zip(fits, view.nodes, strict=True)
            fits = [fit.without(unless, wanted, node) for fit, node in each]
        verdicts = tuple(chain.from_iterable(map(itemgetter(2), fits)))
        gpus = self.choose(fits, wanted.gpus, view)
        why = (IDLE_FIRST,) if gpus and self._prefers_idle(gpus, fits, view) else ()
        return Placement(job.id, gpus, verdicts, explanation=why)

    def _turn(self, job: Job, view: View) -> Turn:
        placement = self.place(job, view)
        return placement.gpus, (placement,)

    def _prefers_idle(self, gpus: Sequence[GpuId], fits: Sequence[Fit], view: View) -> bool:
        """Whether these GPUs are idle, and others that fit are not."""
        return any(fit.ranks and fit.ranks[-1][0] for fit in fits) and all(
            idle(view.gpu(gpu), view.settings) is None for gpu in gpus
        )

    def _fit(self, node: NodeView, wanted: Demand, view: View) -> Fit:
        question = (self, wanted)
        verdicts = tuple(
            gpu.memo.recall(question, self._verdict, gpu, wanted, view) for gpu in node.gpus
        )
        best = sorted(
            (
                (self.idle_first and idle(gpu, view.settings) is not None, v.rank),
                gpu.gpu.index,
                v.gpu,
            )
            for gpu, v in zip(node.gpus, verdicts, strict=True)
            if v.rank is not None
        )
        return Fit(tuple(rank for rank, _, _ in best), tuple(gpu for _, _, gpu in best), verdicts)

    def _verdict(self, gpu: GpuView, wanted: Demand, view: View) -> Verdict:
        reasons = view.refusals(wanted, gpu)
        if not reasons:
            reasons = tuple(reason for refuse in self.filters if (reason := refuse(wanted, gpu)))
        return Verdict(gpu.id, reasons, None if reasons else self.rank(gpu))


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
