"""When and where each group has its turn: plans for each number of GPUs, one after the other.

If jobs ask for different numbers of GPUs, those whose first job is earlier in the queue are planned
first. GPUs that the first group on a set waits for are kept for it; meanwhile others may use them
if they are done in time. So many small jobs cannot keep a large one out for good, and no usable
GPUs stay idle for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import sub
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from carmad.plugin import GpuId, GpuView, JobId
from policies.cuckoo.calendar import Calendar, Entry, Seats
from policies.cuckoo.groups import Group, Packer
from policies.cuckoo.members import LEAST_S, NOTHING, Member, Site, due_at
from policies.cuckoo.planning import Groups, Planner, Slot
from policies.cuckoo.telling import Planned

Ends = Sequence[Sequence[tuple[float, ...]]]  # by group and kind, when each job is done


class Turn(NamedTuple):
    """A group that begins now, or a job that joins another."""

    planned: Planned
    gpus: tuple[GpuView, ...]

    def later(self, by_s: float) -> Turn:
        return self._replace(planned=self.planned.later(by_s)) if by_s else self


class Schedule(NamedTuple):
    turns: Sequence[Turn] = ()
    planned: Mapping[JobId, Planned] = MappingProxyType({})  # for all queued jobs
    due_at: float | None = None  # when the plan will change even if nothing happens until then

    def with_joins(self, joins: tuple[Turn, ...]) -> Schedule:
        joined = {turn.planned.group.members[1].job.id: turn.planned for turn in joins}
        return self._replace(turns=(*self.turns, *joins), planned={**self.planned, **joined})


def schedule(
    groups: Sequence[Group],
    running: Sequence[Member],
    awaited: Mapping[JobId, Member],
    where: Site,
    packer: Packer,
    planner: Planner,
) -> Schedule:
    """The schedule of groups, which are in queue order. `awaited` has, by running job, the queued
    one that will join it."""
    calendar = Calendar(where, list(_entries(running, awaited, where, packer)))
    starts: list[Turn] = []
    planned: list[Planned] = []
    for alike in classes(groups, where):
        first = alike[0].members[0].job
        barred = where.unusable_gpus(first) if first.spec.gpus > 1 else NOTHING
        uid = where.server(first)
        seats = calendar.seats(first.spec.gpus, barred, uid)
        slots: list[Slot | None] = [None] * len(alike)
        ends_s = [[group.ends_s(kind) for kind in range(len(where.kinds))] for group in alike]
        if seats:
            table = _table(alike, ends_s, seats, where)
            slots = planner(table, [each.window for each in seats])
        for group, ends, slot in zip(alike, ends_s, slots, strict=True):
            plan = _plan(group, ends, slot, seats, rank=len(planned))
            planned.append(plan)
            if slot and slot.order == 1:
                chosen = seats[slot.window]
                jobs = tuple(member.job.id for member in group.members)
                calendar.take(chosen, plan.begin_s, max(plan.ends_s) - plan.begin_s, jobs, uid)
                if chosen.idle:
                    starts.append(Turn(plan, chosen.gpus))
    by_job = {member.job.id: plan for plan in planned for member in plan.group.members}
    return Schedule(tuple(starts), by_job)


def first_due(running: Sequence[Member], where: Site, now: float) -> float | None:
    """When the first of the running jobs should have ended."""
    kinds = {job.id: where.kind(gpu) for gpu in where.gpus for job in gpu.residents}
    ends = (due_at(m.job, now, m.whole_s[kinds[m.job.id]]) for m in running if not m.job.stop)
    return min(ends, default=None)


def classes(groups: Sequence[Group], where: Site) -> Iterator[Sequence[Group]]:
    """Groups with the same number of GPUs and, for several GPUs, the same usable ones, and of the
    same user where a node's MPS server serves only one, in the order of their first jobs.
    Recovering jobs come first, and nice ones last."""
    alike: dict[tuple[bool, int, int, frozenset[GpuId], int | None], list[Group]] = {}
    for group in groups:
        job = group.members[0].job
        barred = where.unusable_gpus(job) if group.gpus > 1 else NOTHING
        rank = (job.retry is None, job.spec.nice, group.gpus, barred, where.server(job))
        alike.setdefault(rank, []).append(group)
    yield from (alike[rank] for rank in sorted(alike, key=lambda rank: rank[:2]))


def _entries(
    running: Sequence[Member], awaited: Mapping[JobId, Member], where: Site, packer: Packer
) -> Iterator[Entry]:
    """When running jobs are predicted to end: two that share, or will, by the model, more as if
    each were alone, since Cuckoo does not place more than two together."""
    by_id = {member.job.id: member for member in running}
    free: dict[tuple[int, tuple[JobId, ...]], float] = {}  # by kind and jobs
    for gpu in where.gpus:
        kind, there = where.kind(gpu), [by_id[job.id] for job in gpu.residents]
        there += [awaited[job.id] for job in gpu.residents if job.id in awaited]
        jobs = tuple([member.job.id for member in there])
        if (kind, jobs) not in free:
            free[kind, jobs] = _free_s(there, kind, packer)
        yield Entry(gpu, free[kind, jobs], jobs)


def _free_s(there: Sequence[Member], kind: int, packer: Packer) -> float:
    """When these jobs have ended; 0 if there are none."""
    if len(there) == 2 and not any(member.missing for member in there):
        one, other = there
        return max(*packer.ends_s(one, other, kind), LEAST_S)
    return max([LEAST_S, *(member.left_s[kind] for member in there)]) if there else 0.0


def _table(groups: Sequence[Group], ends_s: Ends, seats: Sequence[Seats], where: Site) -> Groups:
    """The needs of a pair's second job are checked only when it joins."""
    deadlines_s = [[member.deadline_s for member in group.members] for group in groups]
    fits = np.ones((len(groups), len(seats)), dtype=bool)
    for n, group in enumerate(groups):
        if barred := where.unusable_gpus(group.members[0].job):
            fits[n] = [barred.isdisjoint(each.ids) for each in seats]
    return Groups(
        np.array([[max(ends) for ends in kinds] for kinds in ends_s]),
        np.array(
            [
                [min(map(sub, due_s, ends)) for ends in kinds]
                for due_s, kinds in zip(deadlines_s, ends_s, strict=True)
            ]
        ),
        fits,
        np.array([min(member.job.submitted_at for member in group.members) for group in groups]),
        np.array([min(due_s) for due_s in deadlines_s]),
        np.zeros(len(groups)),
    )


def _plan(
    group: Group,
    kinds: Sequence[tuple[float, ...]],
    slot: Slot | None,
    seats: Sequence[Seats],
    rank: int,
) -> Planned:
    if slot is None:
        return Planned(group, rank)
    chosen = seats[slot.window]
    ends_s = tuple(slot.begin_s + end_s for end_s in kinds[chosen.window.kind])
    after = chosen.after() if slot.order == 1 and slot.begin_s > 0 else ()  # told of nobody else
    return Planned(group, rank, slot.begin_s, ends_s, chosen.ids, slot.order, after)
