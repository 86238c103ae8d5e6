"""Reasons and decisions: in words, and as the API shows them.

The words for the core's reasons are here; policies bring those of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache

from typing_extensions import TypedDict

from carmad import registry
from carmad.api.wire import pick, stamp, with_labels
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.idling import SAID_AFTER_S
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.placing.decision import Decision, Placement, Reason
from carmad.core.placing.view import View
from carmad.core.scene import Scene
from carmad.readable import duration, gib
from carmad.words import Wording, clock, detail, first_few

log = logging.getLogger(__name__)

NONE = Placement(JobId(0))


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
    policy: str | None  # null: none was made
    decided_at: str | None
    chosen: list[str]
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    grounds: list[ReasonOut]  # what spoke for the chosen GPUs


def reason_out(reason: Reason, scene: Scene) -> ReasonOut:
    reason = with_labels(reason, scene.live)
    return pick(ReasonOut, reason, text=phrase(reason))


def verdicts_out(placement: Placement, scene: Scene) -> list[VerdictOut]:
    return [
        pick(
            VerdictOut,
            verdict,
            gpu=gpu_ref(verdict.gpu, scene.gpus),
            refused=[reason_out(reason, scene) for reason in verdict.refused],
        )
        for verdict in placement.verdicts
    ]


def decision_out(decision: Decision | None, scene: Scene) -> DecisionOut:
    placement = decision.placement if decision else NONE
    return {
        "policy": decision.policy if decision else None,
        "decided_at": stamp(decision.at) if decision else None,
        "chosen": list(placement.gpus),
        "verdicts": verdicts_out(placement, scene),
        "reasons": [reason_out(reason, scene) for reason in placement.reasons],
        "grounds": [reason_out(reason, scene) for reason in placement.explanation],
    }


def too_large(estimate: Estimate | None, scene: Scene) -> str | None:
    """That even the lower end of an estimate is more than any GPU has; completes "it …". None: it
    is not."""
    largest_mib = scene.memo.recall("largest", _largest_mib, scene.view)
    if estimate is None or not 0 < largest_mib < estimate.least_mib:
        return None
    return f"needs at least {gib(estimate.least_mib)}, and the largest GPU has {gib(largest_mib)}"


def _largest_mib(view: View) -> int:
    return max((gpu.gpu.memory_mib for gpu in view.gpus), default=0)


def gpu_ref(id: GpuId, gpus: Mapping[GpuId, Gpu]) -> GpuRefOut:
    return {"id": id, "index": gpus[id].index if id in gpus else None}


def phrase(reason: Reason) -> str:
    wording = _wording(reason.code)
    return _apply(wording.sentence if wording else None, reason) or _generic(reason)


def short(reason: Reason, gpu: str = "") -> str:
    """Such as `GpuMemory: GPU1 30.0G free, need 82.0G`."""
    wording = _wording(reason.code)
    if wording is None:
        return f"{reason.code}: {gpu}" if gpu else reason.code
    told = " ".join(filter(None, (gpu, _apply(wording.brief, reason))))
    return f"{wording.name}: {told}" if told else wording.name


def wordings() -> dict[str, Wording]:
    """The core's wordings, then those of installed plugins, which cannot redefine the core's."""
    return {**CORE, **{code: its for code, its in registry.wordings().items() if code not in CORE}}


def _wording(code: str) -> Wording | None:
    return CORE.get(code) or registry.wordings().get(code)


def _apply(words: Callable[[Reason], str] | None, reason: Reason) -> str:
    """Empty if there is no wording, or it raises."""
    try:
        return str(words(reason)) if words else ""
    except Exception:  # noqa: BLE001 - foreign code
        _log_failure(reason.code)
        return ""


@cache  # once: a waiting job is shown again and again
def _log_failure(code: str) -> None:
    log.exception("the wording of the reason %r failed", code)


def _generic(reason: Reason) -> str:
    """For codes without a wording."""
    words = reason.code.replace("_", " ")
    if reason.need or reason.have:
        unit = f" {reason.unit}" if reason.unit else ""
        words += f": needs {reason.need:g}{unit}, has {reason.have:g}{unit}"
    return f"{words} ({reason.detail})" if reason.detail else words


def _first_kernel(reason: Reason) -> str:
    whose = reason.detail or "a job"
    if reason.have < SAID_AFTER_S:
        return f"no kernel of {whose} has been seen yet"
    left = duration(reason.need - reason.have)
    return (
        f"no kernel of {whose} has been seen there for {duration(reason.have)};"
        f" the GPU is kept for it for up to {left} more"
    )


def _settling(reason: Reason) -> str:
    newest, _, missing = reason.detail.partition("; ")
    words = f"has been watched for {reason.have:.0f} s of the {reason.need:.0f} s needed"
    if newest.startswith("job "):
        words = (
            f"{newest} started computing {reason.have:.0f} s ago;"
            f" the GPU's load is known after {reason.need:.0f} s"
        )
    return f"{words}; this job cannot join earlier: {missing}" if missing else words


def _old(reason: Reason) -> str:
    return f"its last reading is {reason.have:.0f} s old" if reason.have else ""


def _busy(reason: Reason) -> str:
    are = "are" if ", " in reason.detail else "is"
    return f"the job must be alone, and {reason.detail} {are} there"


def _array_limit(reason: Reason) -> str:
    if reason.have > 1:
        return f"{reason.have:.0f} tasks of its array are running, which is its limit"
    return "one task of its array is running, which is its limit"


CORE: dict[str, Wording] = {
    "gpus_unread": Wording("GpusUnread", lambda r: f"the GPUs cannot be read yet: {r.detail}"),
    # of one GPU: the hard rules
    "fault": Wording("GpuFault", lambda r: f"is faulty: {r.detail}", detail),
    "not_preemptible": Wording(
        "NotPreemptible",
        lambda r: f"keeps its GPUs: it {r.detail or 'may not be preempted'}",
    ),
    "drained": Wording("Drained", lambda r: f"is drained: {r.detail}", detail),
    "reservation": Wording(
        "Reserved",
        lambda r: f"is reserved until {clock(r.need)} ({r.detail})",
        lambda r: f"until {clock(r.need)}",
    ),
    "reservation_ahead": Wording(
        "Reserved",
        lambda r: (
            f"is reserved from {clock(r.need)} ({r.detail}),"
            f" and the job may take {duration(r.have)}"
        ),
        lambda r: f"from {clock(r.need)}",
    ),
    "reservation_notice": Wording(
        "Reserved",
        lambda r: (
            f"is reserved from {clock(r.need)} ({r.detail}); a job of unknown length"
            f" does not start there in the {duration(r.have)} before"
        ),
        lambda r: f"from {clock(r.need)}",
    ),
    "stale": Wording("NoReading", lambda r: ": ".join(filter(None, (_old(r), r.detail)))),
    "mig_single": Wording(
        "MigSingle", lambda r: "is a MIG instance, and a job can use only one of those"
    ),
    "busy": Wording("Busy", _busy, detail),
    "external": Wording(
        "ExternalProcesses",
        lambda r: f"the job must be alone, and external processes hold {gib(r.have)} there",
    ),
    "exclusive": Wording("Exclusive", lambda r: f"{r.detail} has it to itself", detail),
    "profiling": Wording(
        "Profiling", lambda r: f"{r.detail} runs alone there until {clock(r.need)}, to be profiled"
    ),
    "first_kernel": Wording(
        "FirstKernel",
        _first_kernel,
        detail,
    ),
    "resuming": Wording("Resuming", lambda r: f"{r.detail} is resuming there", detail),
    "resume_there": Wording(
        "OtherGpu",
        lambda r: "is not where the job was, and jobs resume nowhere else ([suspend] moves)",
    ),
    "resume_kind": Wording(
        "OtherKind",
        lambda r: f"is not of the kind on which the job can resume: {r.detail}",
    ),
    "settling": Wording("Settling", _settling, lambda r: f"{max(0.0, r.need - r.have):.0f}s left"),
    "jobs_per_gpu": Wording(
        "JobsPerGpu", lambda r: f"has {r.have:.0f} jobs, the most allowed on one GPU"
    ),
    "mps_user": Wording(
        "MpsUser",
        lambda r: f"its MPS server serves {r.detail}, and can serve only one user",
        detail,
    ),
    "choice": Wording("NotChosen", lambda r: f"is not what the job wants: {r.detail}"),
    "avoid": Wording("Avoided", lambda r: f"is avoided: the job {r.detail or 'failed there'}"),
    # of the job
    "no_account": Wording("NoAccount", lambda r: f"it is held: {r.detail}"),
    "held": Wording("Held", lambda r: "it is held"),
    "suspended": Wording("Suspended", lambda r: "it is suspended until somebody resumes it"),
    "resume_failed": Wording(
        "ResumeFailed",
        lambda r: f"it could not resume; that is tried again at {clock(r.need)}",
        lambda r: clock(r.need),
    ),
    "begin": Wording(
        "BeginTime", lambda r: f"it may not start before {clock(r.need)}", lambda r: clock(r.need)
    ),
    "dependency": Wording(
        "Dependency",
        lambda r: f"{first_few(r.detail)} must end first",
        lambda r: first_few(r.detail),
    ),
    "array_limit": Wording("ArrayLimit", _array_limit),
    "quota": Wording(
        "Quota", lambda r: f"{r.detail} holds {r.have:.0f} GPUs of {r.need:.0f} allowed"
    ),
    "gpu_hours": Wording(
        "GpuHours", lambda r: f"{r.detail} has used {r.have:.4g} of {r.need:g} {r.unit}"
    ),
    "cpus": Wording(
        "CPUs",
        lambda r: f"it wants {r.need:.0f} CPU{'' if r.need == 1 else 's'}; {r.detail}",
        lambda r: f"{r.have:.0f} free, need {r.need:.0f}",
    ),
    "host_memory_mib": Wording(
        "HostMemory",
        lambda r: f"it wants {gib(r.need)} of the host's memory; {r.detail}",
        lambda r: f"{gib(r.have)} free, need {gib(r.need)}",
    ),
    "policy_failed": Wording("PolicyFailed", lambda r: f"the placement policy failed: {r.detail}"),
    "policy_fallback": Wording(
        "PolicyFallback", lambda r: f"decided by the fallback, as the policy {r.detail} fails"
    ),
}
