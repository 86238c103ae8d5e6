"""A job as the API shows it. Pure; `now` is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast, get_type_hints

from typing_extensions import TypedDict

from carmad.api.outlook import OutlookOut
from carmad.api.reasons import short, too_large
from carmad.api.report import ReceiptOut
from carmad.api.wire import Digits, Fields, fields, iso, pick, stamp, state_code, with_labels
from carmad.core.gpus import idling
from carmad.core.gpus.sharing import label
from carmad.core.jobs import recurrence
from carmad.core.jobs.attempt import SILENT, Cause, GpuId, JobId
from carmad.core.jobs.findings import Usage
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import indices, part
from carmad.core.placing.decision import Placement, Reason
from carmad.core.scene import Scene
from carmad.options import PLAIN, JobOptions

if TYPE_CHECKING:  # in JSON
    Layout = dict[str, Any]
    Profile = dict[str, Any]
    StageTimes = dict[str, Any]
    WarnSignal = dict[str, Any]
else:
    from carmad.core.jobs.findings import Profile, StageTimes
    from carmad.core.jobs.layout import Layout
    from carmad.core.jobs.spec import WarnSignal

# Options that a job's answer has under their own names. The others are `gpus_wanted`, which has
# `gpus` beside it, part of `memory`, and the path that became of `stderr`.
ANSWERED = tuple(name for name in PLAIN if name not in ("gpus", "memory_mib", "stderr"))

LogPaths = Callable[[Job, int], tuple[str, str]]  # stdout, stderr: see `log_paths`

SLURM = "Slurm"  # an allocation of its has a name of its own in answers: `slurm_job`
_NO_MODULE = re.compile(r"\bmodule: (command )?not found")  # as bash and dash say it


class AfterOut(TypedDict):
    job: int
    # As people name it.
    label: NotRequired[Annotated[str, lambda it: it.label or str(it.job)]]
    kind: str


class ExitOut(TypedDict):
    cause: str
    code: int | None
    signal: int | None
    evidence: str
    fragmented: bool
    limit_mib: NotRequired[int | None]  # its own, if it ran into that
    tried_mib: int | None
    free_mib: int | None
    neighbours: list[str]


class JobGpuOut(TypedDict):
    id: str
    index: int | None
    first_kernel_at: str | None


class MemoryOut(TypedDict):
    # 0: what earlier runs used (--gpu-mem auto).
    declared_mib: Annotated[int | None, lambda it: it.spec.memory_mib]
    estimate_mib: Annotated[int | None, lambda it: getattr(it.job.estimate, "mib", None)]
    estimate_low: Annotated[int | None, lambda it: getattr(it.job.estimate, "low", None)]
    estimate_high: Annotated[int | None, lambda it: getattr(it.job.estimate, "high", None)]
    estimate_source: Annotated[str | None, lambda it: getattr(it.job.estimate, "source", None)]
    used_mib: Annotated[
        int | None, lambda it: it.scene.memory_mib(it.job.id) if it.job.holds_gpus else None
    ]
    peak_mib: Annotated[int | None, lambda it: it.usage.peak_mib or None]  # None: not measured
    # What the driver guarantees it on each of its GPUs, and lets it use at most: the least of them.
    guaranteed_mib: NotRequired[Annotated[int | None, lambda it: _least(it.job, "guaranteed_mib")]]
    most_mib: NotRequired[Annotated[int | None, lambda it: _least(it.job, "most_mib")]]


class NeedOut(TypedDict):
    """The rest of a job's estimate, for its owner."""

    seconds: Annotated[float, Digits(4)]
    firm: bool  # promised for the job's whole life: the owner's own word, or --gpu-mem auto
    notes: list[str]  # what it is based on, and why no better estimator was chosen
    parts: dict[str, int]  # what it is made of, in MiB


class PredictionOut(TypedDict):
    """How long the job runs alone."""

    seconds: Annotated[float, Digits(1)]
    source: str
    # Each feature's contribution, in the source's units.
    parts: Annotated[dict[str, float], lambda it: {name: round(each, 4) for name, each in it.parts}]
    notes: list[str]
    is_guess: bool  # what other jobs took: it says nothing of this one


class MoveOut(TypedDict):
    at: str
    before: str | None
    after: str
    attempt: int


class AttemptOut(TypedDict):
    gpus: list[str]
    mode: str | None
    started_at: str
    first_kernel_at: Annotated[
        str | None, lambda it: min((at for _, at in it.kernels), default=None)
    ]
    ended_at: str
    cause: Annotated[str, lambda it: it.exit.cause]
    evidence: NotRequired[Annotated[str, lambda it: it.exit.evidence]]
    # On its GPUs when it ran out of memory.
    neighbours: NotRequired[Annotated[list[str], lambda it: it.exit.neighbours]]


class SuspensionOut(TypedDict):
    """What the job held on GPUs is in the host's memory, or on its way there or back."""

    since: Annotated[str, lambda it: stamp(it.job.suspension.at)]
    why: Annotated[str, lambda it: it.job.suspension.why]
    gpus: Annotated[list[JobGpuOut], lambda it: it.gpus(it.job.suspension.gpus)]  # that it had
    host_mib: Annotated[int, lambda it: it.job.suspension.host_mib]


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


class OutlineOut(TypedDict):
    """What everybody sees of a job.

    A field has the job's attribute of its name, or else its spec's, unless it says from what."""

    id: int
    label: Annotated[str, lambda it: label(it.job)]
    user: str
    name: Annotated[str, lambda it: it.spec.name if it.jobs.sees(it.job) else "-"]
    state: str
    code: Annotated[str, lambda it: state_code(it.job)]
    gpus: Annotated[list[JobGpuOut], lambda it: it.gpus(it.job.gpus, it.job.kernels)]
    gpus_wanted: Annotated[int, lambda it: it.spec.gpus]
    submitted_at: str
    started_at: str | None
    ended_at: NotRequired[str | None]  # an older carmad does not tell it of others' jobs
    elapsed_s: Annotated[float, lambda it: _seconds(it.job.run_s(it.scene.now))]
    memory: Annotated[MemoryOut, lambda it: it]
    # How long it has held its GPUs without a kernel, if for long; an older carmad does not tell it.
    kernelless_s: NotRequired[Annotated[float | None, lambda it: _kernelless_s(it)]]


class FullOut(OutlineOut, OptionsOut, total=False):
    """What the job's owner and administrators see of it, likewise."""

    reason: Annotated[str | None, lambda it: it.jobs.reason(it.job)]
    # Of one that succeeded: after its deadline; below 0: before.
    late_s: Annotated[float | None, lambda it: _late_s(it.job)]
    layout: Layout | None
    # As its owner, it or an earlier run has told.
    stage_times: Annotated[list[StageTimes], lambda it: it.job.stage_times or it.spec.stage_times]
    wait_s: Annotated[float, lambda it: _wait_s(it.job, it.scene.now)]
    mode: str | None
    attempt: int
    recovering: Annotated[bool, lambda it: it.job.retry is not None and not it.job.ended]
    held: bool
    interactive: bool  # run by its owner's `carma run`: it has no log here
    slurm_job: Annotated[int | None, lambda it: _slurm_job(it.spec)]  # that it runs in
    exclusive: Annotated[bool, lambda it: it.job.exclusive]
    position: Annotated[int | None, lambda it: it.scene.place(it.job.id)]
    shared: bool
    exit: ExitOut | None
    failures: list[ExitOut]
    retry: Annotated[str | None, lambda it: _retry(it.job)]
    advice: Annotated[str | None, lambda it: _advice(it.job)]
    notes: list[str]
    # Until it runs: how its script stopped in a trial; completes "its script stops …".
    crash: Annotated[str | None, lambda it: it.job.crash or None if _is_untested(it.job) else None]
    # That no GPU has what it needs; completes "it …".
    too_large: Annotated[str | None, lambda it: _too_large(it)]
    estimate: NeedOut | None
    # An estimate, or how its script stops, is to follow.
    estimating: Annotated[bool, lambda it: it.job.awaits_estimate]
    group: str  # the same for runs of the same job
    profile: Profile | None
    # This attempt is alone until then.
    profiled_until: Annotated[
        str | None, lambda it: iso(it.job.profiling.until if it.job.profiling else None)
    ]
    prediction: PredictionOut | None
    accumulation: int  # parts that each batch is split into
    suspension: Annotated[SuspensionOut | None, lambda it: it if it.job.suspension else None]
    argv: Annotated[list[str], lambda it: recurrence.command(it.spec)]
    params: Annotated[dict[str, str], lambda it: recurrence.params(it.spec)]  # of a sweep
    metrics: dict[str, float]  # the last values that it reported
    # Of the copy of its job script that it runs.
    script_bytes: Annotated[int | None, lambda it: it.spec.script and it.spec.script.bytes]
    cwd: str
    stdout: Annotated[str, lambda it: it.log_paths[0]]
    stderr: Annotated[str, lambda it: it.log_paths[1]]
    after: list[AfterOut]
    warn: WarnSignal | None
    umask: Annotated[str, lambda it: f"{it.spec.umask:04o}"]  # octal
    energy_j: Annotated[float | None, lambda it: round(it.usage.energy_j, 3) or None]  # or unknown
    gpu_seconds: Annotated[float, lambda it: it.usage.gpu_seconds, Digits(3)]
    # Of these, in which no kernel of it ran.
    idle_seconds: Annotated[float, lambda it: it.usage.idle_seconds, Digits(3)]
    sm_active_mean: Annotated[float | None, lambda it: it.usage.sm_active, Digits(4)]


class JobOut(FullOut, total=False):
    """Other users see the first fields, up to `kernelless_s`, and "-" for the name.

    One with `count` is the first of that many tasks of its array: in a folded listing or history,
    and in any history of tasks that were cancelled while they waited. The fields below are in the
    answer of one job; `attempts` are also in a history that asks for them."""

    count: int
    tasks: str  # their indices, as in 2-7,9%4; of many spans only the first
    attempts: list[AttemptOut]
    outlook: OutlookOut | None  # of one with a deadline that has not ended
    receipt: ReceiptOut | None  # null: it has not held GPUs
    history: list[MoveOut]
    actions: list[str]  # that its owner can take now, by name
    unsuspendable: str  # why a job with GPUs can never be suspended; "": it can
    changeable: list[str]  # options that its owner can change now
    unused: str  # why a report of its steps has no effect; "": it has one


class JobsOut(TypedDict):
    schema: int
    jobs: list[JobOut]
    more: NotRequired[int]  # jobs that the limit left out; of the history, 1 if there are any


class Jobs:
    """Renders jobs against one scene for one user (`see_all`: an admin)."""

    def __init__(
        self, scene: Scene, log_paths: LogPaths, owner: tuple[int, str], see_all: bool
    ) -> None:
        self.scene = scene
        self.log_paths = log_paths
        self._owner = owner
        self._see_all = see_all
        self._words: dict[tuple[Reason, str], str] = {}  # many wait for the same

    def owns(self, job: Job) -> bool:
        return job.spec.owner == self._owner

    def __call__(self, job: Job) -> JobOut:
        return cast(JobOut, self._take(job, _FULL if self.sees(job) else _OUTLINE))

    def of_tasks(self, job: Job) -> Iterator[JobOut]:
        """The tasks that the job stands for. The first may head the line; the others differ in
        little."""
        if job.tasks == 1:
            yield self(job)
        elif job.spec.array:
            yield self(part(job, job.ids[:1]))
            second = self(part(job, job.ids[1:2]))
            for ahead in range(1, job.tasks):
                yield cast(JobOut, {**second, **self._of_task(job, ahead)})

    def _of_task(self, job: Job, ahead: int) -> dict[str, object]:
        id, array, index = JobId(job.id + ahead), label(job).partition("_")[0], indices(job)[ahead]
        outline: dict[str, object] = {"id": id, "label": f"{array}_{index}"}
        if not self.sees(job):
            return outline
        stdout, stderr = self.log_paths(job, ahead)
        place = self.scene.place(id)
        return {**outline, "position": place, "stdout": stdout, "stderr": stderr}

    def sees(self, job: Job) -> bool:
        """All of it, and not only that it is there."""
        return self._see_all or self.owns(job)

    def _take(self, job: Job, fields: Fields) -> dict[str, object]:
        usage = self.scene.usage.get(job.id, job.usage)
        it = _Shown(self, self.scene, job, job.spec, usage)
        return {name: value(it) for name, value in fields}

    def reason(self, job: Job) -> str | None:
        """Why a job waits, in a word for a table's column."""
        if job.state is JobState.PENDING:
            return "(Held)" if job.held else "(Estimating)"
        if job.state not in (JobState.QUEUED, JobState.SUSPENDED):
            return None
        if held_up := self.scene.gate.blocker(job):
            return f"({self._short(held_up)})"
        decision = self.scene.current(job.id)
        if decision is None:
            head = self.scene.head
            return "(Priority)" if head not in (None, job.id) else "(None)"
        return f"({self._refusal(decision.placement)})"

    def _refusal(self, placement: Placement) -> str:
        """The placement's own reason, or that of the GPU that was nearest to saying yes."""
        if placement.reasons:
            return self._short(placement.reasons[0])
        refusing = [verdict for verdict in placement.verdicts if verdict.refused]
        if not refusing:
            return "Resources"
        nearest = min(refusing, key=lambda verdict: len(verdict.refused))
        gpu = self.scene.gpus.get(nearest.gpu)
        return self._short(nearest.refused[0], f"GPU{gpu.index}" if gpu else "")

    def _short(self, reason: Reason, gpu: str = "") -> str:
        words = self._words.get((reason, gpu))
        if words is None:
            words = self._words[reason, gpu] = short(with_labels(reason, self.scene.live), gpu)
        return words


@dataclass
class _Shown:
    """The values from which the fields of an answer are taken."""

    jobs: Jobs
    scene: Scene
    job: Job
    spec: JobSpec
    usage: Usage

    @cached_property
    def log_paths(self) -> tuple[str, str]:
        return self.jobs.log_paths(self.job, 0)

    def gpus(
        self, ids: Iterable[GpuId], kernels: Iterable[tuple[GpuId, float]] = ()
    ) -> list[_Held]:
        """`kernels`: the job's first ones."""
        here, seen = self.scene.gpus, dict(kernels)
        return [_Held(id, here[id].index if id in here else None, seen.get(id)) for id in ids]


@dataclass(frozen=True, slots=True)
class _Held:
    id: GpuId
    index: int | None
    first_kernel_at: float | None


def _least(job: Job, limit: str) -> int | None:
    found = [getattr(its, limit) for its in job.current.memory_limits] if job.holds_gpus else []
    return min((mib for mib in found if mib is not None), default=None) or None


def _wait_s(job: Job, now: float) -> float:
    return _seconds((job.started_at or job.ended_at or now) - job.submitted_at)


def _kernelless_s(it: _Shown) -> float | None:
    waited_s = idling.kernelless_s(it.job, it.scene.now)
    return _seconds(waited_s) if waited_s else None


def _slurm_job(spec: JobSpec) -> int | None:
    its = spec.allocation
    return its.id if its and its.system == SLURM else None


def _retry(job: Job) -> str | None:
    return job.retry.why if job.retry and not (job.gpus or job.ended) else None


def _too_large(it: _Shown) -> str | None:
    return too_large(it.job.estimate, it.scene) if _is_untested(it.job) else None


def _late_s(job: Job) -> float | None:
    """What failed has not met its deadline, and nobody can say by how much."""
    deadline_at, ended_at = job.spec.deadline_at, job.ended_at
    if deadline_at is None or ended_at is None or job.state is not JobState.SUCCEEDED:
        return None
    return round(ended_at - deadline_at, 3)


def _is_untested(job: Job) -> bool:
    """Whether its script has not run on a GPU yet."""
    first = len(job.attempts) == 1 and job.state is JobState.STARTING
    return first or not (job.attempts or job.ended)


def _advice(job: Job) -> str | None:
    """What may help a job that no retry could: it ran out of memory with nobody beside it, met its
    own limit, or lacks what a login shell has."""
    if job.exit and _NO_MODULE.search(job.exit.evidence):
        return (
            "module is a function of login shells: start the script with #!/bin/bash -l, submit"
            " from a shell that has it, or leave it out"
        )
    if job.exit and job.shared and job.exit.evidence.startswith(SILENT):
        return (
            "if it ran out of GPU memory, run it again alone (--exclusive); CARMA does so by itself"
            " if the error is in the job's log, and not in another file"
        )
    if job.exit and job.exit.cause is Cause.HOST_OOM and job.spec.host_memory_mib:
        return "ask for more with --mem, or let it use less, as with fewer data-loading processes"
    if job.state is not JobState.OUT_OF_MEMORY or job.shared or (job.exit and job.exit.neighbours):
        return None
    its = "its GPU" if len(job.gpus) == 1 else "its GPUs"
    return (
        f"it had {its} to itself and needs more memory than there is:"
        " try a smaller batch, a larger GPU, or more GPUs (--gpus)"
    )


def attempts_out(job: Job) -> list[AttemptOut]:
    """Those of an ended job that began, in order."""
    began = (each for each in job.ended_attempts if each.started_at is not None)
    return [pick(AttemptOut, each) for each in began]


def _seconds(value: float) -> float:
    return round(max(0.0, value), 3)


def _attribute(name: str) -> Callable[[_Shown], Any]:
    """Of the job, or else of its spec, as options are."""
    of_spec = name in PLAIN or not hasattr(Job, name)
    return attrgetter(f"spec.{name}" if of_spec else f"job.{name}")


_OUTLINE, _FULL = fields(OutlineOut, _attribute), fields(FullOut, _attribute)
