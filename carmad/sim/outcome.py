"""What one simulated run came to: every attempt of every job, and the GPUs over time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from carmad.core.types import Cause, GpuId, JobId, JobState, Mode
from carmad.sim.hardware import Cluster
from carmad.sim.task import Task


@dataclass(frozen=True, slots=True)
class Attempt:
    """Seconds since the trace's begin."""

    gpus: tuple[GpuId, ...]
    mode: Mode
    launched_at: float
    ready_at: float | None  # its first kernel; None: it never came to one
    ended_at: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class JobOutcome:
    id: JobId
    task: Task
    state: JobState
    attempts: tuple[Attempt, ...]
    alone_s: float  # on the GPUs it ended on, launch included, had it been alone there
    energy_j: float  # its share of its GPUs' energy

    @property
    def ended_at(self) -> float:
        return self.attempts[-1].ended_at if self.attempts else self.task.submit_s


@dataclass(frozen=True, slots=True)
class GpuTotals:
    """One GPU over the whole run; what is not energy is an integral over seconds."""

    gpu: GpuId
    node: str
    kind: str
    energy_j: float
    busy_s: float  # with any job on it
    memory_mib_s: float
    sm_active_s: float
    sm_occupancy_s: float
    dram_active_s: float


@dataclass(slots=True)
class Timeline:
    """The whole cluster at each instant at which something changed; each row stands until the next.

    Means are over all GPUs: fractions 0–1, of the memory the used share.
    """

    at: array[float]
    queued: array[float]
    running: array[float]
    busy_gpus: array[float]
    memory: array[float]
    sm_active: array[float]
    sm_occupancy: array[float]
    dram_active: array[float]
    power_w: array[float]  # of all GPUs together


@dataclass(frozen=True, slots=True)
class Outcome:
    """`wall_s`, the simulation's own duration, is the one field that differs between equal runs."""

    trace: str
    policy: str
    estimator: str
    interference: str
    seed: int
    cluster: Cluster
    jobs: tuple[JobOutcome, ...]  # in order of submission
    gpus: tuple[GpuTotals, ...]
    timeline: Timeline
    makespan_s: float  # from the first submission to the last end
    events: int  # that the core was fed
    decisions: int  # that it recorded
    wall_s: float
    profiled: int | None = None  # jobs whose profile was known when they started; None: not known
    reasons: frozenset[str] = frozenset()  # codes of all reasons why jobs waited
