"""What a client may send. Shapes and sizes only: what depends on the server is checked there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from carmad.api.times import moment

MAX_TASKS = 10_000
MAX_WORDS = 10_000  # of a command
MAX_VARIABLES = 10_000
MAX_BATCH = 1_000_000_000
MAX_MIB = 100_000_000
SHORTEST_STEP_S = 1e-6
YEARS_S = 10 * 365 * 86_400.0


def _aware(text: str) -> str:
    moment(text)
    return text


def _unique(indices: list[int]) -> list[int]:
    if len(set(indices)) != len(indices):
        raise ValueError("an index is there twice")
    return sorted(indices)


def _catchable(signum: int) -> int:
    if signum in (9, 19):
        raise ValueError("SIGKILL and SIGSTOP cannot be a warning")
    return signum


# The kernel ends every argument at a NUL; a control character in a name can rewrite a terminal.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
Path = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=4096)]
Folder = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=256)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[^=\x00]+$")]
Label = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,15}(_[0-9]{1,7})?$")]
Time = Annotated[str, AfterValidator(_aware), Field(json_schema_extra={"format": "date-time"})]
Umask = Annotated[str, StringConstraints(pattern=r"^0{0,3}[0-7]{1,3}$")]  # octal, as umask prints
User = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]+$", max_length=256)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AfterIn(Request):
    job: Label
    kind: Literal["afterok", "afterany", "afternotok"] = "afterok"


class WarnIn(Request):
    signum: Annotated[int, Field(ge=1, le=64), AfterValidator(_catchable)]
    before_s: Annotated[float, Field(gt=0, le=YEARS_S)]


class ArrayIn(Request):
    indices: Annotated[
        list[Annotated[int, Field(ge=0, le=9_999_999)]],
        Field(min_length=1, max_length=MAX_TASKS, json_schema_extra={"uniqueItems": True}),
        AfterValidator(_unique),
    ]
    limit: Annotated[int, Field(ge=1, le=MAX_TASKS)] | None = None


Seconds = Annotated[float, Field(ge=0, le=YEARS_S)]
Mib = Annotated[float, Field(ge=0, le=MAX_MIB)]
Gpus = Annotated[int, Field(ge=1, le=1024)]


class StageIn(Request):
    """A stage of a pipeline: see `carmad.core.layout.Stage`."""

    replicas: Gpus = 1
    forward_s: Seconds = 0.0
    backward_s: Seconds = 0.0
    in_mib: Mib = 0.0
    out_mib: Mib = 0.0
    weights_mib: Mib = 0.0
    tensor: Gpus = 1
    tensor_mib: Mib = 0.0
    experts_mib: Mib = 0.0


class LayoutIn(Request):
    stages: Annotated[list[StageIn], Field(min_length=1, max_length=1024)]
    allreduce: Literal["ring", "tree"] = "ring"


class StageTimesIn(Request):
    """An iteration alone: see `carmad.core.types.StageTimes`."""

    load_s: Seconds
    forward_s: Seconds
    backward_s: Seconds
    communication_s: Seconds = 0.0
    sync: Literal["backward", "forward"] = "forward"


class StageTimesOfKindIn(StageTimesIn):
    gpu: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]*$", max_length=256)] = ""


class SubmitIn(Request):
    """A job, or with `array` many of them that differ in their index.

    `env` is what the submitter's shell has, and is scrubbed of secrets; `export` is what the
    submitter named one by one, and is kept.
    """

    argv: Annotated[list[Text], Field(min_length=1, max_length=MAX_WORDS)]
    cwd: Folder
    name: Name | None = None
    env: Annotated[dict[EnvName, Text], Field(max_length=MAX_VARIABLES)] = {}
    export: Annotated[dict[EnvName, Text], Field(max_length=MAX_VARIABLES)] = {}
    conda_env: Path | None = None
    gpus: Gpus = 1
    memory_mib: Annotated[int, Field(ge=1, le=MAX_MIB)] | None = None
    batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH)] | None = None
    amp: bool = False
    cold_start_s: Annotated[float, Field(ge=0, le=YEARS_S)] = 0.0
    exclusive: bool = False
    nice: Annotated[int, Field(ge=-10_000, le=10_000)] = 0
    time_limit_s: Annotated[float, Field(gt=0, le=YEARS_S)] | None = None
    expected_s: Annotated[float, Field(gt=0, le=YEARS_S)] | None = None
    deadline_at: Time | None = None
    layout: LayoutIn | None = None
    stages: Annotated[list[StageTimesOfKindIn], Field(max_length=64)] = []
    watch_stages: bool = False
    warn: WarnIn | None = None
    begin_at: Time | None = None
    after: Annotated[list[AfterIn], Field(max_length=1000)] = []
    array: ArrayIn | None = None
    stdout: Path | None = None
    stderr: Path | None = None
    umask: Umask = "022"
    requeue: bool = True
    held: bool = False
    dry_run: bool = False


class SelectIn(Request):
    select: Annotated[str, StringConstraints(pattern=r"^[0-9a-z_,%\[\]\- ]+$", max_length=8000)]
    user: User | None = None


class StepIn(Request):
    """`stages`: what the seconds of a step go to, on the GPUs that the job has."""

    seconds: Annotated[float, Field(ge=SHORTEST_STEP_S, le=YEARS_S)]
    stages: StageTimesIn | None = None


class DrainIn(Request):
    reason: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=1024)]
