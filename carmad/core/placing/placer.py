"""Places queued jobs: asks the policy, checks its plan against the hard rules, and starts jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Literal

from carmad.config import Settings
from carmad.core.gpus.fleet import Fleet
from carmad.core.jobs import control
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job, advance, start
from carmad.core.jobs.ledger import Ledger
from carmad.core.jobs.line import Room, asks_for_host, blockers, host_room
from carmad.core.jobs.states import JobState, Paused
from carmad.core.jobs.suspending import Suspensions
from carmad.core.jobs.tasks import singly
from carmad.core.messages import Action, Launch, Resume, Wake
from carmad.core.placing import filling
from carmad.core.placing.deciders import Deciders
from carmad.core.placing.decision import (
    AskAgain,
    Decision,
    Move,
    Placement,
    Preemption,
    Reason,
    Remember,
    refuse,
)
from carmad.core.placing.view import NodeView, View
from carmad.core.rules.admission import IdleGpus, mode
from carmad.core.rules.quota import Limit, Quotas
from carmad.core.rules.share import Shares
from carmad.models import Model

FEW = 64  # jobs whose `order` is asked for again per step: all of them could take too long


class Placer:
    """`decisions` has the latest decision on each job that has one and has not ended."""

    def __init__(
        self,
        settings: Settings,
        deciders: Deciders,
        ledger: Ledger,
        fleet: Fleet,
        history: History,
        models: Mapping[str, Model],
        limits: Mapping[str, Limit],
        shares: Shares,
        suspensions: Suspensions,
        last_placed: GpuId | None = None,
    ) -> None:
        self._settings = settings
        self._deciders = deciders
        self._ledger = ledger
        self._fleet = fleet
        self._history = history
        self._models = models
        self._limits = limits
        self._shares = shares
        self._suspensions = suspensions
        self.last_placed = last_placed
        self._memory: object = None  # the policy's
        self._blocked_until: dict[int, float] = {}  # of waiting jobs: see `View`
        self._asks_at = inf  # when the last plan asked to be called again
        self._news: list[Decision] = []
        self._room: Room | None = None  # what the host has left; None: outdated
        self.decisions: dict[JobId, Decision] = {}

    def reconfigure(self, settings: Settings) -> None:
        self._settings = settings

    def forget(self) -> None:
        """Another policy decides from now on: in its order, and without a memory."""
        self._ledger.reorder(self._ledger.line())
        self._memory = None

    def view(self, now: float, joining: Job | None = None) -> View:
        """The policy's view; with `joining`, as if that job were queued."""
        self._room = None
        line = self._ledger.line_with(joining) if joining else self._ledger.line()
        nodes = self._fleet.nodes(now, self._ledger)
        queue = self._ready(line, nodes, now)
        fillers = filling.places(queue, self._ledger, self._settings)
        preemptible, jobs = self._preemptible(now), self._ledger.jobs
        able = {id: n for id, n in fillers.items() if id in preemptible or jobs[id].leaves}
        return View(
            now,
            nodes,
            self._fleet.node_of,
            queue,
            self._ledger.on_gpus(),
            self._settings,
            self._history,
            self._models,
            self.last_placed,
            self._memory,
            bool(self._fleet.reservations),
            preemptible,
            able,
            filling.room_mib(fillers, self._ledger, self._fleet, self._settings),
            self._blocked_until,
        )

    def blocker(self, job: Job, now: float) -> Reason | None:
        """Why a queued job is not shown to the policy, or does not start without GPUs; None if it
        is, or does."""
        return self._blocker(job, self._quotas(now))

    def plan(self, now: float) -> list[Action]:
        """Ask the policy, start the jobs that it places and stop those that it preempts."""
        actions: list[Action] = []
        self._room = None
        if not self._ledger.line():
            filling.end((), self._ledger, self._settings)
            return actions
        actions += self._finish_moves(now)
        self._order_the_unordered()
        before = self._asks_at
        while self._plan_once(now, actions):
            pass
        for id in tuple(self._blocked_until):
            if (row := self._ledger.jobs.row(JobId(id))) is None or not row.waits:
                del self._blocked_until[id]
        actions += self._start_without_gpus(now)
        suspensions = (job.suspension for job in self._ledger.suspended.values())
        again_at = min(
            (its.again_at for its in suspensions if its and its.again_at > now), default=inf
        )
        self._asks_at = min(self._asks_at, again_at)
        if min(before, self._asks_at) < inf:
            actions.append(Wake(self._asks_at))
        return actions

    def news(self) -> tuple[Decision, ...]:
        """Decisions since the last call whose choice or reasons changed."""
        news, self._news = tuple(self._news), []
        return news

    def _ready(
        self, line: tuple[Job, ...], nodes: tuple[NodeView, ...], now: float
    ) -> tuple[Job, ...]:
        """The queue without blocked jobs, and without those that await their estimates and would
        get no idle GPUs if all before them took some: they hold up nobody."""
        if self._fleet.unread:
            return ()  # policies are not asked while the GPUs are unknown
        doubtful, quotas = self._ledger.conditional, self._quotas(now)
        if not doubtful and not quotas.any:
            return line
        free = IdleGpus(nodes, self._settings, now if self._fleet.reservations else None)
        ready: list[Job] = []
        before = 0  # GPUs that they want
        for job in line:
            if quotas.any or job.id in doubtful:
                if not job.spec.gpus:
                    continue
                estimating = job.state is JobState.PENDING and not free.is_enough(job, before)
                if estimating or self._blocker(job, quotas):
                    self._blocked_until[job.ids[-1]] = now
                    continue
            ready.append(job)
            before += job.tasks * job.spec.gpus
        return tuple(ready)

    def _quotas(self, now: float) -> Quotas:
        settings, held = self._settings.limits, self._ledger.held.gpus
        return Quotas(self._limits, settings, held, self._shares, now)

    def _blocker(self, job: Job, quotas: Quotas) -> Reason | None:
        if self._room is None and asks_for_host(job.spec):
            self._room = self._room_now(quotas)
        return next(self._blockers(job, quotas, self._room), None)

    def _blockers(self, job: Job, quotas: Quotas, room: Room | None = None) -> Iterator[Reason]:
        jobs, held = self._ledger.jobs, self._ledger.held
        return blockers(job, quotas.now, jobs, held, quotas, self._fleet.unread, room)

    def _room_now(self, quotas: Quotas) -> Room:
        ledger = self._ledger

        def ready(job: Job) -> bool:
            return job.state is JobState.QUEUED and next(self._blockers(job, quotas), None) is None

        lines = (job for job in ledger.line() if job.spec.gpus), ledger.line_of_cpus()
        return host_room(self._settings.host, ledger.held, lines, ready, self._shares.standing)

    def _order_the_unordered(self) -> None:
        """Retry `order` for a few of the jobs for which it failed."""
        for id in tuple(islice(self._deciders.unordered, FEW)):
            job = self._ledger.jobs.rows.get(id)
            if job and job.waits:
                self._ledger.reorder((job,))
            else:
                del self._deciders.unordered[id]

    def _find_hidden(self, view: View) -> Set[JobId]:
        """Queued jobs that the view does not show."""
        line = self._ledger.line()
        if view.queue is line:
            return frozenset()
        return {job.id for job in line} - {job.id for job in view.queue}

    def _plan_once(self, now: float, actions: list[Action]) -> bool:
        """Carry out one plan. True: another plan is needed, as a start has exhausted a quota or an
        array's limit, so that later placements are blocked; or other tasks waited with the job that
        started, and their turn comes before the jobs behind them."""
        self._asks_at = inf
        view = self.view(now)
        filling.end(view.queue, self._ledger, self._settings)
        if not view.queue:
            return False
        made = self._deciders.plan(view, lambda: self._renew(now))
        view, plan = made.view, made.proposals
        hidden = self._find_hidden(view)
        waiting: list[JobId] = []  # refused, and overtaken by the jobs that start below
        starts = [n for n, each in enumerate(plan) if isinstance(each, Placement) and each.gpus]
        for n, proposal in enumerate(plan):
            if isinstance(proposal, AskAgain):
                self._asks_at = min(self._asks_at, proposal.at)
                continue
            if isinstance(proposal, Remember):
                self._memory = proposal.memory
                continue
            if isinstance(proposal, Preemption):
                actions += self._preempt(proposal, now, made.by)
                continue
            if isinstance(proposal, Move):
                actions += self._move(proposal, now)
                continue
            job, row = self._ledger.jobs.get(proposal.job), self._ledger.jobs.row(proposal.job)
            if job is None or row is None or not job.waits or row.id in hidden:
                continue
            if proposal.gpus and self.blocker(job, now):
                return True
            checked = self._enforce_rules(job, proposal, view)
            self._decide(Decision(now, made.by, checked))
            if not checked.gpus:
                waiting.append(job.id)
                continue
            for id in waiting:
                passed = self._ledger.jobs.rows[id]
                self._ledger.put(replace(passed, overtaken=passed.overtaken + 1))
            actions.append(self._start(job, checked, view))
            if row.tasks > 1:
                return True
            if n < starts[-1]:
                view = view.with_placement(
                    job, checked.gpus, checked.profiling, checked.accumulation
                )
        return False

    def _finish_moves(self, now: float) -> list[Action]:
        """Let jobs resume where they are to move, if they may. Otherwise they wait like others."""
        actions: list[Action] = []
        for job in tuple(self._ledger.suspended.values()):
            its = job.suspension
            if not (its and its.to and job.state is JobState.SUSPENDED):
                continue
            view = self.view(now)
            checked = self._enforce_rules(job, Placement(job.id, its.to), view)
            self._decide(Decision(now, "move", checked))
            if checked.gpus and not self.blocker(job, now):
                actions.append(self._start(job, checked, view))
            else:
                moved = job.with_suspension(replace(its, to=()))
                where = ", ".join(str(view.gpu(gpu).gpu.index) for gpu in its.to)
                note = f"could not move to GPU {where} after all: see carma why"
                self._ledger.put(moved.with_note(note))
        return actions

    def _start_without_gpus(self, now: float) -> list[Action]:
        """Start the jobs that want no GPUs, in order, as far as the host has room. Policies, which
        place jobs on GPUs, are not asked."""
        actions: list[Action] = []
        self._room = None
        for row in tuple(self._ledger.line_of_cpus()):
            for job in singly((row,)):
                if self.blocker(job, now):
                    break
                notes = () if job.attempt else job.notes
                started = start(job, job.new_attempt((), now), notes=notes)
                self._ledger.put(started)
                self._room = None
                actions.append(Launch(started))
            if self._room and self._room.has_no_cpu:
                break
        return actions

    def _preempt(self, wish: Preemption, now: float, by: str) -> list[Action]:
        """Take a running job's GPUs back, where the settings and the job allow it. A filler that
        has not run a kernel yet has nothing that could be suspended."""
        job = self._ledger.jobs.get(wish.job)
        if job is None or job.state not in (JobState.STARTING, JobState.RUNNING):
            return []
        allowed = self._suspensions.way_to_preempt(job, now)
        suspends = self._settings.limits.preemption == "suspend"
        refusal = self._suspensions.refusal(job, now) if suspends else ""
        why = wish.reason if allowed else Reason("not_preemptible", detail=refusal)
        self._decide(Decision(now, by, Placement(job.id, reasons=(why,))))
        return self._suspensions.preempt(job, wish.reason.detail, now)

    def _preemptible(self, now: float) -> dict[JobId, Literal["suspend", "requeue"]]:
        if not self._settings.limits.preemption:
            return {}
        ways = (
            (job.id, self._suspensions.way_to_preempt(job, now)) for job in self._ledger.on_gpus()
        )
        return {id: way for id, way in ways if way}

    def _move(self, wish: Move, now: float) -> list[Action]:
        """Move a running job, where that is possible."""
        job, there = self._ledger.jobs.get(wish.job), self._fleet.gpus
        if job is None or not there.keys() >= set(wish.gpus):
            return []
        gpus, refusal = [there[gpu] for gpu in wish.gpus], self._suspensions.refusal(job, now)
        if not control.move(job, gpus, refusal, self._settings).acts:
            return []
        return [self._suspensions.suspend(job, f"moved {wish.reason.detail}", now, to=wish.gpus)]

    def _renew(self, now: float) -> View:
        """A view for another policy than before."""
        self.forget()
        return self.view(now)

    def _enforce_rules(self, job: Job, placement: Placement, view: View) -> Placement:
        """The placement, or a wait with the hard rule that it would have broken."""
        if not placement.gpus:
            return placement
        chosen = placement.gpus
        right = len(chosen) == len(set(chosen)) == job.spec.gpus
        if not right or not all(gpu in view.node_of for gpu in chosen):
            answer = ", ".join(placement.gpus)
            return refuse(placement, Reason("policy_failed", detail=f"it chose {answer:.200}"))
        if placement.profiling and not view.now < placement.profiling.until < inf:
            until = placement.profiling.until
            return refuse(placement, Reason("policy_failed", detail=f"it profiles until {until}"))
        if not _splits(job, placement.accumulation):
            detail = f"it chose {placement.accumulation} parts of a batch"
            return refuse(placement, Reason("policy_failed", detail=detail))
        wanted = view.demand(job, profiling=placement.profiling is not None)
        for gpu in chosen:
            if broken := view.refusals(wanted, view.gpu(gpu)):
                return refuse(placement, broken[0])
        return placement

    def _start(self, job: Job, placement: Placement, view: View) -> Launch | Resume:
        """A suspended job goes on with its attempt. Whether that is profiled, or splits its
        batches, was decided when it began."""
        gpus = placement.gpus
        job = self._ledger.jobs[job.id]
        shared = any(view.gpu(gpu).residents for gpu in gpus)
        if its := job.suspension:
            there = its.gpus if set(gpus) == set(its.gpus) else gpus
            shared = shared or job.shared
            now_on = dict(zip(its.gpus, there, strict=True))
            kernels = tuple((now_on.get(gpu, gpu), at) for gpu, at in job.kernels)
            placed = job.with_attempt(
                gpus=there, kernels=kernels, shared=shared, filler=placement.filler
            )
            assert placed.current
            started = advance(placed, Paused(JobState.RESUMING, placed.current, its))
        else:
            new = job.new_attempt(
                gpus,
                view.now,
                mode=mode(job, map(view.gpu, gpus), self._settings),
                accumulation=placement.accumulation,
                profiling=placement.profiling,
                shared=shared,
                filler=placement.filler,
            )
            # Notes made before its first attempt are about the job, so they are kept.
            notes, late = () if job.attempt else job.notes, job.awaits_estimate
            started = start(job, new, notes=notes, estimate_late=late)
        for gpu in gpus:
            for resident in self._ledger.residents(gpu):
                if not resident.shared:
                    self._ledger.put(resident.with_attempt(shared=True))
        self.last_placed = gpus[-1]
        self._ledger.put(started)
        self._room = None
        return Resume(started) if started.suspension else Launch(started)

    def _decide(self, new: Decision) -> None:
        old = self.decisions.get(new.placement.job)
        self.decisions[new.placement.job] = new
        if old is None or not old.same_story(new):
            self._news.append(new)


def _splits(job: Job, parts: int) -> bool:
    """Whether its batches may be split into so many parts: only if it declared a batch size."""
    batch = job.spec.batch_size
    return parts == 1 or (batch is not None and 1 < parts <= batch and batch % parts == 0)
