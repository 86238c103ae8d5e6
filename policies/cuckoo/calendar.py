"""When GPUs are free, and to which jobs they are promised. Times are in seconds from now.

Where one MPS server serves a node's GPUs, and only one user at a time, its clients close all of
them to other users' clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from carmad.plugin import GpuId, GpuView, JobId
from policies.cuckoo.members import LEAST_S, Site
from policies.cuckoo.planning import Window

Alike = Callable[[GpuView], object]


@dataclass(frozen=True, slots=True)
class Entry:
    """One GPU. An idle one may be promised to a job that waits for more GPUs; until then, another
    job may use it."""

    gpu: GpuView
    free_s: float
    after: tuple[JobId, ...] = ()  # the jobs that use it until then
    lent_s: float = 0.0  # how long it is idle and may be used

    @property
    def idle(self) -> bool:
        return self.free_s <= 0


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
    def __init__(self, where: Site, entries: Sequence[Entry]) -> None:
        self._where = where
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
        entries = [entry for id, entry in self._entries.items() if id not in barred]
        if uid is not None:
            entries = [self._open_to(uid, entry) for entry in entries]
        for alike in (_node_and_kind, _kind, _any):
            found = [*self._whole(entries, count, alike), *self._lent(entries, count, alike)]
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
                self._entries[gpu.id] = replace(entry, free_s=free_s, lent_s=0.0)
                continue
            lent_s = begin_s if entry.idle else entry.lent_s
            self._entries[gpu.id] = Entry(gpu, begin_s + length_s, jobs, lent_s)

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
        return replace(entry, free_s=free_s, after=after, lent_s=lent_s)

    def _whole(self, entries: Sequence[Entry], count: int, alike: Alike) -> Iterator[Seats]:
        for chosen in _in_sets(entries, count, alike, _first_free):
            begin_s = max([entry.free_s for entry in chosen])
            yield self._seats(chosen, max(0.0, begin_s), math.inf)

    def _lent(self, entries: Sequence[Entry], count: int, alike: Alike) -> Iterator[Seats]:
        idle = [entry for entry in entries if entry.lent_s > 0]
        for chosen in _in_sets(idle, count, alike, _longest_lent):
            yield self._seats(chosen, 0.0, min(entry.lent_s for entry in chosen))

    def _seats(self, chosen: Sequence[Entry], begin_s: float, end_s: float) -> Seats:
        kind = self._where.kind(chosen[0].gpu)
        ids = tuple([entry.gpu.gpu.id for entry in chosen])
        return Seats(chosen, ids, Window(kind, begin_s, end_s))


def _in_sets(
    entries: Sequence[Entry],
    count: int,
    alike: Alike,
    turn: Callable[[Entry], tuple[object, ...]],
) -> Iterator[Sequence[Entry]]:
    by_kind: dict[object, list[Entry]] = {}
    for entry in entries:
        by_kind.setdefault(alike(entry.gpu), []).append(entry)
    for each in by_kind.values():
        if len(each) < count:
            continue
        each.sort(key=turn)
        for at in range(0, len(each) - count + 1, count):
            yield each[at : at + count]


def _first_free(entry: Entry) -> tuple[object, ...]:
    return entry.free_s, entry.after, entry.gpu.gpu.island


def _longest_lent(entry: Entry) -> tuple[object, ...]:
    return -entry.lent_s, entry.gpu.gpu.island


def _node_and_kind(gpu: GpuView) -> object:
    return gpu.gpu.node, gpu.gpu.name


def _kind(gpu: GpuView) -> object:
    return gpu.gpu.name


def _any(gpu: GpuView) -> object:
    return None
