"""The modelled world: carries out the core's actions on modelled GPUs, and says what came of them.

It knows what jobs really need and do; of policies it knows nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

from carma_simulator.card import Card, Execution, Gauges, relief
from carma_simulator.experiment import Experiment, Physics
from carma_simulator.hardware import Cluster
from carma_simulator.interference import Interference
from carma_simulator.workload import Clock, Order, Workload, not_before
from carmad.config import Settings
from carmad.core.gpus.gpu import Gpu, GpuSample, ProcessUse
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.messages import (
    Action,
    Discovered,
    Estimated,
    EstimateMemory,
    Event,
    Exited,
    Launch,
    Resume,
    Resumed,
    Sampled,
    Stop,
    Submitted,
    Suspend,
    Suspended,
    Tick,
    Trained,
    Wake,
)
from carmad.errors import CarmaError

AT_FIRST = 0.25  # of its memory, which a job has with its first kernel if that grows
MOST_ATTEMPTS = 10_000  # of one job: preempted that often, it will never get anywhere
MOST_WAKES = 1_000  # that a policy may ask for in a row while nothing runs or arrives


class World:
    """At each instant, first let the clock act, then tell the core `submissions` and `news`."""

    def __init__(
        self,
        experiment: Experiment,
        settings: Settings,
        workload: Workload,
        interference: Interference,
        clock: Clock,
    ) -> None:
        self.gauges = Gauges()
        self.cards = _cards(experiment.cluster, self.gauges)
        self.energy_j: dict[JobId, float] = {}  # of the attempts that are over
        self._physics: Physics = experiment.physics
        self._settings = settings
        self._workload = workload
        self._interference = interference
        self._clock = clock
        self._models = experiment.models
        self._executions: dict[JobId, Execution] = {}
        self._left: dict[JobId, float] = {}  # work, as preempted jobs have saved it
        self._disturbed: dict[GpuId, Card] = {}  # at this instant somebody came or went there
        self._unsettled: dict[GpuId, Card] = {}  # the core's window shows more than one level
        self._unforeseen: dict[GpuId, Card] = {}  # when their risk falls is not known yet
        self._exits: list[Exited] = []
        self._moves: list[Suspended | Resumed] = []
        self._submissions: list[Submitted] = []
        self._estimates: list[Estimated] = []
        self._asked: dict[GpuId, Card] = {}  # to be read at this instant
        self._look = False  # a job that waits may be placeable by now
        self._as_daemon = experiment.as_daemon  # it looks in every period, too
        self._looks_at = -math.inf  # when it does so next
        self._limit = False  # a time limit has been reached
        self._wakes = 0  # asked for since something last ran or arrived
        self._wakes_at = math.inf  # when the last of them is; the others are not heeded any more

    # -- what the core is told

    def submit(self, first: JobId, after: JobId) -> None:
        """Tell the core at this instant of the jobs from `first` to the one before `after`."""
        self._wakes = 0
        specs = tuple(self._workload.spec(JobId(id)) for id in range(first, after))
        self._submissions.append(Submitted(self._clock.now, first, specs))

    def opening(self) -> tuple[Event, ...]:
        """The GPUs, idle for as long as the core wants to have watched them."""
        window_s = self._settings.monitor.window_s
        cards = self.cards.values()
        samples = tuple(card.sample(-window_s, window_s) for card in cards)
        gpus = tuple(card.gpu for card in cards)
        trained = (Trained(-window_s, self._models),) if self._models else ()
        return Discovered(-window_s, gpus), *trained, Sampled(-window_s, samples)

    def submissions(self) -> tuple[Submitted, ...]:
        submissions, self._submissions = tuple(self._submissions), []
        return submissions

    def news(self, waiting: bool) -> tuple[Event, ...]:
        """What has happened at this instant; `waiting`: jobs are queued."""
        now = self._clock.now
        samples = self._rebalance(now)
        window_s = self._settings.monitor.window_s
        told = {sample.gpu for sample in samples}
        asked = [card for gpu, card in self._asked.items() if gpu not in told]
        samples += [card.sample(now, window_s) for card in asked]
        self._asked = {}
        if waiting or self._estimates:
            samples += self._fresh(now)
        # Samples first: they tell of the time in which those who leave now were still there.
        events: list[Event] = [Sampled(now, tuple(samples))] if samples else []
        events += self._exits
        events += self._moves
        events += [replace(each, at=now) for each in self._estimates]  # asked for at an end: late
        if self._limit or (self._look and waiting):
            events.append(Tick(now))
        self._exits, self._moves, self._estimates = [], [], []
        self._look = self._limit = False
        return tuple(events)

    def look_ahead(self) -> None:
        """Jobs wait: be awake when a GPU that is too risky for them now no longer is."""
        now, monitor = self._clock.now, self._settings.monitor
        if self._as_daemon:
            if not self._executions:
                self._wakes += 1
            if self._looks_at <= now and self._wakes <= MOST_WAKES:
                self._looks_at = now + monitor.period_s
                self._clock.call_at(self._looks_at, Order.REST, self._look_again)
            return
        for card in tuple(self._unforeseen.values()):
            if now < card.settles_at:
                continue
            del self._unforeseen[card.gpu.id]
            if now - card.changed_at < monitor.window_s:
                at = relief(card, now, monitor, self._settings.risk)
                if at is not None:
                    self._clock.call_at(at, Order.REST, self._look_again)

    # -- what the core wants done

    def perform(self, action: Action) -> None:
        match action:
            case EstimateMemory(job, again):
                estimate = self._workload.estimate(job.id)
                if estimate or not again:
                    answer = Estimated(self._clock.now, job.id, estimate, again=again)
                    self._estimates.append(answer)
            case Launch(job):
                self._launch(job)
            case Stop(job):
                self._stop(job)
            case Suspend(job):
                self._suspend(job)
            case Resume(job):
                self._resume(job)
            case Wake(at):
                self._wake(at)
            case _:
                pass  # a signal, which no modelled job heeds, or limits, which no modelled GPU has

    def _wake(self, at: float) -> None:
        """As often as a real monitor would, and not for ever: time alone must change something."""
        at = max(at, self._clock.now + self._settings.monitor.period_s)
        if at == math.inf:
            self._wakes_at = at
        if at == self._wakes_at:
            return
        if not self._executions:
            self._wakes += 1
        if self._wakes <= MOST_WAKES:
            self._wakes_at = at
            self._clock.call_at(at, Order.REST, self._wake_up)

    def _wake_up(self) -> None:
        self._look = self._look or self._clock.now == self._wakes_at

    def _launch(self, job: Job) -> None:
        now, id = self._clock.now, job.id
        if job.attempt > MOST_ATTEMPTS:
            raise CarmaError(
                f"job {id} was started over and over, {MOST_ATTEMPTS} times",
                f"the policy {self._settings.policy!r} preempts jobs without end",
            )
        self._wakes = 0
        cards, full = self._admit(job)
        task = self._workload.task(id)
        parts = job.accumulation
        left = task.duration_s
        if id in self._left:
            left = self._left[id] + self._physics.checkpoint_s
        load = self._workload.load(id, cards[0].kind, parts)
        self._executions[id] = run = Execution(job, load, cards, full, left)
        ready_at = now + self._physics.first_kernel_s
        self._clock.call_at(ready_at, Order.BEGINS, self._first_kernel, run, run.version)
        patience_s = self._settings.monitor.first_kernel_timeout_s
        if self._physics.first_kernel_s + self._physics.oom_s >= patience_s:
            self._clock.call_at(not_before(now, patience_s), Order.REST, self._look_again)
        self._await_limit(run, now, job.served_s)
        if job.profiling:
            self._clock.call_at(job.profiling.until, Order.REST, self._end_profiling, run)

    def _admit(self, job: Job) -> tuple[tuple[Card, ...], tuple[float, ...]]:
        """Give the job its GPUs. Returns them, and the work done there per second when alone."""
        cards = tuple(self.cards[gpu] for gpu in job.gpus)
        for card in cards:
            card.admit(self._clock.now)
        mapped = self._workload.mapping_rate(job.id, [card.gpu.node for card in cards])
        rates = (self._workload.full_rate(job.id, card.kind, job.accumulation) for card in cards)
        return cards, tuple(mapped * rate for rate in rates)

    def _await_limit(self, run: Execution, now: float, before_s: float) -> None:
        """`before_s`: how long it has run by `now`."""
        limit_s = self._workload.task(run.job).time_limit_s
        if limit_s is not None:
            limit = not_before(now, limit_s, before_s=before_s)
            self._clock.call_at(limit, Order.REST, self._reach_limit, run)

    def _suspend(self, job: Job) -> None:
        """It stops training at once, and its memory is gone when all of it has moved."""
        run, its, now = self._executions.get(job.id), job.suspension, self._clock.now
        if run is None or its is None or run.ending:
            return
        run.progress(now)
        run.rate = 0.0
        run.version += 1
        for card in run.cards:
            card.pause(now, job.id)
            self._disturbed[card.gpu.id] = card
        settings = self._settings.suspend
        gone_at = now + settings.fixed_s + its.host_mib / settings.out_mib_s
        self._clock.call_at(gone_at, Order.ENDS, self._leave, run, run.version)

    def _leave(self, run: Execution, version: int) -> None:
        if run.version != version:
            return
        self._dismiss(run)
        run.move((), ())
        self._moves.append(Suspended(self._clock.now, run.job, run.attempt))

    def _resume(self, job: Job) -> None:
        run, its, now = self._executions.get(job.id), job.suspension, self._clock.now
        if run is None or its is None or run.ending:
            return
        run.version += 1
        run.move(*self._admit(job))
        if self._allocate(run):
            self._dismiss(run)
            run.move((), ())
            self._moves.append(Resumed(now, run.job, run.attempt, "there is no room"))
            return
        settings = self._settings.suspend
        back_at = now + settings.fixed_s + its.host_mib / settings.in_mib_s
        ran_s = job.attained_s(now)
        self._clock.call_at(back_at, Order.BEGINS, self._go_on, run, run.version, ran_s)

    def _go_on(self, run: Execution, version: int, ran_s: float) -> None:
        if run.version != version:
            return
        now = self._clock.now
        self._train(run)
        self._await_limit(run, now, ran_s)
        self._moves.append(Resumed(now, run.job, run.attempt))

    def _stop(self, job: Job) -> None:
        """It works on until it is gone, but that is lost."""
        run = self._executions.get(job.id)
        if run is None or run.ending:
            return
        now = self._clock.now
        run.progress(now)
        run.ending = True
        run.version += 1
        for card in run.cards:
            card.settles_at = -math.inf  # for one that leaves nobody waits
        if job.stop is Cause.PREEMPTED and run.rate:
            self._left[job.id] = min(run.left, self._left.get(job.id, run.left))
        gone_at = now + self._physics.stop_s
        exit = Exit(Cause.CANCELLED, signal=15)
        self._clock.call_at(gone_at, Order.ENDS, self._end, run, run.version, exit)

    # -- what happens by itself

    def _first_kernel(self, run: Execution, version: int) -> None:
        """It asks for its memory; with that it trains, and without it crashes."""
        if run.version != version:
            return
        if short := self._allocate(run):
            self._crash(run, short[0])
        else:
            self._train(run)

    def _train(self, run: Execution) -> None:
        """It has its memory, and computes, unless it is one that never does."""
        now = self._clock.now
        if not self._workload.task(run.job).has_kernels:
            self._foretell_end(run, now + run.left)
            return
        for card in run.cards:
            card.loads[run.job] = run.load
            card.settles_at = not_before(now, self._settings.monitor.known_s)
            self._disturbed[card.gpu.id] = card
        self._grow_later(run)

    def _allocate(self, run: Execution) -> list[Card]:
        """Let it have the memory that it needs by now. Returns the GPUs that have too little."""
        now, need, lost_mib = self._clock.now, self._need_mib(run), self._physics.fragmentation_mib
        over = run.limit_mib is not None and need > run.limit_mib
        short = [card for card in run.cards if over or not card.fits(run.job, need, lost_mib)]
        sm = 0.0 if short or not self._workload.task(run.job).has_kernels else 1.0
        process = ProcessUse(run.job, need, sm, run.job, attempt=run.attempt)
        for card in run.cards:
            if card not in short:
                card.hold(now, run.job, process)
                self._disturbed[card.gpu.id] = card
        return short

    def _need_mib(self, run: Execution) -> int:
        whole, growth_s = run.load.memory_mib, self._physics.growth_s
        if run.grown_s >= growth_s:
            return whole
        return round(whole * (AT_FIRST + (1 - AT_FIRST) * run.grown_s / growth_s))

    def _grow_later(self, run: Execution) -> None:
        """Its memory grows as often as the GPUs are read."""
        if run.grown_s < self._physics.growth_s:
            at = self._clock.now + self._settings.monitor.period_s
            self._clock.call_at(at, Order.BEGINS, self._grow, run, run.cards)

    def _grow(self, run: Execution, cards: tuple[Card, ...]) -> None:
        """`cards`: where it was when this was foreseen."""
        trains = self._executions.get(run.job) is run and run.cards is cards and not run.ending
        if not (trains and run.job in cards[0].loads):
            return
        run.grown_s += self._settings.monitor.period_s
        if short := self._allocate(run):
            self._crash(run, short[0])
        else:
            self._grow_later(run)

    def _crash(self, run: Execution, card: Card) -> None:
        """It runs out of memory there."""
        now, need = self._clock.now, self._need_mib(run)
        run.progress(now)
        run.ending = True
        run.version += 1
        free = card.gpu.memory_mib - card.used_mib
        if run.limit_mib is not None:
            free = min(free, run.limit_mib)
        exit = Exit(Cause.GPU_OOM, 1, tried_mib=need, free_mib=free)
        gone_at = now + self._physics.oom_s
        self._clock.call_at(gone_at, Order.ENDS, self._end, run, run.version, exit)

    def _end(self, run: Execution, version: int, exit: Exit) -> None:
        if run.version != version:
            return
        now = self._clock.now
        run.version += 1
        del self._executions[run.job]
        if exit.cause is Cause.SUCCESS:
            self._workload.learn(run.job)
        self._dismiss(run)
        self._exits.append(Exited(now, run.job, run.attempt, exit))

    def _dismiss(self, run: Execution) -> None:
        """Take it off its GPUs."""
        for card in run.cards:
            if card.dismiss(self._clock.now, run.job):
                self._disturbed[card.gpu.id] = card
        self.energy_j[run.job] = self.energy_j.get(run.job, 0.0) + run.energy_j

    def _reach_limit(self, run: Execution) -> None:
        self._limit = self._limit or self._executions.get(run.job) is run

    def _end_profiling(self, run: Execution) -> None:
        """The core reads its GPUs once more, and then decides."""
        if self._executions.get(run.job) is run:
            self._limit = True
            self._asked.update((card.gpu.id, card) for card in run.cards)

    def _look_again(self) -> None:
        self._look = True

    # -- what follows for the GPUs

    def _rebalance(self, now: float) -> list[GpuSample]:
        """After all comings and goings of an instant: who trains how fast from now on."""
        if not self._disturbed:
            return []
        affected: dict[JobId, None] = {}
        changed = self._disturbed
        for card in changed.values():
            if card.loads:
                modes = [self._executions[job].mode for job in card.loads]
                card.contend(self._interference, modes)
                affected.update(dict.fromkeys(card.loads))
        self._disturbed = {}
        for job in affected:
            run = self._executions[job]
            if run.pace(now):
                for card in run.cards:
                    changed[card.gpu.id] = card
                self._foretell_end(run, now + run.left / run.rate)
        window_s, known_s = self._settings.monitor.window_s, self._settings.monitor.known_s
        samples: list[GpuSample] = []
        for gpu, card in changed.items():
            samples.append(card.sample(now, window_s))
            card.relevel(now)
            self._unsettled[gpu] = self._unforeseen[gpu] = card
        for settled_s in {known_s, window_s}:
            self._clock.call_at(not_before(now, settled_s), Order.REST, self._look_again)
        return samples

    def _foretell_end(self, run: Execution, at: float) -> None:
        if run.ending:
            return
        run.version += 1
        failed = self._workload.task(run.job).fails
        exit = Exit(Cause.FAILURE, 1) if failed else Exit(Cause.SUCCESS, 0)
        self._clock.call_at(at, Order.ENDS, self._end, run, run.version, exit)

    def _fresh(self, now: float) -> list[GpuSample]:
        """Readings of the GPUs that look different now from what the core was told last."""
        window_s = self._settings.monitor.window_s
        stale = [
            card
            for card in self._unsettled.values()
            if card.history[-1].at < now and (self._as_daemon or now >= card.settles_at)
        ]
        for card in stale:
            if now - card.changed_at >= window_s:
                del self._unsettled[card.gpu.id]
        return [card.sample(now, window_s) for card in stale]


def _cards(cluster: Cluster, gauges: Gauges) -> dict[GpuId, Card]:
    cards: dict[GpuId, Card] = {}
    for node in cluster.nodes:
        for index in range(node.gpus):
            whole = GpuId(f"{node.name}/{index}")
            parent = whole if node.instances else None
            for number, kind in enumerate(node.units):
                id = GpuId(f"{whole}/{number}") if parent else whole
                gpu = Gpu(id, len(cards), kind.name, kind.memory_mib, parent, node.name)
                cards[id] = Card(gpu, kind, gauges)
    return cards
