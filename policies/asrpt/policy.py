"""A-SRPT: adaptive shortest remaining processing time first (A-SRPT paper, algorithm 1).

A virtual machine determines the order of jobs; the first that finds too few idle GPUs blocks the
queue. A job whose parts communicate much starts where they do so quickly, or waits a while for such
a place. Jobs never share a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from carmad.plugin import (
    AskAgain,
    Job,
    JobId,
    Placement,
    Proposal,
    Reason,
    Remember,
    Settings,
    View,
)
from policies.asrpt.machine import Machine, rebuilt, work
from policies.asrpt.servers import Unshared
from policies.asrpt.settings import AsrptSettings
from policies.asrpt.turn import Aside, Turn
from policies.builtin import in_order
from policies.filters import only_idle
from policies.ranked import Order


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
            return rebuilt(view.queue, view.now, speed)
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
