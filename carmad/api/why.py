"""Why a job waits, or runs where it does: a headline, what each GPU said, and what would help.

Only numbers that the decision recorded, or that the scene holds, are repeated here.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from carmad.api.away import away
from carmad.api.fairness import overtaken
from carmad.api.job import JobOut, Jobs
from carmad.api.outlook import StartOut
from carmad.api.reasons import (
    DecisionOut,
    ReasonOut,
    VerdictOut,
    decision_out,
    phrase,
    reason_out,
    verdicts_out,
)
from carmad.api.wire import SCHEMA, iso, with_labels
from carmad.core.decision import Decision, Reason, Verdict
from carmad.core.scene import Scene
from carmad.core.sharing import label
from carmad.core.types import Cause, Exit, Gpu, Job, JobId, JobState
from carmad.readable import duration, gib
from carmad.words import clock, first_few

GIB = 1024
MOST_AHEAD = 8
PASSING = frozenset({"first_kernel", "settling"})  # over soon, whatever people do
FREED_BY_AN_END = frozenset({"busy", "exclusive", "jobs_per_gpu", "mps_user", "memory", "min_free"})


class JobRefOut(TypedDict):
    id: int
    label: str


class AheadOut(TypedDict):
    """A job that must start or end first, which may be somebody else's."""

    id: int
    label: str
    user: str
    text: str  # what it is and waits for, after its name


class WhyOut(TypedDict):
    schema: int
    job: JobOut
    headline: str
    position: int | None
    behind: JobRefOut | None
    ahead: list[AheadOut]  # from the one that it waits for to the head of the line
    facts: list[str]  # of a job that has ended: how, and where its logs are
    tail: list[str]  # the last lines of its logs, if it did not succeed
    policy: str | None
    decided_at: str | None
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    grounds: list[ReasonOut]  # what spoke for the chosen GPUs
    remedies: list[str]
    start: NotRequired[StartOut | None]  # of a job that waits
    chosen: list[str]
    past: list[DecisionOut]


def why_out(job: Job, scene: Scene, past: Sequence[Decision], jobs: Jobs) -> WhyOut:
    """`past` has the recorded decisions, the newest first."""
    waits = job.state in (JobState.QUEUED, JobState.SUSPENDED)
    now = scene.current(job.id) if waits else next(iter(past), None)
    blockers = list(scene.blockers(job)) if waits else []
    if blockers:
        now = None
    reasons = blockers or (list(now.placement.reasons) if now else [])
    looked_at = now is not None or blockers
    behind = _behind(job, scene) if waits and job.spec.gpus and not looked_at else None
    out = jobs(job)
    return {
        "schema": SCHEMA,
        "job": out,
        "headline": _headline(
            job,
            [with_labels(each, scene.live) for each in reasons],
            now,
            behind,
            _idle_reason(scene) if behind else None,
            overtaken(job, scene) if waits and not blockers else "",
            away(job, scene, "your" if jobs.owns(job) else "its")
            if job.suspension and waits and not blockers
            else "",
        ),
        "position": out.get("position"),
        "behind": behind,
        "ahead": _ahead(job, scene) if waits else [],
        "facts": _facts(out) if job.ended else [],
        "tail": list(job.exit.tail) if job.exit else [],
        "policy": now.policy if now else None,
        "decided_at": iso(now.at) if now else None,
        "verdicts": verdicts_out(now.placement, scene) if now else [],
        "reasons": [reason_out(reason, scene) for reason in reasons],
        "grounds": [reason_out(reason, scene) for reason in now.placement.explanation]
        if now
        else [],
        "remedies": _remedies(job, scene, reasons, now, behind) if waits else _advice(out),
        "chosen": list(now.placement.gpus) if now else [],
        "past": [decision_out(decision, scene) for decision in _earlier(past, now)],
    }


def _earlier(past: Sequence[Decision], now: Decision | None) -> Sequence[Decision]:
    """Without the record of the present one, whose numbers may have moved since."""
    return past[1:] if now and past and past[0].same_story(now) else past


def _behind(job: Job, scene: Scene) -> JobRefOut | None:
    head = scene.live.get(scene.head) if scene.head is not None else None
    if head is None or head.id == job.id:
        return None
    return {"id": head.id, "label": label(head)}


def _idle_reason(scene: Scene) -> Reason | None:
    """Why GPUs stay idle for the head of the line; None if none do."""
    head = scene.decisions.get(scene.head) if scene.head is not None else None
    reasons = head.placement.reasons if head else ()
    return next((reason for reason in reasons if reason.code == "holds_line"), None)


def _headline(
    job: Job,
    reasons: Sequence[Reason],
    decision: Decision | None,
    behind: JobRefOut | None,
    kept: Reason | None,
    overtaken: str,
    away: str,
) -> str:
    match job.state:
        case JobState.PENDING:
            return "waits: its memory need is not known yet; until then only idle GPUs can take it"
        case JobState.STARTING:
            return "starting: no kernel of it has been seen yet" if job.gpus else "starting"
        case JobState.RUNNING:
            return "running"
        case JobState.STOPPING:
            return "stopping: its processes have not all ended yet"
        case JobState.SUSPENDING:
            return "being suspended: its GPU memory is on its way to the host's"
        case JobState.RESUMING:
            return "resuming: its GPU memory is on its way back"
        case JobState.QUEUED | JobState.SUSPENDED:
            pass
        case _:
            return _end_headline(job)
    if away:
        return away
    if reasons:
        return f"waits: {phrase(reasons[0])}"
    if overtaken:
        return f"waits: {overtaken}"
    if behind:
        before = f"waits: job {behind['label']} is before it in line"
        return f"{before} and {phrase(kept)}" if kept else before
    if decision is None:
        return "waits: it has not been looked at yet"
    wanted = _wish(job)
    willing = sum(1 for verdict in decision.placement.verdicts if not verdict.refused)
    if willing:
        return f"waits: it wants {wanted}, and {willing} could take it now"
    return "waits: no GPU can take it now"


def _end_headline(job: Job) -> str:
    words, exit = job.state.value.replace("_", " "), job.exit
    if exit is None:
        return words
    if job.state is JobState.TIMED_OUT and job.spec.time_limit_s is not None:
        return f"{words}: it reached its own time limit, --time {duration(job.spec.time_limit_s)}"
    if exit.cause is not Cause.SUCCESS and job.state is not JobState.CANCELLED:
        words += _status(exit)
    return f"{words}: {exit.evidence}" if exit.evidence else words


def _status(exit: Exit) -> str:
    if exit.signal is not None:
        return f", ended by {_signal(exit.signal)}"
    return f" with exit code {exit.code}" if exit.code else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _facts(out: JobOut) -> list[str]:
    """How its last attempt ended, where its logs are."""
    if out["started_at"] is None:
        return []
    found = [f"attempt {out['attempt']} ran for {duration(out['elapsed_s'])}"]
    logs = {} if out.get("interactive") else dict.fromkeys((out["stdout"], out["stderr"]))
    return [*found, *(f"its log: {path}" for path in logs)]


def _ahead(job: Job, scene: Scene) -> list[AheadOut]:
    """The jobs that the job waits for: one that it depends on, the one that this waits for, and so
    on to the head of the line. Of others' jobs, only what everybody sees in `carma queue`."""
    found: list[AheadOut] = []
    seen = {job.id}
    while len(found) < MOST_AHEAD:
        awaited = (after.job for after in job.spec.after if after.job in scene.live)
        before = next(awaited, None)
        if before is None and not job.holds_gpus and scene.blocker(job) is None:
            before = scene.head
        if before is None or before in seen:
            break
        seen.add(before)
        job = scene.live[before]
        user = job.spec.user
        found.append({"id": job.id, "label": label(job), "user": user, "text": _does(job, scene)})
    return found


def _does(job: Job, scene: Scene) -> str:
    """What a job does now, in words that anybody may read."""
    if job.holds_gpus:
        limit, ran = job.spec.time_limit_s, job.attained_s(scene.now)
        left = "" if limit is None else f", for {duration(limit - ran)} more at most"
        return f"has run for {duration(ran)}{left}"
    wants = _wish(job)
    if job.id == scene.head:
        found = scene.current(job.id)
        verdicts = found.placement.verdicts if found else ()
        able = sum(not verdict.refused for verdict in verdicts)
        now = f", and {able or 'none'} can take it now" if verdicts else ""
        return f"is at the head of the line: it wants {wants}{now}"
    if (place := scene.place(job.id)) is not None:
        return f"waits for {wants}, as number {place} in line"
    return f"waits for {wants}"


def _wish(job: Job) -> str:
    if not job.spec.gpus:
        return "CPUs"
    return "a GPU" if job.spec.gpus == 1 else f"{job.spec.gpus} GPUs"


def _remedies(
    job: Job,
    scene: Scene,
    reasons: Sequence[Reason],
    decision: Decision | None,
    behind: JobRefOut | None,
) -> list[str]:
    spent = job.spec.urgent and job.spec.user in scene.shares.ranks.spent
    found = ["its owner's budget for urgent jobs is spent: carma share"] if spent else []
    found += [help for reason in reasons if (help := _job_remedy(job, reason, scene))]
    if behind:
        found.append(f"see what job {behind['label']} waits for: carma why {behind['label']}")
    for verdict in decision.placement.verdicts if decision else ():
        found += _gpu_remedies(job, verdict, scene)
    return list(dict.fromkeys(found))[:8]


def _advice(job: JobOut) -> list[str]:
    advice = job.get("advice")
    return [advice] if advice else []


def _job_remedy(job: Job, reason: Reason, scene: Scene) -> str | None:
    match reason.code:
        case "no_account":
            return f"an administrator repairs the user database, or cancels job {label(job)}"
        case "held":
            return f"carma release {label(job)}"
        case "suspended":
            return f"carma resume {label(job)}"
        case "quota":
            return f"starts when another job of {reason.detail} ends"
        case "gpu_hours":
            at = scene.quotas.frees_at(reason.detail)
            if math.isfinite(at):
                return f"may start from {clock(at)} on, when earlier use no longer counts"
            return "an administrator can raise the limit: carma limit"
        case "no_promise" if not scene.view.filling_mib:
            return (
                "an administrator can let later jobs use the GPUs meanwhile, and be suspended for"
                ' it: limits.preemption = "suspend", suspend.host_memory_mib'
            )
        case "array_limit":
            return "starts when another task of its array ends"
        case "policy_failed":
            return "an administrator finds the policy's error with: carma doctor"
    return None


def _gpu_remedies(job: Job, verdict: Verdict, scene: Scene) -> list[str]:
    gpu = scene.gpus.get(verdict.gpu)
    if gpu is None or not verdict.refused:
        return []
    name = f"GPU {gpu.index}"
    codes = {reason.code for reason in verdict.refused}
    found = []
    if codes == {"memory"}:
        (reason,) = verdict.refused
        if fits := _less(job, reason.have):
            found.append(f"fits {name} now with --gpu-mem {fits}")
    lacks = _no_room(job, gpu, verdict, scene) if codes <= PASSING else ""
    if lacks:
        return [f"{name} {lacks}"]
    if codes <= PASSING:
        left = max(reason.need - reason.have for reason in verdict.refused)
        first = "once its newest job has run a kernel"
        found.append(
            f"{name} is judged again "
            + (first if "first_kernel" in codes else f"in about {duration(left)}")
        )
    if "drained" in codes:
        found.append(f"{name} takes jobs again after: carma undrain {gpu.index} (administrators)")
    if "reservation_notice" in codes:
        found.append(f"may start on {name} before it is reserved with a time limit: --time")
    if codes <= FREED_BY_AN_END:
        found += _ends(verdict, scene, name)
    return found


def _no_room(job: Job, gpu: Gpu, verdict: Verdict, scene: Scene) -> str:
    """Why the job does not fit, although that is not what keeps it off now; "" if it fits."""
    view = next((view for view in scene.view.gpus if view.id == verdict.gpu), None)
    if view is None or job.need is None or job.need.safe_mib <= view.free_mib:
        return ""
    need = gib(job.need.safe_mib)
    if job.need.safe_mib > gpu.memory_mib:
        return f"can never take it: it needs {need}, and the GPU has {gib(gpu.memory_mib)}"
    names = ", ".join(f"job {label(each)}" for each in view.residents) or "external processes"
    free = f"only {gib(view.free_mib)} are free beside {first_few(names)}"
    smaller = _less(job, view.free_mib)
    instead = f", or with --gpu-mem {smaller}" if smaller else ""
    return f"cannot take it now: it needs {need}, and {free}; it fits when they end{instead}"


def _less(job: Job, have: float) -> str | None:
    """What to ask for instead, if the user's own word asked for more."""
    if job.spec.declared is None or have < 512:
        return None
    if have >= GIB and math.floor(have / GIB) * GIB >= have * 0.9:
        return f"{math.floor(have / GIB)}G"
    return f"{math.floor(have)}M"


def _ends(verdict: Verdict, scene: Scene, name: str) -> list[str]:
    """The residents whose end would free this GPU, with the latest time that they can take."""
    view = next((view for view in scene.view.gpus if view.id == verdict.gpu), None)
    users = [reason.detail for reason in verdict.refused if reason.code == "mps_user"]
    strays = filter(None, (view.mps_stray, view.mps_leaving)) if view else ()
    if any(name in users for _, name in strays):
        return [f"may start when {users[0]} has ended"]
    if view and view.mps_user and users:
        return [f"may start when all jobs of {users[0]} under MPS have ended"]
    named = {
        JobId(int(id))
        for reason in verdict.refused
        for id in re.findall(r"\bjob (\d+)", reason.detail)
    }
    residents = [job for job in view.residents if not named or job.id in named] if view else []
    if len(residents) != 1:
        return [f"{name} is free when its {len(residents)} jobs end"] if residents else []
    (resident,) = residents
    limit, started = resident.spec.time_limit_s, resident.started_at
    if limit is None or started is None:
        return [f"may start on {name} when job {label(resident)} ends"]
    left = duration(started + limit - resident.served_s - scene.now)
    return [f"may start on {name} when job {label(resident)} ends (in {left} at the latest)"]
