"""A trace: what is submitted when, and what it really needs. Values only, without I/O."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.core.layout import Layout
from carmad.core.types import StageTimes


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
