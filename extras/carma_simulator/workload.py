"""The trace as users would submit it, in virtual time: what the core knows about a task, and its
real behaviour.

MIG is modelled by shares only. A job that uses no more of the SMs and the memory bandwidth than its
instance has is as fast as on the whole GPU, others are slower by the larger of the two ratios.
Other instances of the GPU do not affect it.

Each task has its own random stream, so that a policy's decisions do not change the draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from heapq import heappop, heappush
from random import Random
from typing import Any
from zlib import crc32

from carma_simulator.catalogue import key
from carma_simulator.experiment import Experiment, Load, Task
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.layout import Layout, iteration_s
from carmad.core.jobs.spec import JobSpec
from carmad.core.rules.promises import margin
from carmad.errors import CarmaError
from carmad.gpu.kinds import KINDS, GpuKind

# -- virtual time: a queue of calls, independent of jobs and GPUs


class Order(IntEnum):
    """Priority within one instant: departures make room for arrivals."""

    ENDS = 0
    BEGINS = 1
    REST = 2


class Clock:
    """Calls with the same instant and order are made in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = -math.inf
        self._calls = 0
        self._due: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []

    def call_at(self, at: float, order: Order, act: Callable[..., None], *subject: Any) -> None:
        """Schedule `act(*subject)` for `at`, which must not be in the past."""
        self._calls += 1
        heappush(self._due, (at, order, self._calls, act, subject))

    def advance(self) -> bool:
        """Go to the next instant and make all calls due then. False if there are none."""
        due = self._due
        if not due:
            return False
        self.now = now = due[0][0]
        while due and due[0][0] == now:
            _, _, _, act, subject = heappop(due)
            act(*subject)
        return True


def not_before(since: float, span_s: float, before_s: float = 0.0) -> float:
    """The first instant at which `before_s + (at - since) >= span_s`, as the core computes it.

    Rounding may make the sum slightly too small, and then nothing would check again.
    """
    at = since + max(0.0, span_s - before_s)
    while before_s + (at - since) < span_s:
        at = math.nextafter(at, math.inf)
    return at


HISTORY = "history"  # the estimator that knows what earlier runs of a job used


def _recurrence(task: Task) -> tuple[str, str, int]:
    """Tasks for which this is equal are runs of the same job."""
    return task.user, task.name, task.gpus


def uid_of(user: str) -> int:
    """Of a user of a trace: the same in every simulation, as runs of the same job have the same
    group (`core.jobs.recurrence`)."""
    return 1000 + crc32(user.encode()) % (1 << 30)


class Workload:
    """Jobs are numbered from 1, in the order of their tasks.

    Raises CarmaError if a task was measured on an unknown GPU.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.tasks = experiment.trace.tasks
        self._estimator = experiment.estimator
        self._declared = experiment.expected
        self._as_daemon = experiment.as_daemon
        self._physics = experiment.physics
        self._seed = experiment.seed
        nodes = experiment.cluster.nodes
        there = {node.kind.name: node.kind for node in nodes}
        self._kinds = {**KINDS, **there, "": nodes[0].kind}
        self._links = experiment.settings.links
        self._server_gpus = max(node.gpus for node in nodes)
        self._peaks: dict[tuple[str, str, int], list[int]] = {}  # of runs that have ended
        self._iterations: dict[tuple[Layout, tuple[int, ...]], float] = {}
        self._rates: dict[tuple[str, str, str], float] = {}
        for task in self.tasks:
            if task.reference not in self._kinds:
                raise CarmaError(
                    f"task {task.name!r} was measured on {task.reference!r}, an unknown GPU",
                    f"known: {', '.join(filter(None, self._kinds))}",
                )

    def task(self, job: JobId) -> Task:
        return self.tasks[job - 1]

    def spec(self, job: JobId) -> JobSpec:
        task = self.task(job)
        expected = task.expected_s
        if expected is None and not self._as_daemon:
            expected = task.duration_s
        error = self._error(job, "duration", self._physics.duration_error)
        uid = uid_of(task.user)
        return JobSpec(
            argv=(task.name,),
            user=task.user,
            uid=uid,
            gid=uid,
            cwd="/",
            name=task.name,
            gpus=task.gpus,
            memory_mib=task.declared_mib,
            exclusive=task.exclusive,
            time_limit_s=task.time_limit_s,
            expected_s=None if expected is None or not self._declared else expected * error,
            deadline_at=None if task.deadline_s is None else task.submit_s + task.deadline_s,
            layout=task.layout,
            stage_times=task.stages,
            batch_size=(task.load.batch_size or None) if task.resizable else None,
        )

    def estimate(self, job: JobId) -> Estimate | None:
        """The declared memory, otherwise the experiment's estimate; the oracle's overrides both."""
        task = self.task(job)
        if self._estimator == "oracle":
            mib: int | None = task.load.memory_mib
        elif task.declared_mib:
            return self.spec(job).declared
        elif self._estimator == HISTORY:
            return self._measured(task)
        else:
            mib = dict(task.estimates).get(self._estimator)
        if mib is None:
            return None
        error = self._error(job, "memory", self._physics.estimate_error)
        batch_mib = task.load.batch_mib if task.resizable else 0
        return Estimate(
            max(1, round(mib * error)), self._estimator, batch_mib=round(batch_mib * error)
        )

    def learn(self, job: JobId) -> None:
        """It has run to its end."""
        task = self.task(job)
        self._peaks.setdefault(_recurrence(task), []).append(task.load.memory_mib)

    def _measured(self, task: Task) -> Estimate | None:
        """What earlier runs of the job used at most, as the daemon's `history` says it."""
        if not (peaks := self._peaks.get(_recurrence(task))):
            return None
        most, factor = max(peaks), margin(peaks)
        return Estimate(most, HISTORY, math.floor(most / factor), math.ceil(most * factor))

    def load(self, job: JobId, kind: GpuKind, parts: int = 1) -> Load:
        """The job's load on a GPU of this kind while it trains there alone, with each batch
        split into `parts`."""
        load = self.task(job).load
        if parts > 1:
            less = load.batch_mib - load.batch_mib // parts
            load = replace(load, memory_mib=load.memory_mib - less)
        if kind.sm_share == kind.dram_share == 1.0:
            return load
        pace = _pace(load, kind)
        return replace(
            load,
            sm_active=load.sm_active * pace / kind.sm_share,
            sm_occupancy=load.sm_occupancy * pace / kind.sm_share,
            dram_active=load.dram_active * pace / kind.dram_share,
        )

    def full_rate(self, job: JobId, kind: GpuKind, parts: int = 1) -> float:
        """The task's speed on a GPU of this kind, alone, relative to where it was measured.

        A batch in parts takes longer (Castor paper, eq. 3)."""
        task = self.task(job)
        split = 1.0 + (parts - 1) * task.load.fixed_share
        known = dict(task.speeds).get(kind.name)
        if known is not None:
            return known / split
        question = (task.load.model, task.reference, kind.name)
        rate = self._rates.get(question)
        if rate is None:
            reference = self._kinds[task.reference]
            rate = _speed(kind, task.load.model) / _speed(reference, task.load.model)
            self._rates[question] = rate
        return rate * _pace(task.load, kind) / split

    def mapping_rate(self, job: JobId, servers: Sequence[str]) -> float:
        """Its speed with its GPUs on these servers, relative to where its duration was measured
        (A-SRPT paper, equation 7); 1 if the time of an iteration is not known."""
        task = self.task(job)
        if task.layout is None or not task.iteration_s:
            return 1.0
        numbers: dict[str, int] = {}
        on = tuple(numbers.setdefault(server, len(numbers)) for server in servers)
        question = task.layout, on
        if question not in self._iterations:
            taken_s = iteration_s(task.layout, on, self._links, self._server_gpus)
            self._iterations[question] = taken_s
        taken_s = self._iterations[question]
        return task.iteration_s / taken_s if taken_s else 1.0

    def _error(self, job: JobId, what: str, sigma: float) -> float:
        """A log-normal factor."""
        if sigma == 0:
            return 1.0
        return Random(f"{self._seed}/{job}/{what}").lognormvariate(0.0, sigma)


def submit_in_time(
    tasks: Sequence[Task], clock: Clock, submit: Callable[[JobId, JobId], None]
) -> None:
    """Have `submit` called at each instant at which the trace has jobs, with the first of them and
    the one after the last."""

    def arrive(first: JobId) -> None:
        after = first + 1
        while after <= len(tasks) and tasks[after - 1].submit_s == clock.now:
            after += 1
        submit(first, JobId(after))
        if after <= len(tasks):
            clock.call_at(tasks[after - 1].submit_s, Order.REST, arrive, JobId(after))

    if tasks:
        clock.call_at(tasks[0].submit_s, Order.REST, arrive, JobId(1))


def _pace(load: Load, kind: GpuKind) -> float:
    """Its speed with only a share of the GPU, relative to the whole GPU."""
    return 1.0 / max(1.0, load.sm_active / kind.sm_share, load.dram_active / kind.dram_share)


def _speed(kind: GpuKind, model: str) -> float:
    return dict(kind.speeds).get(key(model), kind.speed)
