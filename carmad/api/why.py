"""The story of `carma why`: a headline, what each GPU said, and what would help.

Only numbers that the decision recorded, or that the scene holds, are repeated here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from carmad.api.decisions import decision_out, reason_out, verdicts_out
from carmad.api.phrases import phrase
from carmad.api.render import Jobs, label, labelled
from carmad.api.responses import SCHEMA
from carmad.api.responses.decisions import JobRefOut, WhyOut
from carmad.api.responses.jobs import JobOut
from carmad.api.times import iso
from carmad.core.decision import Decision, Reason, Verdict
from carmad.core.scene import Scene
from carmad.core.types import Job, JobId, JobState
from carmad.readable import duration

GIB = 1024
PASSING = frozenset({"first_kernel", "settling"})  # over soon, whatever people do
FREED_BY_AN_END = frozenset({"busy", "exclusive", "jobs_per_gpu", "mps_user", "memory", "min_free"})


def why_out(job: Job, scene: Scene, past: Sequence[Decision], jobs: Jobs) -> WhyOut:
    """`past` has the recorded decisions, the newest first."""
    waits = job.state is JobState.QUEUED
    now = scene.current(job.id) if waits else next(iter(past), None)
    blocked_by = scene.blocked_by(job) if waits else None
    if blocked_by is not None:
        now = None
    reasons = [blocked_by] if blocked_by else list(now.placement.reasons) if now else []
    looked_at = now is not None or blocked_by is not None
    behind = _behind(job, scene) if waits and job.spec.gpus and not looked_at else None
    out = jobs(job)
    return {
        "schema": SCHEMA,
        "job": out,
        "headline": _headline(
            job,
            [labelled(each, scene.live) for each in reasons],
            now,
            behind,
            _kept_idle(scene) if behind else None,
        ),
        "position": out.get("position"),
        "behind": behind,
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


def _kept_idle(scene: Scene) -> Reason | None:
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
) -> str:
    match job.state:
        case JobState.PENDING:
            return "waits: its memory need is being estimated"
        case JobState.STARTING:
            return "starting: no kernel of it has been seen yet" if job.gpus else "starting"
        case JobState.RUNNING:
            return "running"
        case JobState.STOPPING:
            return "stopping: its processes have not all ended yet"
        case JobState.QUEUED:
            pass
        case _:
            evidence = job.exit.evidence if job.exit else ""
            ended = job.state.value.replace("_", " ")
            return f"{ended}: {evidence}" if evidence else ended
    if reasons:
        return f"waits: {phrase(reasons[0])}"
    if behind:
        before = f"waits: job {behind['label']} is before it in line"
        return f"{before} and {phrase(kept)}" if kept else before
    if decision is None:
        return "waits: it has not been looked at yet"
    wanted = "a GPU" if job.spec.gpus == 1 else f"{job.spec.gpus} GPUs"
    willing = sum(1 for verdict in decision.placement.verdicts if not verdict.refused)
    if willing:
        return f"waits: it wants {wanted}, and {willing} could take it now"
    return "waits: no GPU can take it now"


def _remedies(
    job: Job,
    scene: Scene,
    reasons: Sequence[Reason],
    decision: Decision | None,
    behind: JobRefOut | None,
) -> list[str]:
    found = [help for reason in reasons if (help := _job_remedy(job, reason))]
    if behind:
        found.append(f"see what job {behind['label']} waits for: carma why {behind['label']}")
    for verdict in decision.placement.verdicts if decision else ():
        found += _gpu_remedies(job, verdict, scene)
    return list(dict.fromkeys(found))[:8]


def _advice(job: JobOut) -> list[str]:
    advice = job.get("advice")
    return [advice] if advice else []


def _job_remedy(job: Job, reason: Reason) -> str | None:
    match reason.code:
        case "held":
            return f"carma release {label(job)}"
        case "quota":
            return f"starts when another job of {job.spec.user} ends"
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
    if codes <= PASSING:
        left = max(reason.need - reason.have for reason in verdict.refused)
        first = "once its newest job has run a kernel"
        found.append(
            f"{name} is judged again "
            + (first if "first_kernel" in codes else f"in about {duration(left)}")
        )
    if "drained" in codes:
        found.append(f"{name} takes jobs again after: carma resume {gpu.index} (administrators)")
    if codes <= FREED_BY_AN_END:
        found += _ends(verdict, scene, name)
    return found


def _less(job: Job, have: float) -> str | None:
    """What to ask for instead, if the user's own word asked for more."""
    if job.spec.memory_mib is None or have < 512:
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
