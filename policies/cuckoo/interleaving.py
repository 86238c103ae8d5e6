"""How long a round takes in which each of some jobs, collocated, does one iteration.

The asynchronous-invocation model (Cuckoo paper, 3.2, algorithms 1 and 2), and Muri's, which it is
compared with. The listings came to us garbled; what follows is what table 4 says, to the
millisecond:

- A job goes through three stages: it loads, computes, communicates. Each job is one stage behind
  the one before it, so a round of n jobs has n + 2 stages. (The text speaks of three stages, and
  listing 1 adds up four: these are those of two jobs.)
- A stage lasts until all have what they wait for in it: one that loads its batch; one that computes
  its forward pass; one that communicates its backward pass and gradients, if its iteration ends
  only then. Else, as ResNet, it goes on, and they are ready by the end of the round: the paper has
  "before the next forward pass", but in table 4 ResNet's 98 ms make the round's last stage.
- So a round leaves nothing over, all rounds are alike, and the first one is the answer: listing 1's
  loop until two of them are close is not needed.
- The backward pass begins when the forward pass is done, in the same stage if that lasts; the
  communication with the job's third stage, and not before (c_0 is 0 in table 4's second row).
- Who uses the GPU or the network in a stage in which others do takes λ times as long for all of it
  there, overlapping or not (f_0, b_0 and b_1 in the second row); with m of them
  1 + (m − 1)(λ − 1) times, which is in turns for λ = 2. What does not get done is left for the next
  stage. Loading is not contended for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from carmad.plugin import StageTimes

Numbers = NDArray[np.float64]

NOTHING: Numbers = np.zeros(())


class Phases(NamedTuple):
    """What an iteration takes alone: of one job, or of many, in arrays that go with those of the
    jobs beside them. Seconds, or whatever unit all of them are in."""

    load: Numbers
    forward: Numbers
    backward: Numbers
    communication: Numbers
    awaited: NDArray[np.bool_]  # the iteration ends with its gradients

    @classmethod
    def of(cls, jobs: Sequence[StageTimes]) -> Phases:
        times = [(s.load_s, s.forward_s, s.backward_s, s.communication_s) for s in jobs]
        load, forward, backward, communication = np.array(times, dtype=float).reshape(-1, 4).T
        awaited = np.array([s.sync == "backward" for s in jobs], dtype=bool)
        return cls(load, forward, backward, communication, awaited)

    @property
    def compute(self) -> Numbers:
        return self.forward + self.backward

    def slower(self, factor: Numbers) -> Phases:
        load, forward, backward, communication = (time * factor for time in self[:4])
        return Phases(load, forward, backward, communication, self.awaited)

    def at(self, index: object) -> Phases:
        """These of the jobs, as arrays are indexed."""
        return Phases(*(column[index] for column in self))  # type: ignore[call-overload]


class Step(NamedTuple):
    """One stage of a round: a row of table 4. How much of it each job computes forwards and
    backwards and communicates, and how long it lasts."""

    used: tuple[tuple[Numbers, Numbers, Numbers], ...]
    length: Numbers


class Model(Protocol):
    def iteration_s(self, jobs: Sequence[Phases]) -> Numbers:
        """Of jobs that begin one after the other, in this order."""


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """AM. λ of the GPU is fitted to the pairs that Lucid's authors measured, as the policy counts
    them (`python -m benchmarks.cuckoo`); of the network, of which nobody measured pairs, it is the
    working example's, which has 2 for both."""

    gpu: float = 1.3
    network: float = 2.0

    def iteration_s(self, jobs: Sequence[Phases]) -> Numbers:
        return sum((step.length for step in self.steps(jobs)), start=NOTHING)

    def steps(self, jobs: Sequence[Phases]) -> list[Step]:
        forward, backward, communication = ([NOTHING] * len(jobs) for _ in range(3))  # to be done
        steps, last = [], len(jobs) + 1
        for stage in range(last + 1):
            for n, job in enumerate(jobs):
                if stage == n + 1:
                    forward[n], backward[n] = job.forward, job.backward
                elif stage == n + 2:
                    communication[n] = job.communication
            slow = _slowed(self.gpu, [f + b for f, b in zip(forward, backward, strict=True)])
            jam = _slowed(self.network, communication)
            length = NOTHING
            for n, job in enumerate(jobs):
                done = np.maximum(slow * (forward[n] + backward[n]), jam * communication[n])
                if stage == n:
                    length = np.maximum(length, job.load)
                elif stage == n + 1:
                    length = np.maximum(length, slow * forward[n])
                elif stage == n + 2:
                    length = np.maximum(length, np.where(job.awaited, done, 0.0))
                if stage == last:
                    length = np.maximum(length, done)
            used: list[tuple[Numbers, Numbers, Numbers]] = []
            for n in range(len(jobs)):
                forward[n], f = _work(forward[n], slow, length)
                backward[n], b = _work(backward[n], slow, length - f)
                communication[n], c = _work(communication[n], jam, length)
                used.append((f, b, c))
            steps.append(Step(tuple(used), length))
        return steps


def _slowed(factor: float, work: Sequence[Numbers]) -> Numbers:
    """How much longer a resource takes with all these at once."""
    users = sum((np.greater(each, 0).astype(float) for each in work), start=NOTHING)
    return 1.0 + (factor - 1.0) * np.maximum(users - 1.0, 0.0)


def _work(todo: Numbers, slow: Numbers, length: Numbers) -> tuple[Numbers, Numbers]:
    """What is left of it, and what it takes of a stage. Nothing is left by rounding only: it would
    count as a user."""
    needs = todo * slow
    return np.where(needs <= length, 0.0, todo - length / slow), np.minimum(needs, length)


@dataclass(frozen=True, slots=True)
class Exclusive:
    """Muri's (Zhao et al., SIGCOMM 2022; the paper's Muri-P): each stage uses one resource and
    nothing overlaps, so jobs go round the three of them, one ahead of the other, and each time wait
    for the slowest."""

    def iteration_s(self, jobs: Sequence[Phases]) -> Numbers:
        rows = [(job.load, job.compute, job.communication) for job in jobs]
        if len(rows) > 3:
            raise ValueError("there are three resources, and no two jobs may use the same one")
        total = NOTHING
        for stage in range(3):
            busy = (row[(stage - n) % 3] for n, row in enumerate(rows))
            total = total + reduce(np.maximum, busy, NOTHING)
        return total
