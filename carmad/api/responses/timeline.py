"""Answers about what was recorded over time, made for uPlot: one list of times, and lists of values
beside it. None: not recorded, or not known. Times are Unix seconds; memory is in MiB."""

from __future__ import annotations

from typing_extensions import TypedDict

Values = list[float | None]


class MemoryOut(TypedDict):
    """Of a job on a GPU."""

    used_mib: Values  # means
    used_max_mib: Values
    promised_mib: Values  # what was set aside for it: as declared or estimated, with its margin


class JobSeriesOut(MemoryOut):
    """A job on a GPU. Its lists begin at `times[first]`, and are shorter than `times`: before and
    after, it was not there. Stacked, with `external_mib`, they make `used_mib`."""

    id: int | None  # None: other jobs, added up
    label: str
    user: str
    name: str  # "-" of others' jobs
    first: int


class MarkOut(TypedDict):
    at: float
    kind: str
    job: int | None
    label: str
    user: str
    text: str


class GpuTimelineOut(TypedDict):
    id: str
    index: int | None  # None: not known any more
    name: str
    present: bool  # False: it has vanished since, such as a MIG instance
    mig: bool
    memory_mib: int | None
    used_mib: Values  # all of it, means
    used_max_mib: Values
    external_mib: Values  # of processes of no job
    promised_mib: Values  # to its jobs together
    sm_active: Values  # means, 0-1; GPU utilisation where SM activity is not known
    sm_active_max: Values
    power_w: Values
    jobs: list[JobSeriesOut]
    marks: list[MarkOut]
    left_out: int  # older marks, of which there are too many


class TimelineOut(TypedDict):
    schema: int
    since: str
    until: str
    step_s: int
    times: list[int]  # when each bin begins
    limits: dict[str, float]  # of collocation risk: `sm_active`, `sm_occupancy`, `dram_active`
    window_s: float  # over which the risk is judged
    gpus: list[GpuTimelineOut]


class JobGpuTimelineOut(MemoryOut):
    """A GPU that the job was on. What it held itself is `used_mib`."""

    id: str
    index: int | None  # None: not known any more
    name: str
    memory_mib: int | None
    gpu_used_mib: Values  # by all
    sm_active: Values  # of the GPU, so by all that ran there
    sm_active_max: Values
    marks: list[MarkOut]  # of this job


class SpanOut(TypedDict):
    """An attempt."""

    number: int
    gpus: list[str]
    started_at: float | None
    ended_at: float | None  # None: it goes on
    cause: str | None


class JobTimelineOut(TypedDict):
    schema: int
    id: int
    label: str
    since: str
    until: str
    step_s: int
    times: list[int]  # when each bin begins
    limits: dict[str, float]  # of collocation risk
    attempts: list[SpanOut]
    gpus: list[JobGpuTimelineOut]
