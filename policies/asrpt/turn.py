"""State of one A-SRPT plan: where each job starts, or why it waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from carmad.plugin import Demand, GpuId, Job, JobId, Placement, Reason, Verdict, View
from policies.asrpt.heavy_edge import COMM_HEAVY, extremes, mapping
from policies.asrpt.machine import work
from policies.asrpt.servers import (
    Server,
    Unshared,
    closest,
    least_available,
    most_available,
    take,
)
from policies.reasons import expectation
from policies.totals import totals

EXPLAINED = 4  # the first waiting jobs, which get reasons; the very first gets them per GPU
READABLE = 64  # GPUs; with more, only the first job gets reasons, and none per GPU


@dataclass(frozen=True, slots=True)
class Aside:
    """A communication-heavy job that waits for better GPUs than it found first."""

    until: float
    iteration_s: float  # κ: the time to beat


class Place(NamedTuple):
    """GPUs for a job, in the order of its slots, and how long an iteration takes there."""

    gpus: tuple[GpuId, ...]
    iteration_s: float = 0.0
    fastest_s: float = 0.0
    heavy: bool = False

    @property
    def good(self) -> bool:
        return not self.heavy or self.iteration_s <= COMM_HEAVY * self.fastest_s


class Turn:
    """`view` (without a queue) and `idle` are what placed jobs leave free; `aside` has jobs that
    wait for better GPUs, or have waited long enough."""

    def __init__(
        self,
        unshared: Unshared,
        patience: float,
        view: View,
        aside: dict[JobId, Aside],
        adaptive: bool = True,
    ) -> None:
        self.view = replace(view, queue=())  # removing started jobs from a long queue is slow
        self.totals = totals(view)
        self.idle = self.totals.idle
        self.aside = aside
        self.explained = EXPLAINED if self._readable else 1
        self._unshared = unshared
        self._patience = patience
        self._adaptive = adaptive
        self._servers: dict[Demand, list[Server]] = {}  # valid until a job starts

    def of(self, job: Job, explain: bool) -> Placement:
        """Its GPUs, or why it waits; with `explain`, the verdict on every GPU."""
        place = self._place(job) if job.spec.gpus <= self.idle else None
        waits = self._too_few(job) if place is None else self._for_better(job, place)
        if place is None or waits:
            verdicts = self._verdicts(job) if explain else ()
            return Placement(job.id, (), verdicts, waits)
        verdicts = self._verdicts(job)
        self._start(job, place)
        return Placement(job.id, place.gpus, verdicts, explanation=_explanation(job, place))

    @property
    def _readable(self) -> bool:
        return len(self.view.node_of) <= READABLE

    def claims(self, job: Job) -> bool:
        """Whether the job claims the next idle GPUs: not if it waits for better ones, or wants more
        than are in service."""
        aside = self.aside.get(job.id)
        patient = aside is not None and self.view.now < aside.until
        return not patient and job.spec.gpus <= self.totals.usable

    def _place(self, job: Job) -> Place | None:
        """Lines 9 to 11 and 22 to 23 of the algorithm. A job without a layout is placed as close
        together as possible, and does not wait for a better place."""
        servers, layout, gpus = self._servers_for(job), job.spec.layout, job.spec.gpus
        if layout is None:
            parts = take(closest(servers, gpus) if self._adaptive else servers, gpus)
            return Place(tuple(chain.from_iterable(parts))) if parts else None
        links, size = self.view.settings.links, self.totals.size
        known = extremes(layout, links, size)
        if self._adaptive:
            servers = (most_available if known.heavy else least_available)(servers)
        parts = take(servers, gpus, known.width)
        if not parts:
            return None
        found = mapping(layout, tuple(map(len, parts)), links, size)
        if known.width > 1 and not found.whole:
            return None
        unused = [iter(part) for part in parts]
        chosen = tuple(next(unused[server]) for server in found.servers)
        return Place(chosen, found.iteration_s, known.fastest_s, known.heavy)

    def _servers_for(self, job: Job) -> list[Server]:
        wanted = self.view.demand(job)
        if wanted not in self._servers:
            self._servers[wanted] = self._unshared.servers(wanted, self.view)
        return self._servers[wanted]

    def _verdicts(self, job: Job) -> tuple[Verdict, ...]:
        return self._unshared.place(job, self.view).verdicts if self._readable else ()

    def _for_better(self, job: Job, place: Place) -> tuple[Reason, ...]:
        """Lines 12 to 20: why it waits for GPUs on which it would be faster; empty if it starts."""
        aside = self.aside.get(job.id)
        if aside is None:
            run_s = work(job) / self.totals.usable  # g/G · ñ · α̃_min
            aside = Aside(self.view.now + self._patience * run_s, place.iteration_s)
            if place.good or aside.until <= self.view.now:
                return ()
            self.aside[job.id] = aside
        elif self.view.now >= aside.until or place.iteration_s < aside.iteration_s:
            return ()
        times = place.iteration_s / place.fastest_s
        return (Reason("better_gpus", aside.until, times, detail="times as slow"),)

    def _too_few(self, job: Job) -> tuple[Reason, ...]:
        gpus, layout = job.spec.gpus, job.spec.layout
        if gpus > self.idle:
            return (Reason("few_idle", gpus, self.idle, "GPUs"),)
        free = [len(server) for server in self._servers_for(job)]
        if layout and sum(free) >= gpus:
            width = extremes(layout, self.view.settings.links, self.totals.size).width
            return (Reason("slices_apart", width, max(free), "GPUs"),)
        return (Reason("few_idle", gpus, sum(free), "GPUs"),)

    def _start(self, job: Job, place: Place) -> None:
        self.view = self.view.with_placement(job, place.gpus)
        self.idle -= job.spec.gpus
        self.aside.pop(job.id, None)
        self._servers.clear()


def _explanation(job: Job, place: Place) -> tuple[Reason, ...]:
    if not place.fastest_s:
        return expectation(job)
    kind = "communication-heavy" if place.heavy else "communication-light"
    return (*expectation(job), Reason("mapped", place.fastest_s, place.iteration_s, "s", kind))
