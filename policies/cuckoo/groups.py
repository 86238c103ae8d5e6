"""Groups of jobs: who is to share GPUs with whom, and how long that takes (Cuckoo paper, 3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carmad.plugin import Preconditions, StageTimes
from policies.castor.pairing import ends
from policies.cuckoo.interleaving import Model, Numbers, Phases
from policies.cuckoo.members import Member
from policies.cuckoo.packing import best_edges, matched
from policies.cuckoo.value import ddl_values, eff_values, rounds, standalone, total_values

Stages = tuple[StageTimes, ...]  # by kind

GAIN = 1e-6  # by how much an eff_value has to be above 1: less is rounding


@dataclass(frozen=True, slots=True)
class Group:
    """One job, or two. Of two in line the first one starts first: its deadline is the earlier."""

    members: tuple[Member, ...]
    slowed: tuple[tuple[float, ...], ...] = ()  # a pair's iterations, times those alone, by kind
    efficiency: float = 1.0  # eff_value
    closeness: float = 1.0  # ddl_value

    @property
    def gpus(self) -> int:
        return self.members[0].job.spec.gpus

    @property
    def running(self) -> bool:
        return self.members[0].job.holds_gpus

    def ends_s(self, kind: int) -> tuple[float, ...]:
        """When each of them is done, if they begin together now. Who is left over goes on alone."""
        lefts = tuple(member.left_s[kind] for member in self.members)
        if not self.slowed:
            return lefts
        one, other = self.slowed[kind]
        return ends(lefts[0], lefts[1], (one, other), 0.0)

    def latest_s(self, kind: int) -> float:
        """When they have to begin, so that each is done by its deadline."""
        ends_s = self.ends_s(kind)
        return min(m.deadline_s - end_s for m, end_s in zip(self.members, ends_s, strict=True))


class Node(NamedTuple):
    """A job that waits and may be packed."""

    member: Member
    mps_uid: int | None = None

    def margin_mib(self, conditions: Preconditions) -> int:
        """What an admin wants to be left, or what it recovers with."""
        retry = self.member.job.retry
        return max(conditions.margin_mib, retry.margin_mib if retry else 0)


class Memory(NamedTuple):
    """What there is on the GPUs of each kind, and what an admin wants of it."""

    by_kind: Sequence[int]  # MiB, of the smallest
    conditions: Preconditions


class Company(NamedTuple):
    """What some jobs come to beside others, in tables of rows beside columns."""

    efficiency: Numbers  # eff_value
    slowed: Numbers  # an iteration of the row's, times that alone
    slows: Numbers  # one of the column's


@dataclass(frozen=True, slots=True)
class Packer:
    """`in_step`: the jobs of a group do one iteration each per round, as under the paper's (and
    Muri's) executor. Nothing keeps them in step on CARMA's GPUs: there the one with the shorter
    iterations does as many more of them, and is modelled as if they were one."""

    model: Model
    weight: float
    in_step: bool = False

    def together(self, one: Member, other: Member) -> Group:
        """Two that are packed, whatever they gain."""
        return Group((one, other), _slowed(self, one.stages, other.stages))

    def rated(self, one: Member, other: Member, kind: int) -> Group:
        """The same, with what their packing is worth on that kind."""
        efficiency = float(self.company([one], [other], kind).efficiency[0, 0])
        closeness = float(ddl_values(np.array(one.deadline_s), np.array(other.deadline_s)))
        return replace(self.together(one, other), efficiency=efficiency, closeness=closeness)

    def pairs(self, nodes: Sequence[Node], open_to: Iterable[int], memory: Memory) -> list[Group]:
        """The matching of nodes that ask for as many GPUs as each other. `open_to` are the kinds
        that they may be packed for."""
        if len(nodes) < 2:
            return []
        eff = self._efficiencies(nodes, open_to, memory)
        left_s = np.array([node.member.deadline_s for node in nodes])
        ddl = ddl_values(left_s[:, None], left_s)
        table = np.where(eff > 1 + GAIN, total_values(eff, ddl, self.weight), 0.0)
        found = matched(best_edges(table))
        return [
            replace(
                self.together(*_first_first(nodes[low].member, nodes[high].member)),
                efficiency=float(eff[low, high]),
                closeness=float(ddl[low, high]),
            )
            for low, high in found
        ]

    def company(self, rows: Sequence[Member], columns: Sequence[Member], kind: int) -> Company:
        """Runs of the same job, of which there are many, are looked at once."""
        places: dict[StageTimes, int] = {}
        place = [places.setdefault(m.stages[kind], len(places)) for m in (*rows, *columns)]
        row, column = place[: len(rows)], place[len(rows) :]
        efficiency, slowed = _each_with_each(self, tuple(places))
        there, back = np.ix_(row, column), np.ix_(column, row)
        return Company(efficiency[there], slowed[there], slowed[back].T)

    def _efficiencies(
        self, nodes: Sequence[Node], open_to: Iterable[int], memory: Memory
    ) -> Numbers:
        """eff_values of each with each, where it is highest; 0 for those who cannot be packed."""
        best = np.zeros((len(nodes), len(nodes)))
        members = [node.member for node in nodes]
        for kind in open_to:
            allowed = _allowed(nodes, memory.by_kind[kind], memory.conditions)
            if allowed.any():
                values = self.company(members, members, kind).efficiency
                np.maximum(best, np.where(allowed, values, 0.0), out=best)
        return best

    def phases(self, stages: Sequence[StageTimes]) -> Phases:
        """What they do in a round."""
        phases = Phases.of(stages)
        return phases if self.in_step else phases.slower(1 / standalone(self.model, phases))

    def slowed(self, one: Stages, other: Stages) -> tuple[tuple[float, ...], ...]:
        """By how much longer an iteration of either takes, by kind."""
        a, b = self.phases(one), self.phases(other)
        round_s = np.minimum(self.model.iteration_s((a, b)), self.model.iteration_s((b, a)))
        each = (np.maximum(1.0, round_s / standalone(self.model, phases)) for phases in (a, b))
        return tuple(zip(*(ratio.tolist() for ratio in each), strict=True))


_slowed = lru_cache(maxsize=4096)(Packer.slowed)  # pairs stay together for many plans


@lru_cache(maxsize=16)
def _each_with_each(packer: Packer, stages: tuple[StageTimes, ...]) -> tuple[Numbers, Numbers]:
    """Efficiencies, and the rows' slow-downs. The same jobs stay in line from plan to plan."""
    jobs = packer.phases(stages)
    round_s, alone_s = rounds(packer.model, jobs), standalone(packer.model, jobs)
    return eff_values(alone_s, round_s), np.maximum(1.0, round_s / alone_s[:, None])


def _allowed(nodes: Sequence[Node], whole_mib: int, conditions: Preconditions) -> NDArray[np.bool_]:
    """Who may be packed with whom on GPUs of so much memory: whichever of them is the second."""
    need = np.array([node.member.need_mib for node in nodes])
    margin = np.array([node.margin_mib(conditions) for node in nodes])[:, None]
    room = whole_mib - need
    fits = (need[:, None] + margin <= room) & (room >= conditions.min_free_mib + margin)
    uid = np.array([-1 if node.mps_uid is None else node.mps_uid for node in nodes])
    allowed: NDArray[np.bool_] = fits & fits.T & (uid[:, None] == uid)
    np.fill_diagonal(allowed, False)
    return allowed


def _first_first(one: Member, other: Member) -> tuple[Member, Member]:
    """Who has the earlier deadline; as in line between equals."""
    return (other, one) if _turn(other) < _turn(one) else (one, other)


def _turn(member: Member) -> tuple[float, float, int]:
    return (member.deadline_s, member.job.submitted_at, member.job.id)
