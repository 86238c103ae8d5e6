"""Groups of jobs: which jobs share GPUs (Cuckoo paper, 3.3.2, algorithm 3), how long that takes,
and which pairs are split again (3.3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np
import rustworkx
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from carmad.plugin import StageTimes, choice
from policies.castor.pairing import ends
from policies.cuckoo.interleaving import (
    Model,
    Numbers,
    Phases,
    ddl_values,
    eff_values,
    rounds,
    standalone,
    total_values,
)
from policies.cuckoo.members import Member
from policies.cuckoo.site import Site

Edge = tuple[int, int, float]

KEPT = 8  # of a job's edges, see `best_edges`
GRAIN = 1_000_000  # the library's weights are integers

Slowed = tuple[tuple[float, float], ...]  # slowdowns of a pair's iterations, by kind

GAIN = 1e-6  # an eff_value must exceed 1 by this: less is rounding


def best_edges(weights: Numbers) -> list[Edge]:
    """A few edges of a complete graph that contain its maximum-weight matching, except for at most
    0.25 % of the weight (with 100 to 500 random jobs). Matching 1,000 jobs takes 25 s with all
    edges, and 0.2 s with these.

    `weights` is a table of each with each; 0: no edge. Kept for each job are

    - the edges that most exceed the averages of both their ends. The heaviest ones alone would lead
      to the same few partners, each of which can be used only once;
    - its edge in the best assignment of jobs to jobs, in which A may have B, B have C, and C have
      A. Most of that is pairs already, or can be cut into pairs, so that no job lacks a partner.
    """
    count = len(weights)
    average = weights.mean(axis=1)
    above = np.where(weights > 0, weights - average[:, None] - average, -np.inf)
    kept = min(KEPT, count)
    best = np.argpartition(-above, kept - 1, axis=1)[:, :kept]
    jobs, assigned = linear_sum_assignment(weights, maximize=True)
    rows = np.concatenate((np.repeat(np.arange(count), kept), jobs))
    columns = np.concatenate((best.ravel(), assigned))
    low, high = np.minimum(rows, columns), np.maximum(rows, columns)
    low, high = np.divmod(np.unique(low * count + high), count)
    values = weights[low, high]
    there = (values > 0) & (low != high)
    return list(zip(low[there].tolist(), high[there].tolist(), values[there].tolist(), strict=True))


def matching(edges: Iterable[Edge]) -> list[tuple[int, int]]:
    """The maximum-weight matching."""
    whole = [(low, high, round(weight * GRAIN)) for low, high, weight in edges]
    graph = rustworkx.PyGraph(multigraph=False)
    graph.extend_from_weighted_edge_list(whole)
    pairs = rustworkx.max_weight_matching(graph, weight_fn=int)
    return sorted((min(pair), max(pair)) for pair in pairs)


def take_apart(efficiencies: Sequence[float], gpus: Sequence[int], spare: float) -> set[int]:
    """Which pairs not to pack, so that otherwise idle GPUs are used: the least efficient ones, as
    long as there is room for another job with as many GPUs. `spare` is in GPUs, where faster ones
    count for more."""
    apart = set()
    for n in sorted(range(len(gpus)), key=lambda n: (efficiencies[n], n)):
        if gpus[n] <= spare:
            spare -= gpus[n]
            apart.add(n)
    return apart


@dataclass(frozen=True, slots=True)
class Group:
    """One job, or two. Of two queued jobs, the first one, usually the one with the earlier
    deadline, starts first."""

    members: tuple[Member, ...]
    slowed: Slowed = ()  # of a pair
    efficiency: float = 1.0  # eff_value
    closeness: float = 1.0  # ddl_value

    @property
    def gpus(self) -> int:
        return self.members[0].job.spec.gpus

    @property
    def running(self) -> bool:
        return self.members[0].job.holds_gpus

    def ends_s(self, kind: int) -> tuple[float, ...]:
        """When each job is done if both begin now. The one that is left continues alone."""
        lefts = tuple(member.left_s[kind] for member in self.members)
        if not self.slowed:
            return lefts
        return ends(lefts[0], lefts[1], self.slowed[kind], 0.0)


@dataclass(frozen=True, slots=True)
class Packer:
    """`in_step`: the jobs of a group do one iteration each per round, as under the paper's (and
    Muri's) executor. On CARMA's GPUs nothing keeps them in step: the job with the shorter
    iterations does more of them, which are modelled as one."""

    model: Model
    weight: float
    in_step: bool = False

    def together(self, one: Member, other: Member, kind: int) -> Group:
        """The two jobs as a group, rated on this kind of GPU, even if it gains nothing."""
        slowed = self._slowdowns(one, other)
        closeness = float(ddl_values(one.deadline_s, other.deadline_s))
        return Group((one, other), slowed, sum(1 / by for by in slowed[kind]), closeness)

    def pairs(
        self, members: Sequence[Member], open_to: Set[int], least_mib: Sequence[float]
    ) -> Sequence[Group]:
        """The matching of members that ask for equally many GPUs. `open_to` has the kinds that they
        may be packed for, `least_mib` the memory of the smallest GPU of each kind."""
        if len(members) < 2:
            return ()
        eff = self._efficiencies(members, open_to, least_mib)
        left_s = np.array([member.deadline_s for member in members])
        ddl = ddl_values(left_s[:, None], left_s)
        table = np.where(eff > 1 + GAIN, total_values(eff, ddl, self.weight), 0.0)
        found = matching(best_edges(table))
        pairs = [_first_first(members[low], members[high]) for low, high in found]
        return [
            Group(pair, self._slowdowns(*pair), float(eff[low, high]), float(ddl[low, high]))
            for (low, high), pair in zip(found, pairs, strict=True)
        ]

    def _efficiencies(
        self, members: Sequence[Member], open_to: Iterable[int], least_mib: Sequence[float]
    ) -> Numbers:
        """Highest eff_values of each with each; 0 for jobs that cannot be packed."""
        best = np.zeros((len(members), len(members)))
        for kind in open_to:
            allowed = _may_pack(members, least_mib[kind])
            if allowed.any():
                known = dict.fromkeys(member.stages[kind] for member in members)
                places = {stages: n for n, stages in enumerate(known)}
                at = [places[member.stages[kind]] for member in members]
                values = _efficiencies(self, tuple(places))[np.ix_(at, at)]
                np.maximum(best, np.where(allowed, values, 0.0), out=best)
        return best

    def phases(self, stages: Sequence[StageTimes]) -> Phases:
        """Their phases in a round."""
        phases = Phases.of(stages)
        return phases if self.in_step else phases.slower(1 / standalone(self.model, phases))

    def _slowdowns(self, one: Member, other: Member) -> Slowed:
        """For each kind of GPU."""
        kinds = zip(one.stages, other.stages, strict=True)
        return tuple(_slowdown(self, *stages) for stages in kinds)


@lru_cache(maxsize=64)
def _efficiencies(packer: Packer, stages: tuple[StageTimes, ...]) -> Numbers:
    """eff_value of each with each."""
    phases = packer.phases(stages)
    alone_s = standalone(packer.model, phases)
    return eff_values(alone_s, alone_s, rounds(packer.model, phases, phases))


@lru_cache(maxsize=4096)
def _slowdown(packer: Packer, one: StageTimes, other: StageTimes) -> tuple[float, float]:
    """How many times as long the iterations of each take."""
    mine, theirs = packer.phases([one]), packer.phases([other])
    round_s = rounds(packer.model, mine, theirs).item()
    alone_s = (standalone(packer.model, each).item() for each in (mine, theirs))
    slowed = [max(1.0, round_s / each) for each in alone_s]
    return slowed[0], slowed[1]


def _may_pack(members: Sequence[Member], whole_mib: float) -> NDArray[np.bool_]:
    """Which jobs may be packed together on GPUs with this much memory, whichever comes second."""
    room_mib = np.array([whole_mib - member.need_mib for member in members])
    wanted_mib = np.array([member.room_mib for member in members])
    uid = np.array([member.uid for member in members])
    fits = wanted_mib[:, None] <= room_mib
    allowed: NDArray[np.bool_] = fits & fits.T & (uid[:, None] == uid)
    np.fill_diagonal(allowed, False)
    return allowed


def _first_first(one: Member, other: Member) -> tuple[Member, Member]:
    """The two in queue order, ties by deadline."""
    return (other, one) if _turn(other) < _turn(one) else (one, other)


def _turn(member: Member) -> tuple[bool, int, float, float, int]:
    job = member.job
    return (job.retry is None, job.spec.nice, member.deadline_s, job.submitted_at, job.id)


def group(
    line: Sequence[Member],
    running: Sequence[Member],
    where: Site,
    packer: Packer | None,
) -> list[Group]:
    """Groups in the order of their first jobs. Running jobs only show how fast GPUs are."""
    pairs = _pairs(line, where, packer) if packer else []
    packed = {member.job.id for pair in pairs for member in pair.members}
    single = [member for member in line if member.job.id not in packed]
    wanted = sum(m.job.spec.gpus for m in single) + sum(pair.gpus for pair in pairs)
    occupied = len(where.gpus) - where.idle
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
    if len(where.kinds) == 1:
        return len(where.gpus)
    known = {member.stages: member.alone for member in told if member.stages}
    paces = [
        median(alone[kind] / alone[0] for alone in known.values()) if known else 1.0
        for kind in range(len(where.kinds))
    ]
    return sum(max(paces) / paces[where.kind(gpu)] for gpu in where.gpus)


def _pairs(line: Sequence[Member], where: Site, packer: Packer) -> list[Group]:
    """Pairs, for each number of GPUs separately.

    A pair is rated on its best kind of GPU among those with an idle GPU, or among all if no GPU is
    idle (3.3.2).
    """
    shared = [gpu for gpu in where.gpus if not gpu.gpu.is_mig]
    free = {where.kind(gpu) for gpu in shared if not gpu.residents}
    by_gpus: dict[int, list[Member]] = {}
    for member in filter(_is_packable, line):
        by_gpus.setdefault(member.job.spec.gpus, []).append(member)
    open_to = free or {where.kind(gpu) for gpu in shared}
    least_mib = where.least_mib
    return [pair for alike in by_gpus.values() for pair in packer.pairs(alike, open_to, least_mib)]


def _is_packable(member: Member) -> bool:
    """Whether it may be packed: not if it wants certain GPUs, or a failure keeps it off some."""
    job = member.job
    return member.shares and not choice(job.spec) and not (job.retry and job.retry.avoid)
