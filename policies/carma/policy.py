"""Least remaining service first, beside whoever leaves enough memory.

The rules (what each is worth: docs/policies/carma.md):

- **Order.** By submission plus remaining service, which is predicted time × GPUs. So the shortest
  go first, but nothing submitted later than a job's service after it overtakes the job.
- **Place.** Wherever memory suffices; idle GPUs first, then the one with the most free memory.
- **Hold.** The first waiting job that needs empty GPUs is promised those that are expected to be
  empty first: a job of several GPUs, or one that may not join whoever is there. Until then others
  may use them only if they are expected to end in time (EASY backfilling).
- **Preempt**, if `limits.preemption` is on: the longest jobs, for one that is much shorter.

A job whose duration or memory is unknown is placed as by MAGM, in order of arrival, and the risk
test applies to all jobs beside one of unknown duration.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from carmad.plugin import (
    Demand,
    GpuView,
    Job,
    Placement,
    Preemption,
    Proposal,
    Reason,
    Settings,
    Verdict,
    View,
    first_few,
)
from policies import views
from policies.builtin import magm
from policies.filters import fits_memory, min_free, not_risky, preconditions
from policies.preemptive import fewest, yields
from policies.ranked import Ranked
from policies.reasons import expectation
from policies.views import Promise, totals, without_jobs

SEEN = 64  # waiting jobs per plan
TRIED = 16  # of them, those for which GPUs are looked for
EXPLAINED = 4  # the first of them, which get a verdict on each GPU
FULL = frozenset({"memory", "min_free", "exclusive", "busy", "jobs_per_gpu"})  # only an end helps
SOON = frozenset({"first_kernel", "settling"})  # a minute's wait helps
MUCH_LONGER = 4.0  # times as much is left of a job that is preempted, and …
PREEMPTION_S = 120.0  # … so much more: twice what saving, loading and starting again take


class Newcomer(NamedTuple):
    job: Job
    left_s: float  # infinite: unknown
    known: bool  # its duration and its memory

    @property
    def mib(self) -> int:
        return self.job.estimate.safe_mib if self.job.estimate else 0

    def kind(self, wanted: Demand) -> Hashable:
        """Jobs of one kind fit where one fits that needs no less memory, for as long or longer."""
        firm = wanted.estimate is not None and wanted.estimate.firm
        return wanted.gpus, wanted.alone, wanted.mps_uid, wanted.retry, firm, self.known


class Rules(NamedTuple):
    """Placement rules for jobs of known duration and memory, and for all others."""

    known: Ranked
    unknown: Ranked

    def of(self, new: Newcomer) -> Ranked:
        return self.known if new.known else self.unknown

    def without(self, promise: Promise, now: float) -> Rules:
        """The same, off the GPUs that are promised."""
        return Rules(*(each.without(promise, now) for each in self))


@dataclass(frozen=True, slots=True, eq=False)
class Carma:
    """The last two fields are for ablations."""

    name: str
    rules: Rules
    ageing: float = 1.0  # the weight of service in the order; infinite: nothing else counts
    hold: int = 2  # jobs from this number of GPUs on always need empty ones; 0: nothing is held

    def order(self, job: Job) -> float:
        return self._number(job, job.submitted_at)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        if not view.queue:
            return ()
        first, view = self.rules.unknown.place_on_reserved(view)
        plan: list[Proposal] = list(first)
        refused: dict[Hashable, list[tuple[int, float]]] = defaultdict(list)  # their needs
        promise: Promise | None = None
        rest = self.rules  # for jobs that outlast the promise
        preempts = view.settings.limits.preemption and not any(job.leaves for job in view.running)
        longest_s = _longest_s(view) if preempts else 0.0
        seen, tried, usable, stranger_waits = 0, 0, totals(view).usable, False
        for job in view.queue:
            explained = seen < EXPLAINED
            if job.spec.gpus > usable and not explained:
                continue  # it must not keep jobs that can start from being tried
            new = Newcomer(job, remaining_s(job, view.now), _is_known(job))
            behind = stranger_waits and not new.known  # in order of arrival, as under MAGM
            alike = refused[new.kind(view.demand(job))]
            harder = any(mib <= new.mib and left_s <= new.left_s for mib, left_s in alike)
            may_preempt = preempts and _much_shorter(new.left_s, longest_s)
            skipped = harder or (promise and not may_preempt and _too_large(new, view))
            if not behind and (explained or not skipped):
                outlasts = promise is not None and view.now + new.left_s > promise.at
                placement = _place(new, view, rest if outlasts else self.rules)
                if placement.gpus:
                    plan.append(placement)
                    view = view.with_placement(job, placement.gpus)
                    continue
                tried += 1
                alike.append((new.mib, new.left_s))
                stranger_waits |= not new.known and job.spec.gpus <= usable
                if may_preempt and (victims := self._victims(new, view, placement.verdicts)):
                    preempts = False
                    plan += [_preemption(victim, job) for victim in victims]
                    placement = replace(placement, reasons=(_making_room(job, victims),))
                elif promise is None and self._needs_empty(new, placement.verdicts):
                    promise = self._promise(new, view)
                    if promise:
                        rest = self.rules.without(promise, view.now)
                        reason = Reason("promised", promise.at - view.now, len(promise.gpus), "s")
                        placement = replace(placement, reasons=(reason,))
                if explained:
                    plan.append(placement)
            seen += 1
            if seen >= SEEN or tried >= TRIED:
                break
        return tuple(plan)

    def _number(self, job: Job, now: float) -> float:
        """Lowest first."""
        service_s = remaining_s(job, now) * job.spec.gpus if _is_known(job) else 0.0
        return service_s if self.ageing == math.inf else job.submitted_at + self.ageing * service_s

    def _needs_empty(self, new: Newcomer, verdicts: Sequence[Verdict]) -> bool:
        """Whether it would wait for ever if others kept joining whoever is there."""
        if not self.hold:
            return False
        codes = [{reason.code for reason in each.refused} for each in verdicts]
        return (
            new.job.spec.gpus >= self.hold
            or new.job.exclusive
            or any("mps_user" in each for each in codes)
            or all(FULL & each for each in codes)
        )

    def _promise(self, new: Newcomer, view: View) -> Promise | None:
        """A running job of unknown duration is expected to run for as long again as it has."""

        def left_s(job: Job) -> float:
            known = job.expected_s is not None
            return remaining_s(job, view.now) if known else job.attained_s(view.now)

        return self.rules.of(new).promise(new.job, view, left_s)

    def _victims(self, new: Newcomer, view: View, verdicts: Sequence[Verdict]) -> list[Job]:
        """The running jobs to preempt for it: the fewest of those of which much more is left."""
        soon = sum({reason.code for reason in each.refused} <= SOON for each in verdicts)
        if not new.known or soon >= new.job.spec.gpus:
            return []
        number = self._number(new.job, view.now)
        service_s = new.left_s * new.job.spec.gpus
        longer = []
        for job in view.running:
            left_s = remaining_s(job, view.now)
            if (
                _is_known(job)
                and _much_shorter(new.left_s, left_s)
                and _much_shorter(service_s, left_s * job.spec.gpus)
                and self._number(job, view.now) > number + PREEMPTION_S
                and yields(job, new.job, view)
            ):
                longer.append((left_s * job.spec.gpus, job.id, job))

        def enough(jobs: Sequence[Job]) -> bool:
            gone = {job.id for job in jobs}
            left = without_jobs(view, lambda job: job.id in gone)
            return bool(self.rules.known.place(new.job, left).gpus)

        return fewest([job for *_, job in sorted(longer, reverse=True)], enough) or []


def carma(settings: Settings) -> Carma:
    conditions = settings.preconditions_for("carma")
    risk = not_risky(settings)

    def beside_strangers(wanted: Demand, gpu: GpuView) -> Reason | None:
        known = gpu.residents and all(job.expected_s is not None for job in gpu.residents)
        return None if known else risk(wanted, gpu)

    memory = fits_memory(conditions, settings), min_free(conditions, settings)
    known = replace(magm(settings), filters=(*memory, beside_strangers))
    unknown = replace(magm(settings), filters=preconditions("carma", settings))
    return Carma("carma", Rules(known, unknown))


def remaining_s(job: Job, now: float) -> float:
    return views.remaining_s(job, now, math.inf)


def _place(new: Newcomer, view: View, rules: Rules) -> Placement:
    placement = rules.of(new).place(new.job, view)
    why = expectation(new.job) if placement.gpus else ()
    return replace(placement, explanation=(*why, *placement.explanation))


def _too_large(new: Newcomer, view: View) -> bool:
    """Whether it fits nowhere, by memory alone."""
    estimate = new.job.estimate
    if estimate is None:
        return False
    room = (new.mib <= gpu.free_mib or not (estimate.firm or gpu.residents) for gpu in view.gpus)
    return sum(room) < new.job.spec.gpus


def _much_shorter(short_s: float, long_s: float) -> bool:
    return MUCH_LONGER * short_s + PREEMPTION_S < long_s


def _longest_s(view: View) -> float:
    """What is left of the running job of which most is, of those that may be preempted at all."""
    left = (
        remaining_s(job, view.now) for job in view.running if _is_known(job) and job.spec.requeue
    )
    return max(left, default=0.0)


def _is_known(job: Job) -> bool:
    return job.expected_s is not None and job.estimate is not None


def _preemption(victim: Job, first: Job) -> Preemption:
    return Preemption(victim.id, Reason("preempted", detail=f"job {first.id} goes first"))


def _making_room(job: Job, victims: Iterable[Job]) -> Reason:
    names = first_few(", ".join(f"job {victim.id}" for victim in victims))
    return Reason("making_room", job.spec.gpus, 0, "GPUs", names)
