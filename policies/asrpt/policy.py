"""A-SRPT: adaptive shortest remaining processing time first (A-SRPT paper, algorithm 1).

A virtual machine says in which order jobs start; the first that finds too few GPUs idle holds the
line. A job whose parts talk much to each other starts where they do so quickly, or steps aside and
waits for a while for such a place. Nobody shares a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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
from policies.filters import unoccupied
from policies.ranked import Order


@dataclass(frozen=True, slots=True)
class Memory:
    """What is to be known from one plan to the next."""

    machine: Machine
    aside: tuple[tuple[JobId, Aside], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Asrpt:
    """With `by`, the line is in that order instead of the machine's; `conserving`, and nobody holds
    it: so the paper's baselines are made."""

    name: str
    unshared: Unshared
    patience: float
    reserve: bool
    by: Order | None = None
    conserving: bool = False

    def order(self, job: Job) -> float:
        """Where the machine would have it if all had come at once: people see the line so."""
        return self.by(job) if self.by else work(job)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        if not view.queue:
            return ()
        before = view.memory if isinstance(view.memory, Memory) else Memory(Machine())
        turn = Turn(self.unshared, self.patience, view, dict(before.aside))
        machine = before.machine if self.by else self._followed(before.machine, view, turn)
        plan, held = self._placements(self._line(machine, view), turn)
        if self.reserve and not self.by:
            told = sum(not placement.gpus for placement in plan)
            plan += _unserved(machine, turn, max(0, turn.explained - told))
        aside = tuple(each for each in turn.aside.items() if each[0] not in machine.gone)
        if turn.idle != turn.totals.idle and not (self.reserve or self.by):
            machine = self._followed(machine, view, turn)
        after = Memory(machine, aside)
        same = after.machine is before.machine and after.aside == before.aside
        asked = self._next_chance(machine, turn, held)
        return (*plan, *asked, *(() if same else (Remember(after),)))

    def _line(self, machine: Machine, view: View) -> Iterable[Job]:
        if self.by:
            return view.queue
        done = (each.job for each in machine.done)
        return done if self.reserve else chain(done, (each.job for each in machine.served))

    def _followed(self, machine: Machine, view: View, turn: Turn) -> Machine:
        """Made of all GPUs; but where jobs may start before it is done with them, of the idle ones:
        what those who run get done, they do themselves."""
        speed = turn.totals.usable if self.reserve else turn.idle
        if not machine.queue:
            return rebuilt(view.queue, view.now, speed)
        return machine.followed(view.queue, view.now, speed)

    def _placements(self, line: Iterable[Job], turn: Turn) -> tuple[list[Placement], bool]:
        """Also whether somebody holds the line: the first that finds too few GPUs idle, when it has
        been overtaken often enough."""
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
                    first, may_pass = job, turn.view.settings.limits.backfill - job.overtaken
            told += not placement.gpus
            if placement.gpus or told <= turn.explained:
                plan.append(placement)
        return plan, may_pass <= 0

    def _next_chance(self, machine: Machine, turn: Turn, held: bool) -> tuple[AskAgain, ...]:
        """When the machine will have done another job, or somebody's patience is at its end.

        To the second: who is asked a little later need not be asked twice.
        """
        if not turn.idle:
            return ()
        instants = [aside.until for aside in turn.aside.values()]
        if self.reserve and not (self.by or held):
            instants += machine.ends_at(1)
        first = min((at for at in instants if turn.view.now < at < math.inf), default=None)
        return () if first is None else (AskAgain(float(math.ceil(first))),)


def _unserved(machine: Machine, turn: Turn, first: int) -> list[Placement]:
    """Of the jobs that the machine has not done, why they wait: GPUs that are idle are kept."""
    waits = []
    for each, at in zip(machine.served[:first], machine.ends_at(first), strict=True):
        kept = Reason("reserved", at - turn.view.now, unit="s")
        few = Reason("few_idle", each.job.spec.gpus, turn.idle, "GPUs")
        waits.append(Placement(each.id, reasons=(kept if few.need <= few.have else few,)))
    return waits


def asrpt(settings: Settings, own: AsrptSettings) -> Asrpt:
    unshared = Unshared("asrpt", (unoccupied(settings),), in_order)
    return Asrpt("asrpt", unshared, own.patience, own.reserve)
