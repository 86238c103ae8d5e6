"""Converts the core's values to rows and to JSON, and back, also as 0.1.0 wrote them.

pydantic derives the JSON from the dataclasses. Old rows stay readable as long as new fields have
defaults; fields that were removed are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, TypeAdapter
from pydantic_core import to_json

from carmad.core.gpus.gpu import Drain
from carmad.core.gpus.sharing import JobSummary
from carmad.core.happenings import happenings, notices, words
from carmad.core.jobs.attempt import KEPT, JobId
from carmad.core.jobs.findings import Profile
from carmad.core.jobs.job import Job
from carmad.core.jobs.recurrence import params
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step
from carmad.core.placing.decision import Decision
from carmad.core.rules.limits import Limit, Reservation
from carmad.core.rules.share import Account
from carmad.learning.models import Model
from carmad.store.damage import expect
from carmad.store.values import Transition

# -- as JSON

# As a union, since pydantic takes no configuration for a bare dataclass.
_JOB_AS_IS = TypeAdapter(Job | None, config=ConfigDict(ser_json_inf_nan="constants"))
_FORMER = (
    (b'"grounds":', b'"explanation":'),
    (b'"code":"outsiders"', b'"code":"external"'),
    (b'"outsider_mib":', b'"external_mib":'),
)
_SLURM_JOB = re.compile(rb'"slurm_job":(\d+)')

# All decoding raises ValueError.
decode_account = TypeAdapter(Account).validate_json
decode_limit = TypeAdapter(Limit).validate_json
decode_reservation = TypeAdapter(Reservation).validate_json
drain_of = TypeAdapter(Drain).validate_python  # from a table's row
_decode_decision = TypeAdapter(Decision).validate_json
_decode_job = TypeAdapter(Job).validate_json
_MODEL: TypeAdapter[Model] = TypeAdapter(Annotated[Model, Discriminator("kind")])


# pydantic_core.to_json and not TypeAdapter.dump_json, which turns an infinite rank into null unless
# it is configured. For jobs it is: that takes less than half the time, and they are written most.


def encode_job(job: Job) -> str:
    return _JOB_AS_IS.dump_json(job).decode()


def decode_job(text: str) -> Job:
    return _decode_job(_with_allocation(text.encode()) if '"slurm_job":' in text else text)


def encode(value: Account | Decision | Limit | Model | Reservation) -> str:
    return to_json(value).decode()


def decode_summary(text: str) -> JobSummary:
    """Of a job's JSON only what reports need, in a third of the time."""
    found: JobSummary = _adapter(JobSummary).validate_json(text)
    return found


def decode_profile(text: str) -> Profile:
    found: Profile = _adapter(Profile).validate_json(text)
    return found


_adapter = cache(TypeAdapter)  # made when first needed: a daemon may never be


def decode_decision(text: str) -> Decision:
    return _decode_decision(in_current_names(text.encode()))


def decode_model(text: str) -> Model:
    return _MODEL.validate_json(text)


def in_current_names(text: bytes) -> bytes:
    """JSON of a decision or the journal by 0.1.0, with today's names. Strings cannot match, as
    quotes in them are escaped."""
    for former, name in _FORMER:
        text = text.replace(former, name)
    return _with_allocation(text)


def _with_allocation(text: bytes) -> bytes:
    """JSON of jobs from when an allocation could only be a job of Slurm's."""
    return _SLURM_JOB.sub(rb'"allocation":{"system":"Slurm","id":\1}', text)


# -- as rows

Row = dict[str, Any]


def job_of(row: Any) -> Job:
    return expect(decode_job(row.body), row.id, ended=row.ended_at is not None)


def transition_of(row: Any) -> Transition:
    before = None if row.before is None else JobState(row.before)
    return Transition(row.at, JobId(row.job), before, JobState(row.after), row.attempt)


def job_row(job: Job) -> Row:
    body = encode_job(job)
    return {
        "id": job.id,
        "state": job.state.value,
        "user": job.spec.user,
        "name": job.spec.name,
        "array": job.spec.array.array if job.spec.array else None,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at if job.ended else None,
        "attempt": job.attempt,
        "gpus": ",".join(job.gpus),
        "cause": job.exit.cause.value if job.exit else None,
        "gpu_seconds": job.usage.gpu_seconds,
        "energy_j": job.usage.energy_j,
        "body": body,
        "environment": job.spec.environment.id if job.spec.environment else None,
        "bytes": len(body),
        "script": job.spec.script.id if job.spec.script else None,
        "tasks": job.tasks,
        "words": _words(job.spec, job.id),
        "uid": job.spec.uid,
    }


_MOST_WORDS = 400  # characters of those that a search looks into


def _words(spec: JobSpec, id: JobId) -> str:
    """A job's label, name, parameters and command, as a search compares them."""
    label = f"{spec.array.array}_{spec.array.index}" if spec.array else str(id)
    values = (f"{name}={value}" for name, value in params(spec))
    return " ".join((label, spec.name, *values, *spec.argv))[:_MOST_WORDS].casefold()


def decision_row(decision: Decision) -> Row:
    return {
        "at": decision.at,
        "job": decision.placement.job,
        "policy": decision.policy,
        "body": encode(decision),
    }


def moves(step: Step, states: dict[JobId, str]) -> Iterator[Row]:
    """A row for each change of state in all versions of all jobs. Updates `states`."""
    for job in step.jobs:
        before, after = states.get(job.id), job.state.value
        if before != after:
            yield {"job": job.id, "before": before, "after": after, "attempt": job.attempt}
        states[job.id] = after


def notice_rows(step: Step) -> Iterator[Row]:
    """What the owners of the step's jobs have asked to be told of."""
    if not any(job.spec.notify or job.idle for job in step.jobs):
        return
    for each in happenings(step):
        if each.job and (asked := notices(each)):
            job = each.job
            # Of a single job, one message says all; of an array, its end and failures are apart.
            for what in asked if job.spec.array else asked[-1:]:
                yield {
                    "job": job.id,
                    "uid": job.spec.uid,
                    "at": each.at,
                    "what": what,
                    "words": words(each, {}),
                }


# -- jobs by 0.1.0, in databases and journals: the last attempt's fields were the job's own; of
# earlier ones, only crashes and the total run time were recorded; stage times were called stages

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
    job = rename_fields(job) | {"spec": rename_fields(job["spec"])}
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
        if after in _WAITING and before not in (*_WAITING, *_HOLDING, None):
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
    if after in _WAITING:
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
