"""What a client may send. Shapes and sizes only: what depends on the server is checked there."""

from __future__ import annotations

from dataclasses import MISSING
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    create_model,
    model_validator,
)

from carmad.api.times import moment
from carmad.core.layout import Stage
from carmad.core.quota import Period
from carmad.core.types import StageTimes
from carmad.options import (
    MAX_GPUS,
    MAX_METRICS,
    MAX_MIB,
    MAX_PARAMS,
    MAX_SCRIPT_BYTES,
    MAX_TASKS,
    MAX_TIME_S,
    MAX_WITHIN_S,
    OPTIONS,
    PLAIN,
    JobOptions,
    Option,
)

MAX_WORDS = 10_000  # of a command
MAX_VARIABLES = 10_000
SHORTEST_STEP_S = 1e-6
MAX_GPU_HOURS = 1e9
MAX_WAITING = 1_000_000_000


def _unix(text: object) -> float:
    if not isinstance(text, str):
        raise ValueError("a time is text, such as 2026-11-20T23:12:00Z")
    return moment(text).timestamp()


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
ParamName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.-]{0,63}$")]
ParamValue = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=1024)]
Label = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,15}(_[0-9]{1,7})?$")]
Time = Annotated[
    float, BeforeValidator(_unix), WithJsonSchema({"type": "string", "format": "date-time"})
]
Umask = Annotated[str, StringConstraints(pattern=r"^0{0,3}[0-7]{1,3}$")]  # octal, as umask prints
User = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]+$", max_length=256)]
GpuRef = Annotated[str, StringConstraints(max_length=128)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AfterIn(Request):
    job: Label
    kind: Literal["afterok", "afterany", "afternotok"] = "afterok"


class WarnIn(Request):
    signum: Annotated[int, Field(ge=1, le=64), AfterValidator(_catchable)]
    before_s: Annotated[float, Field(gt=0, le=MAX_TIME_S)]


class ArrayIn(Request):
    """`params`: of a sweep, the value of each parameter for each index, in the order of the
    indices."""

    indices: Annotated[
        list[Annotated[int, Field(ge=0, le=9_999_999)]],
        Field(min_length=1, max_length=MAX_TASKS, json_schema_extra={"uniqueItems": True}),
        AfterValidator(_unique),
    ]
    limit: Annotated[int, Field(ge=1, le=MAX_TASKS)] | None = None
    params: Annotated[
        dict[ParamName, Annotated[list[ParamValue], Field(max_length=MAX_TASKS)]],
        Field(max_length=MAX_PARAMS),
    ] = {}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if any(len(values) != len(self.indices) for values in self.params.values()):
            raise ValueError("each parameter has as many values as there are indices")
        return self


Seconds = Annotated[float, Field(ge=0, le=MAX_TIME_S)]
Mib = Annotated[float, Field(ge=0, le=MAX_MIB)]
Gpus = Annotated[int, Field(ge=1, le=MAX_GPUS)]
GpuKind = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]*$", max_length=256)]
OF_FIELD = {"_s": Seconds, "_mib": Mib, "gpu": GpuKind}  # by the end of its name


def _of(value: type, without: str = "") -> Any:
    """The request's form of a dataclass of the core: the same fields, within limits."""
    shape: dict[str, Any] = {}
    for name, kind in get_type_hints(value).items():
        other = Gpus if kind is int else kind
        limited = next((at for end, at in OF_FIELD.items() if name.endswith(end)), other)
        default = value.__dataclass_fields__[name].default  # type: ignore[attr-defined]
        shape[name] = limited, ... if default is MISSING else default
    shape.pop(without, None)
    return create_model(f"{value.__name__}In", __base__=Request, __doc__=value.__doc__, **shape)


if TYPE_CHECKING:

    class StageIn(Request): ...

    class StepStagesIn(Request): ...

    class StageTimesIn(Request):
        gpu: str

else:
    StageIn, StageTimesIn = _of(Stage), _of(StageTimes)
    StepStagesIn = _of(StageTimes, without="gpu")


class LayoutIn(Request):
    stages: Annotated[list[StageIn], Field(min_length=1, max_length=MAX_GPUS)]
    allreduce: Literal["ring", "tree"] = "ring"


class ScriptIn(Request):
    """The text of a job script, and which word of the command is its path."""

    word: Annotated[int, Field(ge=0, lt=MAX_WORDS)]
    text: Annotated[Text, Field(max_length=MAX_SCRIPT_BYTES)]


class JobIn(Request):
    """A job, or with `array` many of them that differ in their index.

    `env` is what the submitter's shell has, and is scrubbed of secrets; `export` is what the
    submitter named one by one, and is kept. `interactive`: the submitter runs the command itself,
    once the job has GPUs and they were taken (`/v1/jobs/{label}/take`).
    """

    argv: Annotated[list[Text], Field(min_length=1, max_length=MAX_WORDS)]
    cwd: Folder
    name: Name | None = None
    env: Annotated[dict[EnvName, Text], Field(max_length=MAX_VARIABLES)] = {}
    export: Annotated[dict[EnvName, Text], Field(max_length=MAX_VARIABLES)] = {}
    script: ScriptIn | None = None
    layout: LayoutIn | None = None
    stage_times: Annotated[list[StageTimesIn], Field(max_length=64)] = []
    warn: WarnIn | None = None
    after: Annotated[list[AfterIn], Field(max_length=1000)] = []
    array: ArrayIn | None = None
    stdout: Path | None = None
    umask: Umask = "022"
    held: bool = False
    interactive: bool = False
    dry_run: bool = False


def _plain(option: Option, stored: Any) -> Any:
    """The type of an option in a request, and its default. `stored` is its type in `JobSpec`."""
    kind = get_args(stored)[0] if option.default is None else stored
    if option.name.endswith("_at"):
        kind = Time
    elif kind is str:
        kind = Path
    kind = Annotated[kind, Field(**option.limits)]
    return (kind | None if option.default is None else kind), option.default


if TYPE_CHECKING:

    class SubmitIn(JobIn, JobOptions): ...  # type: ignore[misc]  # both are frozen

else:
    _STORED = get_type_hints(JobOptions)
    SubmitIn = create_model(
        "SubmitIn",
        __base__=JobIn,
        __doc__=JobIn.__doc__,
        __module__=__name__,
        **{name: _plain(option, _STORED[name]) for name, option in PLAIN.items()},
    )


if TYPE_CHECKING:

    class AdoptIn(Request):
        pid: int
        name: str | None
        memory_mib: int | None
        time_limit_s: float | None

else:
    AdoptIn = create_model(
        "AdoptIn",
        __base__=Request,
        __doc__="A process of the caller's on a GPU, and options of the job that it becomes.",
        __module__=__name__,
        pid=(Annotated[int, Field(ge=1, lt=1 << 31)], ...),
        name=(Name | None, None),
        **{name: _plain(PLAIN[name], _STORED[name]) for name in ("memory_mib", "time_limit_s")},
    )


class EstimateIn(SubmitIn):  # type: ignore[misc]  # it is frozen
    """`within_s`: processor time for a script's first two steps, instead of
    `estimation.patient_s`."""

    within_s: Annotated[float, Field(gt=0, le=MAX_WITHIN_S)] | None = None


class SelectIn(Request):
    select: Annotated[str, StringConstraints(pattern=r"^[0-9a-z_,%\[\]\- ]+$", max_length=8000)]
    user: User | None = None


if TYPE_CHECKING:

    class UpdateIn(SelectIn, SubmitIn): ...  # type: ignore[misc]  # both are frozen

else:
    UpdateIn = create_model(
        "UpdateIn",
        __base__=SelectIn,
        __doc__="New values of the jobs' options: those that are not in the request stay.",
        __module__=__name__,
        **{
            name: (SubmitIn.model_fields[name].annotation, SubmitIn.model_fields[name])
            for name, option in OPTIONS.items()
            if option.change
        },
    )


class StepIn(Request):
    """`stages`: what the seconds of a step go to, on the GPUs that the job has."""

    seconds: Annotated[float, Field(ge=SHORTEST_STEP_S, le=MAX_TIME_S)]
    stages: StepStagesIn | None = None


Subject = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=256)]


class LimitIn(Request):
    """`subject`: a user, "@group" or "default". What is not given stays as it is."""

    subject: Subject
    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS)] | None = None
    gpu_hours: Annotated[float, Field(ge=0, le=MAX_GPU_HOURS)] | None = None
    per: Period = "week"
    jobs: Annotated[int, Field(ge=0, le=MAX_WAITING)] | None = None
    clear: bool = False


class MetricsIn(Request):
    """`metrics`: values by name."""

    metrics: Annotated[dict[ParamName, float], Field(min_length=1, max_length=MAX_METRICS)]


class ReserveIn(Request):
    """`gpus` of the GPUs, or those named in `on`: by index, by UUID, or all. No users: for
    maintenance."""

    gpus: Annotated[int, Field(ge=1, le=MAX_GPUS)] | None = None
    on: Annotated[list[GpuRef], Field(min_length=1, max_length=128)] | None = None
    users: Annotated[list[User], Field(max_length=64)] = []
    starts_at: Time
    lasts_s: Annotated[float, Field(ge=60, le=MAX_TIME_S)]
    weekly: bool = False


class DrainIn(Request):
    reason: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=1024)]
