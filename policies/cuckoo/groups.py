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
from policies.cuckoo.value import ddl_values, eff_values, standalone, total_values

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
    """A job that may be packed, and where it is if it runs."""

    member: Member
    kind: int = -1  # of the GPUs that it is alone on; −1: it waits
    room_mib: int = 0  # that is left there
    mps_uid: int | None = None


class Memory(NamedTuple):
    """What there is on the GPUs of each kind, and what an admin wants of it."""

    by_kind: Sequence[int]  # MiB, of the smallest
    conditions: Preconditions


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

    def pairs(self, nodes: Sequence[Node], open_to: Iterable[int], memory: Memory) -> list[Group]:
        """The matching of nodes that ask for as many GPUs as each other. `open_to` are the kinds
        that those who wait may be packed for."""
        if len(nodes) < 2:
            return []
        eff = self._efficiencies(nodes, tuple(open_to), memory)
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

    def _efficiencies(
        self, nodes: Sequence[Node], open_to: tuple[int, ...], memory: Memory
    ) -> Numbers:
        """eff_values of each with each, where it is highest; 0 for those who cannot be packed."""
        best = np.zeros((len(nodes), len(nodes)))
        for kind in range(len(memory.by_kind)):
            allowed = _allowed(nodes, kind, kind in open_to, memory)
            if allowed.any():
                values = self._on_kind([node.member for node in nodes], kind)
                np.maximum(best, np.where(allowed, values, 0.0), out=best)
        return best

    def _on_kind(self, members: Sequence[Member], kind: int) -> Numbers:
        """Runs of the same job, of which there are many, are looked at once."""
        places: dict[StageTimes, int] = {}
        place = [places.setdefault(m.stages[kind], len(places)) for m in members]
        return _each_with_each(self, tuple(places))[np.ix_(place, place)]

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
def _each_with_each(packer: Packer, stages: tuple[StageTimes, ...]) -> Numbers:
    """The same jobs stay in line from plan to plan."""
    return eff_values(packer.model, packer.phases(stages))


def _allowed(nodes: Sequence[Node], kind: int, is_open: bool, memory: Memory) -> NDArray[np.bool_]:
    """Who may be packed with whom on that kind: not two that run, not without memory for both.
    Rows are those who join, columns whom they join."""
    conditions, whole = memory.conditions, memory.by_kind[kind]
    need = np.array([node.member.need_mib for node in nodes])
    recovering = np.array([r.margin_mib if (r := n.member.job.retry) else 0 for n in nodes])
    margin = np.maximum(conditions.margin_mib, recovering)[:, None]
    waits = np.array([node.kind < 0 for node in nodes])
    here = np.array([node.kind == kind for node in nodes])
    room = np.where(waits, whole - need, [node.room_mib for node in nodes])
    fits = (need[:, None] + margin <= room) & (room >= conditions.min_free_mib + margin)
    joins = waits[:, None] & here & fits
    both = waits[:, None] & waits & fits & fits.T & is_open
    uid = np.array([-1 if node.mps_uid is None else node.mps_uid for node in nodes])
    allowed: NDArray[np.bool_] = (joins | joins.T | both) & (uid[:, None] == uid)
    np.fill_diagonal(allowed, False)
    return allowed


def _first_first(one: Member, other: Member) -> tuple[Member, Member]:
    """Who runs, or else has the earlier deadline; as in line between equals."""
    return (other, one) if _turn(other) < _turn(one) else (one, other)


def _turn(member: Member) -> tuple[bool, float, float, int]:
    job = member.job
    return (not job.holds_gpus, member.deadline_s, job.submitted_at, job.id)
