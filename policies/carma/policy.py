"""Shortest first: at once, beside others while that costs little, and in place of the longest.

The rules (what each is worth: docs/policies/carma.md):

- **Order.** By remaining service: the time that is left × GPUs. A job of unknown duration has as
  much left as it has run, in classes. Nothing submitted later than twice a job's service after it
  goes before it.
- **Place.** Wherever its memory fits; idle GPUs first, then the one with the most free memory. A
  GPU that is busy enough takes only jobs that hardly add to that.
- **Suspend**, if `limits.preemption` says so: the longest of the jobs that have much more left.
- **Join**, if nobody can be suspended: a busy GPU also takes a job that is short beside all there.
- **Overdue.** Of jobs that are equally nice, the one that has waited longest goes first, once that
  is twice what is left of it, or, where only a guess says what is left, `limits.overtaken_s`.
- **Hold.** An overdue job, or else the first that needs empty GPUs, is promised those that are
  expected to be empty first. Until then others may use them if they are known to end in time
  (EASY). Where only a guess says when, they are kept after `limits.overtaken_s`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import le

from carmad.plugin import (
    Demand,
    GpuView,
    Job,
    Placement,
    Preemption,
    Proposal,
    Reason,
    Settings,
    View,
    duration,
    first_few,
    host_room_mib,
    left,
    memory_of,
    suspension_cost_s,
)
from policies.backfilling import is_overdue, promise_in_words
from policies.builtin import most_free_memory
from policies.carma.sizes import Sizes, left_s
from policies.filters import fits_memory, min_free
from policies.ranked import Ranked
from policies.reasons import expectation
from policies.rules import Filter, needs_empty
from policies.views import (
    Promise,
    fewest,
    too_large,
    totals,
    without_jobs,
    without_settling,
    yields,
)

SEEN = 64  # waiting jobs per plan
TRIED = 16  # of them, those for which GPUs are looked for in vain
SHORTER_FIRST = "shorter jobs may go first"
EXPLAINED = 4  # the first of them, which get a verdict on each GPU


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """What is not the default is for ablations."""

    fits: Ranked  # by memory, and which GPU is best
    busy: float = 0.85  # SM activity from which a GPU is busy enough, …
    most: float = 1.15  # … unless a job brings it to no more than this
    short: float = 0.5  # of what the shortest job there has left: a job that may join all the same
    ageing: float = 2.0  # times its service after a job, later ones go before it no more
    longer: float = 3.0  # times as much is left of a job that is suspended, …
    repaid: float = 10.0  # … and so many times the cost of suspending it
    hold: int = 2  # jobs from this number of GPUs on always need empty ones; 0: nothing is held


def place(job: Job, now: float, rules: Rules) -> float:
    """In line: lowest first. A guess says nothing of jobs of several GPUs."""
    gpus = job.spec.gpus if left(job, now).is_known else 1
    return job.submitted_at + rules.ageing * left_s(job, now) * gpus


@dataclass(frozen=True, slots=True, eq=False)
class Carma:
    name: str
    rules: Rules

    def order(self, job: Job) -> float:
        return place(job, job.suspension.at if job.suspension else job.submitted_at, self.rules)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        if not view.queue:
            return ()
        first, view = self.rules.fits.place_on_reserved(view)
        return (*first, *Plan(self.rules, view).make())


def carma(settings: Settings) -> Carma:
    conditions = settings.preconditions_for("carma")
    memory = fits_memory(conditions, settings), min_free(conditions, settings)
    fits = Ranked("carma", memory, most_free_memory, idle_first=True)
    return Carma("carma", Rules(fits))


class Plan:
    def __init__(self, rules: Rules, view: View) -> None:
        self._rules, self._view, self._sizes = rules, view, Sizes(view)
        leaving = [job for job in view.running if job.leaves]
        # As it will look in a minute, with those placed who wait for that.
        self._soon = without_settling(without_jobs(view, leaving.__contains__))
        self._suspends = view.settings.limits.preemption == "suspend"
        suspended = (job for job in (*view.queue, *view.running) if job.suspension)
        self._room_mib = host_room_mib(suspended, view.settings)  # of the host's memory
        self._victims: list[Job] = []
        self._promise: Promise | None = None
        self._overdue: Sequence[Job] = ()  # at most one, which goes first
        self._proposals: list[Proposal] = []

    def make(self) -> Sequence[Proposal]:
        view, usable = self._view, totals(self._view).usable
        refused: dict[Hashable, list[tuple[float, ...]]] = defaultdict(list)  # their sizes
        seen, tried = 0, 0
        self._overdue = self._find_overdue(usable)
        others = (job for job in view.queue if job not in self._overdue)
        for job in chain(self._overdue, others):
            if seen >= SEEN or tried >= TRIED:
                break
            if job.spec.gpus > usable and seen >= EXPLAINED:
                continue  # it must not keep jobs that can start from being tried
            alike, its = refused[_kind(view.demand(job))], self._sizes.of(job)
            explained, seen = seen < EXPLAINED, seen + 1
            harder = any(all(map(le, other, its)) for other in alike)
            if not explained and (harder or (self._promise and too_large(job, its[0], self._view))):
                continue
            placement = self._turn(job)
            if placement.gpus or explained:
                self._proposals.append(placement)
            if not placement.gpus:
                alike.append(its)
                tried += 1
        return self._proposals

    def _find_overdue(self, usable: int) -> Sequence[Job]:
        """Of the least nice jobs, the one that has waited longest, if that is too long; none while
        one is tried again or is urgent."""
        queue = self._view.queue
        if any(job.retry or job.spec.urgent for job in queue[:SEEN]):
            return ()
        nice = min((job.spec.nice for job in queue), default=0)
        able = (job for job in queue if job.spec.nice == nice and job.spec.gpus <= usable)
        return sorted(filter(self._is_overdue, able), key=self._view.waited_s, reverse=True)[:1]

    def _is_overdue(self, job: Job) -> bool:
        """Whether it may be overtaken no longer, not even by what is shorter."""
        view = self._view
        patience = self._rules.ageing if left(job, view.now).is_known else 0.0
        least_s = patience * self._sizes.left_s(job)
        return is_overdue(job, view) and view.waited_s(job) >= least_s

    def _turn(self, job: Job) -> Placement:
        crowds = not self._suspends
        if (placement := self._place(job, self._view, crowds)).gpus:
            return self._start(job, placement)
        if (later := self._place(job, self._soon, crowds)).gpus:
            self._soon = self._soon.with_placement(job, later.gpus)
            if job in self._overdue:  # whoever joined would make the GPUs settle anew
                self._promise = Promise(job.id, later.gpus, self._view.now)
        elif victims := self._find_victims(job):
            return replace(placement, reasons=(self._suspend(victims, job),))
        elif (joined := self._place(job, self._view, crowds=True)).gpus:
            return self._start(job, joined)
        elif self._promise is None and (
            job in self._overdue or needs_empty(job, placement, self._rules.hold)
        ):
            return self._hold(job, placement)
        return placement

    def _hold(self, job: Job, placement: Placement) -> Placement:
        view = self._view
        promise = self._rules.fits.promise(job, view, lambda each: left(each, view.now))
        if promise is None:
            return placement
        if promise.unknown is None or is_overdue(job, view):
            self._promise = promise
        passing = "" if job in self._overdue else SHORTER_FIRST
        return replace(placement, reasons=promise_in_words(promise, job, view, passing))

    def _start(self, job: Job, placement: Placement) -> Placement:
        self._view = self._view.with_placement(job, placement.gpus)
        self._soon = self._soon.with_placement(job, placement.gpus)
        return replace(placement, explanation=(*expectation(job), *placement.explanation))

    def _place(self, job: Job, view: View, crowds: bool) -> Placement:
        return self._rules.fits.place(job, view, self._refuse(job, crowds))

    def _refuse(self, job: Job, crowds: bool) -> Filter:
        """`crowds`: a short job may join others on a busy GPU."""
        rules, sizes, promise = self._rules, self._sizes, self._promise
        _, left_s, activity = sizes.of(job)
        now = self._view.now
        outlasts = promise is not None and now + left(job, now).known_s > promise.at

        def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
            if promise and outlasts and gpu.id in promise.gpus:
                in_s = promise.at - self._view.now
                return Reason("held_for", in_s, unit="s", detail=f"job {promise.job}")
            if not gpu.residents:
                return None
            load = sizes.load(gpu)
            if load < rules.busy or load + activity <= rules.most:
                return None
            shortest = min(gpu.residents, key=sizes.left_s)
            if crowds and left_s <= rules.short * sizes.left_s(shortest):
                return None
            return Reason("saturated", rules.busy, load, detail=f"job {shortest.id}")

        return refuse

    def _find_victims(self, job: Job) -> list[Job]:
        """The fewest of those of which most is left."""
        if not self._suspends:
            return []
        longer = [each for each in self._view.running if self._yields(each, job)]
        longer.sort(key=self._service_s, reverse=True)

        def enough(gone: Sequence[Job]) -> bool:
            return bool(
                self._place(job, without_jobs(self._soon, gone.__contains__), crowds=False).gpus
            )

        return (fewest(longer, enough) if longer else None) or []

    def _yields(self, one: Job, to: Job) -> bool:
        """Whether one can be suspended, would be behind the other then, and that is repaid."""
        left_s, settings = self._rules.longer * self._sizes.left_s(to), self._view.settings
        if (
            not yields(one, to, self._view)
            or one.spec.interactive
            or self._sizes.left_s(one) <= left_s
            or self._service_s(one) <= left_s * to.spec.gpus
            or place(one, self._view.now, self._rules) <= place(to, self._view.now, self._rules)
            or one in self._victims
        ):
            return False
        cost_s = suspension_cost_s(mib := self._held_mib(one), settings.suspend)
        repaid = self._sizes.left_s(one) > left_s + self._rules.repaid * cost_s
        return repaid and mib <= self._room_mib

    def _held_mib(self, job: Job) -> int:
        return sum(memory_of(job, (self._view.gpu(gpu).sample for gpu in job.gpus)).values())

    def _suspend(self, victims: list[Job], job: Job) -> Reason:
        left = duration(self._sizes.left_s(job))
        for each in victims:
            its = duration(self._sizes.left_s(each))
            detail = f"job {job.id} ({left} left against its {its})"
            self._proposals.append(Preemption(each.id, Reason("preempted", detail=detail)))
        self._victims += victims
        self._room_mib -= sum(map(self._held_mib, victims))
        self._soon = without_jobs(self._soon, victims.__contains__)
        gpus = self._place(job, self._soon, crowds=False).gpus
        self._soon = self._soon.with_placement(job, gpus)
        names = first_few(", ".join(f"job {each.id}" for each in victims))
        return Reason("making_room", job.spec.gpus, 0, "GPUs", names)

    def _service_s(self, job: Job) -> float:
        return self._sizes.left_s(job) * job.spec.gpus


def _kind(wanted: Demand) -> Hashable:
    """Jobs of one kind fit where one fits that is no smaller in anything."""
    firm = wanted.estimate and wanted.estimate.firm
    # Where its memory is not known, what others of its group take tells.
    like = wanted.known.group if wanted.known and not wanted.known.mib else None
    return wanted.gpus, wanted.alone, wanted.mps_uid, wanted.retry, firm, wanted.suspension, like
