"""One plan: each waiting job in its turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from carmad.plugin import (
    Demand,
    GpuView,
    Job,
    JobState,
    Placement,
    Preemption,
    Proposal,
    Reason,
    Verdict,
    View,
    duration,
    first_few,
    memory_of,
    suspension_cost_s,
    suspension_refusal,
)
from policies.carma.sizes import Sizes, left_s
from policies.preemptive import fewest
from policies.ranked import Filter, Ranked
from policies.reasons import expectation
from policies.views import Promise, totals, without_jobs, without_settling

SEEN = 64  # waiting jobs per plan
TRIED = 16  # of them, those for which GPUs are looked for in vain
EXPLAINED = 4  # the first of them, which get a verdict on each GPU
FULL = frozenset({"memory", "min_free", "exclusive", "busy", "jobs_per_gpu"})  # only an end helps
LEAVING = (JobState.STOPPING, JobState.SUSPENDING)


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """What is not the default is for ablations."""

    fits: Ranked  # by memory, and which GPU is best
    busy: float = 0.85  # SM activity from which a GPU is busy enough, …
    most: float = 1.15  # … unless a job brings it to no more than this
    short: float = 0.5  # of what the shortest job there has left: a job that may join all the same
    ageing: float = 10.0  # times its service after a job, later ones go before it no more
    longer: float = 3.0  # times as much is left of a job that is suspended, …
    repaid: float = 10.0  # … and so many times the cost of suspending it
    hold: int = 2  # jobs from this number of GPUs on always need empty ones; 0: nothing is held


def place(job: Job, now: float, rules: Rules) -> float:
    """In line: lowest first."""
    return job.submitted_at + rules.ageing * left_s(job, now) * job.spec.gpus


class Plan:
    def __init__(self, rules: Rules, view: View) -> None:
        self._rules = rules
        self._view = view
        self._sizes = Sizes(view)
        leaving = {job.id for job in view.running if job.state in LEAVING}
        # As it will look in a minute, with those placed who wait for that.
        self._soon = without_settling(without_jobs(view, lambda job: job.id in leaving))
        self._suspends = view.settings.limits.preemption == "suspend"
        self._suspended = [job for job in (*view.queue, *view.running) if job.suspension]
        self._promise: Promise | None = None
        self._proposals: list[Proposal] = []

    def make(self) -> Sequence[Proposal]:
        view, usable = self._view, totals(self._view).usable
        refused: dict[Hashable, list[tuple[float, ...]]] = defaultdict(list)  # their sizes
        seen, tried = 0, 0
        for job in view.queue:
            if job.spec.gpus > usable and seen >= EXPLAINED:
                continue  # it must not keep jobs that can start from being tried
            alike, its = refused[_kind(view.demand(job))], self._sizes.of(job)
            explained, seen = seen < EXPLAINED, seen + 1
            if not explained and any(_no_more(other, its) for other in alike):
                continue
            placement = self._turn(job)
            if placement.gpus or explained:
                self._proposals.append(placement)
            if not placement.gpus:
                alike.append(its)
                tried += 1
            if seen >= SEEN or tried >= TRIED:
                break
        return self._proposals

    def _turn(self, job: Job) -> Placement:
        crowds = not self._suspends
        placement = self._place(job, self._view, crowds)
        if placement.gpus:
            return self._start(job, placement)
        if (later := self._place(job, self._soon, crowds)).gpus:
            self._soon = self._soon.with_placement(job, later.gpus)
        elif victims := self._victims(job):
            return replace(placement, reasons=(self._suspend(victims, job),))
        elif (joined := self._place(job, self._view, crowds=True)).gpus:
            return self._start(job, joined)
        elif self._promise is None and self._needs_empty(job, placement.verdicts):
            self._promise = self._rules.fits.promise(job, self._view, self._sizes.left_s)
            if self._promise:
                in_s, gpus = self._promise.at - self._view.now, len(self._promise.gpus)
                return replace(placement, reasons=(Reason("promised", in_s, gpus, "s"),))
        return placement

    def _start(self, job: Job, placement: Placement) -> Placement:
        self._view = self._view.with_placement(job, placement.gpus)
        self._soon = self._soon.with_placement(job, placement.gpus)
        return replace(placement, explanation=(*expectation(job), *placement.explanation))

    def _place(self, job: Job, view: View, crowds: bool) -> Placement:
        return self._rules.fits.place(job, view, self._refuse(job, crowds))

    def _refuse(self, job: Job, crowds: bool) -> Filter:
        """`crowds`: a short job may join others on a busy GPU."""
        rules, sizes, promise = self._rules, self._sizes, self._promise
        need_mib, left_s, activity = sizes.of(job)
        outlasts = promise is not None and self._view.now + left_s > promise.at

        def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
            if promise and outlasts and gpu.id in promise.gpus:
                in_s = promise.at - self._view.now
                return Reason("held_for", in_s, unit="s", detail=f"job {promise.job}")
            if not gpu.residents:
                return None
            if wanted.estimate is None and need_mib > gpu.free_mib:
                return Reason("memory", need_mib, gpu.free_mib, "MiB")
            load = sizes.load(gpu)
            if load < rules.busy or load + activity <= rules.most:
                return None
            shortest = min(gpu.residents, key=sizes.left_s)
            if crowds and left_s <= rules.short * sizes.left_s(shortest):
                return None
            return Reason("crowded", rules.busy, load, detail=f"job {shortest.id}")

        return refuse

    def _needs_empty(self, job: Job, verdicts: Sequence[Verdict]) -> bool:
        """Whether it would wait for ever if others kept joining whoever is there."""
        hold = self._rules.hold
        codes = [{reason.code for reason in each.refused} for each in verdicts]
        return bool(hold) and (
            job.spec.gpus >= hold
            or job.exclusive
            or any("mps_user" in each for each in codes)
            or all(FULL & each for each in codes)
        )

    # -- whose GPUs it takes

    def _victims(self, job: Job) -> list[Job]:
        """The fewest of those of which most is left."""
        if not self._suspends:
            return []
        longer = [each for each in self._view.running if self._yields(each, job)]
        longer.sort(key=lambda each: (self._service_s(each), each.id), reverse=True)

        def enough(gone: Sequence[Job]) -> bool:
            return bool(self._place(job, _without(self._soon, gone), crowds=False).gpus)

        return fewest(longer, enough) or [] if longer else []

    def _yields(self, one: Job, to: Job) -> bool:
        """Whether one can be suspended, would be behind the other then, and that is repaid."""
        left_s, settings = self._rules.longer * self._sizes.left_s(to), self._view.settings
        if (
            one.state is not JobState.RUNNING
            or one.spec.interactive
            or one.spec.nice < to.spec.nice
            or (one.retry is not None and to.retry is None)
            or self._sizes.left_s(one) <= left_s
            or self._service_s(one) <= left_s * to.spec.gpus
            or place(one, self._view.now, self._rules) <= place(to, self._view.now, self._rules)
            or any(one.id == each.id for each in self._suspended)
        ):
            return False
        held = memory_of(one, (self._view.gpu(gpu).sample for gpu in one.gpus))
        cost_s = suspension_cost_s(sum(held.values()), settings.suspend)
        if self._sizes.left_s(one) <= left_s + self._rules.repaid * cost_s:
            return False
        return not suspension_refusal(one, held, self._suspended, settings, self._view.now)

    def _suspend(self, victims: list[Job], job: Job) -> Reason:
        left = duration(self._sizes.left_s(job))
        for each in victims:
            its = duration(self._sizes.left_s(each))
            detail = f"job {job.id} ({left} left against its {its})"
            self._proposals.append(Preemption(each.id, Reason("yields", detail=detail)))
        self._suspended += victims
        self._soon = _without(self._soon, victims)
        gpus = self._place(job, self._soon, crowds=False).gpus
        self._soon = self._soon.with_placement(job, gpus)
        names = first_few(", ".join(f"job {each.id}" for each in victims))
        return Reason("making_room", job.spec.gpus, 0, "GPUs", names)

    def _service_s(self, job: Job) -> float:
        return self._sizes.left_s(job) * job.spec.gpus


def _without(view: View, jobs: Iterable[Job]) -> View:
    gone = {job.id for job in jobs}
    return without_jobs(view, lambda job: job.id in gone)


def _kind(wanted: Demand) -> Hashable:
    """Jobs of one kind fit where one fits that is no smaller in anything."""
    firm = wanted.estimate is not None and wanted.estimate.firm
    known = wanted.estimate is not None
    return wanted.gpus, wanted.alone, wanted.mps_uid, wanted.retry, firm, known, wanted.suspension


def _no_more(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))
