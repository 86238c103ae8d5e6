"""Groups of jobs: which jobs share GPUs, and how long that takes (Cuckoo paper, 3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carmad.plugin import Demand, Preconditions, StageTimes
from policies.castor.pairing import ends
from policies.cuckoo.interleaving import Model, Numbers, Phases
from policies.cuckoo.members import Member
from policies.cuckoo.packing import best_edges, matching
from policies.cuckoo.value import ddl_values, eff_values, rounds, standalone, total_values
from policies.memory import margin_mib

Slowed = tuple[tuple[float, float], ...]  # slowdowns of a pair's iterations, by kind

ANYONE = -1  # instead of a user: without MPS, all users may share
KNOWN = 512  # stages remembered with how they go together
GAIN = 1e-6  # an eff_value must exceed 1 by this: less is rounding


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


class Node(NamedTuple):
    """A waiting job that may be packed."""

    member: Member
    uid: int  # under MPS, the user of its server


def user(wanted: Demand) -> int:
    """The user whose jobs it may share with under MPS; otherwise `ANYONE`."""
    return ANYONE if wanted.mps_uid is None else wanted.mps_uid


class Memory(NamedTuple):
    """The memory of each kind of GPU, and the preconditions on it."""

    by_kind: Sequence[int]  # MiB, of the smallest GPU
    conditions: Preconditions


class Company(NamedTuple):
    """How jobs (rows) run beside others (columns), as tables."""

    efficiency: Numbers  # eff_value
    slowed: Numbers  # slowdown of the row's iterations
    slows: Numbers  # slowdown of the column's


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

    def ends_s(self, one: Member, other: Member, kind: int) -> tuple[float, float]:
        """When each of the two is done on this kind of GPU if both begin now (`Group.ends_s`)."""
        slowed = _cache_of(self).pair(one.stages[kind], other.stages[kind])
        return ends(one.left_s[kind], other.left_s[kind], slowed, 0.0)

    def pairs(self, nodes: Sequence[Node], open_to: Iterable[int], memory: Memory) -> list[Group]:
        """The matching of nodes that ask for equally many GPUs. `open_to` has the kinds that they
        may be packed for."""
        if len(nodes) < 2:
            return []
        eff = self._efficiencies(nodes, open_to, memory)
        left_s = np.array([node.member.deadline_s for node in nodes])
        ddl = ddl_values(left_s[:, None], left_s)
        table = np.where(eff > 1 + GAIN, total_values(eff, ddl, self.weight), 0.0)
        found = matching(best_edges(table))
        pairs = [_first_first(nodes[low].member, nodes[high].member) for low, high in found]
        return [
            Group(pair, self._slowdowns(*pair), float(eff[low, high]), float(ddl[low, high]))
            for (low, high), pair in zip(found, pairs, strict=True)
        ]

    def company(self, rows: Sequence[Member], columns: Sequence[Member], kind: int) -> Company:
        """The tables of rows beside columns."""
        return _cache_of(self).table(
            [member.stages[kind] for member in rows], [member.stages[kind] for member in columns]
        )

    def _efficiencies(
        self, nodes: Sequence[Node], open_to: Iterable[int], memory: Memory
    ) -> Numbers:
        """Highest eff_values of each with each; 0 for jobs that cannot be packed."""
        best = np.zeros((len(nodes), len(nodes)))
        members = [node.member for node in nodes]
        for kind in open_to:
            allowed = _may_pack(nodes, memory.by_kind[kind], memory.conditions)
            if allowed.any():
                values = self.company(members, members, kind).efficiency
                np.maximum(best, np.where(allowed, values, 0.0), out=best)
        return best

    def phases(self, stages: Sequence[StageTimes]) -> Phases:
        """Their phases in a round."""
        phases = Phases.of(stages)
        return phases if self.in_step else phases.slower(1 / standalone(self.model, phases))

    def _slowdowns(self, one: Member, other: Member) -> Slowed:
        """For each kind of GPU, how many times as long the iterations of both take."""
        known = _cache_of(self)
        return tuple(known.pair(*kind) for kind in zip(one.stages, other.stages, strict=True))


class _Known:
    """The table of each with each of the stages seen so far. Jobs stay queued from plan to plan,
    and many are runs of the same one: only what is new is computed."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._places: dict[StageTimes, int] = {}
        self._efficiency = self._slowed = np.zeros((0, 0))

    def pair(self, one: StageTimes, other: StageTimes) -> tuple[float, float]:
        """The slowdown of each."""
        places = self._with((one, other))
        low, high = places[one], places[other]
        return float(self._slowed[low, high]), float(self._slowed[high, low])

    def table(self, rows: Sequence[StageTimes], columns: Sequence[StageTimes]) -> Company:
        places = self._with((*rows, *columns))
        there = np.ix_([places[each] for each in rows], [places[each] for each in columns])
        return Company(self._efficiency[there], self._slowed[there], self._slowed.T[there])

    def _with(self, wanted: Iterable[StageTimes]) -> Mapping[StageTimes, int]:
        """The places of all that are known, with these."""
        new = list(dict.fromkeys(stages for stages in wanted if stages not in self._places))
        if not new:
            return self._places
        if len(self._places) + len(new) > KNOWN:
            self._places.clear()
            new = list(dict.fromkeys(wanted))
        old = len(self._places)
        self._places |= {stages: old + n for n, stages in enumerate(new)}
        count = len(self._places)
        mine, everyone = self._packer.phases(new), self._packer.phases(tuple(self._places))
        mine_s, all_s = (standalone(self._packer.model, each) for each in (mine, everyone))
        round_s = rounds(self._packer.model, mine, everyone)
        efficiency, slowed = np.empty((count, count)), np.empty((count, count))
        efficiency[:old, :old] = self._efficiency[:old, :old]
        slowed[:old, :old] = self._slowed[:old, :old]
        efficiency[old:] = eff_values(mine_s, all_s, round_s)
        efficiency[:, old:] = efficiency[old:].T
        slowed[old:] = np.maximum(1.0, round_s / mine_s[:, None])
        slowed[:, old:] = np.maximum(1.0, round_s / all_s).T
        self._efficiency, self._slowed = efficiency, slowed
        return self._places


@lru_cache(maxsize=8)
def _cache_of(packer: Packer) -> _Known:
    return _Known(packer)


def _may_pack(
    nodes: Sequence[Node], whole_mib: int, conditions: Preconditions
) -> NDArray[np.bool_]:
    """Which jobs may be packed together on GPUs with this much memory, whichever comes second."""
    room = np.array([whole_mib - node.member.need_mib for node in nodes])
    uid = np.array([node.uid for node in nodes])
    fits = may_join(nodes, room, conditions)
    allowed: NDArray[np.bool_] = fits & fits.T & (uid[:, None] == uid)
    np.fill_diagonal(allowed, False)
    return allowed


def may_join(
    nodes: Sequence[Node], room_mib: NDArray[np.int_], conditions: Preconditions
) -> NDArray[np.bool_]:
    """Whether each job (row) may join where this much room is left (column)."""
    members = [node.member for node in nodes]
    need = np.array([m.need_mib + margin_mib(m.job.retry, conditions) for m in members])
    return (need[:, None] <= room_mib) & (room_mib >= conditions.min_free_mib)


def _first_first(one: Member, other: Member) -> tuple[Member, Member]:
    """The two in queue order, ties by deadline."""
    return (other, one) if _turn(other) < _turn(one) else (one, other)


def _turn(member: Member) -> tuple[bool, int, float, float, int]:
    job = member.job
    return (job.retry is None, job.spec.nice, member.deadline_s, job.submitted_at, job.id)
