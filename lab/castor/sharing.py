"""The sharing benefit (Castor paper, 9.2, eq. 24) of every decision to share in a simulated run.

It is computed from the run's outcome, and so for any policy. Who trained where and when gives
each job's pace at each instant, and from its end backwards the work that it had left. From the
instant of a decision the cluster then goes on twice without newcomers, "assuming that no new jobs
will be submitted": with the job on the GPUs that it was given, and with it waiting until as many
are idle as it asked for. Both times count from the decision; what it had waited before is the same
in both. The simulator's own interference tells the paces: these are benefits had, not foretold.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from carma_simulator.experiment import Attempt, Experiment, JobOutcome, Load, Outcome
from carma_simulator.interference import Interference, make
from carmad.core.jobs.attempt import GpuId, JobId, Mode
from lab.castor.theorem import sharing_benefit

LEAST_S = 1e-6  # of work: less is a float's doing


@dataclass(frozen=True, slots=True)
class Decision:
    """To start `job` beside others; seconds from that instant to the job's end."""

    job: JobId
    at: float
    beside: tuple[JobId, ...]
    waiting_s: float
    sharing_s: float

    @property
    def benefit(self) -> float:
        return sharing_benefit(self.waiting_s, self.sharing_s)


@dataclass(slots=True)
class Run:
    """One attempt: from `at[n]` on, with `done[n]` seconds of work done, it goes at `pace[n]`."""

    job: JobOutcome
    attempt: Attempt
    at: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    pace: list[float] = field(default_factory=list)

    def done_by(self, now: float) -> float:
        n = bisect_right(self.at, now) - 1
        return 0.0 if n < 0 else self.done[n] + (now - self.at[n]) * self.pace[n]

    def left(self, now: float) -> float:
        return self.done_by(self.attempt.ended_at) - self.done_by(now)


@dataclass(slots=True)
class Going:
    """A job as the cluster goes on without newcomers."""

    load: Load
    gpus: tuple[GpuId, ...]
    begins_at: float
    left: float


def decisions(experiment: Experiment, outcome: Outcome) -> list[Decision]:
    """Every start beside a job that was there before, in order of time."""
    model, total = make(experiment.interference), len(outcome.gpus)
    first_kernel_s = experiment.physics.first_kernel_s
    runs = [Run(job, attempt) for job in outcome.jobs for attempt in job.attempts]
    _replay(runs, model)
    found = []
    for run in sorted(runs, key=lambda run: run.attempt.launched_at):
        now, gpus = run.attempt.launched_at, set(run.attempt.gpus)
        others = [
            other for other in runs if other.attempt.launched_at < now < other.attempt.ended_at
        ]
        beside = [other.job.id for other in others if gpus & set(other.attempt.gpus)]
        if not beside:
            continue
        task, work = run.job.task, run.left(now)
        begins_at = now + first_kernel_s
        going = [_going(other, now) for other in others]
        new = Going(task.load, run.attempt.gpus, begins_at, work)
        sharing_s = _until_gone([*going, new], new, now, model)
        going = [_going(other, now) for other in others]
        start = _until_idle(going, task.gpus, total, now, model)
        waiting_s = start - now + first_kernel_s + work
        found.append(Decision(run.job.id, now, tuple(beside), waiting_s, sharing_s - now))
    return found


def crowded(outcome: Outcome) -> int:
    """Starts on a GPU that, with their batches whole, could not hold all who were there then."""
    kinds = {(node.name, kind.name): kind for node in outcome.cluster.nodes for kind in node.units}
    memory_mib = {gpu.gpu: kinds[gpu.node, gpu.kind].memory_mib for gpu in outcome.gpus}
    runs = [(attempt, job.task.load) for job in outcome.jobs for attempt in job.attempts]

    def used_mib(gpu: GpuId, at: float) -> int:
        return sum(
            load.memory_mib
            for attempt, load in runs
            if gpu in attempt.gpus and attempt.launched_at <= at < attempt.ended_at
        )

    return sum(
        any(used_mib(gpu, attempt.launched_at) > memory_mib[gpu] for gpu in attempt.gpus)
        for attempt, _ in runs
    )


def _replay(runs: Iterable[Run], model: Interference) -> None:
    """Fill in each run's paces: they change when somebody begins or ends on one of its GPUs."""
    changes: dict[float, list[tuple[bool, Run]]] = defaultdict(list)
    for run in runs:
        ready_at = run.attempt.ready_at
        if ready_at is not None:
            changes[ready_at].append((True, run))
            changes[run.attempt.ended_at].append((False, run))
    there: dict[GpuId, list[Run]] = defaultdict(list)
    for now in sorted(changes):
        touched: dict[int, Run] = {}
        for begins, run in changes[now]:
            for gpu in run.attempt.gpus:
                there[gpu].append(run) if begins else there[gpu].remove(run)
                touched |= {id(each): each for each in there[gpu]}
        for run in touched.values():
            loads = [[each.job.task.load for each in there[gpu]] for gpu in run.attempt.gpus]
            places = [there[gpu].index(run) for gpu in run.attempt.gpus]
            pace = min(_pace(model, tuple(on), at) for on, at in zip(loads, places, strict=True))
            run.done.append(run.done_by(now))
            run.at.append(now)
            run.pace.append(pace)


def _pace(model: Interference, loads: tuple[Load, ...], which: int) -> float:
    return model.speeds(loads, Mode.STREAMS)[which]


def _going(run: Run, now: float) -> Going:
    ready_at = run.attempt.ready_at
    begins_at = math.inf if ready_at is None else max(now, ready_at)
    return Going(run.job.task.load, run.attempt.gpus, begins_at, run.left(now))


def _until_gone(going: list[Going], last: Going, now: float, model: Interference) -> float:
    while last in going:
        now = _step(going, now, model)
    return now


def _until_idle(
    going: list[Going], gpus: int, total: int, now: float, model: Interference
) -> float:
    while total - len({gpu for each in going for gpu in each.gpus}) < gpus:
        now = _step(going, now, model)
    return now


def _step(going: list[Going], now: float, model: Interference) -> float:
    """To the next begin or end; who has ended is taken out."""
    paces = _paces([each for each in going if each.begins_at <= now], model)
    instants = [each.begins_at for each in going if each.begins_at > now]
    instants += [now + each.left / paces[id(each)] for each in going if id(each) in paces]
    then = min(instants)
    for each in going:
        each.left -= (then - now) * paces.get(id(each), 0.0)
    going[:] = [each for each in going if each.left > LEAST_S]
    return then


def _paces(training: Sequence[Going], model: Interference) -> Mapping[int, float]:
    there: dict[GpuId, list[Going]] = defaultdict(list)
    for each in training:
        for gpu in each.gpus:
            there[gpu].append(each)
    paces: dict[int, float] = {}
    for on in there.values():
        speeds = model.speeds([each.load for each in on], Mode.STREAMS)
        for each, speed in zip(on, speeds, strict=True):
            paces[id(each)] = min(speed, paces.get(id(each), 1.0))
    return paces
