"""Least remaining service first, and beside other jobs only where that ends jobs sooner.

The rules (what each is worth: docs/policies/carma.md):

- **Order.** By submission plus remaining service, which is predicted time × GPUs. So the shortest
  go first, but nothing submitted later than a job's service after it overtakes the job.
- **Company.** A job joins others if all of them end sooner, in sum, than if it waits until the
  first of them has ended, and joins where it delays them least.
- **Hold.** The first waiting job that needs empty GPUs is promised those that are expected to be
  empty first: a job of several GPUs, or one that may not join whoever is there. Until then others
  may use them only if they are expected to end in time (EASY backfilling).

Memory must be certain: estimated, or measured in an earlier run. A job whose duration or memory is
unknown is placed as by MAGM, and so is any beside one of unknown duration if the GPU is risky.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import NamedTuple

from carmad.plugin import (
    Demand,
    GpuId,
    GpuView,
    Job,
    JobId,
    NodeView,
    Placement,
    Preconditions,
    Proposal,
    Reason,
    Settings,
    Verdict,
    View,
    first_few,
    idle,
)
from policies.baselines import NEWCOMER_UTILIZATION
from policies.builtin import magm, most_free_memory
from policies.carma.company import (
    MPS,
    TIME_SLICED,
    Company,
    Joining,
    Member,
    company,
    joining,
    outlasting,
)
from policies.filters import fits_memory, min_free, not_risky
from policies.memory import lacking, need_mib
from policies.ranked import Filter, Fit, Ranked
from policies.reasons import expected
from policies.totals import totals

OVERRUN = 0.25  # of its run time is assumed to be left of a job that has outlived its prediction
LEAST_S = 1.0  # that is left of any job
TRIED = 64  # waiting jobs per plan
EXPLAINED = 4  # the first of them, which get a verdict on each GPU
FULL = frozenset({"memory", "min_free", "exclusive", "busy", "jobs_per_gpu"})  # only an end helps


class Newcomer(NamedTuple):
    job: Job
    wanted: Demand
    left_s: float  # infinite: unknown
    need_mib: int  # 0: unknown
    activity: float

    @property
    def known(self) -> bool:
        return self.left_s < math.inf and self.need_mib > 0


class Held(NamedTuple):
    """GPUs promised to a job that waits, and when they are expected to be empty."""

    job: JobId
    gpus: tuple[GpuId, ...]
    at: float


@dataclass(frozen=True, slots=True, eq=False)
class Carma:
    """The fields after `magm` are for ablations."""

    name: str
    conditions: Preconditions
    memory: tuple[Filter, ...]
    risk: Filter
    magm: Ranked
    ageing: float = 1.0  # the weight of service in the order; infinite: nothing else counts
    selective: bool = True  # False: join whoever leaves enough memory
    hold: int = 2  # jobs from this number of GPUs on always need empty ones; 0: nothing is held

    def order(self, job: Job) -> float:
        left_s = remaining_s(job, job.submitted_at)
        service = left_s * job.spec.gpus if left_s < math.inf else 0.0
        return service if self.ageing == math.inf else job.submitted_at + self.ageing * service

    def plan(self, view: View) -> tuple[Proposal, ...]:
        plan: list[Proposal] = []
        if not view.queue:
            return ()
        refused: dict[tuple[Demand, int, float], float] = {}  # the shortest job of each kind
        held: Held | None = None
        waiting, usable = 0, totals(view).usable
        for job in view.queue:
            told = waiting < EXPLAINED
            if job.spec.gpus > usable and not told:
                continue  # it must not keep jobs that can start from being tried
            new = _newcomer(job, view)
            kind = new.wanted, new.need_mib, new.activity
            if told or kind not in refused or new.left_s < refused[kind]:
                placement = self._place(new, view, held)
                if placement.gpus:
                    plan.append(placement)
                    view = view.with_placement(job, placement.gpus)
                    continue
                refused[kind] = min(new.left_s, refused.get(kind, math.inf))
                if held is None and self._needs_empty(new, placement.verdicts):
                    held = self._hold(new, view)
                    placement = replace(placement, reasons=_promise(held, view.now))
                if told:
                    plan.append(placement)
            waiting += 1
            if waiting >= TRIED:
                break
        return tuple(plan)

    def _place(self, new: Newcomer, view: View, held: Held | None) -> Placement:
        kept = held if held and view.now + new.left_s > held.at else None
        gpus, verdicts = self._best(new, view, lambda gpu: self._verdict(new, gpu, view, kept))
        if not gpus:
            return Placement(new.job.id, (), verdicts)
        beside = dict.fromkeys(job.id for gpu in gpus for job in view.gpu(gpu).residents)
        why = (Reason("sooner_together", detail=_names(beside)),) if beside and new.known else ()
        return Placement(new.job.id, gpus, verdicts, explanation=(*expected(new.job), *why))

    def _needs_empty(self, new: Newcomer, verdicts: Sequence[Verdict]) -> bool:
        """Whether it would wait for ever if others kept joining whoever is there."""
        if not self.hold:
            return False
        return (
            new.wanted.gpus >= self.hold
            or new.wanted.alone
            or any(reason.code == "mps_user" for each in verdicts for reason in each.refused)
            or all(any(reason.code in FULL for reason in each.refused) for each in verdicts)
        )

    def _hold(self, new: Newcomer, view: View) -> Held | None:
        """The GPUs that will be empty first; none if no GPUs would do even then."""

        def empty(gpu: GpuView) -> Verdict:
            found = self._verdict(new, _emptied(gpu), view, None)
            if found.refused:
                return found
            return replace(found, rank=max(_empty_s(each, view) for each in in_use(gpu)))

        def in_use(gpu: GpuView) -> tuple[GpuView, ...]:
            """What must be empty before: another user's MPS server may be the whole node's."""
            uid, server = new.wanted.mps_uid, gpu.mps_user
            if uid is None or server is None or server[0] == uid:
                return (gpu,)
            return view.nodes[view.node_of[gpu.id]].gpus

        gpus, verdicts = self._best(new, view, empty)
        if not gpus:
            return None
        at_s = {verdict.gpu: verdict.rank or 0.0 for verdict in verdicts}
        held = dict.fromkeys(each.id for gpu in gpus for each in in_use(view.gpu(gpu)))
        return Held(new.job.id, tuple(held), view.now + max(at_s[gpu] for gpu in gpus))

    def _best(
        self, new: Newcomer, view: View, judged: Callable[[GpuView], Verdict]
    ) -> tuple[tuple[GpuId, ...], tuple[Verdict, ...]]:
        """The GPUs to take, on as few nodes as possible, and the verdicts on all."""
        fits = [_fit(node, tuple(map(judged, node.gpus))) for node in view.nodes]
        gpus = self.magm.choose(fits, new.wanted.gpus, view)
        return gpus, tuple(verdict for fit in fits for verdict in fit.verdicts)

    def _verdict(self, new: Newcomer, gpu: GpuView, view: View, held: Held | None) -> Verdict:
        refused = gpu.memo.recall((self, new.wanted), self._unfit, new.wanted, gpu, view)
        if not refused and idle(gpu, view.settings):
            short = lacking(new.need_mib, new.job, gpu, self.conditions) if new.need_mib else None
            certain = new.known and gpu.residents and all(map(_predicted, gpu.residents))
            refused = _given(short, None if certain else self.risk(new.wanted, gpu))
        if not refused and held and gpu.id in held.gpus:
            refused = (Reason("held_for", held.at - view.now, unit="s", detail=_job(held.job)),)
        if refused:
            return Verdict(gpu.id, refused)
        if not new.known:
            return Verdict(gpu.id, (), most_free_memory(gpu))
        if not gpu.residents:
            return Verdict(gpu.id, (), new.left_s)
        return self._beside(new, gpu, view)

    def _beside(self, new: Newcomer, gpu: GpuView, view: View) -> Verdict:
        """Ranked by the sum of all ends with the newcomer, less that of the others without it."""
        there, found = _joining(new, gpu, view)
        wanted = new.wanted.gpus
        # A job is counted once, over the GPUs that both are on.
        counts = [1 / min(job.spec.gpus, wanted) for job in gpu.residents]
        never = sum(map(mul, counts, there.ends_s))
        counts.append(1 / wanted)
        now, later = (sum(map(mul, counts, each)) for each in found)
        if self.selective and now >= later:
            detail = _names(job.id for job in gpu.residents)
            return Verdict(gpu.id, (Reason("later_together", later, now, "s", detail),))
        return Verdict(gpu.id, (), wanted * (now - never))

    def _unfit(self, wanted: Demand, gpu: GpuView, view: View) -> tuple[Reason, ...]:
        return view.refusals(wanted, gpu) or self._full(wanted, gpu)

    def _full(self, wanted: Demand, gpu: GpuView) -> tuple[Reason, ...]:
        return _given(*(refuse(wanted, gpu) for refuse in self.memory))


def carma(settings: Settings) -> Carma:
    conditions = settings.preconditions_for("carma")
    memory = fits_memory(conditions, settings), min_free(conditions, settings)
    return Carma("carma", conditions, memory, not_risky(settings), magm(settings))


def remaining_s(job: Job, now: float) -> float:
    """As predicted, running alone; infinite if unknown. Its past run time counts in full, as its
    progress beside others is not known."""
    if job.stop is not None:
        return LEAST_S
    if job.expected_s is None:
        return math.inf
    attained_s = job.attained_s(now)
    return max(LEAST_S, job.expected_s - attained_s, OVERRUN * attained_s)


def _newcomer(job: Job, view: View) -> Newcomer:
    activity = _activity(job)
    return Newcomer(
        job,
        view.demand(job),
        remaining_s(job, view.now),
        need_mib(job),
        NEWCOMER_UTILIZATION if activity is None else activity,
    )


def _activity(job: Job) -> float | None:
    """The job's SM activity when alone; None if it was not measured."""
    return job.profile.mean("sm_active") if job.profile else None


def _company(gpu: GpuView, view: View) -> Company:
    return company(_members(gpu, view.now), _cost(view))


def _joining(new: Newcomer, gpu: GpuView, view: View) -> tuple[Company, Joining]:
    """What becomes of the jobs there and of the newcomer. Most that wait outlast all others."""
    there = gpu.memo.recall((_company, view.now), _company, gpu, view)
    question = (outlasting, view.now, new.activity)
    now, later = gpu.memo.recall(question, outlasting, there, new.activity, _cost(view))
    if new.left_s < max(*now[:-1], *later[:-1]):
        return there, joining(there, Member(new.activity, new.left_s), _cost(view))
    return there, Joining(*((*each[:-1], each[-1] + new.left_s) for each in (now, later)))


def _members(gpu: GpuView, now: float) -> list[Member]:
    """The jobs there. Those not measured alone share what the GPU shows beyond the others; one of
    unknown duration is expected to run for as long again as it has."""
    known = [_activity(job) for job in gpu.residents]
    rest = max(0.0, gpu.score.sm_mean - sum(own for own in known if own is not None))
    share = rest / max(1, known.count(None))
    return [
        Member(
            share if own is None else own,
            left
            if (left := remaining_s(job, now)) < math.inf
            else max(LEAST_S, job.attained_s(now)),
        )
        for job, own in zip(gpu.residents, known, strict=True)
    ]


def _predicted(job: Job) -> bool:
    return job.expected_s is not None


def _cost(view: View) -> float:
    return MPS if view.settings.collocation.mps else TIME_SLICED


def _empty_s(gpu: GpuView, view: View) -> float:
    """When the jobs there have ended, in seconds from now."""
    if not gpu.residents:
        return 0.0
    return max(gpu.memo.recall((_company, view.now), _company, gpu, view).ends_s)


def _emptied(gpu: GpuView) -> GpuView:
    """With its node, if an MPS server serves all of that."""
    free_mib = gpu.gpu.memory_mib - gpu.external_mib
    return replace(gpu, residents=(), settling=None, free_mib=free_mib, mps_user=None)


def _fit(node: NodeView, verdicts: tuple[Verdict, ...]) -> Fit:
    ranked = sorted(
        ((False, verdict.rank), gpu.gpu.index, gpu.id)  # idle ones do not come first
        for gpu, verdict in zip(node.gpus, verdicts, strict=True)
        if verdict.rank is not None
    )
    return Fit(tuple(r for r, _, _ in ranked), tuple(id for _, _, id in ranked), verdicts)


def _promise(held: Held | None, now: float) -> tuple[Reason, ...]:
    if held is None:
        return ()
    return (Reason("promised", held.at - now, len(held.gpus), "s"),)


def _given(*reasons: Reason | None) -> tuple[Reason, ...]:
    return tuple(reason for reason in reasons if reason)


def _names(jobs: Iterable[JobId]) -> str:
    return first_few(", ".join(map(_job, jobs)))


def _job(id: JobId) -> str:
    return f"job {id}"
