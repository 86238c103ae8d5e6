"""Cuckoo (Zhang et al., SoCC 2025): pairs jobs by efficiency and deadlines, and plans which group
uses which GPUs when, at the lowest cost.

The paper packs jobs and starts both at once. On CARMA's GPUs the second job may join only when the
first has run its first kernel and settled. So the job of a pair with the earlier deadline starts,
and its partner follows (`joining`). Planning starts over each time, and so adapts to what really
happens: a job that has outlived its prediction is assumed to continue, and its successors are
planned for later.

A plan covers a few jobs for each set of GPUs, so that its cost depends on the number of GPUs and
not on the length of the queue.

A job with unknown iteration times is profiled: on the GPUs reserved by `profiling.gpus`, from which
it is requeued; if there are none, or it is too large for them or must not be restarted, on idle
GPUs, where it stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from carmad.plugin import (
    AskAgain,
    GpuId,
    GpuView,
    Job,
    JobId,
    Placement,
    Preconditions,
    Proposal,
    Reason,
    Remember,
    Settings,
    Verdict,
    View,
)
from policies.builtin import in_order
from policies.cuckoo import CuckooSettings
from policies.cuckoo.groups import Packer, group
from policies.cuckoo.interleaving import Asynchronous
from policies.cuckoo.joining import Memory, awaiting, recall, turns
from policies.cuckoo.members import find_members, in_reach
from policies.cuckoo.planning import Planner, min_cost
from policies.cuckoo.schedule import Schedule, Turn, schedule
from policies.cuckoo.site import NOTHING, Site, site
from policies.cuckoo.telling import explanation, waiting
from policies.filters import fits_memory, min_free, only_idle
from policies.profiling import profile_aside, profiling_run, set_aside
from policies.ranked import Ranked
from policies.views import memory_shortage, need_mib

TOLD = 16  # the first waiting jobs, which get reasons with their plan
TOLD_S = 60.0  # how long these stand while no job can start
EXPLAINED = 4  # the first ones, which also get a verdict on each GPU


@dataclass(frozen=True, slots=True, eq=False)
class Cuckoo:
    """`unshared` judges GPUs for a job that will be alone there."""

    name: str
    conditions: Preconditions
    unshared: Ranked
    packer: Packer
    planner: Planner = min_cost
    packs: bool = True
    heterogeneous: bool = True  # False: all GPUs count as the first one's kind

    def order(self, job: Job) -> float:
        """Earliest deadline first."""
        return math.inf if job.spec.deadline_at is None else job.spec.deadline_at

    def plan(self, view: View) -> tuple[Proposal, ...]:
        aside = set_aside(view)
        if not aside.own:
            return tuple(self._plan(view, view.queue, aside.own))
        new: list[Job] = []
        known: list[Job] = []
        for job in view.queue:
            (new if aside.takes(job) and not job.stage_times else known).append(job)
        # None are reserved while the first job that can ever start could not do so on the others.
        with_them, without = (site(view, gpus, self.heterogeneous) for gpus in (NOTHING, aside.own))
        first = next(filter(with_them.holds, known), None)
        if first and not without.holds(first):
            return tuple(self._plan(view, view.queue, NOTHING))
        profiles, view = profile_aside(aside, new, self.unshared, view)
        return (*profiles, *self._plan(view, known, aside.own))

    def _plan(
        self, view: View, jobs: Sequence[Job], closed: frozenset[GpuId]
    ) -> Iterator[Proposal]:
        """Placements on the GPUs outside `closed`."""
        if not jobs:
            return
        where = site(view, closed, self.heterogeneous)
        partners = awaiting(view, jobs, where)
        joining = {job.id for job in partners.values()}
        others = [job for job in jobs if job.id not in joining]
        before, ahead = recall(view), tuple([job.id for job in jobs[:TOLD]])
        # While no job can start, a plan only tells when turns are.
        tells = (
            any(job.spec.gpus <= where.idle for job in others)
            or ahead != before.told
            or not before.told_at <= view.now < min(before.told_at + TOLD_S, before.due_at)
        )
        plan = self._schedule(view, others if tells else (), where, partners)
        pairs = {first: second.id for first, second in partners.items()}
        started: set[JobId] = set()
        refused = {}
        for turn in plan.turns:
            first, *second = turn.planned.group.members
            joins = turn.planned.group.running
            placement = self._joining(turn, view) if joins else self._starting(turn, view)
            if not placement.gpus:
                refused[placement.job] = placement
                if joins and _full(placement, turn):
                    pairs.pop(first.job.id, None)
                continue
            yield placement
            started.add(placement.job)
            job = second[0].job if joins else first.job
            view = view.with_placement(job, placement.gpus, placement.profiling)
            if joins:
                pairs.pop(first.job.id, None)
            elif second:
                pairs[first.job.id] = second[0].job.id
        times = (view.now, view.now + plan.due_s) if tells else (before.told_at, before.due_at)
        memory = Memory(tuple(pairs.items()), () if started else ahead, *times)
        yield Remember(memory)
        if len(jobs) > len(started):
            left = islice((job for job in jobs if job.id not in started), TOLD)
            shown = [job for job in left if tells or job.id in refused]
            yield from self._waiting(shown, refused, plan, view, where.idle)
            if memory.due_at < math.inf:
                yield AskAgain(memory.due_at)

    def _schedule(
        self, view: View, jobs: Sequence[Job], where: Site, partners: Mapping[JobId, Job]
    ) -> Schedule:
        line = in_reach(jobs, where)
        there = {job.id for gpu in where.gpus for job in gpu.residents} if line else partners
        running = [job for job in view.running if job.id in there]
        covered = [*line, *partners.values(), *running]
        known = iter(find_members(covered, where, self.packer.model, view))
        in_line = list(islice(known, len(line)))
        awaited = dict(zip(partners, known, strict=False))
        on_gpus = list(known)
        packs, plan = self._packs(view), Schedule()
        if line:
            groups = group(in_line, on_gpus, where, self.packer if packs else None)
            plan = schedule(groups, on_gpus, awaited, where, self.packer, self.planner)
        joins = turns(awaited, on_gpus, where, self.packer) if packs else ()
        return plan.with_joins(tuple(joins))

    def _packs(self, view: View) -> bool:
        return self.packs and view.settings.collocation.max_jobs_per_gpu > 1

    def _starting(self, turn: Turn, view: View) -> Placement:
        """Place the first job of a group on idle GPUs, and profile it there if necessary."""
        member, gpus = turn.planned.group.members[0], tuple(gpu.id for gpu in turn.gpus)
        job, profiling = member.job, view.settings.profiling
        placement = Placement(job.id, gpus, self.unshared.place(job, view).verdicts)
        if any(verdict.refused for verdict in placement.verdicts if verdict.gpu in gpus):
            return replace(placement, gpus=())  # another user's job has just started on the node
        new = member.missing == "unprofiled" and job.profile is None
        if new and job.spec.gpus <= profiling.largest:
            return profiling_run(placement, job, view, profiling.run_s, evict=False)
        return replace(placement, explanation=explanation(member, turn.planned))

    def _joining(self, turn: Turn, view: View) -> Placement:
        """Place the second job of a group beside the first, if the GPUs there can take it now."""
        joins, there = turn.planned.group.members[1], {gpu.id for gpu in turn.gpus}
        verdicts = tuple(
            self._verdict(joins.job, view.gpu(v.gpu), view) if v.gpu in there else v
            for v in self.unshared.place(joins.job, view).verdicts
        )
        if any(verdict.refused for verdict in verdicts if verdict.gpu in there):
            return Placement(joins.job.id, (), verdicts)
        gpus = tuple(gpu.id for gpu in turn.gpus)
        return Placement(joins.job.id, gpus, verdicts, explanation=explanation(joins, turn.planned))

    def _verdict(self, job: Job, gpu: GpuView, view: View) -> Verdict:
        wanted = view.demand(job)
        asked = (
            memory_shortage(need_mib(job), job, gpu, self.conditions),
            min_free(self.conditions, view.settings)(wanted, gpu),
        )
        refused = (*view.refusals(wanted, gpu), *(reason for reason in asked if reason))
        return Verdict(gpu.id, refused, None if refused else 0.0)

    def _waiting(
        self,
        jobs: Iterable[Job],
        refused: Mapping[JobId, Placement],
        plan: Schedule,
        view: View,
        idle: int,
    ) -> Iterator[Placement]:
        for n, job in enumerate(jobs):
            planned = plan.planned.get(job.id)
            reasons = waiting(job, planned, self._packs(view)) if planned else ()
            if job.id in refused:
                yield replace(refused[job.id], reasons=reasons)
                continue
            verdicts = self.unshared.place(job, view).verdicts if n < EXPLAINED else ()
            if not (planned and planned.ends_s):
                reasons = (*reasons, Reason("no_room", job.spec.gpus, idle, "GPUs"))
            yield Placement(job.id, (), verdicts, reasons)


def cuckoo(settings: Settings, own: CuckooSettings) -> Cuckoo:
    conditions = settings.preconditions_for("cuckoo")
    filters = (only_idle(settings), fits_memory(conditions, settings))
    return Cuckoo(
        "cuckoo",
        conditions,
        Ranked("cuckoo", filters, in_order),
        Packer(Asynchronous(own.lambda_gpu, own.lambda_network), own.weight),
    )


def _full(placement: Placement, turn: Turn) -> bool:
    """Whether the GPUs of the job to join have settled and leave too little memory, so that it may
    have to wait until that job ends."""
    there = {gpu.id for gpu in turn.gpus}
    reasons = [r for each in placement.verdicts if each.gpu in there for r in each.refused]
    return all(reason.code in ("memory", "min_free") for reason in reasons)
