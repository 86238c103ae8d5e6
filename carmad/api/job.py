"""A job as the API shows it. Pure; `now` is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NotRequired, cast, get_type_hints

from typing_extensions import TypedDict

from carmad.api.outlook import OutlookOut
from carmad.api.reasons import short, too_large
from carmad.api.report import ReceiptOut
from carmad.api.wire import iso, pick, stamp, state_code, with_labels
from carmad.core.gpus import idling
from carmad.core.gpus.sharing import label
from carmad.core.jobs import recurrence
from carmad.core.jobs.attempt import SILENT, Cause, Exit, GpuId, Suspension
from carmad.core.jobs.findings import Estimate, Prediction, Profile, StageTimes, Usage
from carmad.core.jobs.job import Job
from carmad.core.jobs.layout import Layout, Stage
from carmad.core.jobs.spec import JobSpec, WarnSignal
from carmad.core.jobs.states import JobState
from carmad.core.placing.decision import Placement, Reason
from carmad.core.scene import Scene
from carmad.options import PLAIN, JobOptions

# Options that a job's answer has under their own names. The others are `gpus_wanted`, which has
# `gpus` beside it, part of `memory`, and the path that became of `stderr`.
ANSWERED = tuple(name for name in PLAIN if name not in ("gpus", "memory_mib", "stderr"))

LogPaths = Callable[[Job], tuple[str, str]]  # stdout, stderr

SLURM = "Slurm"  # an allocation of its has a name of its own in answers: `slurm_job`
_NO_MODULE = re.compile(r"\bmodule: (command )?not found")  # as bash and dash say it
_ANSWERED = attrgetter(*ANSWERED)
_TIMES = tuple(name for name in ANSWERED if name.endswith("_at"))


class AfterOut(TypedDict):
    job: int
    label: NotRequired[str]  # as people name it; 0.1 has none
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
    declared_mib: int | None  # 0: what earlier runs used (--gpu-mem auto)
    estimate_mib: int | None
    estimate_low: int | None
    estimate_high: int | None
    estimate_source: str | None
    used_mib: int | None
    peak_mib: int | None  # None: not measured
    # What the driver guarantees it on each of its GPUs, and lets it use at most: the least of them.
    guaranteed_mib: NotRequired[int]
    most_mib: NotRequired[int]


class NeedOut(TypedDict):
    """The rest of a job's estimate, for its owner."""

    seconds: float
    firm: bool  # promised for the job's whole life: the owner's own word, or --gpu-mem auto
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


class PredictionOut(TypedDict):
    """How long the job runs alone."""

    seconds: float
    source: str
    parts: dict[str, float]  # each feature's contribution, in the source's units
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
    first_kernel_at: str | None
    ended_at: str
    cause: str
    evidence: NotRequired[str]
    neighbours: NotRequired[list[str]]  # on its GPUs when it ran out of memory


class SuspensionOut(TypedDict):
    """What the job held on GPUs is in the host's memory, or on its way there or back."""

    since: str
    why: str
    gpus: list[JobGpuOut]  # that it had
    host_mib: int


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

    One with `count` is the first of that many tasks of its array: in a folded listing or history,
    and in any history of tasks that were cancelled while they waited."""

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
    kernelless_s: NotRequired[float]  # how long it has held its GPUs without a kernel, if for long
    count: NotRequired[int]
    tasks: NotRequired[str]  # their indices, as in 2-7,9%4; of many spans only the first
    reason: NotRequired[str | None]
    ended_at: NotRequired[str | None]  # an older carmad does not tell it of others' jobs
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
    too_large: NotRequired[str | None]  # that no GPU has what it needs; completes "it …"
    estimate: NotRequired[NeedOut | None]
    estimating: NotRequired[bool]  # an estimate, or how its script stops, is to follow
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
    idle_seconds: NotRequired[float]  # of these, in which no kernel of it ran
    sm_active_mean: NotRequired[float | None]
    receipt: NotRequired[ReceiptOut | None]  # null: it has not held GPUs
    history: NotRequired[list[MoveOut]]
    attempts: NotRequired[list[AttemptOut]]
    actions: NotRequired[list[str]]  # that its owner can take now, by name
    suspension: NotRequired[SuspensionOut]
    unsuspendable: NotRequired[str]  # why a job with GPUs can never be suspended; "": it can
    changeable: NotRequired[list[str]]  # options that its owner can change now
    unused: NotRequired[str]  # why a report of its steps has no effect; "": it has one


class JobsOut(TypedDict):
    schema: int
    jobs: list[JobOut]
    more: NotRequired[int]  # jobs that the limit left out; of the history, 1 if there are any


class Jobs:
    """Renders jobs against one scene for one user (`see_all`: an admin)."""

    def __init__(
        self, scene: Scene, log_paths: LogPaths, owner: tuple[int, str], see_all: bool
    ) -> None:
        self._scene = scene
        self._log_paths = log_paths
        self._owner = owner
        self._see_all = see_all
        self._words: dict[tuple[Reason, str], str] = {}  # many wait for the same

    def owns(self, job: Job) -> bool:
        return job.spec.owner == self._owner

    def __call__(self, job: Job) -> JobOut:
        out = self._public(job)
        if self.sees(job):
            self._add_private(out, job)
        return out

    def sees(self, job: Job) -> bool:
        """All of it, and not only that it is there."""
        return self._see_all or self.owns(job)

    def _public(self, job: Job) -> JobOut:
        seen = dict(job.kernels)
        out: JobOut = {
            "id": job.id,
            "label": label(job),
            "user": job.spec.user,
            "name": "-",
            "state": job.state.value,
            "code": state_code(job),
            "gpus": self._gpus(job.gpus, seen),
            "gpus_wanted": job.spec.gpus,
            "submitted_at": stamp(job.submitted_at),
            "started_at": iso(job.started_at),
            "ended_at": iso(job.ended_at),
            "elapsed_s": _seconds(job.run_s(self._scene.now)),
            "memory": self._memory(job),
        }
        if waited_s := idling.kernelless_s(job, self._scene.now):
            out["kernelless_s"] = _seconds(waited_s)
        return out

    def _add_private(self, out: JobOut, job: Job) -> None:
        spec, usage = job.spec, self._usage(job)
        out["name"] = spec.name
        out.update(_options(spec))
        moving = self.moving(job)
        out["wait_s"], out["position"] = moving["wait_s"], moving["position"]
        out["reason"] = self.reason(job)
        out["late_s"] = _late_s(job)
        out["layout"] = _layout(spec.layout) if spec.layout else None
        out["stage_times"] = [asdict(one) for one in job.stage_times or spec.stage_times]
        out["mode"] = job.mode.value if job.mode else None
        out["attempt"] = job.attempt
        out["recovering"] = job.retry is not None and not job.ended
        out["held"] = job.held
        out["interactive"] = spec.interactive
        its = spec.allocation
        out["slurm_job"] = its.id if its and its.system == SLURM else None
        out["exclusive"] = job.exclusive
        out["shared"] = job.shared
        out["exit"] = exit_out(job.exit) if job.exit else None
        out["failures"] = [exit_out(exit) for exit in job.failures]
        out["retry"] = job.retry.why if job.retry and not (job.gpus or job.ended) else None
        out["advice"] = _advice(job)
        out["notes"] = list(job.notes)
        out["crash"] = job.crash or None if _is_untested(job) else None
        out["too_large"] = too_large(job.estimate, self._scene) if _is_untested(job) else None
        out["estimate"] = _need(job.estimate) if job.estimate else None
        out["estimating"] = job.awaits_estimate
        out["group"] = job.group
        out["profile"] = _profile(job.profile) if job.profile else None
        out["profiled_until"] = iso(job.profiling.until if job.profiling else None)
        out["prediction"] = _prediction(job.prediction) if job.prediction else None
        out["accumulation"] = job.accumulation
        if job.suspension:
            out["suspension"] = self._suspension(job.suspension)
        out["argv"] = list(recurrence.command(spec))
        out["params"] = dict(recurrence.params(spec))
        out["metrics"] = dict(job.metrics)
        out["script_bytes"] = spec.script.bytes if spec.script else None
        out["cwd"] = spec.cwd
        out["stdout"], out["stderr"] = self._log_paths(job)
        out["after"] = [
            {"job": one.job, "label": one.label or str(one.job), "kind": one.kind.value}
            for one in spec.after
        ]
        out["warn"] = asdict(spec.warn) if spec.warn else None
        out["umask"] = f"{spec.umask:04o}"
        out["energy_j"] = round(usage.energy_j, 3) or None
        out["gpu_seconds"] = round(usage.gpu_seconds, 3)
        out["idle_seconds"] = round(usage.idle_seconds, 3)
        out["sm_active_mean"] = (
            round(usage.sm_seconds / usage.gpu_seconds, 4) if usage.gpu_seconds > 0 else None
        )

    def _gpus(self, ids: Sequence[GpuId], seen: Mapping[GpuId, float]) -> list[JobGpuOut]:
        """`seen`: when the job's first kernel was."""
        gpus = self._scene.gpus
        return [
            JobGpuOut(
                id=id,
                index=gpus[id].index if id in gpus else None,
                first_kernel_at=iso(seen.get(id)),
            )
            for id in ids
        ]

    def _suspension(self, its: Suspension) -> SuspensionOut:
        had = self._gpus(its.gpus, {})
        return {"since": stamp(its.at), "why": its.why, "gpus": had, "host_mib": its.host_mib}

    def moving(self, job: Job) -> MovingOut:
        """What changes of a waiting job though nothing is done to it."""
        until = job.started_at or job.ended_at or self._scene.now
        return {
            "wait_s": _seconds(until - job.submitted_at),
            "position": self._scene.place(job.id),
        }

    def _usage(self, job: Job) -> Usage:
        return self._scene.usage.get(job.id, job.usage)

    def _memory(self, job: Job) -> MemoryOut:
        estimate = job.estimate
        limits = job.current.memory_limits if job.holds_gpus else ()
        out: MemoryOut = {
            "declared_mib": job.spec.memory_mib,
            "estimate_mib": estimate.mib if estimate else None,
            "estimate_low": estimate.low if estimate else None,
            "estimate_high": estimate.high if estimate else None,
            "estimate_source": estimate.source if estimate else None,
            "used_mib": self._scene.memory_mib(job.id) if job.holds_gpus else None,
            "peak_mib": self._usage(job).peak_mib or None,
        }
        if guaranteed_mib := min((its.guaranteed_mib for its in limits), default=0):
            out["guaranteed_mib"] = guaranteed_mib
        if most := [its.most_mib for its in limits if its.most_mib is not None]:
            out["most_mib"] = min(most)
        return out

    def reason(self, job: Job) -> str | None:
        """Why a job waits, in a word for a table's column."""
        if job.state is JobState.PENDING:
            return "(Held)" if job.held else "(Estimating)"
        if job.state not in (JobState.QUEUED, JobState.SUSPENDED):
            return None
        if held_up := self._scene.blocker(job):
            return f"({self._short(held_up)})"
        decision = self._scene.current(job.id)
        if decision is None:
            head = self._scene.head
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
        gpu = self._scene.gpus.get(nearest.gpu)
        return self._short(nearest.refused[0], f"GPU{gpu.index}" if gpu else "")

    def _short(self, reason: Reason, gpu: str = "") -> str:
        words = self._words.get((reason, gpu))
        if words is None:
            words = self._words[reason, gpu] = short(with_labels(reason, self._scene.live), gpu)
        return words


def _options(spec: JobSpec) -> JobOut:
    """That part of the answer."""
    values = dict(zip(ANSWERED, _ANSWERED(spec), strict=True))
    for name in _TIMES:
        values[name] = iso(values[name])
    return cast(JobOut, values)


def _layout(layout: Layout) -> LayoutOut:
    stages = [asdict(stage) for stage in layout.stages]
    return {"stages": stages, "allreduce": layout.allreduce}


def _late_s(job: Job) -> float | None:
    """What failed has not met its deadline, and nobody can say by how much."""
    deadline_at, ended_at = job.spec.deadline_at, job.ended_at
    if deadline_at is None or ended_at is None or job.state is not JobState.SUCCEEDED:
        return None
    return round(ended_at - deadline_at, 3)


def _profile(profile: Profile) -> ProfileOut:
    return {
        "seconds": round(profile.seconds, 1),
        "peak_mib": profile.peak_mib,
        "indicators": [
            {"name": one.name, "mean": round(one.mean, 4), "variance": round(one.variance, 6)}
            for one in profile.indicators
        ],
        "of": profile.of,
    }


def _prediction(prediction: Prediction) -> PredictionOut:
    parts = {name: round(value, 4) for name, value in prediction.parts}
    return pick(PredictionOut, prediction, seconds=round(prediction.seconds, 1), parts=parts)


def _need(estimate: Estimate) -> NeedOut:
    seconds, parts = round(estimate.seconds, 4), dict(estimate.parts)
    return pick(NeedOut, estimate, seconds=seconds, parts=parts)


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
    return [
        {
            "gpus": list(each.gpus),
            "mode": each.mode.value if each.mode else None,
            "started_at": stamp(each.started_at),
            "first_kernel_at": iso(min((at for _, at in each.kernels), default=None)),
            "ended_at": stamp(each.ended_at),
            "cause": each.exit.cause.value,
            "evidence": each.exit.evidence,
            "neighbours": list(each.exit.neighbours),
        }
        for each in job.ended_attempts
        if each.started_at is not None
    ]


def exit_out(exit: Exit) -> ExitOut:
    return pick(ExitOut, exit)


def _seconds(value: float) -> float:
    return round(max(0.0, value), 3)
