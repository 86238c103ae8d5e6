# Written by docs/generate.py from the code. Do not edit.
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict


class JobOut(TypedDict):
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
    ended_at: NotRequired[str | None]
    elapsed_s: float
    memory: MemoryOut
    kernelless_s: NotRequired[float | None]
    constraint: NotRequired[str | None]
    on: NotRequired[str | None]
    not_on: NotRequired[str | None]
    batch_size: NotRequired[int | None]
    cpus: NotRequired[int | None]
    host_memory_mib: NotRequired[int | None]
    exclusive: NotRequired[bool]
    time_limit_s: NotRequired[float | None]
    expected_s: NotRequired[float | None]
    deadline_at: NotRequired[str | None]
    amp: NotRequired[bool]
    cold_start_s: NotRequired[float]
    watch_stages: NotRequired[bool]
    begin_at: NotRequired[str | None]
    nice: NotRequired[int]
    urgent: NotRequired[bool]
    conda_env: NotRequired[str | None]
    container: NotRequired[str | None]
    requeue: NotRequired[bool]
    retry_on: NotRequired[str | None]
    requeue_ok: NotRequired[bool]
    notify: NotRequired[str | None]
    mail_user: NotRequired[str | None]
    comment: NotRequired[str | None]
    idle_ok: NotRequired[str | None]
    reason: NotRequired[str | None]
    late_s: NotRequired[float | None]
    layout: NotRequired[Layout | None]
    stage_times: NotRequired[list[StageTimes]]
    wait_s: NotRequired[float]
    mode: NotRequired[str | None]
    attempt: NotRequired[int]
    recovering: NotRequired[bool]
    held: NotRequired[bool]
    interactive: NotRequired[bool]
    slurm_job: NotRequired[int | None]
    position: NotRequired[int | None]
    shared: NotRequired[bool]
    exit: NotRequired[ExitOut | None]
    failures: NotRequired[list[ExitOut]]
    retry: NotRequired[str | None]
    advice: NotRequired[str | None]
    notes: NotRequired[list[str]]
    crash: NotRequired[str | None]
    too_large: NotRequired[str | None]
    estimate: NotRequired[NeedOut | None]
    estimating: NotRequired[bool]
    group: NotRequired[str]
    profile: NotRequired[Profile | None]
    profiled_until: NotRequired[str | None]
    prediction: NotRequired[PredictionOut | None]
    accumulation: NotRequired[int]
    suspension: NotRequired[SuspensionOut | None]
    argv: NotRequired[list[str]]
    params: NotRequired[dict[str, str]]
    metrics: NotRequired[dict[str, float]]
    script_bytes: NotRequired[int | None]
    cwd: NotRequired[str]
    stdout: NotRequired[str]
    stderr: NotRequired[str]
    after: NotRequired[list[AfterOut]]
    warn: NotRequired[WarnSignal | None]
    umask: NotRequired[str]
    energy_j: NotRequired[float | None]
    gpu_seconds: NotRequired[float]
    idle_seconds: NotRequired[float]
    sm_active_mean: NotRequired[float | None]
    count: NotRequired[int]
    tasks: NotRequired[str]
    attempts: NotRequired[list[AttemptOut]]
    outlook: NotRequired[OutlookOut | None]
    receipt: NotRequired[ReceiptOut | None]
    history: NotRequired[list[MoveOut]]
    actions: NotRequired[list[str]]
    unsuspendable: NotRequired[str]
    changeable: NotRequired[list[str]]
    unused: NotRequired[str]

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
    peak_mib: int | None
    guaranteed_mib: NotRequired[int | None]
    most_mib: NotRequired[int | None]

class ExitOut(TypedDict):
    cause: str
    code: int | None
    signal: int | None
    evidence: str
    fragmented: bool
    limit_mib: NotRequired[int | None]
    tried_mib: int | None
    free_mib: int | None
    neighbours: list[str]

class NeedOut(TypedDict):
    seconds: float
    firm: bool
    notes: list[str]
    parts: dict[str, int]

class PredictionOut(TypedDict):
    seconds: float
    source: str
    parts: dict[str, float]
    notes: list[str]
    is_guess: bool

class SuspensionOut(TypedDict):
    since: str
    why: str
    gpus: list[JobGpuOut]
    host_mib: int

class AfterOut(TypedDict):
    job: int
    label: NotRequired[str]
    kind: str

class AttemptOut(TypedDict):
    gpus: list[str]
    mode: str | None
    started_at: str
    first_kernel_at: str | None
    ended_at: str
    cause: str
    evidence: NotRequired[str]
    neighbours: NotRequired[list[str]]

class OutlookOut(TypedDict):
    starts_at: str | None
    ends_at: str | None
    late_s: float | None
    text: str

class ReceiptOut(TypedDict):
    gpu_hours: float
    shared: float
    share_gpu_hours: float
    neighbours: int
    beside: list[int]
    slowdown: Slowdown | None
    alone_gpu_hours: float | None
    saved_gpu_hours: float | None

class MoveOut(TypedDict):
    at: str
    before: str | None
    after: str
    attempt: int
