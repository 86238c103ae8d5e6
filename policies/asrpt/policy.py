"""A-SRPT: adaptive shortest remaining processing time first (A-SRPT paper, algorithm 1).

A virtual machine determines the order of jobs; the first that finds too few idle GPUs blocks the
queue. A job whose parts communicate much starts where they do so quickly, or waits a while for such
a place. Jobs never share a GPU. A server is what the paper calls so: the GPUs of a node that are
close to each other (an island).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from carmad.plugin import (
    AskAgain,
    Demand,
    GpuId,
    Job,
    JobId,
    Placement,
    Proposal,
    Reason,
    Remember,
    Settings,
    Verdict,
    View,
)
from policies.asrpt import AsrptSettings
from policies.asrpt.heavy_edge import COMM_HEAVY, extremes, mapping
from policies.asrpt.machine import Machine, rebuild, work
from policies.builtin import in_order
from policies.filters import only_idle
from policies.ranked import Ranked
from policies.reasons import expectation
from policies.rules import Order
from policies.views import totals

Server = tuple[GpuId, ...]  # the GPUs that a job can use, by index

EXPLAINED = 4  # the first waiting jobs, which get reasons; the very first gets them per GPU
READABLE = 64  # GPUs; with more, only the first job gets reasons, and none per GPU


@dataclass(frozen=True, slots=True, eq=False)
class Unshared(Ranked):
    """Places jobs alone on their GPUs, like the baselines, choosing GPUs server by server."""

    def servers(self, wanted: Demand, view: View) -> list[Server]:
        """Servers with admissible GPUs for the job."""
        found: list[Server] = []
        for node, fit in zip(view.nodes, self._fits(wanted, view), strict=True):
            island = {gpu.id: gpu.gpu.island for gpu in node.gpus}
            servers: dict[str, list[GpuId]] = {}
            for gpu in fit.gpus:
                servers.setdefault(island[gpu], []).append(gpu)
            found += map(tuple, servers.values())
        return found


def most_available(servers: Iterable[Server]) -> list[Server]:
    return sorted(servers, key=lambda server: -len(server))


def least_available(servers: Iterable[Server]) -> list[Server]:
    return sorted(servers, key=len)


def closest(servers: Sequence[Server], gpus: int) -> list[Server]:
    """The server with the fewest sufficient GPUs; otherwise as few servers as possible."""
    enough = [server for server in servers if len(server) >= gpus]
    return [min(enough, key=len)] if enough else most_available(servers)


def take(servers: Iterable[Server], gpus: int, width: int = 1) -> list[Server]:
    """`gpus` GPUs of the servers in this order, a multiple of `width` on each if there are enough;
    none if there are too few."""
    parts: list[Server] = []
    for server in servers:
        part = server[: gpus if gpus <= len(server) else len(server) // width * width]
        if part:
            parts.append(part)
            gpus -= len(part)
        if not gpus:
            return parts
    return []


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
        return self._unshared.servers(self.view.demand(job), self.view)

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


def _explanation(job: Job, place: Place) -> tuple[Reason, ...]:
    if not place.fastest_s:
        return expectation(job)
    kind = "communication-heavy" if place.heavy else "communication-light"
    return (*expectation(job), Reason("mapped", place.fastest_s, place.iteration_s, "s", kind))


@dataclass(frozen=True, slots=True)
class Memory:
    """State passed from one plan to the next."""

    machine: Machine
    aside: tuple[tuple[JobId, Aside], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Asrpt:
    """`by` replaces the machine's order, without `adaptive` servers are filled in order of index
    whatever the job, and with `conserving` the queue is never blocked: the paper's baselines."""

    name: str
    unshared: Unshared
    patience: float
    reserve: bool
    by: Order | None = None
    adaptive: bool = True
    conserving: bool = False

    def order(self, job: Job) -> float:
        """The machine's order if all jobs had arrived at once, which is how users see the queue."""
        return self.by(job) if self.by else work(job)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        if not view.queue:
            return ()
        before = view.memory if isinstance(view.memory, Memory) else Memory(Machine())
        turn = Turn(self.unshared, self.patience, view, dict(before.aside), self.adaptive)
        machine = before.machine if self.by else self._follow(before.machine, view, turn)
        plan, held = self._placements(self._line(machine, view), turn)
        if self.reserve and not self.by:
            told = sum(not placement.gpus for placement in plan)
            plan += _explain_waits(machine, turn, max(0, turn.explained - told))
        aside = _still(turn.aside, view)
        if turn.idle != turn.totals.idle and not (self.reserve or self.by):
            machine = self._follow(machine, view, turn)
        after = Memory(machine, aside)
        same = after.machine is before.machine and after.aside == before.aside
        asked = self._next_chance(machine, turn, held)
        return (*plan, *asked, *(() if same else (Remember(after),)))

    def _line(self, machine: Machine, view: View) -> Iterable[Job]:
        if self.by:
            return view.queue
        done = (each.job for each in machine.done)
        return done if self.reserve else chain(done, (each.job for each in machine.served))

    def _follow(self, machine: Machine, view: View, turn: Turn) -> Machine:
        """The machine has the speed of all GPUs; of the idle ones if jobs may start before it has
        finished them, since running jobs do their own work."""
        speed = turn.totals.usable if self.reserve else turn.idle
        if not machine.queue:
            return rebuild(view.queue, view.now, speed)
        return machine.follow(view.queue, view.now, speed)

    def _placements(self, line: Iterable[Job], turn: Turn) -> tuple[list[Placement], bool]:
        """The placements, and whether the queue is blocked by a job that finds too few idle GPUs
        and has been overtaken often enough."""
        plan: list[Placement] = []
        told, first, may_pass = 0, None, math.inf
        for job in line:
            held = may_pass <= 0
            if told >= turn.explained and (held or not turn.idle):
                break
            if first and held:
                behind = Reason("line_held", detail=f"job {first.id}")
                placement = Placement(job.id, reasons=(behind,))
            else:
                placement = turn.of(job, explain=not told)
                if placement.gpus:
                    may_pass -= first is not None
                elif not (first or self.conserving) and turn.claims(job):
                    first, may_pass = job, (turn.view.settings.limits.backfill or 0) - job.overtaken
            told += not placement.gpus
            if placement.gpus or told <= turn.explained:
                plan.append(placement)
        return plan, may_pass <= 0

    def _next_chance(self, machine: Machine, turn: Turn, held: bool) -> tuple[AskAgain, ...]:
        """Ask again when the machine finishes another job, or a job's patience ends.

        Rounded up to a second, to avoid asking twice.
        """
        if not turn.idle:
            return ()
        instants = [aside.until for aside in turn.aside.values()]
        if self.reserve and not (self.by or held):
            instants += machine.ends_at(1)
        first = min((at for at in instants if turn.view.now < at < math.inf), default=None)
        return () if first is None else (AskAgain(float(math.ceil(first))),)


def _still(aside: Mapping[JobId, Aside], view: View) -> tuple[tuple[JobId, Aside], ...]:
    """Without the jobs that have left the queue, such as cancelled ones."""
    queued = {job.id for job in view.queue} if aside else ()
    return tuple(each for each in aside.items() if each[0] in queued)


def _explain_waits(machine: Machine, turn: Turn, first: int) -> list[Placement]:
    """Reasons for jobs the virtual machine has not finished: idle GPUs are being held."""
    waits = []
    for each, at in zip(machine.served[:first], machine.ends_at(first), strict=True):
        kept = Reason("reserved", at - turn.view.now, unit="s")
        few = Reason("few_idle", each.job.spec.gpus, turn.idle, "GPUs")
        waits.append(Placement(each.id, reasons=(kept if few.need <= few.have else few,)))
    return waits


def asrpt(settings: Settings, own: AsrptSettings) -> Asrpt:
    unshared = Unshared("asrpt", (only_idle(settings),), in_order)
    return Asrpt("asrpt", unshared, own.patience, own.reserve)
