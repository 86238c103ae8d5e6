"""Which waiting jobs join jobs that run alone.

On CARMA's GPUs a job may join another at any time, so a place beside a running job is a slot of the
plan like any other. Its cost follows equations 13 and 14 for both jobs: when the joining job ends,
by how much the other is delayed, and by how much more either misses its deadline. A job without a
place keeps its turn, at the cost of its lateness; its end does not count then, since whichever job
leaves the queue, all others move up by as much, if all take the average time (3.3.3). Joining must
not delay the next turn on the GPUs: only jobs ahead of that one in the queue may keep them busy for
longer than planned.

With `joins = "partner"` only its partner joins a running job. In the paper both jobs of a group
start at once. Here the second one joins when the GPU has settled, and until then neither may be
paired with another job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carmad.plugin import GpuId, Job, JobId, Preconditions, View
from policies.cuckoo.groups import GAIN, Company, Group, Packer, may_join, may_pack
from policies.cuckoo.interleaving import Numbers
from policies.cuckoo.members import Member, is_known
from policies.cuckoo.planning import NEVER, Groups, Planner, Window
from policies.cuckoo.remembering import Memory
from policies.cuckoo.schedule import Turn, classes
from policies.cuckoo.site import Site
from policies.cuckoo.telling import Planned


class Place(NamedTuple):
    """A place beside a job that is alone on its GPUs."""

    member: Member
    kind: int
    room_mib: int
    uid: int
    # The rank of the next turn there (`Planned.rank`), and when: later jobs must be done by then.
    rank: float = math.inf
    until_s: float = math.inf


class Cost(NamedTuple):
    """The cost of each row beside each column, in seconds, including that of the column's job."""

    complete_s: Numbers
    late_s: Numbers
    possible: NDArray[np.bool_]


class Row(NamedTuple):
    """A job that may join, and its turn if it does not."""

    member: Member
    planned: Planned


def joins(
    view: View,
    planned: Mapping[JobId, Planned],
    running: Sequence[Member],
    where: Site,
    packer: Packer,
    planner: Planner,
) -> Iterator[Turn]:
    """Joins of jobs that are planned for later, or as the second of a group that starts now. Both
    jobs must gain: the efficiency is above 1, and waiting costs more."""
    by_id = {gpu.id: gpu for gpu in where.gpus}
    conditions = view.settings.preconditions_for("cuckoo")
    free = list(_keep_turns(_places(running, where), planned))
    if not free:
        return
    wanted = {place.member.job.spec.gpus for place in free}
    rows = {
        member.job.id: Row(member, planned[member.job.id])
        for member in _waiting(planned)
        if member.job.spec.gpus in wanted and may_pack(member)
    }
    for alike in classes([Group((row.member,)) for row in rows.values()], where):
        there = [place for place in free if place.member.job.spec.gpus == alike[0].gpus]
        asking = [rows[group.members[0].job.id] for group in alike]
        table = _table(asking, there, packer, conditions)
        if not table.fits.any():
            continue
        windows = [Window(n, end_s=NEVER) for n in range(len(there))]
        for n, slot in enumerate(planner(table, windows)):
            if slot:
                place, joins = there[slot.window], asking[n].member
                free.remove(place)
                group = packer.together(place.member, joins, place.kind)
                gpus = tuple(by_id[gpu] for gpu in place.member.job.gpus)
                yield Turn(Planned(group, ends_s=group.ends_s(place.kind)), gpus)


def _waiting(planned: Mapping[JobId, Planned]) -> Iterator[Member]:
    """The jobs that do not start now."""
    for job, plan in planned.items():
        starts = plan.ends_s and plan.begin_s <= 0 and plan.group.members[0].job.id == job
        if not starts:
            yield next(member for member in plan.group.members if member.job.id == job)


def _places(running: Sequence[Member], where: Site) -> Iterator[Place]:
    """The places that a job may take, now or later."""
    by_id = {gpu.id: gpu for gpu in where.gpus}
    for member in running:
        job = member.job
        gpus = [by_id.get(gpu) for gpu in job.gpus]
        if not member.shares or job.profiling or job.leaves:
            continue
        if all(gpu and len(gpu.residents) == 1 and not gpu.gpu.is_mig for gpu in gpus):
            there = [gpu for gpu in gpus if gpu]
            room_mib = min(gpu.free_mib for gpu in there)
            yield Place(member, where.kind(there[0]), room_mib, member.uid)


def _keep_turns(places: Iterable[Place], planned: Mapping[JobId, Planned]) -> Iterator[Place]:
    """The places with the next turn on their GPUs, which joining jobs must not delay for ever."""
    following: dict[GpuId, Planned] = {}
    for plan in planned.values():
        if plan.order == 1 and plan.begin_s > 0:
            for gpu in plan.gpus:
                if gpu not in following or plan.rank < following[gpu].rank:
                    following[gpu] = plan
    for place in places:
        plans = [following[gpu] for gpu in place.member.job.gpus if gpu in following]
        if plans:
            first = min(plans, key=attrgetter("rank"))
            place = place._replace(rank=first.rank, until_s=first.begin_s)
        yield place


def _table(
    rows: Sequence[Row], places: Sequence[Place], packer: Packer, conditions: Preconditions
) -> Groups:
    """The groups, with each place as a separate kind."""
    shape = len(rows), len(places)
    complete_s, late_s = np.zeros(shape), np.zeros(shape)
    fits = np.zeros(shape, dtype=bool)
    members = [row.member for row in rows]
    deadline_s = np.array([member.deadline_s for member in members])
    ends_s = [row.planned.end_s(row.member) for row in rows]
    kept_s = np.minimum(ends_s, NEVER)  # a job without a turn in the plan waits for ever
    later_s = _late_s(kept_s, deadline_s)
    for kind in {place.kind for place in places}:
        columns = [n for n, place in enumerate(places) if place.kind == kind]
        cost = _costs(rows, [places[n] for n in columns], kind, packer, conditions)
        sooner = cost.complete_s + cost.late_s < (kept_s + later_s)[:, None]
        complete_s[:, columns], late_s[:, columns] = cost.complete_s, cost.late_s
        fits[:, columns] = cost.possible & sooner
    submitted_at = np.array([member.job.submitted_at for member in members])
    return Groups(complete_s, -late_s, fits, submitted_at, deadline_s, later_s)


def _costs(
    rows: Sequence[Row],
    places: Sequence[Place],
    kind: int,
    packer: Packer,
    conditions: Preconditions,
) -> Cost:
    joining, there = [row.member for row in rows], [place.member for place in places]
    company = packer.company(joining, there, kind)
    alone_s = np.array([member.left_s[kind] for member in there])
    ends_s, their_ends_s = _ends_s(joining, alone_s, kind, company)
    deadline_s = np.array([member.deadline_s for member in joining])[:, None]
    theirs_s = np.array([member.deadline_s for member in there])
    delayed_s = their_ends_s - alone_s
    more_late_s = _late_s(their_ends_s, theirs_s) - _late_s(alone_s, theirs_s)
    before = np.array([row.planned.rank for row in rows])[:, None] <= [p.rank for p in places]
    in_time = np.maximum(ends_s, their_ends_s) <= [place.until_s for place in places]
    uid = np.array([member.uid for member in joining])[:, None] == [place.uid for place in places]
    room = may_join(joining, np.array([place.room_mib for place in places]), conditions)
    return Cost(
        ends_s + delayed_s,
        _late_s(ends_s, deadline_s) + more_late_s,
        room & uid & (before | in_time) & (company.efficiency > 1 + GAIN),
    )


def _ends_s(
    joining: Sequence[Member], alone_s: Numbers, kind: int, company: Company
) -> tuple[Numbers, Numbers]:
    """`Group.ends_s`, for each row beside each column."""
    left_s = np.array([member.left_s[kind] for member in joining])[:, None]
    together_s = np.minimum(left_s * company.slowed, alone_s * company.slows)
    return (
        left_s + together_s * (1 - 1 / company.slowed),
        alone_s + together_s * (1 - 1 / company.slows),
    )


def _late_s(ends_s: Numbers, deadline_s: Numbers) -> Numbers:
    return np.maximum(0.0, ends_s - deadline_s)


def recall(view: View) -> Mapping[JobId, JobId]:
    """By running job, the queued one that was to join it when the last plan was made."""
    return dict(view.memory.joining) if isinstance(view.memory, Memory) else {}


def awaiting(view: View, jobs: Sequence[Job], where: Site) -> dict[JobId, Job]:
    """By running job, the partner among the queued `jobs` that can still join it: as long as enough
    is known about both. Otherwise the partner is planned like any other job."""
    pairs = recall(view)
    if not pairs:
        return {}
    wanted = set(pairs.values())
    queued = {job.id: job for job in jobs if job.id in wanted and is_known(job, where, view)}
    return {
        first.id: queued[pairs[first.id]]
        for first in _alone(view, where)
        if pairs.get(first.id) in queued and is_known(first, where, view)
    }


def _alone(view: View, where: Site) -> Iterator[Job]:
    """The jobs that have their GPUs to themselves and stay there."""
    for job in view.running:
        if where.single.issuperset(job.gpus) and not job.leaves:
            yield job


def turns(
    partners: Mapping[JobId, Member], running: Sequence[Member], where: Site, packer: Packer
) -> Iterator[Turn]:
    """The joins of partners, whether or not their GPUs can take them yet."""
    by_id = {gpu.id: gpu for gpu in where.gpus}
    for first in running:
        second = partners.get(first.job.id)
        if second:
            gpus = tuple(by_id[gpu] for gpu in first.job.gpus)
            kind = where.kind(gpus[0])
            group = packer.together(first, second, kind)
            yield Turn(Planned(group, ends_s=group.ends_s(kind)), gpus)
