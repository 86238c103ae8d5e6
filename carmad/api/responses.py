"""What the server answers. Each shape is checked by mypy where it is built, not at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, get_type_hints

from typing_extensions import TypedDict

from carmad.core.layout import Stage
from carmad.core.types import StageTimes
from carmad.options import PLAIN, JobOptions

SCHEMA = 1  # raised when a field changes its meaning or goes away

# Options that a job's answer has under their own names. The others are `gpus_wanted`, which has
# `gpus` beside it, part of `memory`, and the path that became of `stderr`.
ANSWERED = tuple(name for name in PLAIN if name not in ("gpus", "memory_mib", "stderr"))


class ErrorOut(TypedDict):
    error: str
    hint: str
    code: str


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
    peak_mib: int | None  # None: nobody measured it


class NeedOut(TypedDict):
    """The rest of a job's estimate, for its owner."""

    seconds: float
    firm: bool  # the owner's own word
    notes: list[str]  # what it rests on, and why no better estimator was chosen
    parts: dict[str, int]  # what it is made of, in MiB


class IndicatorOut(TypedDict):
    name: str
    mean: float
    variance: float


class ProfileOut(TypedDict):
    """What the job asks of each of its GPUs when it trains alone there."""

    seconds: float  # that it was watched for; 0: it showed no kernel
    peak_mib: int
    indicators: list[IndicatorOut]
    of: int | None  # the earlier job that it was taken from


if TYPE_CHECKING:
    StageOut = dict[str, Any]
    StageTimesOut = dict[str, Any]
else:
    StageOut = TypedDict("StageOut", get_type_hints(Stage))
    StageTimesOut = TypedDict("StageTimesOut", get_type_hints(StageTimes))
    StageOut.__doc__, StageTimesOut.__doc__ = Stage.__doc__, StageTimes.__doc__


class LayoutOut(TypedDict):
    """How a job is spread over its GPUs."""

    stages: list[StageOut]
    allreduce: str  # ring, tree


class OutlookOut(TypedDict):
    """Of a job with a deadline: what would come of it if nobody shared."""

    starts_at: str | None  # null: nobody can say
    ends_at: str | None
    late_s: float | None  # after its deadline; below 0: so long before it
    text: str


class PredictionOut(TypedDict):
    """How long the job runs alone."""

    seconds: float
    source: str
    parts: dict[str, float]  # what each feature contributed, as the source counts
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


class MovingOut(TypedDict):
    wait_s: float
    position: int | None


if TYPE_CHECKING:

    class OptionsOut(TypedDict, total=False):
        """Those options that code reads by name."""

        batch_size: int | None
        begin_at: str | None
        conda_env: str | None
        deadline_at: str | None
        exclusive: bool
        expected_s: float | None
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
    """Of other users' jobs non-admins see only the first fields, and "-" for the name.

    In a folded listing, one with `count` is the first of that many tasks of its array."""

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
    position: NotRequired[int | None]
    shared: NotRequired[bool]
    exit: NotRequired[ExitOut | None]
    failures: NotRequired[list[ExitOut]]
    retry: NotRequired[str | None]
    advice: NotRequired[str | None]
    notes: NotRequired[list[str]]
    estimate: NotRequired[NeedOut | None]
    group: NotRequired[str]  # the same for runs of the same job
    profile: NotRequired[ProfileOut | None]
    profiled_until: NotRequired[str | None]  # this attempt is alone until then
    prediction: NotRequired[PredictionOut | None]
    accumulation: NotRequired[int]  # parts that each batch is split into
    argv: NotRequired[list[str]]
    cwd: NotRequired[str]
    stdout: NotRequired[str]
    stderr: NotRequired[str]
    after: NotRequired[list[AfterOut]]
    umask: NotRequired[str]  # octal
    energy_j: NotRequired[float | None]  # None: nobody measured it
    gpu_seconds: NotRequired[float]
    sm_active_mean: NotRequired[float | None]
    history: NotRequired[list[MoveOut]]
    attempts: NotRequired[list[AttemptOut]]


class JobsOut(TypedDict):
    schema: int
    jobs: list[JobOut]
    more: NotRequired[int]  # jobs that the limit left out


class JobRefOut(TypedDict):
    id: int
    label: str


class GpuRefOut(TypedDict):
    id: str
    index: int | None


class ReasonOut(TypedDict):
    code: str
    need: float
    have: float
    unit: str
    detail: str
    text: str


class VerdictOut(TypedDict):
    gpu: GpuRefOut
    refused: list[ReasonOut]
    rank: float | None


class DecisionOut(TypedDict):
    policy: str
    decided_at: str
    chosen: list[str]
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    grounds: list[ReasonOut]  # what spoke for the chosen GPUs


class WhyOut(TypedDict):
    schema: int
    job: JobOut
    headline: str
    position: int | None
    behind: JobRefOut | None
    policy: str | None
    decided_at: str | None
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    grounds: list[ReasonOut]  # what spoke for the chosen GPUs
    remedies: list[str]
    chosen: list[str]
    past: list[DecisionOut]


class SubmittedOut(TypedDict):
    schema: int
    id: int
    ids: list[int]
    label: str
    warnings: list[str]
    outlook: NotRequired[OutlookOut | None]  # of a job with a deadline; of an array, its first task


class DryRunOut(TypedDict):
    schema: int
    would_start: bool
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    chosen: list[str]
    warnings: list[str]
    outlook: NotRequired[OutlookOut | None]  # of a job with a deadline


class ResultOut(TypedDict):
    id: int
    label: str
    ok: bool
    message: str


class ResultsOut(TypedDict):
    schema: int
    results: list[ResultOut]


class RiskOut(TypedDict):
    sm_active: float | None
    sm_occupancy: float | None
    dram_active: float | None
    sm_source: str | None
    risky: bool
    samples: int


class ResidentOut(TypedDict):
    id: int
    label: str
    user: str
    name: str
    memory_mib: int | None
    mode: str | None


class ExternalOut(TypedDict):
    pid: int
    user: str
    command: str
    memory_mib: int | None


class GpuOut(TypedDict):
    id: str
    index: int
    name: str
    mig: bool
    parent: str | None
    island: str  # GPUs with the same one are near each other; "": all are
    memory_mib: int
    memory_used_mib: int | None
    memory_free_mib: int | None
    admissible_free_mib: int
    sm_active: float | None
    sm_occupancy: float | None
    dram_active: float | None
    utilization: float | None
    power_w: float | None
    energy_j: float | None
    temperature_c: int | None
    risk: RiskOut
    state: str
    state_detail: str
    jobs: list[ResidentOut]
    outsiders: list[ExternalOut]  # external processes, under their name in release 0.1.0


class SourceOut(TypedDict):
    name: str
    provides: list[str]
    missing: list[list[str]]
    notes: list[str]


class GpusOut(TypedDict):
    schema: int
    gpus: list[GpuOut]
    source: SourceOut
    thresholds: dict[str, Any]


class HealthOut(TypedDict):
    schema: int
    status: str
    version: str
    pid: int
    uptime_s: float
    policy: str
    troubles: list[str]  # what affects the whole server, in words


class ServerOut(TypedDict):
    status: str
    version: str
    pid: int
    uptime_s: float
    policy: str
    source: str
    mps: bool
    troubles: list[str]  # likewise


class CountsOut(TypedDict):
    running: int
    queued: int
    recovering: int


class MeOut(TypedDict):
    user: str
    uid: int
    admin: bool


class StatusOut(TypedDict):
    """`jobs`, folded: all that run, the first in line, one's own up to a number, and those of them
    that have just ended."""

    schema: int
    server: ServerOut
    gpus: list[GpuOut]
    jobs: list[JobOut]
    more: int  # jobs that wait and are in no row
    counts: CountsOut
    me: MeOut


class GpuResultOut(TypedDict):
    id: str
    index: int
    drained: bool


class GpuResultsOut(TypedDict):
    schema: int
    gpus: list[GpuResultOut]


class UserTotalsOut(TypedDict):
    user: str
    jobs: int
    succeeded: int
    failed: int
    oom: int
    gpu_hours: float
    energy_kwh: float
    wait_mean_s: float | None
    wait_p95_s: float | None
    run_mean_s: float | None


class StatsOut(TypedDict):
    schema: int
    since: str | None
    users: list[UserTotalsOut]
    total: UserTotalsOut


class ConfigOut(TypedDict):
    schema: int
    settings: dict[str, Any]
    path: str | None
    toml: str | None


class CheckOut(TypedDict):
    name: str
    ok: bool | None  # None: it works, and could be better
    detail: str
    hint: str


class DoctorOut(TypedDict):
    schema: int
    checks: list[CheckOut]


class EstimateOut(TypedDict):
    """One estimator's answer: a number, or `why` it has none."""

    source: str
    mib: int | None  # per GPU, of the whole process
    low: int | None
    high: int | None  # a GPU with this much free is safe; null: no other than `mib`
    seconds: float
    chosen: bool
    why: str | None
    notes: list[str]
    parts: dict[str, int]  # what it is made of, in MiB; empty if the estimator cannot tell


class FitOut(TypedDict):
    gpu: int
    free_mib: int
    fits: bool | None


class EstimatesOut(TypedDict):
    schema: int
    estimates: list[EstimateOut]
    fits: list[FitOut]
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]


class CalibrationOut(TypedDict):
    """Errors are those of `mib` against the measured peak; the bias is their median."""

    name: str
    jobs: int
    bias_mib: float | None  # above 0: it says too much
    p50_mib: int | None
    p95_mib: int | None
    under: float | None  # share of jobs that used more than `high`


class ContextOut(TypedDict):
    """What the trace estimator adds to what it can trace."""

    stack: str  # GPU, driver, torch
    jobs: int
    context_mib: int | None  # null: too few to tell, and the setting holds


class EstimatorsOut(TypedDict):
    schema: int
    estimator: str  # the one in use
    jobs: int
    estimators: list[CalibrationOut]
    contexts: list[ContextOut]


class ModelOut(TypedDict):
    name: str
    kind: str  # tree, boosted, additive, lookup
    about: str  # what it predicts
    source: str  # what it was trained on
    rows: int
    trained_at: str | None  # null: it came with CARMA
    errors: dict[str, float]  # held-out measures, and what the last model's were since
    importance: dict[str, float]  # of each feature, the greatest first


class TrainingOut(TypedDict):
    """Of models from this server's own past jobs."""

    every_days: float  # 0: only when asked for
    lacking: str  # packages that it needs; empty: none
    under_way: bool
    last_at: str | None
    last_words: list[str]  # of this daemon's last training


class ModelsOut(TypedDict):
    schema: int
    models: list[ModelOut]
    training: TrainingOut


class BinOut(TypedDict):
    label: str
    score: float


class CurveOut(TypedDict):
    """What each bin of one feature adds to the prediction."""

    feature: str
    bins: list[BinOut]


class ModelDetailOut(TypedDict):
    schema: int
    model: ModelOut
    tree: str | None  # a decision tree, a condition or class a line
    curves: list[CurveOut]  # of an additive model; for users, without other people's names
    link: str | None  # log: scores add up to the logarithm


class PastOut(TypedDict):
    """Rows of the table that models are trained on; see `carma history --table`."""

    schema: int
    rows: list[dict[str, Any]]
