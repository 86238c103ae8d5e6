"""Why a job waits, or runs where it does: a headline, what each GPU said, and what would help.

Only numbers that the decision recorded, or that the scene holds, are repeated here.
"""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Iterator, Sequence

from typing_extensions import TypedDict

from carmad.api.away import away
from carmad.api.fairness import overtaken
from carmad.api.job import JobOut, Jobs
from carmad.api.outlook import StartOut, start_out
from carmad.api.reasons import DecisionOut, decision_out, phrase, reason_out
from carmad.api.wire import SCHEMA, with_labels
from carmad.attempt.environment import log_paths
from carmad.core.gpus import idling
from carmad.core.gpus.gpuview import OWN_MEMORY
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import Cause, Exit, JobId, Mode
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.placing.decision import Decision, Reason, Verdict
from carmad.core.placing.view import PASSING
from carmad.core.scene import Scene
from carmad.readable import duration, gib
from carmad.words import clock, first_few

GIB = 1024
MOST_AHEAD = 8
# As Python, Go, Rust and C++ say that a GPU's UUID is no number.
UUID_IS_NO_NUMBER = re.compile(
    r"(?:invalid|parse|Atoi|stoi|number|digit)[^\n]{0,80}\b(?:GPU|MIG)-[0-9a-f]{4}", re.IGNORECASE
)
PORT_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
FREED_BY_AN_END = frozenset({"busy", "exclusive", "jobs_per_gpu", "mps_user", "memory", "min_free"})


class AheadOut(TypedDict):
    """A job that must start or end first, which may be somebody else's."""

    id: int
    label: str
    user: str
    text: str  # what it is and waits for, after its name


class WhyOut(DecisionOut):
    """With the last decision, or what keeps the job from one."""

    schema: int
    job: JobOut
    headline: str
    position: int | None
    behind: AheadOut | None  # the head of the line, if nothing else keeps it waiting
    ahead: list[AheadOut]  # from the one that it waits for to the head of the line
    facts: list[str]  # of a job that has ended: how, and where its logs are
    tail: list[str]  # the last lines of its logs, if it did not succeed
    remedies: list[str]
    start: StartOut | None  # of a job that waits
    past: list[DecisionOut]


def why_out(job: Job, scene: Scene, past: Sequence[Decision], jobs: Jobs) -> WhyOut:
    """`past` has the recorded decisions, the newest first."""
    waits = job.state in (JobState.QUEUED, JobState.SUSPENDED)
    now = scene.current(job.id) if waits else next(iter(past), None)
    blockers = list(scene.gate.blockers(job)) if waits else []
    if blockers:
        now = None
    reasons = blockers or (list(now.placement.reasons) if now else [])
    looked_at = now is not None or blockers
    ahead = _ahead(job, scene) if waits else []
    behind = ahead[0] if ahead and job.spec.gpus and not looked_at else None
    out = jobs(job)
    failure = scene.failure(job) if job.holds_gpus else ""
    return {
        "schema": SCHEMA,
        "job": out,
        "headline": (f"{failure}; " if failure else "")
        + _headline(job, scene, reasons, now, behind, "your" if jobs.owns(job) else "its"),
        "position": out.get("position"),
        "behind": behind,
        "ahead": ahead,
        "facts": _facts(out) if job.ended else [],
        "tail": list(job.exit.tail) if job.exit else [],
        **decision_out(now, scene),
        "reasons": [reason_out(reason, scene) for reason in reasons],
        "remedies": _remedies(job, scene, reasons, now, behind)
        if waits
        else [*_advice(job, out, failure), *_hang_advice(job, scene)],
        "start": start_out(job, scene),
        "past": [decision_out(decision, scene) for decision in _earlier(past, now)],
    }


def _earlier(past: Sequence[Decision], now: Decision | None) -> Sequence[Decision]:
    """Without the record of the present one, whose numbers may have moved since."""
    return past[1:] if now and past and past[0].same_story(now) else past


def _idle_reason(scene: Scene) -> Reason | None:
    """Why GPUs stay idle for the head of the line; None if none do."""
    head = scene.decisions.get(scene.head) if scene.head is not None else None
    reasons = head.placement.reasons if head else ()
    return next((reason for reason in reasons if reason.code == "holds_line"), None)


def _headline(
    job: Job,
    scene: Scene,
    reasons: Sequence[Reason],
    decision: Decision | None,
    behind: AheadOut | None,
    whose: str,
) -> str:
    kernelless_s = idling.kernelless_s(job, scene.now)
    match job.state:
        case JobState.PENDING:
            return "waits: its memory need is not known yet; until then only idle GPUs can take it"
        case JobState.STARTING if kernelless_s:
            return f"starting: no kernel of it has been seen for {duration(kernelless_s)}"
        case JobState.STARTING:
            return "starting: no kernel of it has been seen yet" if job.gpus else "starting"
        case JobState.RUNNING if since := job.current.stalled_since:
            return f"running: no sign of life for {duration(scene.now - since)}"
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
    if job.suspension and (decision or not reasons):
        return away(job, scene, whose)
    if reasons:
        return f"waits: {phrase(with_labels(reasons[0], scene.live))}"
    if first := overtaken(job, scene):
        return f"waits: {first}"
    if behind:
        before, kept = f"waits: job {behind['label']} is before it in line", _idle_reason(scene)
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
    return [f"attempt {out['attempt']} ran for {duration(out['elapsed_s'])}", *_logs(out)]


def _logs(out: JobOut) -> list[str]:
    logs = {} if out.get("interactive") else dict.fromkeys((out["stdout"], out["stderr"]))
    return [f"its log: {path}" for path in logs]


def explain(job: Job, scene: Scene) -> Iterator[str]:
    """What a message to its owner says of a job, besides what happened."""
    why = why_out(job, scene, (), Jobs(scene, log_paths, job.spec.owner, see_all=False))
    out = why["job"]
    yield f"command: {shlex.join(job.spec.argv)}"
    if on := [gpu["id"] if gpu["index"] is None else str(gpu["index"]) for gpu in out["gpus"]]:
        yield f"on GPU {', '.join(on)}"
    yield from why["facts"] or _logs(out)
    if why["tail"]:
        yield from ("", "its last lines:", *(f"  {line}" for line in why["tail"]), "")
    if why["remedies"]:
        yield from ("what would help:", *(f"  {each}" for each in why["remedies"]), "")
    yield f"more: carma why {out['label']}"


def _ahead(job: Job, scene: Scene) -> list[AheadOut]:
    """The jobs that the job waits for: one that it depends on, the one that this waits for, and so
    on to the head of the line. Of others' jobs, only what everybody sees in `carma queue`."""
    found: list[AheadOut] = []
    seen = {job.id}
    while len(found) < MOST_AHEAD:
        awaited = (after.job for after in job.spec.after if after.job in scene.live)
        before = next(awaited, None)
        if before is None and not job.holds_gpus and scene.gate.blocker(job) is None:
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
        idle = " without a kernel" if idling.kernelless_s(job, scene.now) else ""
        return f"has run for {duration(ran)}{idle}{left}"
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
    behind: AheadOut | None,
) -> list[str]:
    spent = job.spec.urgent and job.spec.owner in scene.shares.ranks.spent
    found = ["its owner's budget for urgent jobs is spent: carma share"] if spent else []
    found += [help for reason in reasons if (help := _job_remedy(job, reason, scene))]
    if behind:
        found.append(f"see what job {behind['label']} waits for: carma why {behind['label']}")
    for verdict in decision.placement.verdicts if decision else ():
        found += _gpu_remedies(job, verdict, scene)
    return list(dict.fromkeys(found))[:8]


def _advice(job: Job, out: JobOut, failure: str) -> list[str]:
    """What would help the next run of a job. `failure`: what is wrong with a GPU of it."""
    advice = out.get("advice")
    if failure:
        advice = f"to run it again on another GPU: carma requeue {out['label']}"
    found = [advice] if advice else []
    if job.exit and any(map(PORT_IN_USE.search, job.exit.tail)):
        found.append(
            "another process has the port that it wanted: have it listen on port $MASTER_PORT,"
            " which CARMA gives each job, or on port 0, for any that is free"
        )
    if job.exit and any(map(UUID_IS_NO_NUMBER.search, job.exit.tail)):
        found.append(
            "its program takes the UUIDs in CUDA_VISIBLE_DEVICES for numbers. A job gets them where"
            " an index might name another GPU (under MPS, with MIG, in a container, while a GPU of"
            " the server fails) or collocation.visible_devices asks for them. Under MPS,"
            " --exclusive gives it indices"
        )
    if job.spec.excluded and job.state is JobState.FAILED:
        names = first_few(", ".join(job.spec.excluded))
        found.append(
            f"this server did not give it {names}: if it needs one of them, submit it with"
            f" --export {job.spec.excluded[0]}"
        )
    return found


def _hang_advice(job: Job, scene: Scene) -> list[str]:
    """What its owner can find out, and until when it keeps its GPUs from others."""
    waited_s, settings = idling.kernelless_s(job, scene.now), scene.view.settings
    if job.state is JobState.RUNNING and job.current.stalled_since:
        return [f"it hangs, or waits for something: its log may say which, carma logs {label(job)}"]
    if not waited_s:
        return []
    advice = f"whether it hangs or reads data, its log may say: carma logs {label(job)}"
    left_s = settings.monitor.first_kernel_timeout_s - waited_s
    is_alone = job.exclusive or job.mode in (Mode.EXCLUSIVE, Mode.MIG) or job.spec.interactive
    if left_s > 0 and not is_alone:
        advice += f"; other jobs may start on its GPUs in {duration(left_s)}"
    return [advice]


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
            own = reason.detail == job.spec.user
            at = scene.gate.quotas.frees_at(job.spec.owner if own else reason.detail)
            if math.isfinite(at):
                return f"may start from {clock(at)} on, when earlier use no longer counts"
            return "an administrator can raise the limit: carma limit"
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
    lasting = [reason for reason in verdict.refused if reason.code not in PASSING]
    codes = {reason.code for reason in lasting}
    found = []
    if "memory" in codes and job.need and job.need.safe_mib > gpu.memory_mib:
        need, has = gib(job.need.safe_mib), gib(gpu.memory_mib)
        return [f"{name} can never take it: it needs {need}, and the GPU has {has}"]
    if codes == {"memory"} and len(lasting) == len(verdict.refused):
        (reason,) = lasting
        if fits := _less(job, reason.have, scene):
            found.append(f"fits {name} now with --gpu-mem {fits}")
    is_unknown = any(reason.detail.endswith(OWN_MEMORY) for reason in verdict.refused)
    if not codes and is_unknown and job.spec.declared is None and not job.retry:
        found.append("with --gpu-mem, it may join jobs that have just started")
    by_s = max((reason.need for reason in lasting), default=0.0)
    is_long_kept = codes == {"held_for"} and by_s > scene.view.settings.monitor.window_s
    if is_long_kept and job.at_most_s(scene.now) == math.inf:
        within = duration(by_s)
        found.append(f"may start on {name} if it is known to end in {within}: --time, --expect")
    if "drained" in codes:
        found.append(f"{name} is drained until: carma drain --undo {gpu.index} (administrators)")
    if "reservation_notice" in codes:
        found.append(f"may start on {name} before it is reserved with a time limit: --time")
    # Others are before one that is not the head: mostly one of them gets the GPU.
    if codes and codes <= FREED_BY_AN_END and scene.head == job.id:
        found += _ends(verdict, scene, name)
    return found


def _less(job: Job, have: float, scene: Scene) -> str | None:
    """What to ask for instead, if the user's own word asked for more than the job is known to need:
    a size below that would only crash."""
    need_mib = _known_mib(job, scene)
    if job.spec.declared is None or not need_mib:
        return None
    if have >= GIB and (whole := math.floor(have / GIB)) * GIB >= max(need_mib, have * 0.9):
        return f"{whole}G"
    return f"{math.floor(have)}M" if have >= need_mib else None


def _known_mib(job: Job, scene: Scene) -> int:
    """What it needs by earlier runs and by estimates, or has used if that is more; 0: unknown."""
    profiles = filter(None, (job.profile, scene.view.history.profile(job.group)))
    known = [profile.peak_mib for profile in profiles]
    known += [each.safe_mib for each in job.estimate.others] if job.estimate else []
    alike = [each for each in scene.view.running if each.group == job.group]
    used = [max(each.usage.peak_mib, scene.memory_mib(each.id) or 0) for each in alike]
    return max(known, default=0) and max(*known, *used, job.usage.peak_mib)


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
        if reason.code not in PASSING
        for id in re.findall(r"\bjob (\d+)", reason.detail)
    }
    residents = [job for job in view.residents if not named or job.id in named] if view else []
    if len(residents) != 1:
        return [f"{name} is free when its {len(residents)} jobs end"] if residents else []
    (resident,) = residents
    limit, started = resident.spec.time_limit_s, resident.started_at
    if limit is None or started is None:
        return [f"{name} can take it when job {label(resident)} ends"]
    left = duration(started + limit - resident.served_s - scene.now)
    return [f"{name} can take it when job {label(resident)} ends (in {left} at the latest)"]
