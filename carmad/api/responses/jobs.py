"""Answers about jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, get_type_hints

from typing_extensions import TypedDict

from carmad.api.responses.report import ReceiptOut
from carmad.core.layout import Stage
from carmad.core.types import StageTimes, WarnSignal
from carmad.options import PLAIN, JobOptions

# Options that a job's answer has under their own names. The others are `gpus_wanted`, which has
# `gpus` beside it, part of `memory`, and the path that became of `stderr`.
ANSWERED = tuple(name for name in PLAIN if name not in ("gpus", "memory_mib", "stderr"))


class AfterOut(TypedDict):
    job: int
    kind: str


class ExitOut(TypedDict):
    cause: str
    code: int | None
    signal: int | None
    evidence: str
    fragmented: bool
    tried_mib: int | None
    free_mib: int | None
    neighbours: list[str]


class JobGpuOut(TypedDict):
    id: str
    index: int | None
    first_kernel_at: str | None


class MemoryOut(TypedDict):
    declared_mib: int | None
    estimate_mib: int | None
    estimate_low: int | None
    estimate_high: int | None
    estimate_source: str | None
    used_mib: int | None
    peak_mib: int | None  # None: not measured


class NeedOut(TypedDict):
    """The rest of a job's estimate, for its owner."""

    seconds: float
    firm: bool  # declared by the owner
    notes: list[str]  # what it is based on, and why no better estimator was chosen
    parts: dict[str, int]  # what it is made of, in MiB


class IndicatorOut(TypedDict):
    name: str
    mean: float
    variance: float


class ProfileOut(TypedDict):
    """The job's load on each of its GPUs when it trains alone there."""

    seconds: float  # that it was watched for; 0: it showed no kernel
    peak_mib: int
    indicators: list[IndicatorOut]
    of: int | None  # the earlier job that it was taken from


if TYPE_CHECKING:
    StageOut = dict[str, Any]
    StageTimesOut = dict[str, Any]
    WarnOut = dict[str, Any]
else:
    StageOut = TypedDict("StageOut", get_type_hints(Stage))
    StageTimesOut = TypedDict("StageTimesOut", get_type_hints(StageTimes))
    WarnOut = TypedDict("WarnOut", get_type_hints(WarnSignal))
    StageOut.__doc__, StageTimesOut.__doc__ = Stage.__doc__, StageTimes.__doc__
    WarnOut.__doc__ = WarnSignal.__doc__


class LayoutOut(TypedDict):
    """How a job is spread over its GPUs."""

    stages: list[StageOut]
    allreduce: str  # ring, tree


class OutlookOut(TypedDict):
    """Whether a job would meet its deadline if no jobs shared GPUs."""

    starts_at: str | None  # null: unknown
    ends_at: str | None
    late_s: float | None  # after its deadline; negative: early
    text: str


class PredictionOut(TypedDict):
    """How long the job runs alone."""

    seconds: float
    source: str
    parts: dict[str, float]  # each feature's contribution, in the source's units
    notes: list[str]


class MoveOut(TypedDict):
    at: str
    before: str | None
    after: str
    attempt: int


class AttemptOut(TypedDict):
    gpus: list[str]
    mode: str | None
    started_at: str
    first_kernel_at: str | None
    ended_at: str
    cause: str
    evidence: NotRequired[str]
    neighbours: NotRequired[list[str]]  # on its GPUs when it ran out of memory


class MovingOut(TypedDict):
    wait_s: float
    position: int | None


if TYPE_CHECKING:

    class OptionsOut(TypedDict, total=False):
        """Those options that code reads by name."""

        batch_size: int | None
        begin_at: str | None
        conda_env: str | None
        cpus: int | None
        deadline_at: str | None
        exclusive: bool
        expected_s: float | None
        host_memory_mib: int | None
        nice: int
        time_limit_s: float | None

else:
    _STORED = get_type_hints(JobOptions)
    OptionsOut = TypedDict(
        "OptionsOut",
        {name: str | None if name.endswith("_at") else _STORED[name] for name in ANSWERED},
        total=False,
    )


class JobOut(OptionsOut):
    """Non-admins see only the first fields of other users' jobs, and "-" for the name.

    One with `count` is the first of that many tasks of its array: in a folded listing, and in the
    history, of tasks that were cancelled while they waited."""

    id: int
    label: str
    user: str
    name: str
    state: str
    code: str
    gpus: list[JobGpuOut]
    gpus_wanted: int
    submitted_at: str
    started_at: str | None
    elapsed_s: float
    memory: MemoryOut
    count: NotRequired[int]
    tasks: NotRequired[str]  # their indices, as in 2-7,9%4; of many spans only the first
    reason: NotRequired[str | None]
    ended_at: NotRequired[str | None]
    late_s: NotRequired[float | None]  # of one that succeeded: after its deadline; below 0: before
    outlook: NotRequired[OutlookOut | None]  # of one with a deadline that has not ended
    layout: NotRequired[LayoutOut | None]
    stage_times: NotRequired[list[StageTimesOut]]  # as its owner, it or an earlier run has told
    wait_s: NotRequired[float]
    mode: NotRequired[str | None]
    attempt: NotRequired[int]
    recovering: NotRequired[bool]
    held: NotRequired[bool]
    interactive: NotRequired[bool]  # run by its owner's `carma run`: it has no log here
    slurm_job: NotRequired[int | None]  # that it runs in
    position: NotRequired[int | None]
    shared: NotRequired[bool]
    exit: NotRequired[ExitOut | None]
    failures: NotRequired[list[ExitOut]]
    retry: NotRequired[str | None]
    advice: NotRequired[str | None]
    notes: NotRequired[list[str]]
    # Until it runs: how its script stopped in a trial; completes "its script stops …".
    crash: NotRequired[str | None]
    estimate: NotRequired[NeedOut | None]
    group: NotRequired[str]  # the same for runs of the same job
    profile: NotRequired[ProfileOut | None]
    profiled_until: NotRequired[str | None]  # this attempt is alone until then
    prediction: NotRequired[PredictionOut | None]
    accumulation: NotRequired[int]  # parts that each batch is split into
    argv: NotRequired[list[str]]
    params: NotRequired[dict[str, str]]  # of a task of a sweep
    metrics: NotRequired[dict[str, float]]  # the last values that it reported
    script_bytes: NotRequired[int | None]  # of the copy of its job script that it runs
    cwd: NotRequired[str]
    stdout: NotRequired[str]
    stderr: NotRequired[str]
    after: NotRequired[list[AfterOut]]
    warn: NotRequired[WarnOut | None]
    umask: NotRequired[str]  # octal
    energy_j: NotRequired[float | None]  # None: not measured
    gpu_seconds: NotRequired[float]
    sm_active_mean: NotRequired[float | None]
    receipt: NotRequired[ReceiptOut | None]  # null: it has not held GPUs
    history: NotRequired[list[MoveOut]]
    attempts: NotRequired[list[AttemptOut]]
    actions: NotRequired[list[str]]  # that its owner can take now: cancel, hold, release, requeue
    changeable: NotRequired[list[str]]  # options that its owner can change now
    unused: NotRequired[str]  # why a report of its steps has no effect; "": it has one


class StartOut(TypedDict):
    """When a waiting job is expected to start if it shares no GPU. None: unknown; `text` says
    why."""

    id: int
    label: str
    user: str
    expected_at: str | None
    latest_at: str | None
    text: str


class StartsOut(TypedDict):
    schema: int
    starts: list[StartOut]  # in line
    more: int  # jobs that wait behind those


class JobsOut(TypedDict):
    schema: int
    jobs: list[JobOut]
    more: NotRequired[int]  # jobs that the limit left out; of the history, 1 if there are any


class SubmittedOut(TypedDict):
    schema: int
    id: int
    ids: list[int]
    label: str
    warnings: list[str]
    outlook: NotRequired[OutlookOut | None]  # of a job with a deadline; of an array, its first task


class TakenOut(TypedDict):
    """What a process needs to run a job, or to join it."""

    schema: int
    argv: list[str]
    cwd: str
    env: dict[str, str | None]  # null: to be unset


class ResultOut(TypedDict):
    """What became of one job, or of `count` tasks of an array, of which `id` is the first."""

    id: int
    label: str
    ok: bool
    message: str
    count: NotRequired[int]


class ResultsOut(TypedDict):
    schema: int
    results: list[ResultOut]


class EventJobOut(TypedDict):
    """The job of an event, as it was then. Its name is "-" for those who may not see it."""

    id: int
    label: str
    user: str
    name: str
    state: str
    code: str
    attempt: int
    gpus: list[str]


class EventGpuOut(TypedDict):
    id: str
    index: int | None


class EventOut(TypedDict):
    """Something that happened. `event` is one of `carmad.core.happenings.Kind`; or `watching`, the
    first of every answer; `missed`: some that happened before are not known any more; `over`, the
    last: all the selected jobs have ended."""

    id: str  # to go on after it
    at: str
    event: str
    text: str  # for people
    job: NotRequired[EventJobOut]
    gpu: NotRequired[EventGpuOut]
    count: NotRequired[int]  # of jobs, if they are several: the tasks of an array
    cause: NotRequired[str]
