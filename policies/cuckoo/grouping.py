"""All queued jobs as groups: pairs and single jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from carmad.plugin import View, idle
from policies.cuckoo.groups import Group, Memory, Node, Packer, user
from policies.cuckoo.members import Member, Site, memory_mib
from policies.cuckoo.packing import take_apart


def group(
    view: View,
    line: Sequence[Member],
    running: Sequence[Member],
    where: Site,
    packer: Packer | None,
) -> list[Group]:
    """Groups in the order of their first jobs. Running jobs only show how fast GPUs are."""
    pairs = _pairs(view, line, where, packer) if packer else []
    packed = {member.job.id for pair in pairs for member in pair.members}
    single = [member for member in line if member.job.id not in packed]
    wanted = sum(m.job.spec.gpus for m in single) + sum(pair.gpus for pair in pairs)
    occupied = sum(1 for gpu in where.gpus if gpu.residents)
    spare = capacity(where, [*line, *running]) - occupied - wanted
    apart = take_apart([p.efficiency for p in pairs], [p.gpus for p in pairs], spare)
    single += [member for n in apart for member in pairs[n].members]
    kept = [pair for n, pair in enumerate(pairs) if n not in apart]
    place = {member.job.id: n for n, member in enumerate(line)}
    alone = [Group((member,)) for member in single]
    return sorted((*kept, *alone), key=lambda group: min(place[m.job.id] for m in group.members))


def capacity(where: Site, told: Sequence[Member]) -> float:
    """In GPUs of the slowest kind (3.3.4): a faster GPU counts by its speed-up, the median over
    jobs with known stages."""
    known = {member.stages: member.alone for member in told if member.stages}
    paces = [
        median(alone[kind] / alone[0] for alone in known.values()) if known else 1.0
        for kind in range(len(where.kinds))
    ]
    return sum(max(paces) / paces[where.kind(gpu)] for gpu in where.gpus)


def _pairs(view: View, line: Sequence[Member], where: Site, packer: Packer) -> list[Group]:
    """Pairs, for each number of GPUs separately.

    A pair is rated on its best kind of GPU among those with an idle GPU, or among all if no GPU is
    idle (3.3.2).
    """
    shared = [gpu for gpu in where.gpus if not gpu.gpu.is_mig]
    free = {where.kind(gpu) for gpu in shared if idle(gpu, view.settings) is None}
    memory = Memory(_least_mib(where), view.settings.preconditions_for("cuckoo"))
    by_gpus: dict[int, list[Node]] = {}
    for node in packable(view, line):
        by_gpus.setdefault(node.member.job.spec.gpus, []).append(node)
    open_to = free or {where.kind(gpu) for gpu in shared}
    return [pair for nodes in by_gpus.values() for pair in packer.pairs(nodes, open_to, memory)]


def packable(view: View, line: Iterable[Member]) -> Iterator[Node]:
    """Queued jobs that may share, and about which enough is known."""
    for member in line:
        wanted, retry = view.demand(member.job), member.job.retry
        if not member.missing and not wanted.alone and not (retry and retry.avoid):
            yield Node(member, user(wanted))


def _least_mib(where: Site) -> list[int]:
    """The memory of the smallest GPU of each kind."""
    return [
        min(memory_mib(gpu) for gpu in where.gpus if where.kind(gpu) == kind)
        for kind in range(len(where.kinds))
    ]
