"""Jobs, from CARMA's values to the wire. Pure; `now` is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from operator import attrgetter
from typing import cast

from carmad.api.phrases import short
from carmad.api.responses.jobs import (
    ANSWERED,
    AttemptOut,
    ExitOut,
    JobGpuOut,
    JobOut,
    LayoutOut,
    MemoryOut,
    MovingOut,
    NeedOut,
    PredictionOut,
    ProfileOut,
)
from carmad.api.times import iso, stamp
from carmad.core import sweep
from carmad.core.decision import Placement, Reason
from carmad.core.layout import Layout
from carmad.core.ran import Ran
from carmad.core.scene import Scene
from carmad.core.types import (
    Cause,
    Estimate,
    Exit,
    Job,
    JobId,
    JobSpec,
    JobState,
    Prediction,
    Profile,
    Usage,
)

LogPaths = Callable[[Job], tuple[str, str]]  # stdout, stderr

CODES = {
    JobState.PENDING: "PD",
    JobState.QUEUED: "PD",
    JobState.STARTING: "ST",
    JobState.RUNNING: "R",
    JobState.STOPPING: "CG",
    JobState.SUCCEEDED: "CD",
    JobState.FAILED: "F",
    JobState.CANCELLED: "CA",
    JobState.TIMED_OUT: "TO",
    JobState.OUT_OF_MEMORY: "OOM",
}

_NO_MODULE = re.compile(r"\bmodule: (command )?not found")  # as bash and dash say it
_ANSWERED = attrgetter(*ANSWERED)
_TIMES = tuple(name for name in ANSWERED if name.endswith("_at"))


def label(job: Job | Ran) -> str:
    array = job.spec.array
    return f"{array.array}_{array.index}" if array else str(job.id)


def labelled(reason: Reason, live: Mapping[JobId, Job]) -> Reason:
    """With the jobs in it called as people know them, who take an id for that of a whole array."""

    def known(found: re.Match[str]) -> str:
        job = live.get(JobId(int(found[1])))
        return f"job {label(job)}" if job else found[0]

    return replace(reason, detail=re.sub(r"\bjob (\d+)\b", known, reason.detail))


def state_code(job: Job) -> str:
    if job.state in (JobState.PENDING, JobState.QUEUED):
        if job.held:
            return "H"
        if job.retry is not None:
            return "RQ"
    return CODES[job.state]


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

    def __call__(self, job: Job) -> JobOut:
        out = self._public(job)
        if self.sees(job):
            self._add_private(out, job)
        return out

    def sees(self, job: Job) -> bool:
        """All of it, and not only that it is there."""
        return self._see_all or job.spec.owner == self._owner

    def _public(self, job: Job) -> JobOut:
        seen = dict(job.kernels)
        gpus = self._scene.gpus
        return {
            "id": job.id,
            "label": label(job),
            "user": job.spec.user,
            "name": "-",
            "state": job.state.value,
            "code": state_code(job),
            "gpus": [
                JobGpuOut(
                    id=id,
                    index=gpus[id].index if id in gpus else None,
                    first_kernel_at=iso(seen.get(id)),
                )
                for id in job.gpus
            ],
            "gpus_wanted": job.spec.gpus,
            "submitted_at": stamp(job.submitted_at),
            "started_at": iso(job.started_at),
            "elapsed_s": _seconds(job.current.ran_s(self._scene.now)) if job.current else 0.0,
            "memory": self._memory(job),
        }

    def _add_private(self, out: JobOut, job: Job) -> None:
        spec, usage = job.spec, self._usage(job)
        out["name"] = spec.name
        out.update(_options(spec))
        moving = self.moving(job)
        out["wait_s"], out["position"] = moving["wait_s"], moving["position"]
        out["reason"] = self.reason(job)
        out["ended_at"] = iso(job.ended_at)
        out["late_s"] = _late_s(job)
        out["layout"] = _layout(spec.layout) if spec.layout else None
        out["stage_times"] = [asdict(one) for one in job.stage_times or spec.stage_times]
        out["mode"] = job.mode.value if job.mode else None
        out["attempt"] = job.attempt
        out["recovering"] = job.retry is not None and not job.ended
        out["held"] = job.held
        out["interactive"] = spec.interactive
        out["slurm_job"] = spec.slurm_job
        out["exclusive"] = job.exclusive
        out["shared"] = job.shared
        out["exit"] = exit_out(job.exit) if job.exit else None
        out["failures"] = [exit_out(exit) for exit in job.failures]
        out["retry"] = job.retry.why if job.retry and not (job.gpus or job.ended) else None
        out["advice"] = _advice(job)
        out["notes"] = list(job.notes)
        out["crash"] = job.crash or None if _untested(job) else None
        out["estimate"] = _need(job.estimate) if job.estimate else None
        out["group"] = job.group
        out["profile"] = _profile(job.profile) if job.profile else None
        out["profiled_until"] = iso(job.profiling.until if job.profiling else None)
        out["prediction"] = _prediction(job.prediction) if job.prediction else None
        out["accumulation"] = job.accumulation
        out["argv"] = list(sweep.command(spec))
        out["params"] = dict(sweep.params(spec))
        out["metrics"] = dict(job.metrics)
        out["script_bytes"] = spec.script.bytes if spec.script else None
        out["cwd"] = spec.cwd
        out["stdout"], out["stderr"] = self._log_paths(job)
        out["after"] = [{"job": after.job, "kind": after.kind.value} for after in spec.after]
        out["warn"] = asdict(spec.warn) if spec.warn else None
        out["umask"] = f"{spec.umask:04o}"
        out["energy_j"] = round(usage.energy_j, 3) or None
        out["gpu_seconds"] = round(usage.gpu_seconds, 3)
        out["sm_active_mean"] = (
            round(usage.sm_seconds / usage.gpu_seconds, 4) if usage.gpu_seconds > 0 else None
        )

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
        return {
            "declared_mib": job.spec.memory_mib,
            "estimate_mib": estimate.mib if estimate else None,
            "estimate_low": estimate.low if estimate else None,
            "estimate_high": estimate.high if estimate else None,
            "estimate_source": estimate.source if estimate else None,
            "used_mib": self._scene.used_mib(job.id) if job.holds_gpus else None,
            "peak_mib": self._usage(job).peak_mib or None,
        }

    def reason(self, job: Job) -> str | None:
        """Why a job waits, in a word for a table's column."""
        if job.state is JobState.PENDING:
            return "(Held)" if job.held else "(Estimating)"
        if job.state is not JobState.QUEUED:
            return None
        if held_up := self._scene.blocked_by(job):
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
            words = self._words[reason, gpu] = short(labelled(reason, self._scene.live), gpu)
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
    return {
        "seconds": round(prediction.seconds, 1),
        "source": prediction.source,
        "parts": {name: round(value, 4) for name, value in prediction.parts},
        "notes": list(prediction.notes),
    }


def _need(estimate: Estimate) -> NeedOut:
    return {
        "seconds": round(estimate.seconds, 4),
        "firm": estimate.firm,
        "notes": list(estimate.notes),
        "parts": dict(estimate.parts),
    }


def _untested(job: Job) -> bool:
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
        for each in job.attempts
        if each.started_at is not None and each.ended_at is not None and each.exit
    ]


def exit_out(exit: Exit) -> ExitOut:
    return {
        "cause": exit.cause.value,
        "code": exit.code,
        "signal": exit.signal,
        "evidence": exit.evidence,
        "fragmented": exit.fragmented,
        "tried_mib": exit.tried_mib,
        "free_mib": exit.free_mib,
        "neighbours": list(exit.neighbours),
    }


def _seconds(value: float) -> float:
    return round(max(0.0, value), 3)
