"""What earlier releases wrote, in databases and journals: translated when it is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from carmad.config import DECLARED_SINCE
from carmad.core.jobs.attempt import KEPT
from carmad.core.jobs.states import ENDED, HOLDING, LIVING, NEW
from carmad.core.rules.share import NOBODY

_FORMER = (
    (b'"grounds":', b'"explanation":'),
    (b'"code":"outsiders"', b'"code":"external"'),
    (b'"outsider_mib":', b'"external_mib":'),
)
_SLURM_JOB = re.compile(rb'"slurm_job":(\d+)')


def in_current_names(text: bytes) -> bytes:
    """JSON of a decision or the journal by 0.1.0, with today's names. Strings cannot match, as
    quotes in them are escaped."""
    for former, name in _FORMER:
        text = text.replace(former, name)
    return _with_allocation(text)


def _with_allocation(text: bytes) -> bytes:
    """JSON of jobs from when an allocation could only be a job of Slurm's."""
    return _SLURM_JOB.sub(rb'"allocation":{"system":"Slurm","id":\1}', text)


Body = dict[str, Any]


def is_current(text: str) -> bool:
    """Whether a job's JSON has today's form. In a string, the quotes would be escaped."""
    return '"status":' in text and '"slurm_job":' not in text


def translate(text: str) -> Body:
    """A job's JSON of any release in its current form. Raises ValueError."""
    try:
        return current_form(from_json(in_current_names(text.encode())))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no job: {error!r:.200}") from error


def begin_in_current_form(told: Body) -> Body:
    """Translate the core's state at the beginning of a journal's segment."""
    settings = told["settings"]
    for name in DECLARED_SINCE:
        if name in settings:
            settings.setdefault("plugins", {})[f"policies.{name}"] = settings.pop(name)
    told["jobs"] = list(map(current_form, told["jobs"]))
    told["runs"] = list(map(rename_fields, told.get("runs", ())))
    uids = {job["spec"]["user"]: job["spec"]["uid"] for job in told["jobs"]}
    for each in (*told["runs"], *told.get("accounts", ())):
        each.setdefault("uid", uids.get(each["user"], NOBODY))
    for group, each, uid in (
        *((job.get("group"), job, job["spec"]["uid"]) for job in told["jobs"]),
        *((run.get("group"), run, run["uid"]) for run in told["runs"]),
    ):
        if group and "-" not in group:  # until it was an account's
            each["group"] = f"{group}-{uid}"
    if isinstance(told.get("ranks", {}).get("of", ()), dict):  # by name: they are found anew
        del told["ranks"]
    return told


def event_in_current_form(body: Body) -> Body:
    """An event of a journal: a requeue brings a job, a submission the specs of some."""
    if "job" in body and isinstance(body["job"], dict):
        body = body | {"job": current_form(body["job"])}
    if "specs" in body:
        body = body | {"specs": list(map(rename_fields, body["specs"]))}
    return body


Move = tuple[float, str | None, str, int]  # when, from which state, to which, in which attempt
Placed = tuple[float, Sequence[str]]  # when, on which GPUs

_ITS = ("gpus", "mode", "started_at", "kernels", "accumulation", "profiling", "shared", "stop")
_FLAT = (*_ITS, "attempt", "warned", "served_s", "failures")
_OF_STATUS = ("state", "attempts", "exit", "ended_at")
_CAUSES = {
    "succeeded": "success",
    "cancelled": "cancelled",
    "timed_out": "time_limit",
    "out_of_memory": "gpu_oom",
}


def current_form(job: Body, moves: Sequence[Move] = (), placed: Sequence[Placed] = ()) -> Body:
    """The job in its current form; unchanged if it already has that. Earlier attempts are
    reconstructed from its changes of state and its placements, both in order, as far as possible.

    Raises LookupError, TypeError or ValueError for anything that is not a job.
    """
    if not isinstance(job, dict):
        raise TypeError("it is not an object")
    if "status" in job:
        return job
    return _with_status(job if "attempts" in job else _with_attempts(job, moves, placed))


def _with_status(job: Body) -> Body:
    """The current attempt is in its state, where the last one had to be recognized."""
    state = job["state"]
    rest = {name: value for name, value in job.items() if name not in _OF_STATUS}
    earlier, its = job["attempts"], None
    if earlier and (earlier[-1].get("exit") is None or _is_final(job, earlier[-1])):
        *earlier, its = earlier
    status: Body = {"state": state}
    if state in LIVING:
        status |= {"attempt": its, "suspension": (its or {}).get("suspension")}
        if state == "stopping":
            status["stop"] = (its or {}).get("stop") or "cancelled"
    elif state in ENDED:
        last = its or job
        exit = job.get("exit") or last.get("exit") or {"cause": _CAUSES.get(state, "failure")}
        end = {"exit": exit, "ended_at": job.get("ended_at") or last.get("ended_at") or 0.0}
        status |= end | {"attempt": its and {**its, **end}}
    return rest | {"status": status, "earlier": [each for each in earlier if each.get("exit")]}


def _is_final(job: Body, last: Body) -> bool:
    """Whether the job ended with this attempt, which is over. Only a cancelled job may have ended
    while it waited; its last attempt then was not cancelled, unless its owner requeued the job
    after that."""
    if job["state"] == "cancelled":
        cancelled = last.get("stop") == "cancelled"
        return cancelled and bool(last["number"] > job.get("requeued_after", 0))
    return job["state"] in ENDED


def _with_attempts(job: Body, moves: Sequence[Move], placed: Sequence[Placed]) -> Body:
    """A job of 0.1.0: the last attempt's fields were its own; of earlier ones, only crashes and the
    total run time were recorded; stage times were called stages."""
    job = rename_fields(job) | {"spec": rename_fields(job["spec"])}
    if not (job.get("attempt") or job["state"] in HOLDING):
        return job | {"attempts": []}
    flat = {name: job[name] for name in _FLAT if job.get(name) is not None}
    attempt, served_s = flat.get("attempt", 0), flat.get("served_s", 0.0)
    failures = flat.get("failures", [])
    current: list[Body] = []
    if job["state"] in HOLDING or (job["state"] not in NEW and flat.get("gpus")):
        its = {"gpus": []} | {name: flat[name] for name in _ITS if name in flat}
        its |= {"number": attempt, "served_s": served_s, "warned": flat.get("warned", False)}
        if job["state"] in ("stopping", "cancelled"):
            its.setdefault("stop", "cancelled")
        if job["state"] not in HOLDING:
            its |= {"exit": job.get("exit"), "ended_at": job.get("ended_at"), "profiling": None}
        current = [its]
    if moves:
        earlier, requeued_after = _earlier_attempts(moves, placed)
        crashed = [each for each in earlier if each["exit"]["cause"] == "gpu_oom"]
        for each, exit in zip(reversed(crashed), reversed(failures), strict=False):
            each["exit"] = exit
    else:
        earlier = [_attempt(number, exit) for number, exit in enumerate(failures, 1)]
        requeued_after = 0
    if current:
        earlier = [each for each in earlier if each["number"] < attempt]
    else:
        earlier = _with_served(earlier, attempt, served_s)
    rest = {name: value for name, value in job.items() if name not in _FLAT}
    attempts = [*earlier, *current][-KEPT:]
    return rest | {"attempts": attempts, "requeued_after": requeued_after}


def rename_fields(body: Body) -> Body:
    """A job, its spec or a past run, with its stage times under their current name."""
    return {"stage_times" if name == "stages" else name: value for name, value in body.items()}


def _earlier_attempts(moves: Sequence[Move], placed: Sequence[Placed]) -> tuple[list[Body], int]:
    """The attempts that have ended, and the number of the last one before the job's requeue."""
    found: list[Body] = []
    requeued_after = 0
    started: float | None = None
    kernel: float | None = None
    for at, before, after, number in moves:
        if after in NEW and before in ENDED:
            requeued_after = number
        if after == "starting":
            started, kernel = at, None
        elif after == "running":
            kernel = at
        elif started is not None and after != "stopping":
            gpus = next((gpus for when, gpus in reversed(placed) if when <= started), ())
            cause = _cause(before, after)
            its = _attempt(number, {"cause": cause}, at)
            its |= {"gpus": list(gpus), "started_at": started}
            if kernel is not None and gpus:
                its["kernels"] = [[gpus[0], kernel]]
            if cause in ("preempted", "cancelled", "time_limit"):
                its["stop"] = cause
            found.append(its)
            started = None
    return found, requeued_after


def _cause(before: str | None, after: str) -> str:
    """The cause of an attempt's end, as far as the change of state shows it."""
    if after in NEW:
        return "preempted" if before == "stopping" else "gpu_oom"
    return _CAUSES.get(after, "failure")


def _attempt(number: int, exit: Body, at: float = 0.0) -> Body:
    return {"number": number, "gpus": [], "exit": exit, "ended_at": at}


def _with_served(earlier: list[Body], attempt: int, served_s: float) -> list[Body]:
    """The attempts of a waiting job, with `served_s` set on the last one. That includes its own run
    time if it was preempted, but not if it was a profiling run, which no change of state shows."""
    if not earlier or earlier[-1]["number"] != attempt:
        earlier = [*earlier, _attempt(attempt, {"cause": "profiled"}) | {"stop": "profiled"}]
    last = earlier[-1]
    if last.get("stop") == "preempted":
        own_s = last["ended_at"] - last["started_at"]
        if served_s < own_s:
            last |= {"stop": "profiled", "exit": {"cause": "profiled"}}
        else:
            served_s -= own_s
    last["served_s"] = served_s
    return earlier
