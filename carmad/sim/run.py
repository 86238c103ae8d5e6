"""Runs an experiment: clock, world and core, driven by the daemon's own loop body."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from carmad import registry
from carmad.config import Settings
from carmad.core.scheduler import Scheduler
from carmad.core.types import JobId, JobState
from carmad.loop import turn
from carmad.sim import interference
from carmad.sim.clock import Clock
from carmad.sim.experiment import Experiment
from carmad.sim.outcome import JobOutcome, Outcome
from carmad.sim.recorder import Recorder, TimelineKeeper
from carmad.sim.workload import Workload, submit_in_time
from carmad.sim.world import World

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
    settings = simulated(experiment.settings)
    scheduler = core(settings)
    clock, workload, recorder = Clock(), Workload(experiment), Recorder()
    model = interference.make(experiment.interference)
    world = World(experiment, settings, workload, model, clock)
    submit_in_time(workload.tasks, clock, world.submit)
    memory_mib = sum(card.gpu.memory_mib for card in world.cards.values())
    keeper = TimelineKeeper(world.gauges, len(world.cards), memory_mib)

    with uncollected():
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
        reasons=frozenset(recorder.reasons),
    )


def simulated(settings: Settings) -> Settings:
    """The settings, as they apply to modelled GPUs."""
    # Modelled GPUs report every change, so a reading is valid until the next one.
    monitor = replace(settings.monitor, stale_s=math.inf)
    # Published policies have neither, unless it is asked for.
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
def uncollected() -> Iterator[None]:
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
