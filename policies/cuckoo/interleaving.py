"""The duration of a round, in which each of several collocated jobs does one iteration, and what a
pair of jobs is worth (Cuckoo paper, equations 1, 11 and 12).

The asynchronous-invocation model (3.2, algorithms 1 and 2). The listings are garbled in our copy;
this reproduces table 4 to the millisecond:

- A job goes through three stages: loading, computing, communicating. Each job is one stage behind
  the one before it, so a round of n jobs has n + 2 stages. (The text says three stages, and listing
  1 adds up four: those of two jobs.)
- A stage lasts until every job has what it waits for: a loading job its batch; a computing job its
  forward pass; a communicating job its backward pass and gradients, if its iteration ends only
  then. Otherwise, as for ResNet, it goes on, and they are ready by the end of the round: the paper
  says "before the next forward pass", but in table 4 ResNet's 98 ms are the round's last stage.
- So no work is left over after a round, all rounds are equal, and the first is the result: listing
  1's loop until two rounds are close is not needed.
- The backward pass begins after the forward pass, in the same stage if that lasts long enough;
  communication begins with the job's third stage, and not before (c_0 is 0 in table 4's second
  row).
- A job that uses the GPU or the network in the same stage as others takes λ times as long for all
  of that work, overlapping or not (f_0, b_0 and b_1 in the second row); with m jobs,
  1 + (m − 1)(λ − 1) times, which means taking turns if λ = 2. Work that is not done is left for the
  next stage. There is no contention for loading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from carmad.plugin import StageTimes

Numbers = NDArray[np.float64]

NOTHING: Numbers = np.zeros(())

AT_ONCE = 16_384  # pairs per block of the table, which fits into the processor's cache


class Phases(NamedTuple):
    """The parts of an iteration alone: of one job, or of many as arrays, parallel to those of the
    jobs beside them. In seconds, or any unit that all of them use."""

    load: Numbers
    forward: Numbers
    backward: Numbers
    communication: Numbers
    awaited: NDArray[np.bool_]  # the iteration waits for its own gradients

    @classmethod
    def of(cls, jobs: Sequence[StageTimes]) -> Phases:
        times = [(s.load_s, s.forward_s, s.backward_s, s.communication_s) for s in jobs]
        load, forward, backward, communication = np.array(times, dtype=float).reshape(-1, 4).T
        awaited = np.array([s.sync == "backward" for s in jobs], dtype=bool)
        return cls(load, forward, backward, communication, awaited)

    def slower(self, factor: Numbers) -> Phases:
        load, forward, backward, communication = (time * factor for time in self[:4])
        return Phases(load, forward, backward, communication, self.awaited)

    def at(self, index: object) -> Phases:
        """The jobs at this array index."""
        return Phases(*(column[index] for column in self))  # type: ignore[call-overload]


class Step(NamedTuple):
    """One stage of a round, a row of table 4: each job's forward, backward and communication time
    in it, and its duration."""

    used: tuple[tuple[Numbers, Numbers, Numbers], ...]
    length: Numbers


class Model(Protocol):
    def __hash__(self) -> int: ...

    def iteration_s(self, jobs: Sequence[Phases]) -> Numbers:
        """The duration of a round of jobs that begin one after the other, in this order."""


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """AM. The GPU's λ is fitted to the pairs that Lucid's authors measured, as the policy models
    them (`python -m lab.cuckoo`). The network's λ, for which there are no measured pairs, is
    that of the working example, which uses 2 for both."""

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
            slow = _slowdown(self.gpu, [f + b for f, b in zip(forward, backward, strict=True)])
            jam = _slowdown(self.network, communication)
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


def _slowdown(factor: float, work: Sequence[Numbers]) -> Numbers:
    """The slowdown of a resource that does all this work at once."""
    users = sum((np.greater(each, 0).astype(float) for each in work), start=NOTHING)
    return 1.0 + (factor - 1.0) * np.maximum(users - 1.0, 0.0)


def _work(todo: Numbers, slow: Numbers, length: Numbers) -> tuple[Numbers, Numbers]:
    """The work left over, and the time spent in the stage. Rounding must not leave any, as it would
    count as use of the resource."""
    needs = todo * slow
    return np.where(needs <= length, 0.0, todo - length / slow), np.minimum(needs, length)


def standalone(model: Model, jobs: Phases) -> Numbers:
    """The duration of an iteration of each alone: a round of one."""
    return model.iteration_s((jobs,))


def rounds(model: Model, rows: Phases, columns: Phases) -> Numbers:
    """The duration of a round of each row with each column, in the better of both orders."""
    round_s = np.empty((len(rows.load), len(columns.load)))
    at_once = max(1, AT_ONCE // max(1, len(columns.load)))
    other = columns.at((None, slice(None)))
    for at in range(0, len(rows.load), at_once):
        block = slice(at, at + at_once)
        one = rows.at((block, None))
        round_s[block] = model.iteration_s((one, other))
        if rows is not columns:
            np.minimum(round_s[block], model.iteration_s((other, one)), out=round_s[block])
    return np.minimum(round_s, round_s.T) if rows is columns else round_s


def eff_values(row_s: Numbers, column_s: Numbers, round_s: Numbers) -> Numbers:
    """Equation 1, for each row with each column."""
    return (row_s[:, None] + column_s) / round_s


def ddl_values(one_s: Numbers | float, other_s: Numbers | float) -> Numbers:
    """Equation 11, for deadlines in seconds from now. One that has passed counts as due now.

    Equal deadlines have the value 1, even if both have passed or neither exists. So only efficiency
    counts among jobs without deadlines, as in the paper (5.2). A deadline beside none has the value
    0.
    """
    one, other = np.maximum(one_s, 0.0), np.maximum(other_s, 0.0)
    later, sooner = np.maximum(one, other), np.minimum(one, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(later == sooner, 1.0, sooner / later)


def total_values(eff: Numbers, ddl: Numbers, weight: float) -> Numbers:
    """Equation 12."""
    return weight * eff + (1 - weight) * ddl
