"""When and where each group has its turn: plans for each number of GPUs, one after the other. Times
are in seconds from now.

If jobs ask for different numbers of GPUs, those whose first job is earlier in the queue are planned
first. GPUs that the first group on a set waits for are kept for it, so that many small jobs cannot
keep a large one out for good. Until then, those that are idle are lent to groups that end in time.

Where one MPS server serves a node's GPUs, and only one user at a time, its clients close all of
them to other users' clients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, sub
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from carmad.plugin import GpuId, GpuView, Job, JobId
from policies.cuckoo.groups import Group, Packer
from policies.cuckoo.members import LEAST_S, Member
from policies.cuckoo.planning import Groups, Planner, Slot, Window
from policies.cuckoo.site import NOTHING, Site
from policies.cuckoo.telling import Planned

Ends = Sequence[Sequence[tuple[float, ...]]]  # by group and kind, when each job is done


class Entry(NamedTuple):
    """One GPU. In the order of the first three fields, GPUs are taken."""

    free_s: float
    after: tuple[JobId, ...]  # the jobs that use it until then
    island: str
    gpu: GpuView
    kind: int
    uid: int | None  # the user of the MPS server's clients until then; None: nobody's
    lent_s: float = 0.0  # how long it is idle before the group that it is kept for begins

    def alike(self) -> tuple[Hashable, ...]:
        """What GPUs of a set share: node and kind, or else kind, or nothing."""
        card = self.gpu.gpu
        return (card.node, card.name), card.name, None

    def keep(self, plan: Planned, uid: int | None, lends: bool) -> Entry:
        """Kept for a group, the next one there. `lends`: others may use it until then."""
        lent_s = plan.begin_s * lends if self.free_s <= 0 else self.lent_s
        jobs = tuple([member.job.id for member in plan.group.members])
        return self._replace(free_s=max(plan.ends_s), after=jobs, uid=uid, lent_s=lent_s)


_first_free = attrgetter("free_s", "after", "island")


class Seats(NamedTuple):
    """GPUs for one group, and when it may use them."""

    entries: Sequence[Entry]
    ids: tuple[GpuId, ...]
    window: Window

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        return tuple(entry.gpu for entry in self.entries)

    def after(self) -> tuple[JobId, ...]:
        """The jobs that use them until then."""
        last = (entry for entry in self.entries if entry.free_s == self.window.begin_s)
        return tuple(dict.fromkeys(job for entry in last for job in entry.after))

    def is_certain(self, running: Mapping[JobId, Member]) -> bool:
        """Whether the jobs that use them now are to end as predicted. One that has outlived its
        prediction may go on for long, and so may those that are let in meanwhile."""
        there = ((running.get(job), entry.kind) for entry in self.entries for job in entry.after)
        return all(member is None or member.certain[kind] for member, kind in there)


class Turn(NamedTuple):
    """A group that begins now, or a job that joins another."""

    planned: Planned
    gpus: tuple[GpuView, ...]


class Schedule(NamedTuple):
    turns: Sequence[Turn] = ()
    planned: Mapping[JobId, Planned] = MappingProxyType({})  # for all queued jobs
    due_s: float = math.inf  # when the plan will change even if nothing happens until then

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
    entries = {entry.gpu.id: entry for entry in _entries(running, awaited, where, packer)}
    by_id = {member.job.id: member for member in running}
    starts: list[Turn] = []
    planned: dict[JobId, Planned] = {}
    for alike in _classes(groups, where):
        first = alike[0].members[0].job
        seats = _seats(first, entries.values(), entries.values(), where)
        slots: list[Slot | None] = [None] * len(alike)
        ends_s = [[group.ends_s(kind) for kind in range(len(where.kinds))] for group in alike]
        if seats:
            table = _table(alike, ends_s, seats, where)
            slots = planner(table, [each.window for each in seats])
        plans = [
            _plan(group, ends, slot, seats)
            for group, ends, slot in zip(alike, ends_s, slots, strict=True)
        ]
        for plan, slot in zip(plans, slots, strict=True):
            if slot and slot.order == 1:
                chosen = seats[slot.window]
                lends = not plan.group.members[0].overdue or chosen.is_certain(by_id)
                for each in chosen.entries:
                    entries[each.gpu.id] = each.keep(plan, where.server(first), lends)
                if plan.begin_s <= 0:
                    starts.append(Turn(plan, chosen.gpus))
        early = list(_lend(plans, entries.values(), where))
        for turn in early:
            for gpu in turn.gpus:
                entries[gpu.id] = entries[gpu.id]._replace(lent_s=0.0)
        starts += early
        for plan in (*plans, *(turn.planned for turn in early)):
            planned |= {member.job.id: plan for member in plan.group.members}
    return Schedule(tuple(starts), planned, _due_s(running, where))


def _lend(plans: Sequence[Planned], entries: Collection[Entry], where: Site) -> Iterator[Turn]:
    """EASY backfilling: the groups that can end on idle GPUs before the group begins that these are
    kept for, and sooner than planned."""
    lent = [each._replace(free_s=-each.lent_s) for each in entries if each.lent_s > 0]
    first = plans[0].group.members[0].job
    left = _seats(first, lent, entries, where) if lent else []
    for group, begin_s, planned_s, *_ in plans:
        barred = where.unusable_gpus(group.members[0].job)
        waits = begin_s > 0 or not planned_s
        for seats in left if waits else ():
            ends_s = group.ends_s(seats.window.kind)
            latest_s = min(-seats.window.begin_s, max(planned_s, default=math.inf))
            if max(ends_s) <= latest_s and barred.isdisjoint(seats.ids):
                left.remove(seats)
                yield Turn(Planned(group, ends_s=ends_s), seats.gpus)
                break


def _due_s(running: Sequence[Member], where: Site) -> float:
    """When the first of the running jobs should have ended."""
    kinds = {job.id: where.kind(gpu) for gpu in where.gpus for job in gpu.residents}
    lefts = (m.left_s[kinds[m.job.id]] for m in running if not m.job.leaves)
    return min((max(left_s, LEAST_S) for left_s in lefts), default=math.inf)


def _classes(groups: Sequence[Group], where: Site) -> Iterator[Sequence[Group]]:
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
        uid = gpu.mps_user[0] if gpu.mps_user and not gpu.gpu.is_mig else None
        yield Entry(free[kind, jobs], jobs, gpu.gpu.island, gpu, kind, uid)


def _free_s(there: Sequence[Member], kind: int, packer: Packer) -> float:
    """When these jobs have ended; 0 if there are none."""
    if len(there) == 2 and not any(member.missing for member in there):
        one, other = there
        return max(*packer.together(one, other, kind).ends_s(kind), LEAST_S)
    return max([LEAST_S, *(member.left_s[kind] for member in there)]) if there else 0.0


def _open_to(uid: int | None, entries: list[Entry], known: Iterable[Entry]) -> list[Entry]:
    """The entries for jobs of this user, which wait for other users' clients on the node. None:
    they need no server."""
    if uid is None:
        return entries
    last: dict[str, tuple[float, tuple[JobId, ...]]] = {}  # by node
    for entry in known:
        if entry.uid not in (None, uid):
            node, until = entry.gpu.gpu.node, (max(entry.free_s, LEAST_S), entry.after)
            last[node] = max(last.get(node, until), until)
    found = []
    for entry in entries:
        node = entry.gpu.gpu.node
        if node in last and not entry.gpu.gpu.is_mig:
            free_s, after = max((entry.free_s, entry.after), last[node])
            entry = entry._replace(free_s=free_s, after=after)
        found.append(entry)
    return found


def _seats(
    job: Job, entries: Collection[Entry], known: Collection[Entry], where: Site
) -> list[Seats]:
    """Sets of as many of these GPUs as the job needs: of one kind on one node, or else of one kind,
    or else any. GPUs that become free at about the same time form a set."""
    count = job.spec.gpus
    barred = where.unusable_gpus(job) if count > 1 else NOTHING
    usable = [entry for entry in entries if entry.gpu.id not in barred]
    usable = _open_to(where.server(job), usable, known)
    for level in range(3):
        alike: dict[Hashable, list[Entry]] = {}
        for entry in usable:
            alike.setdefault(entry.alike()[level], []).append(entry)
        found: list[Seats] = []
        for each in alike.values():
            each.sort(key=_first_free)
            for at in range(0, len(each) - count + 1, count):
                chosen = each[at : at + count]
                ids = tuple([entry.gpu.id for entry in chosen])
                found.append(Seats(chosen, ids, Window(chosen[0].kind, chosen[-1].free_s)))
        if found:
            return found
    return []


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
    )


def _plan(
    group: Group, kinds: Sequence[tuple[float, ...]], slot: Slot | None, seats: Sequence[Seats]
) -> Planned:
    if slot is None:
        return Planned(group)
    chosen = seats[slot.window]
    ends_s = tuple(slot.begin_s + end_s for end_s in kinds[chosen.window.kind])
    after = chosen.after() if slot.order == 1 and slot.begin_s > 0 else ()  # told of nobody else
    return Planned(group, slot.begin_s, ends_s, slot.order, after)
