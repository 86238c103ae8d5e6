"""The values of a simulation: a trace (what is submitted when, and what it really needs),
everything else that determines a run, and what the run came to. The same experiment has the same
outcome."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from carma_simulator.hardware import Cluster
from carmad.config import Settings
from carmad.core.jobs.attempt import Cause, GpuId, JobId, Mode
from carmad.core.jobs.findings import StageTimes
from carmad.core.jobs.layout import Layout
from carmad.core.jobs.states import JobState
from carmad.learning.models import Model


@dataclass(frozen=True, slots=True)
class Load:
    """A job's load on each of its GPUs while it trains there alone. Fractions are 0–1."""

    model: str = ""  # with `batch_size`, the key of measured pairs
    batch_size: int = 0  # 0: not known
    memory_mib: int = 1024  # the actual peak of the whole process, as in nvidia-smi
    sm_active: float = 0.5  # SMACT
    sm_occupancy: float = 0.25  # SMOCC
    dram_active: float = 0.2  # DRAMA
    batch_mib: int = 0  # the part of memory_mib that is proportional to the batch size
    fixed_share: float = 0.0  # of a step's time: the part that each part of a split batch repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of a trace."""

    name: str
    submit_s: float  # since the start of the trace
    duration_s: float  # of training alone on `reference`, from its first kernel to its end
    gpus: int = 1
    user: str = "user"
    load: Load = Load()
    reference: str = ""  # the GPU kind that duration_s was measured on; "": the cluster's first
    speeds: tuple[tuple[str, float], ...] = ()  # where known: how fast by GPU kind, relative to it
    layout: Layout | None = None  # over its GPUs
    iteration_s: float = 0.0  # with a layout: time of an iteration where duration_s was measured
    stages: tuple[StageTimes, ...] = ()  # of an iteration, as declared by its user
    expected_s: float | None = None  # a prediction of duration_s, if available
    deadline_s: float | None = None  # deadline, this long after submission
    time_limit_s: float | None = None
    declared_mib: int | None = None  # its user's own word on memory per GPU
    exclusive: bool = False
    resizable: bool = False  # its batch may be split (gradient accumulation)
    fails: bool = False  # ends with an error of its own, after duration_s
    has_kernels: bool = True  # False: it holds its memory for duration_s, and never computes
    estimates: tuple[tuple[str, int], ...] = ()  # name of the estimator, estimate in MiB per GPU


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot be used, and why."""

    line: int  # in the file, counted from 1
    why: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Tasks in order of submission; the first one's `submit_s` is 0."""

    name: str
    tasks: tuple[Task, ...]
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class Physics:
    """The model's parameters apart from training itself, in seconds and MiB."""

    first_kernel_s: float = 10.0  # from the launch to the first kernel (TTFK)
    growth_s: float = 0.0  # from there to full memory, of which it has a quarter at first
    oom_s: float = 5.0  # from the failed allocation to the process being gone
    stop_s: float = 2.0  # from being told to stop to being gone
    checkpoint_s: float = 10.0  # what saving and loading cost a preempted job
    fragmentation_mib: int = 0  # unavailable to a new job, per job already there
    estimate_error: float = 0.0  # σ of the log-normal factor on each memory estimate
    duration_error: float = 0.0  # σ of the log-normal factor on each expected duration


@dataclass(frozen=True, slots=True)
class Experiment:
    trace: Trace
    cluster: Cluster
    settings: Settings = field(default_factory=Settings)  # policy, recovery, MPS
    estimator: str = "none"  # none, oracle, history, or one of the trace's own columns
    interference: str = "conserving"  # none, additive, conserving, conserving:C, measured:FILE
    physics: Physics = Physics()
    seed: int = 0
    expected: bool = True  # do users declare expected durations?
    as_daemon: bool = False  # what is not set is as in the daemon, not as in publications
    models: tuple[tuple[str, Model], ...] = ()  # trained before the trace begins


# -- what came of it: every attempt of every job, and the GPUs over time


@dataclass(frozen=True, slots=True)
class Attempt:
    """Seconds since the trace's begin."""

    gpus: tuple[GpuId, ...]
    mode: Mode
    launched_at: float
    ready_at: float | None  # its first kernel; None: it never came to one
    ended_at: float
    cause: Cause
    suspended_s: float = 0.0  # of that time


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
    sm_work_s: float = 0.0  # SM-busy seconds that what was done takes alone; 0: not known


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
    suspensions: int = 0
