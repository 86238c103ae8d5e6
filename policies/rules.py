"""Filter, rank, take the best: where a job is placed, and when it can be."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, Self

from carmad.plugin import (
    PASSING,
    Demand,
    GpuId,
    GpuView,
    Job,
    JobId,
    Left,
    NodeView,
    Placement,
    Reason,
    Verdict,
    View,
    idle,
)
from policies.views import Promise, available_s, empty_view, fewest, once_settled, without_settling

Filter = Callable[[Demand, GpuView], Reason | None]
Rank = Callable[[GpuView], float]
Order = Callable[[Job], float]
Lasts = Callable[[Job], Left]
Spares = Callable[[Demand, GpuView], bool]


IDLE_FIRST = Reason("idle_first")
NOT_RESERVED = Reason("reservation")  # nobody sees it: the job also has its turn in the line


GUESS = 1e12  # in seconds: what is known comes before a guess
FULL = frozenset({"memory", "min_free", "exclusive", "busy", "jobs_per_gpu"})  # only an end helps
LOOSE = frozenset({"memory", "min_free"})  # unless it settles: then less may be promised


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

    def by(self, rank: Rank, view: View) -> Fit:
        """In the order of this rank."""
        gpus = map(view.gpu, self.gpus)
        ranked = sorted((rank(gpu), gpu.gpu.index, gpu.id) for gpu in gpus)
        return Fit(tuple((False, r) for r, _, _ in ranked), tuple(id for _, _, id in ranked), ())

    def idle(self) -> Fit:
        """Those that are idle."""
        end = bisect_left(self.ranks, (True,))
        return Fit(self.ranks[:end], self.gpus[:end], ())


# -- orders: lowest first; jobs without an expected duration go last


def by_arrival(job: Job) -> float:
    return 0.0


def shortest(job: Job) -> float:
    return math.inf if job.expected_s is None else job.expected_s


def least_service(job: Job) -> float:
    """In GPU-seconds."""
    return shortest(job) * job.spec.gpus


def needs_empty(job: Job, placement: Placement, wide: int) -> bool:
    """Whether it would wait for ever if others kept joining whoever is there; so would any job of
    `wide` GPUs. 0: nobody does."""
    codes = [{reason.code for reason in each.refused} for each in placement.verdicts]
    full = all(each & (FULL - LOOSE if each & PASSING else FULL) for each in codes)
    kept_out = any("mps_user" in each for each in codes) or full
    return bool(wide) and (job.spec.gpus >= wide or job.exclusive or kept_out)


def _not_own_reservation(wanted: Demand, gpu: GpuView) -> Reason | None:
    if any(
        not slot.in_s and wanted.owner and slot.of.admits(wanted.owner) for slot in gpu.reserved
    ):
        return None
    return NOT_RESERVED


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """Where a job is placed: on its best-ranked GPUs; ties go to the lower index.

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

    def without(self, promise: Promise, now: float, spares: Spares | None = None) -> Self:
        """The same, off the GPUs that are promised. `spares`: unless they leave room there."""
        reason = Reason("held_for", promise.at - now, unit="s", detail=f"job {promise.job}")

        def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
            if gpu.id not in promise.gpus or (spares and spares(wanted, gpu)):
                return None
            return reason

        return replace(self, filters=(*self.filters, refuse))

    def settled(self, job: Job, view: View) -> Promise | None:
        """The GPUs that it gets once they have settled: those that do first, for whoever joins one
        makes it settle anew. None if they are too few."""
        window_s = view.settings.monitor.window_s

        def settles_s(gpu: GpuView) -> float:
            why = view.gpu(gpu.id).settling
            if why is None:
                return 0.0
            return max(0.0, why.need - why.have) if why.code == "settling" else window_s

        gpus = self._first(job, without_settling(view), settles_s)
        settled_s = max((settles_s(view.gpu(gpu)) for gpu in gpus), default=0.0)
        return Promise(job.id, gpus, view.now + settled_s) if gpus else None

    def place_on_reserved(self, view: View) -> tuple[tuple[Placement, ...], View]:
        """The jobs of users for whom GPUs are reserved now start there before the line is looked
        at: whoever is first in it cannot use these GPUs. Also the view after that."""
        if not view.reserved:
            return (), view
        plan: list[Placement] = []
        now = {slot.of for gpu in view.gpus for slot in gpu.reserved if not slot.in_s}
        on_own = replace(self, filters=(*self.filters, _not_own_reservation))
        for job in view.queue:
            if any(each.admits(job.spec.owner) for each in now):
                placement = on_own.place(job, view)
                if placement.gpus:
                    plan.append(placement)
                    view = view.with_placement(job, placement.gpus)
        return tuple(plan), view

    def promise(
        self,
        job: Job,
        view: View,
        lasts: Lasts,
        can_share: bool = False,
    ) -> Promise | None:
        """The GPUs that will be empty first, of those that would do then; None if there are too
        few.

        `lasts`: how long a running job will take. Where only a guess says that, those come first
        whose jobs have run for longest: that stays so while nobody joins them, but the guess does
        not. `can_share`: only those must end that leave the job no room. GPUs that are reserved for
        others are empty when the reservation is over, if the job does not end before it begins.
        """
        later, wanted = empty_view(view), view.demand(job)
        if not self.place(job, later).gpus:
            return None
        uid = wanted.mps_uid

        def in_use(gpu: GpuView) -> tuple[GpuView, ...]:
            """What must be empty before: another user's MPS server may be the whole node's."""
            if uid is None or gpu.mps_user is None or gpu.mps_user[0] == uid:
                return (gpu,)
            return view.nodes[view.node_of[gpu.id]].gpus

        def ends_first(each: Job) -> tuple[bool, float]:
            its = lasts(each)
            started_at = view.now if each.started_at is None else each.started_at
            return not its.is_known, its.known_s if its.is_known else started_at

        def in_the_way(gpu: GpuView) -> list[Job]:
            there = [each for one in in_use(gpu) for each in one.residents]
            if not can_share or uid is not None:
                return there
            there.sort(key=ends_first)
            fewer = fewest(there, lambda gone: self._has_room(wanted, gpu, gone, view))
            return there if fewer is None else fewer

        found: dict[GpuId, tuple[float, list[Job]]] = {}
        for gpu in view.gpus:
            ends = in_the_way(gpu)
            empty_s = max((lasts(each).end_s for each in ends), default=0.0)
            found[gpu.id] = available_s(gpu, job, view, empty_s), ends

        def first(gpu: GpuView) -> float:
            its_s, ends = found[gpu.id]
            if all(lasts(each).is_known for each in ends):
                return its_s
            starts = (view.now if each.started_at is None else each.started_at for each in ends)
            return GUESS + max(starts)

        gpus = self._first(job, later, first)
        promised = dict.fromkeys(each.id for gpu in gpus for each in in_use(view.gpu(gpu)))
        ends = [each for gpu in gpus for each in found[gpu][1]]
        unknown = next((each.id for each in ends if not lasts(each).is_known), None)
        at = view.now + max(found[gpu][0] for gpu in gpus)
        leaving = frozenset(each.id for each in ends)
        return Promise(job.id, tuple(promised), at, leaving, unknown)

    def spares(self, job: Job, view: View, leaving: Set[JobId]) -> Spares:
        """Whether another leaves this job room on a GPU, once those that must end have."""
        wanted = view.demand(job)

        def spare(other: Demand, gpu: GpuView) -> bool:
            if other.alone or other.estimate is None or other.mps_uid != wanted.mps_uid:
                return False
            gone = [each for each in gpu.residents if each.id in leaving]
            joined = replace(
                gpu,
                residents=(*gpu.residents, job),
                free_mib=gpu.free_mib - other.estimate.safe_mib,
            )
            return self._has_room(wanted, joined, gone, view)

        return spare

    def _has_room(self, wanted: Demand, gpu: GpuView, gone: Sequence[Job], view: View) -> bool:
        """Whether it would fit beside the others there, once the GPU has settled."""
        later = once_settled(gpu.without({job.id for job in gone}))
        return not self._verdict(later, wanted, view).refused

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
        fits = self._fits(wanted, view)
        if unless is not None:
            each = zip(fits, view.nodes, strict=True)
            fits = [fit.without(unless, wanted, node) for fit, node in each]
        verdicts = tuple(chain.from_iterable(map(itemgetter(2), fits)))
        gpus = self.choose(fits, wanted.gpus, view)
        why = (IDLE_FIRST,) if gpus and self._prefers_idle(gpus, fits, view) else ()
        return Placement(job.id, gpus, verdicts, explanation=why)

    def _first(self, job: Job, view: View, rank: Rank) -> tuple[GpuId, ...]:
        """Of the GPUs that it fits on, those that come first by this rank."""
        wanted = view.demand(job)
        fits = [fit.by(rank, view) for fit in self._fits(wanted, view)]
        return Rules.choose(self, fits, wanted.gpus, view)

    def _fits(self, wanted: Demand, view: View) -> list[Fit]:
        question = (self, wanted)
        return [node.memo.recall(question, self._fit, node, wanted, view) for node in view.nodes]

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
        if all(reason.code in PASSING for reason in reasons):
            own = [reason for refuse in self.filters if (reason := refuse(wanted, gpu))]
            if reasons:  # what lasts longer comes first; the load is not known yet
                own = [reason for reason in own if reason.code != "risk"]
            must_be_empty = any(reason.code == "busy" for reason in own)  # and does not settle then
            reasons = (*own, *(() if must_be_empty else reasons))
        return Verdict(gpu.id, reasons, None if reasons else self.rank(gpu))
