"""All jobs in line as groups: pairs and single ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from carmad.plugin import View, idle
from policies.cuckoo.groups import Group, Memory, Node, Packer, user
from policies.cuckoo.members import Member, Site, memory_mib
from policies.cuckoo.packing import taken_apart

TOGETHER = 500  # jobs are matched by so many, in line order: those with close deadlines


def grouped(
    view: View,
    line: Sequence[Member],
    running: Sequence[Member],
    where: Site,
    packer: Packer | None,
) -> list[Group]:
    """In the order of their first in line. Those who run are only asked how fast GPUs are."""
    pairs = _pairs(view, line, where, packer) if packer else []
    packed = {member.job.id for pair in pairs for member in pair.members}
    single = [member for member in line if member.job.id not in packed]
    wanted = sum(m.job.spec.gpus for m in single) + sum(pair.gpus for pair in pairs)
    occupied = sum(1 for gpu in where.gpus if gpu.residents)
    spare = capacity(where, [*line, *running]) - occupied - wanted
    apart = taken_apart([p.efficiency for p in pairs], [p.gpus for p in pairs], spare)
    single += [member for n in apart for member in pairs[n].members]
    kept = [pair for n, pair in enumerate(pairs) if n not in apart]
    place = {member.job.id: n for n, member in enumerate(line)}
    alone = [Group((member,)) for member in single]
    return sorted((*kept, *alone), key=lambda group: min(place[m.job.id] for m in group.members))


def capacity(where: Site, told: Sequence[Member]) -> float:
    """In GPUs of the slowest kind (3.3.4): how often faster the others are, as the median of jobs
    whose stages are known has it."""
    known = {member.stages: member.alone for member in told if member.stages}
    paces = [
        median(alone[kind] / alone[0] for alone in known.values()) if known else 1.0
        for kind in range(len(where.kinds))
    ]
    return sum(max(paces) / paces[where.kind(gpu)] for gpu in where.gpus)


def _pairs(view: View, line: Sequence[Member], where: Site, packer: Packer) -> list[Group]:
    """Each number of GPUs for itself.

    The kind that a pair is rated for is the best for it of those with an idle GPU, and of all where
    none is idle (3.3.2).
    """
    shared = [gpu for gpu in where.gpus if not gpu.gpu.is_mig]
    free = {where.kind(gpu) for gpu in shared if idle(gpu, view.settings) is None}
    memory = Memory(_least_mib(where), view.settings.preconditions_for("cuckoo"))
    by_gpus: dict[int, list[Node]] = {}
    for node in packable(view, line):
        by_gpus.setdefault(node.member.job.spec.gpus, []).append(node)
    open_to = free or {where.kind(gpu) for gpu in shared}
    return [
        pair
        for nodes in by_gpus.values()
        for at in range(0, len(nodes), TOGETHER)
        for pair in packer.pairs(nodes[at : at + TOGETHER], open_to, memory)
    ]


def packable(view: View, line: Iterable[Member]) -> Iterator[Node]:
    """Those in line of whom enough is known, and who may be beside others."""
    for member in line:
        wanted, retry = view.demand(member.job), member.job.retry
        if not member.missing and not wanted.alone and not (retry and retry.avoid):
            yield Node(member, user(wanted))


def _least_mib(where: Site) -> list[int]:
    """Of the GPUs of each kind, what the smallest has."""
    return [
        min(memory_mib(gpu) for gpu in where.gpus if where.kind(gpu) == kind)
        for kind in range(len(where.kinds))
    ]
