"""Converts the core's values to rows and to JSON, and back.

pydantic derives the JSON from the dataclasses. Rows stay readable as long as new fields have
defaults; fields that were removed are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import to_json

from carmad.core.gpus.gpu import Drain
from carmad.core.gpus.sharing import JobSummary
from carmad.core.happenings import happenings, notices, words
from carmad.core.jobs.attempt import JobId
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

# All decoding raises ValueError.
decode_account = TypeAdapter(Account).validate_json
decode_limit = TypeAdapter(Limit).validate_json
decode_reservation = TypeAdapter(Reservation).validate_json
drain_of = TypeAdapter(Drain).validate_python  # from a table's row
decode_decision = TypeAdapter(Decision).validate_json
decode_job = TypeAdapter(Job).validate_json


# pydantic_core.to_json and not TypeAdapter.dump_json, which turns an infinite rank into null unless
# it is configured. For jobs it is: that takes less than half the time, and they are written most.


def encode_job(job: Job) -> str:
    return _JOB_AS_IS.dump_json(job).decode()


def encode(value: Account | Decision | Limit | Model | Reservation) -> str:
    return to_json(value).decode()


def decode_summary(text: str) -> JobSummary:
    """Of a job's JSON only what reports need, in half the time."""
    found: JobSummary = _adapter(JobSummary).validate_json(text)
    return found


_adapter = cache(TypeAdapter)  # made when first needed: a daemon may never be


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
    if not any(job.spec.notify or job.current.idle for job in step.jobs):
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
