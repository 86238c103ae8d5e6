"""Runs an experiment: clock, world and core, driven by the daemon's own loop body; and keeps of
every step what the outcome needs."""

from __future__ import annotations

import gc
import math
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from carma_simulator import interference
from carma_simulator.card import Gauges
from carma_simulator.experiment import Attempt, Experiment, JobOutcome, Outcome, Timeline
from carma_simulator.workload import Clock, Workload, submit_in_time
from carma_simulator.world import World
from carmad import registry
from carmad.config import Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import ENDED, JobState
from carmad.core.messages import Step
from carmad.core.placing.decision import ORDER
from carmad.core.scheduler import Scheduler
from carmad.errors import CarmaError
from carmad.loop import turn

IN_LINE = (JobState.QUEUED, JobState.SUSPENDED)


class Recorder:
    def __init__(self) -> None:
        self.attempts: dict[JobId, list[Attempt]] = {}
        self.states: dict[JobId, JobState] = {}
        self.queued = 0
        self.events = 0
        self.decisions = 0
        self.last_end = 0.0
        self.ended = 0
        self.profiled: set[JobId] = set()  # those whose profile was known when they started
        self.suspended = 0  # now
        self.suspensions = 0
        self._holders: set[JobId] = set()  # those that hold GPUs, or are suspended

    def commit(self, step: Step) -> None:
        """Raises CarmaError when the policy failed: waiting for a better answer is in vain."""
        self.events += len(step.events)
        self.decisions += len(step.decisions)
        for failure in step.failures:
            if failure.question == ORDER:
                raise CarmaError(
                    f"the policy failed to say where a job stands in line: {failure.error}",
                    "this is a fault in the policy, not in the trace",
                )
        for decision in step.decisions:
            for reason in decision.placement.reasons:
                if reason.code == "policy_failed":
                    raise CarmaError(
                        f"the policy {decision.policy!r} failed: {reason.detail}",
                        "this is a fault in the policy, not in the trace",
                    )
        for job in step.jobs:
            self._note(job, step.events[-1].at)

    def _note(self, job: Job, now: float) -> None:
        old, new = self.states.get(job.id), job.state
        self.queued += (new in IN_LINE) - (old in IN_LINE)
        self.suspensions += new is JobState.SUSPENDED and old is JobState.SUSPENDING
        self.suspended += (new is JobState.SUSPENDED) - (old is JobState.SUSPENDED)
        self.states[job.id] = new
        self.ended += job.ended and old not in ENDED
        if job.lives:
            if job.id not in self._holders and job.profile is not None:
                self.profiled.add(job.id)
            self._holders.add(job.id)
        elif job.id in self._holders:
            self._holders.remove(job.id)
            self.last_end = now
            self.attempts.setdefault(job.id, []).append(_last(job))

    @property
    def holding(self) -> int:
        return len(self._holders) - self.suspended


class TimelineKeeper:
    """Adds a row whenever the cluster looks different from the last one."""

    def __init__(self, gauges: Gauges, gpus: int, memory_mib: int) -> None:
        self.timeline = Timeline(*(array("d") for _ in range(9)))
        self._columns = tuple(
            getattr(self.timeline, name) for name in Timeline.__dataclass_fields__ if name != "at"
        )
        self._gauges = gauges
        self._gpus = gpus
        self._memory_mib = memory_mib
        self._idle_w = gauges.power_w
        self._last: tuple[float, ...] = ()

    def row(self, at: float, queued: int, running: int) -> None:
        gauges, gpus = self._gauges, self._gpus
        if not gauges.busy_gpus:  # sums of many small changes do not come back to 0 by themselves
            gauges.sm_active = gauges.sm_occupancy = gauges.dram_active = 0.0
            gauges.power_w = self._idle_w
        row = (
            float(queued),
            float(running),
            float(gauges.busy_gpus),
            gauges.memory_mib / self._memory_mib,
            gauges.sm_active / gpus,
            gauges.sm_occupancy / gpus,
            gauges.dram_active / gpus,
            gauges.power_w,
        )
        if row == self._last:
            return
        self._last = row
        times = self.timeline.at
        if times and times[-1] == at:  # the same instant went on
            for column, value in zip(self._columns, row, strict=True):
                column[-1] = value
            return
        times.append(at)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)


def _last(job: Job) -> Attempt:
    """Its last attempt, which is over."""
    its = job.attempts[-1]
    assert its.mode is not None and its.started_at is not None
    assert its.ended_at is not None and its.exit is not None
    ready_at = its.kernels[0][1] if its.kernels else None
    ran_s = its.run_s(its.ended_at)
    return Attempt(
        its.gpus,
        its.mode,
        its.started_at,
        ready_at,
        its.ended_at,
        its.exit.cause,
        suspended_s=max(0.0, its.ended_at - its.started_at - ran_s),
    )


REPORTED_S = 0.5  # between two reports of a run's progress, by the wall clock


class Progress(NamedTuple):
    at_s: float  # since the first submission, in simulated time
    ended: int
    jobs: int


Watch = Callable[[Progress], None]


def simulate(experiment: Experiment, watch: Watch | None = None) -> Outcome:
    """Run the whole trace. In the outcome, jobs that can never start are still queued. `watch` is
    called every `REPORTED_S`.

    Raises CarmaError for an unknown policy, recovery, interference or reference GPU, and if the
    policy fails.
    """
    began = perf_counter()
    due = began + REPORTED_S
    settings = for_simulation(experiment.settings, experiment.as_daemon)
    scheduler = core(settings)
    clock, workload, recorder = Clock(), Workload(experiment), Recorder()
    model = interference.make(experiment.interference)
    world = World(experiment, settings, workload, model, clock)
    submit_in_time(workload.tasks, clock, world.submit)
    memory_mib = sum(card.gpu.memory_mib for card in world.cards.values())
    keeper = TimelineKeeper(world.gauges, len(world.cards), memory_mib)

    with without_collection():
        turn(scheduler, recorder, world, *world.opening())
        while clock.advance():
            catch_up(scheduler, recorder, world)
            keeper.row(clock.now, recorder.queued, recorder.holding)
            if watch is not None and perf_counter() >= due:
                watch(Progress(clock.now, recorder.ended, len(workload.tasks)))
                due = perf_counter() + REPORTED_S

    return Outcome(
        trace=experiment.trace.name,
        policy=scheduler.policy.name,
        estimator=experiment.estimator,
        interference=experiment.interference,
        seed=experiment.seed,
        cluster=experiment.cluster,
        jobs=_jobs(experiment, workload, world, recorder),
        gpus=tuple(card.totals(recorder.last_end) for card in world.cards.values()),
        timeline=keeper.timeline,
        makespan_s=recorder.last_end,
        events=recorder.events,
        decisions=recorder.decisions,
        wall_s=perf_counter() - began,
        profiled=len(recorder.profiled),
        suspensions=recorder.suspensions,
    )


def for_simulation(settings: Settings, as_daemon: bool = False) -> Settings:
    """The settings, as they apply to modelled GPUs. Published policies keep arrival order and let
    nobody pass; `as_daemon`: only where the settings say so."""
    # Modelled GPUs report every change, so a reading is valid until the next one.
    monitor = replace(settings.monitor, stale_s=math.inf)
    if as_daemon:
        return replace(settings, monitor=monitor)
    # Published policies have none of these, unless it is asked for.
    monitor = replace(monitor, known_window_s=monitor.known_window_s or monitor.window_s)
    fairness = replace(settings.fairness, enabled=bool(settings.fairness.enabled))
    limits = replace(settings.limits, backfill=settings.limits.backfill or 0)
    return replace(settings, monitor=monitor, fairness=fairness, limits=limits)


def core(settings: Settings) -> Scheduler:
    policy = registry.bare_policy(settings)
    recovery, predictor = registry.bare_recovery(settings), registry.bare_predictor(settings)
    return Scheduler(settings, policy, recovery, predictor)


def catch_up(scheduler: Scheduler, recorder: Recorder, world: World) -> None:
    """Tell the core what has happened in its world at this instant."""
    if submissions := world.submissions():
        turn(scheduler, recorder, world, *submissions)
    if news := world.news(waiting=recorder.queued > 0):
        turn(scheduler, recorder, world, *news)
    if recorder.queued:
        world.look_ahead()


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection, which takes a fifth of the time: a run leaves no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _jobs(
    experiment: Experiment, workload: Workload, world: World, recorder: Recorder
) -> tuple[JobOutcome, ...]:
    ids = map(JobId, range(1, len(workload.tasks) + 1))
    return tuple(job_outcome(id, experiment, workload, world, recorder) for id in ids)


def job_outcome(
    id: JobId, experiment: Experiment, workload: Workload, world: World, recorder: Recorder
) -> JobOutcome:
    task = workload.task(id)
    attempts = tuple(recorder.attempts.get(id, ()))
    gpus = attempts[-1].gpus if attempts else ()
    rate = min((workload.full_rate(id, world.cards[gpu].kind) for gpu in gpus), default=1.0)
    alone_s = experiment.physics.first_kernel_s + task.duration_s / rate
    state = recorder.states.get(id, JobState.PENDING)
    return JobOutcome(id, task, state, attempts, alone_s, world.energy_j.get(id, 0.0))
