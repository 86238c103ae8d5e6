"""Policies that consolidate as in the simulator of Lucid's authors: a job of up to eight GPUs gets
them on one node, a larger one gets whole nodes, and its remainder on one more. CARMA's own policies
prefer that, but take GPUs on more nodes rather than wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from math import ceil
from typing import Any, TypeVar

from carmad.core.placing.view import Policy
from carmad.plugin import GpuId, Job, View
from lab.preemptive import Occupied, Preemptive
from policies.ranked import Ranked
from policies.rules import Fit

PER_NODE = 8

T = TypeVar("T")


def pick(nodes: Sequence[Sequence[T]], gpus: int) -> tuple[T, ...]:
    """The GPUs to take of the suitable ones on each node; none if they are too scattered. Those of
    the fullest node that has enough come first, to keep whole nodes for larger jobs."""
    whole, rest = divmod(gpus, PER_NODE)
    empty = [node for node in nodes if len(node) == PER_NODE][:whole]
    if len(empty) < whole:
        return ()
    last: Sequence[T] = ()
    if rest:
        others = [node for node in nodes if len(node) >= rest and not any(node is e for e in empty)]
        if not others:
            return ()
        last = min(others, key=len)[:rest]
    return tuple(chain(*empty, last))


@dataclass(frozen=True, slots=True, eq=False)
class Consolidated(Ranked):
    def choose(self, fits: Sequence[Fit], gpus: int, view: View) -> tuple[GpuId, ...]:
        return pick([fit.gpus for fit in fits], gpus)


@dataclass(frozen=True, slots=True, eq=False)
class ConsolidatedPreemptive(Preemptive):
    def _suitable(self, head: Job, view: View) -> list[Occupied]:
        """Only those on the nodes from which the fewest GPUs have to be taken."""
        lower = {job.id for job in self._lower(head, view, set())}
        going = lower.union(job.id for job in view.running if job.stop is not None)
        nodes: dict[int, list[Occupied]] = {}
        for gpu, there in Preemptive._suitable(self, head, view):
            if there <= going:
                nodes.setdefault(view.node_of[gpu.id], []).append((gpu, there))
        each, count = min(head.spec.gpus, PER_NODE), ceil(head.spec.gpus / PER_NODE)

        def is_taken(occupied: Occupied) -> bool:
            return not lower.isdisjoint(occupied[1])

        parts = [sorted(node, key=is_taken)[:each] for node in nodes.values() if len(node) >= each]
        parts.sort(key=lambda part: sum(map(is_taken, part)))
        return [] if len(parts) < count else [*chain(*parts[:count])][: head.spec.gpus]


def consolidate(policy: Policy) -> Policy:
    """The same policy, but consolidating. Lucid's own always does."""
    if isinstance(policy, Preemptive):
        return ConsolidatedPreemptive(**{**_values(policy), "unshared": _ranked(policy.unshared)})
    return _ranked(policy) if isinstance(policy, Ranked) else policy


def _ranked(policy: Ranked) -> Consolidated:
    return Consolidated(**_values(policy))


def _values(policy: Ranked | Preemptive) -> dict[str, Any]:
    return {each.name: getattr(policy, each.name) for each in fields(policy)}
