"""What jobs come to on the same GPUs: when nobody keeps them in step, or an executor does.

Free running, each goes through its own iterations: it loads, computes forward and backward, and
sends gradients from the begin of the backward pass on. Where two compute at once, or send at once,
both go λ times as slowly. Nobody waits for another's stage to end: so two processes run on a live
GPU, and that is what sets this apart from the paper's model, which `InStep` takes for the truth.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import fsum
from statistics import fmean

from carma_simulator.experiment import Load, Trace
from carma_simulator.interference import Sharing
from carmad.core.jobs.attempt import Mode
from carmad.core.jobs.findings import StageTimes
from lab.cuckoo.workload import alone_s, named
from policies.cuckoo.interleaving import Asynchronous, Phases, rounds, standalone

LAMBDA_GPU = 1.5  # as `pairs` fits it to Lucid's measured pairs
LAMBDA_NETWORK = 2.0  # two flows on one link have half of it each
BEGINS = (0.0, 0.25, 0.5, 0.75)  # of an iteration, that the second job begins later: a mean
ITERATIONS = 8  # of the slower one, after which both have shown their pace

Pair = tuple[StageTimes, StageTimes]


class Truth(Sharing):
    """Interference of the trace's jobs, as `workload.load` names them. `gpu`: λ."""

    def __init__(self, trace: Trace, gpu: float = LAMBDA_GPU) -> None:
        super().__init__()
        self._stages = {named(task, each.gpu): each for task in trace.tasks for each in task.stages}
        self.gpu = gpu

    def speeds_together(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        """Beside several others, each adds what it costs where they are two."""
        jobs = [self._stages[load.model] for load in loads]
        slowed = (
            1 + fsum(1 / self.speed(own, other) - 1 for m, other in enumerate(jobs) if m != n)
            for n, own in enumerate(jobs)
        )
        return tuple(1 / each for each in slowed)

    @abstractmethod
    def speed(self, own: StageTimes, other: StageTimes) -> float:
        """Of the first beside the other, relative to alone."""


class FreeRunning(Truth):
    def speed(self, own: StageTimes, other: StageTimes) -> float:
        return _speed(own, other, self.gpu)


class InStep(Truth):
    """Each does one iteration in a round, which takes as long as in the paper's model."""

    def speed(self, own: StageTimes, other: StageTimes) -> float:
        return _speed_in_step(own, other, self.gpu)


@cache
def _speed(own: StageTimes, other: StageTimes, gpu: float) -> float:
    return speeds((own, other), gpu, LAMBDA_NETWORK)[0]


@cache
def _speed_in_step(own: StageTimes, other: StageTimes, gpu: float) -> float:
    model, one, two = Asynchronous(gpu, LAMBDA_NETWORK), Phases.of([own]), Phases.of([other])
    round_s = rounds(model, one, two).item()
    return min(1.0, standalone(model, one).item() / round_s)


def speeds(pair: Pair, gpu: float, network: float) -> tuple[float, float]:
    """How fast each goes beside the other, relative to alone; `gpu` and `network` are λ."""
    first, second = zip(*(_paces(pair, gpu, network, begin) for begin in BEGINS), strict=True)
    return min(1.0, fmean(first)), min(1.0, fmean(second))


@dataclass(slots=True)
class Running:
    """One of the jobs. What is left, in seconds of being alone at it."""

    times: StageTimes
    left: float  # of the stage
    counted: float  # from when on iterations count: the first that is done then begins the count
    stage: int = 0  # loads, computes forward, computes backward
    sending: float = 0.0  # of the gradients
    done: int = -1  # iterations
    begun_at: float = 0.0  # the first of them
    done_at: float = 0.0  # the last

    def computes(self) -> bool:
        return self.stage > 0 and self.left > 0

    def sends(self) -> bool:
        return self.sending > 0

    def go_on(self, now: float) -> None:
        """To the next stage that takes time, unless that needs the gradients."""
        times, held = self.times, {0: "forward", 2: "backward"}
        while not self.left:
            if self.sending and held.get(self.stage) == times.sync:
                return
            if self.stage == 1:
                self.sending = times.communication_s
            if self.stage == 2:
                self._count(now)
            self.stage = (self.stage + 1) % 3
            self.left = (times.load_s, times.forward_s, times.backward_s)[self.stage]

    def _count(self, now: float) -> None:
        if now >= self.counted:
            self.done, self.done_at = self.done + 1, now
            if self.done == 0:
                self.begun_at = now


def _paces(pair: Pair, gpu: float, network: float, begin: float) -> tuple[float, float]:
    one, other = pair
    later = begin * alone_s(other)
    jobs = Running(one, one.load_s, later), Running(other, later + other.load_s, later)
    now = 0.0
    while min(job.done for job in jobs) < ITERATIONS:
        now = _step(jobs, now, gpu, network)
    first, second = (job.done * alone_s(job.times) / (job.done_at - job.begun_at) for job in jobs)
    return first, second


def _step(jobs: Sequence[Running], now: float, gpu: float, network: float) -> float:
    """To the next end of anything that goes on, which is when?"""
    slow = gpu if all(job.computes() for job in jobs) else 1.0
    jam = network if all(job.sends() for job in jobs) else 1.0
    ends = [job.left * (slow if job.computes() else 1.0) for job in jobs if job.left]
    ends += [job.sending * jam for job in jobs if job.sends()]
    passed = min(ends, default=0.0)
    for job in jobs:
        job.left = _less(job.left, passed / slow if job.computes() else passed)
        job.sending = _less(job.sending, passed / jam)
        job.go_on(now + passed)
    return now + passed


def _less(left: float, done: float) -> float:
    return 0.0 if left < done or math.isclose(left, done, rel_tol=1e-9) else left - done
