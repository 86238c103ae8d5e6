"""Who of those that wait longer joins one that runs alone.

On CARMA's GPUs a job may join another at any time, so a place beside one that runs is a slot of
the plan like any other. It costs what equations 13 and 14 say of both: when the one that joins
ends, by how much later than alone the other does, and by how much more either misses its deadline.
Who does not get one keeps its turn, which costs its lateness: when it ends then does not count, as
all move up by as much whoever leaves the line, if all take the average time (3.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carmad.plugin import JobId, Preconditions, View
from policies.cuckoo.grouping import packable
from policies.cuckoo.groups import GAIN, Company, Group, Node, Packer
from policies.cuckoo.interleaving import Numbers
from policies.cuckoo.members import Member, Site
from policies.cuckoo.planning import NEVER, Groups, Planner, Window
from policies.cuckoo.schedule import Turn, classes
from policies.cuckoo.telling import Planned


class Place(NamedTuple):
    """Beside a job that is alone on its GPUs."""

    member: Member
    kind: int
    room_mib: int
    mps_uid: int | None


class Cost(NamedTuple):
    """Of each row beside each column, in seconds; what the column has to bear is in it."""

    complete_s: Numbers
    late_s: Numbers
    possible: NDArray[np.bool_]


def joins(
    view: View,
    planned: Mapping[JobId, Planned],
    running: Sequence[Member],
    where: Site,
    packer: Packer,
    planner: Planner,
) -> Iterator[Turn]:
    """Of those who are planned for later, or for the second place on GPUs that they start on now.
    Both are to gain: their efficiency is above 1, and waiting costs more."""
    by_id = {gpu.id: gpu for gpu in where.gpus}
    conditions = view.settings.preconditions_for("cuckoo")
    free = list(_places(view, running, where))
    nodes = {node.member.job.id: node for node in packable(view, _waiting(planned))}
    for alike in classes([Group((node.member,)) for node in nodes.values()]):
        there = [place for place in free if place.member.job.spec.gpus == alike[0].gpus]
        rows = [nodes[group.members[0].job.id] for group in alike]
        table = _table(rows, there, planned, packer, conditions)
        windows = [Window(n, end_s=NEVER) for n in range(len(there))]
        for node, slot in zip(rows, planner(table, windows) if there else (), strict=False):
            if slot:
                place = there[slot.window]
                free.remove(place)
                group = packer.rated(place.member, node.member, place.kind)
                gpus = tuple(by_id[gpu] for gpu in place.member.job.gpus)
                yield Turn(Planned(group, ends_s=group.ends_s(place.kind)), gpus)


def _waiting(planned: Mapping[JobId, Planned]) -> Iterator[Member]:
    """Those who do not start now."""
    for job, plan in planned.items():
        starts = plan.ends_s and plan.begin_s <= 0 and plan.group.members[0].job.id == job
        if not starts:
            yield next(member for member in plan.group.members if member.job.id == job)


def _places(view: View, running: Sequence[Member], where: Site) -> Iterator[Place]:
    """Those that somebody may take, be it later."""
    by_id = {gpu.id: gpu for gpu in where.gpus}
    for member in running:
        job, wanted = member.job, view.demand(member.job)
        gpus = [by_id.get(gpu) for gpu in job.gpus]
        if member.missing or wanted.alone or job.profiling or job.stop:
            continue
        if all(gpu and len(gpu.residents) == 1 and not gpu.gpu.is_mig for gpu in gpus):
            there = [gpu for gpu in gpus if gpu]
            room_mib = min(gpu.free_mib for gpu in there)
            yield Place(member, where.kind(there[0]), room_mib, wanted.mps_uid)


def _table(
    nodes: Sequence[Node],
    places: Sequence[Place],
    planned: Mapping[JobId, Planned],
    packer: Packer,
    conditions: Preconditions,
) -> Groups:
    shape = len(nodes), len(places)
    complete_s, late_s, fits = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool)
    ends_s = np.array([planned[n.member.job.id].end_s(n.member) for n in nodes])
    deadline_s = np.array([node.member.deadline_s for node in nodes])
    kept_s = np.minimum(ends_s, NEVER)  # who has no turn in the plan waits for ever
    later_s = _late_s(kept_s, deadline_s)
    for kind in {place.kind for place in places}:
        columns = [n for n, place in enumerate(places) if place.kind == kind]
        cost = _costs(nodes, [places[n] for n in columns], kind, packer, conditions)
        sooner = cost.complete_s + cost.late_s < (kept_s + later_s)[:, None]
        complete_s[:, columns], late_s[:, columns] = cost.complete_s, cost.late_s
        fits[:, columns] = cost.possible & sooner
    submitted_at = np.array([node.member.job.submitted_at for node in nodes])
    return Groups(complete_s, -late_s, fits, submitted_at, deadline_s, later_s)


def _costs(
    nodes: Sequence[Node],
    places: Sequence[Place],
    kind: int,
    packer: Packer,
    conditions: Preconditions,
) -> Cost:
    joining, there = [node.member for node in nodes], [place.member for place in places]
    company = packer.company(joining, there, kind)
    possible = _allowed(nodes, places, conditions) & (company.efficiency > 1 + GAIN)
    alone_s = np.array([member.left_s[kind] for member in there])
    ends_s, their_ends_s = _ends_s(joining, alone_s, kind, company)
    deadline_s = np.array([member.deadline_s for member in joining])[:, None]
    theirs_s = np.array([member.deadline_s for member in there])
    delayed_s = their_ends_s - alone_s
    more_late_s = _late_s(their_ends_s, theirs_s) - _late_s(alone_s, theirs_s)
    return Cost(ends_s + delayed_s, _late_s(ends_s, deadline_s) + more_late_s, possible)


def _ends_s(
    joining: Sequence[Member], alone_s: Numbers, kind: int, company: Company
) -> tuple[Numbers, Numbers]:
    """As `Group.ends_s`, of each row beside each column."""
    left_s = np.array([member.left_s[kind] for member in joining])[:, None]
    together_s = np.minimum(left_s * company.slowed, alone_s * company.slows)
    return (
        left_s + together_s * (1 - 1 / company.slowed),
        alone_s + together_s * (1 - 1 / company.slows),
    )


def _late_s(ends_s: Numbers, deadline_s: Numbers) -> Numbers:
    return np.maximum(0.0, ends_s - deadline_s)


def _allowed(
    nodes: Sequence[Node], places: Sequence[Place], conditions: Preconditions
) -> NDArray[np.bool_]:
    """Where there is memory for it and what is to be left, under the same MPS server."""
    need = np.array([node.member.need_mib for node in nodes])[:, None]
    margin = np.array([node.margin_mib(conditions) for node in nodes])[:, None]
    room = np.array([place.room_mib for place in places])
    uid = np.array([-1 if node.mps_uid is None else node.mps_uid for node in nodes])[:, None]
    theirs = np.array([-1 if place.mps_uid is None else place.mps_uid for place in places])
    fits = (need + margin <= room) & (room >= conditions.min_free_mib + margin)
    allowed: NDArray[np.bool_] = fits & (uid == theirs)
    return allowed
