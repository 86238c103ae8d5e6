"""Converts jobs written by 0.1.0, for the migration and for old journals. The last attempt's fields
were the job's own; of earlier attempts, only crashes and the total run time were recorded. Stage
times were called stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from carmad.core.attempt import KEPT

Body = dict[str, Any]
Move = tuple[float, str | None, str, int]  # when, from which state, to which, in which attempt
Placed = tuple[float, Sequence[str]]  # when, on which GPUs

_HOLDING = ("starting", "running", "stopping")
_WAITING = ("pending", "queued")
_ITS = ("gpus", "mode", "started_at", "kernels", "accumulation", "profiling", "shared", "stop")
_FLAT = (*_ITS, "attempt", "warned", "served_s", "failures")
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
    if "attempts" in job:
        return job
    job = renamed(job) | {"spec": renamed(job["spec"])}
    if not (job.get("attempt") or job["state"] in _HOLDING):
        return job
    flat = {name: job[name] for name in _FLAT if job.get(name) is not None}
    attempt, served_s = flat.get("attempt", 0), flat.get("served_s", 0.0)
    failures = flat.get("failures", [])
    current: list[Body] = []
    if job["state"] in _HOLDING or (job["state"] not in _WAITING and flat.get("gpus")):
        its = {"gpus": []} | {name: flat[name] for name in _ITS if name in flat}
        its |= {"number": attempt, "served_s": served_s, "warned": flat.get("warned", False)}
        if job["state"] in ("stopping", "cancelled"):
            its.setdefault("stop", "cancelled")
        if job["state"] not in _HOLDING:
            its |= {"exit": job.get("exit"), "ended_at": job.get("ended_at"), "profiling": None}
        current = [its]
    if moves:
        earlier, requeued_after = _told(moves, placed)
        crashed = [each for each in earlier if each["exit"]["cause"] == "gpu_oom"]
        for each, exit in zip(reversed(crashed), reversed(failures), strict=False):
            each["exit"] = exit
    else:
        earlier = [_closed(number, exit) for number, exit in enumerate(failures, 1)]
        requeued_after = 0
    if current:
        earlier = [each for each in earlier if each["number"] < attempt]
    else:
        earlier = _served(earlier, attempt, served_s)
    rest = {name: value for name, value in job.items() if name not in _FLAT}
    attempts = [*earlier, *current][-KEPT:]
    return rest | {"attempts": attempts, "requeued_after": requeued_after}


def renamed(body: Body) -> Body:
    """A job, its spec or a past run, with its stage times under their current name."""
    return {"stage_times" if name == "stages" else name: value for name, value in body.items()}


def _told(moves: Sequence[Move], placed: Sequence[Placed]) -> tuple[list[Body], int]:
    """The attempts that have ended, and the number of the last one before the job's requeue."""
    found: list[Body] = []
    requeued_after = 0
    started: float | None = None
    kernel: float | None = None
    for at, before, after, number in moves:
        if after in _WAITING and before not in (*_WAITING, *_HOLDING, None):
            requeued_after = number
        if after == "starting":
            started, kernel = at, None
        elif after == "running":
            kernel = at
        elif started is not None and after != "stopping":
            gpus = next((gpus for when, gpus in reversed(placed) if when <= started), ())
            cause = _cause(before, after)
            its = _closed(number, {"cause": cause}, at)
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
    if after in _WAITING:
        return "preempted" if before == "stopping" else "gpu_oom"
    return _CAUSES.get(after, "failure")


def _closed(number: int, exit: Body, at: float = 0.0) -> Body:
    return {"number": number, "gpus": [], "exit": exit, "ended_at": at}


def _served(earlier: list[Body], attempt: int, served_s: float) -> list[Body]:
    """The attempts of a waiting job, with `served_s` set on the last one. That includes its own run
    time if it was preempted, but not if it was a profiling run, which no change of state shows."""
    if not earlier or earlier[-1]["number"] != attempt:
        earlier = [*earlier, _closed(attempt, {"cause": "profiled"}) | {"stop": "profiled"}]
    last = earlier[-1]
    if last.get("stop") == "preempted":
        own_s = last["ended_at"] - last["started_at"]
        if served_s < own_s:
            last |= {"stop": "profiled", "exit": {"cause": "profiled"}}
        else:
            served_s -= own_s
    last["served_s"] = served_s
    return earlier
