"""What is asked of a job: the shapes of requests, and the specs that become of them.

Shapes and sizes are checked here; `refusals` checks what depends on the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
    model_validator,
)

from carmad.api.wire import Time
from carmad.attempt.environment import excluded, scrub
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import StageTimes
from carmad.core.jobs.job import Job
from carmad.core.jobs.layout import Layout, Stage
from carmad.core.jobs.spec import After, AfterKind, ArrayTask, JobSpec, Script, WarnSignal
from carmad.core.jobs.tasks import singly, spans
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.http.connections import Peer
from carmad.options import (
    JOB,
    MAX_AFTER,
    MAX_GPUS,
    MAX_MIB,
    MAX_PARAMS,
    MAX_SCRIPT_BYTES,
    MAX_TASKS,
    MAX_TIME_S,
    PLAIN,
    JobOptions,
    Option,
)
from carmad.readable import job_name

MAX_WORDS = 10_000  # of a command
MAX_VARIABLES = 10_000

# The kernel ends every argument at a NUL; a control character in a name can rewrite a terminal.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
Path = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=4096)]
Folder = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=256)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[^=\x00]+$")]
# A count within a pattern, such as {0,63}, costs pydantic's engine megabytes.
ParamName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.-]*$", max_length=64)]
ParamValue = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=1024)]
LimitName = Literal["as", "core", "data", "fsize", "nofile", "stack"]
Names = Annotated[str, StringConstraints(pattern=rf"^{JOB}$", max_length=8000)]
Umask = Annotated[str, StringConstraints(pattern=r"^0{0,3}[0-7]{1,3}$")]  # octal, as umask prints
User = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]+$", max_length=256)]

Seconds = Annotated[float, Field(ge=0, le=MAX_TIME_S)]
Mib = Annotated[float, Field(ge=0, le=MAX_MIB)]
Gpus = Annotated[int, Field(ge=1, le=MAX_GPUS)]
Share = Annotated[float, Field(ge=0, le=1)]
GpuKind = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]*$", max_length=256)]
OF_FIELD = {"_s": Seconds, "_mib": Mib, "_share": Share, "gpu": GpuKind}  # by the end of its name

NO_ID = JobId(0)

# What a submission waits for: as it is named, when that is met, and which jobs it is, if any.
Awaited = tuple[str, AfterKind, Sequence[Job]]


def _unique(indices: list[int]) -> list[int]:
    if len(set(indices)) != len(indices):
        raise ValueError("an index is there twice")
    return sorted(indices)


def _catchable(signum: int) -> int:
    if signum in (9, 19):
        raise ValueError("SIGKILL and SIGSTOP cannot be a warning")
    return signum


class Body(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # it may be a secret
    )


class AfterIn(Body):
    job: Names
    kind: Literal["afterok", "afterany", "afternotok"] = "afterok"


class WarnIn(Body):
    signum: Annotated[int, Field(ge=1, le=64), AfterValidator(_catchable)]
    before_s: Annotated[float, Field(gt=0, le=MAX_TIME_S)]


class ArrayIn(Body):
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


def _of(value: type) -> Any:
    """The request's form of a dataclass of the core: the same fields, within limits."""
    shape: dict[str, Any] = {}
    for name, kind in get_type_hints(value).items():
        other = Gpus if kind is int else kind
        limited = next((at for end, at in OF_FIELD.items() if name.endswith(end)), other)
        default = value.__dataclass_fields__[name].default  # type: ignore[attr-defined]
        shape[name] = limited, ... if default is MISSING else default
    return create_model(f"{value.__name__}In", __base__=Body, __doc__=value.__doc__, **shape)


if TYPE_CHECKING:

    class StageIn(Body): ...

    class StageTimesIn(Body):
        gpu: str

else:
    StageIn, StageTimesIn = _of(Stage), _of(StageTimes)


class LayoutIn(Body):
    stages: Annotated[list[StageIn], Field(min_length=1, max_length=MAX_GPUS)]
    allreduce: Literal["ring", "tree"] = "ring"


class ScriptIn(Body):
    """The text of a job script, and which word of the command is its path."""

    word: Annotated[int, Field(ge=0, lt=MAX_WORDS)]
    text: Annotated[Text, Field(max_length=MAX_SCRIPT_BYTES)]


class JobIn(Body):
    """A job, or with `array` many of them that differ in their index.

    `env` is what the submitter's shell has, and is scrubbed of what is of no use in a job; `export`
    is what the submitter named one by one, and is kept. `interactive`: the submitter runs the
    command itself, once the job has GPUs and they were taken (`/v1/jobs/{label}/take`). `limits`:
    soft limits of its processes, by the names of `getrlimit`, in its units; -1: unlimited.
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
    after: Annotated[list[AfterIn], Field(max_length=MAX_AFTER)] = []
    array: ArrayIn | None = None
    stdout: Path | None = None
    unless_running: Name | None = None
    umask: Umask = "022"
    limits: dict[LimitName, Annotated[int, Field(ge=-1, lt=1 << 63)]] = {}
    held: bool = False
    interactive: bool = False
    dry_run: bool = False


def _field(option: Option, stored: Any) -> Any:
    """Its type in a request, and its default. `stored` is its type in `JobSpec`."""
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
    SubmitIn = create_model(
        "SubmitIn",
        __base__=JobIn,
        __doc__=JobIn.__doc__,
        __module__=__name__,
        **{name: _field(PLAIN[name], kind) for name, kind in get_type_hints(JobOptions).items()},
    )


def _layout(body: SubmitIn) -> Layout | None:
    """Raises CarmaError if it does not match the number of GPUs."""
    if body.layout is None:
        return None
    stages = tuple(Stage(**one.model_dump()) for one in body.layout.stages)
    found = Layout(stages, body.layout.allreduce)
    if found.gpus != body.gpus:
        raise CarmaError(
            f"the job's layout needs {found.gpus} GPUs, but it asks for {body.gpus}",
            "A stage has one GPU per replica, or per tensor slice of each replica.",
        )
    return found


def _stage_times(
    asked: Iterable[StageTimesIn], gpus: Iterable[Gpu], unread: str
) -> tuple[StageTimes, ...]:
    """One for each kind of GPU. Raises CarmaError for an unknown kind, or one given twice."""
    if unread and any(one.gpu for one in asked):
        raise CarmaError(
            f"the kinds of GPU are not known yet: {unread}",
            "Leave gpu= out of the stage times, or submit the job later.",
        )
    names = sorted({gpu.name for gpu in gpus})
    found = [StageTimes(**one.model_dump() | {"gpu": _kind(one.gpu, names)}) for one in asked]
    kinds = [one.gpu for one in found]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise CarmaError(
                f"stage times for {kind or 'any GPU'} are given twice",
                "Give them once for each kind of GPU: gpu=NAME.",
            )
    return tuple(found)


def _kind(asked: str, names: list[str]) -> str:
    """The full name of a kind of GPU, from a part of it, such as A100."""
    fitting = [name for name in names if asked.lower() in name.lower()]
    if not asked or asked in names:
        return asked
    if len(fitting) != 1:
        what = "several kinds of GPU that match" if fitting else "no GPU that matches"
        raise CarmaError(f"this server has {what} {asked!r:.80}", f"It has: {', '.join(names)}.")
    return fitting[0]


def job_spec(
    body: SubmitIn,
    peer: Peer,
    awaited: Sequence[Awaited] = (),
    gpus: tuple[Gpu, ...] = (),
    unread: str = "",
    env_exclude: str = "",
) -> JobSpec:
    """`unread`: why the server's GPUs are not known yet."""
    env = scrub(body.env)
    left_out = excluded(env, body.export, env_exclude)
    env = {name: value for name, value in env.items() if name not in left_out} | body.export
    plain = {name: getattr(body, name) for name in PLAIN}
    if not body.gpus:  # uncounted, an array of them would start as a whole
        plain["cpus"] = body.cpus or 1
    default = "carma-%A_%a.out" if body.array else "carma-%j.out"
    return JobSpec(
        # A `carma run` that says where the output is kept can run the command again; or else
        # nobody but its owner can.
        **plain | {"requeue": body.requeue and (not body.interactive or bool(body.stdout))},
        argv=tuple(body.argv),
        user=peer.user,
        uid=peer.uid,
        gid=peer.gid,
        cwd=body.cwd,
        name=body.name or body.unless_running or job_name(body.argv),
        env=tuple(env.items()),
        excluded=left_out,
        script=Script("", 0, body.script.word, body.script.text) if body.script else None,
        stdout=body.stdout or default,
        layout=_layout(body),
        stage_times=_stage_times(body.stage_times, gpus, unread),
        warn=WarnSignal(body.warn.signum, body.warn.before_s) if body.warn else None,
        after=unmet(awaited),
        umask=int(body.umask, 8),
        limits=tuple(body.limits.items()),
        interactive=body.interactive,
    )


def array_tasks(array: ArrayIn | None) -> tuple[ArrayTask | None, ...]:
    """The tasks of an array that has no id yet; None for a job without one. Those of a sweep
    differ, and so do their estimates; the others are one job as long as they wait, or a few if
    their indices are not evenly spaced."""
    if array is None:
        return (None,)
    every, names = array.indices, tuple(array.params)
    ends = len(every), every[0], every[-1]
    if names:
        rows = zip(*array.params.values(), strict=True)
        return tuple(
            ArrayTask(NO_ID, index, array.limit, *ends, tuple(zip(names, row, strict=True)))
            for index, row in zip(every, rows, strict=True)
        )
    return tuple(
        ArrayTask(NO_ID, its.start, array.limit, *ends, more=len(its) - 1, step=its.step)
        for its in spans(every)
    )


def unmet(awaited: Iterable[Awaited]) -> tuple[After, ...]:
    """Each of the jobs, except those that are met already."""
    waits = ((kind, job) for _, kind, jobs in awaited for job in jobs if not job.ended)
    found = (After(one.id, kind, label(one)) for kind, job in waits for one in singly([job]))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as the core has it, and what it is to be checked against."""

    at: float
    body: SubmitIn
    spec: JobSpec  # of the job, or of any task of the array
    tasks: Sequence[ArrayTask | None]  # without the array's id; None: it is no array
    awaited: Sequence[Awaited]
    scene: Scene | None  # None: no other job matters to it
