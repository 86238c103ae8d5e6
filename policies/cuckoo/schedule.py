"""When and where each group has its turn: plans for each number of GPUs, one after the other. Times
are in seconds from now.

If jobs ask for different numbers of GPUs, those whose first job is earlier in the queue are planned
first. GPUs that the first group on a set waits for are kept for it; meanwhile others may use them
if they are done in time. So many small jobs cannot keep a large one out for good, and no usable
GPUs stay idle for it.

Where one MPS server serves a node's GPUs, and only one user at a time, its clients close all of
them to other users' clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from operator import attrgetter, sub
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from carmad.plugin import GpuId, GpuView, JobId
from policies.cuckoo.groups import Group, Packer
from policies.cuckoo.members import LEAST_S, Member, due_at
from policies.cuckoo.planning import Groups, Planner, Slot, Window
from policies.cuckoo.site import NOTHING, Site
from policies.cuckoo.telling import Planned

Ends = Sequence[Sequence[tuple[float, ...]]]  # by group and kind, when each job is done


class Entry(NamedTuple):
    """One GPU. An idle one may be promised to a job that waits for more GPUs; until then, another
    job may use it. In the order of the first three fields, GPUs are taken."""

    free_s: float
    after: tuple[JobId, ...]  # the jobs that use it until then
    island: str
    gpu: GpuView
    kind: int
    alike: tuple[Hashable, ...]  # what GPUs of a set share: node and kind, or else kind, or nothing
    lent_s: float = 0.0  # how long it is idle and may be used

    @classmethod
    def of(cls, gpu: GpuView, kind: int, free_s: float, after: tuple[JobId, ...]) -> Entry:
        card = gpu.gpu
        alike = (card.node, card.name), card.name, None
        return cls(free_s, after, card.island, gpu, kind, alike)

    @property
    def idle(self) -> bool:
        return self.free_s <= 0


ALIKE = range(3)  # of `Entry.alike`
_first_free = attrgetter("free_s", "after", "island")


class Span(NamedTuple):
    """When a node's server has clients of one user, or is promised to them."""

    uid: int
    begin_s: float
    end_s: float
    jobs: tuple[JobId, ...]


class Seats(NamedTuple):
    """GPUs for one group, and when it may use them."""

    entries: Sequence[Entry]
    ids: tuple[GpuId, ...]
    window: Window

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        return tuple(entry.gpu for entry in self.entries)

    @property
    def idle(self) -> bool:
        return self.window.begin_s <= 0

    def after(self) -> tuple[JobId, ...]:
        """The jobs that use them until then."""
        last = (entry for entry in self.entries if entry.free_s == self.window.begin_s)
        return tuple(dict.fromkeys(job for entry in last for job in entry.after))


class Calendar:
    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = {entry.gpu.id: entry for entry in entries}
        self._spans: dict[str, list[Span]] = {}  # by node
        for entry in entries:
            if entry.gpu.mps_user and not entry.gpu.gpu.is_mig:
                uid, _ = entry.gpu.mps_user
                its = any(job.spec.uid == uid for job in entry.gpu.residents)
                end_s, jobs = (entry.free_s, entry.after) if its else (LEAST_S, ())
                self._serve(entry.gpu, Span(uid, 0.0, end_s, jobs))

    def seats(self, count: int, barred: Set[GpuId], uid: int | None) -> list[Seats]:
        """Sets of `count` GPUs, without the barred ones: of one kind on one node, or else of one
        kind, or else any. GPUs that become free at about the same time form a set. `uid`: whose
        MPS server the jobs need."""
        entries = list(self._entries.values())
        if barred:
            entries = [entry for entry in entries if entry.gpu.id not in barred]
        if uid is not None:
            entries = [self._open_to(uid, entry) for entry in entries]
        lent = [entry for entry in entries if entry.lent_s > 0]
        for alike in ALIKE:
            found = [
                _seats(chosen, max(0.0, chosen[-1].free_s))
                for chosen in _in_sets(entries, count, alike, _first_free)
            ]
            found += [
                _seats(chosen, 0.0, min(entry.lent_s for entry in chosen))
                for chosen in _in_sets(lent, count, alike, _longest_lent)
            ]
            if found:
                return found
        return []

    def take(
        self,
        seats: Seats,
        begin_s: float,
        length_s: float,
        jobs: tuple[JobId, ...],
        uid: int | None,
    ) -> None:
        """Promise the GPUs from `begin_s` on."""
        for gpu in seats.gpus:
            entry = self._entries[gpu.id]
            if uid is not None and not gpu.gpu.is_mig:
                self._serve(gpu, Span(uid, begin_s, begin_s + length_s, jobs))
            if not seats.window.whole:  # it ends in time for the job it is promised to
                free_s = max(entry.free_s, length_s)
                self._entries[gpu.id] = entry._replace(free_s=free_s, lent_s=0.0)
                continue
            lent_s = begin_s if entry.idle else entry.lent_s
            self._entries[gpu.id] = Entry(begin_s + length_s, jobs, *entry[2:-1], lent_s)

    def _serve(self, gpu: GpuView, span: Span) -> None:
        self._spans.setdefault(gpu.gpu.node, []).append(span)

    def _open_to(self, uid: int, entry: Entry) -> Entry:
        """The entry for jobs of this user, which wait for other users' clients on the node; an idle
        GPU is lent to them until the first of those."""
        spans = self._spans.get(entry.gpu.gpu.node)
        if not spans or entry.gpu.gpu.is_mig:
            return entry
        others = [span for span in spans if span.uid != uid]
        if not others:
            return entry
        begin_s, last = min(span.begin_s for span in others), max(others, key=attrgetter("end_s"))
        lent_s = begin_s if entry.idle else min(entry.lent_s, begin_s)
        free_s, after = max((entry.free_s, entry.after), (last.end_s, last.jobs))
        return entry._replace(free_s=free_s, after=after, lent_s=lent_s)


def _seats(chosen: Sequence[Entry], begin_s: float, end_s: float = math.inf) -> Seats:
    ids = tuple([entry.gpu.gpu.id for entry in chosen])
    return Seats(chosen, ids, Window(chosen[0].kind, begin_s, end_s))


def _in_sets(
    entries: Sequence[Entry], count: int, alike: int, turn: Callable[[Entry], Any]
) -> Iterator[Sequence[Entry]]:
    by_kind: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        by_kind.setdefault(entry.alike[alike], []).append(entry)
    for each in by_kind.values():
        each.sort(key=turn)
        for at in range(0, len(each) - count + 1, count):
            yield each[at : at + count]


def _longest_lent(entry: Entry) -> tuple[object, ...]:
    return -entry.lent_s, entry.island


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
    calendar = Calendar(list(_entries(running, awaited, where, packer)))
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
    ends = (due_at(m.job, now, m.whole_s[kinds[m.job.id]]) for m in running if not m.job.leaves)
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
        yield Entry.of(gpu, kind, free[kind, jobs], jobs)


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
