"""Converts the core's values to rows of the tables, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from carmad.core.decision import Decision
from carmad.core.happenings import happenings, notices, words
from carmad.core.messages import Step
from carmad.core.reservations import Reservation
from carmad.core.types import Job, JobId, JobState
from carmad.store import codec
from carmad.store.damage import expect
from carmad.store.values import Transition

Row = dict[str, Any]


def job_of(row: Any) -> Job:
    return expect(codec.decode_job(row.body), row.id, ended=row.ended_at is not None)


def transition_of(row: Any) -> Transition:
    before = None if row.before is None else JobState(row.before)
    return Transition(row.at, JobId(row.job), before, JobState(row.after), row.attempt)


def reservation_of(row: Any) -> Reservation:
    return codec.decode_reservation(row.body)


def reservation_row(reservation: Reservation) -> Row:
    return {"id": reservation.id, "body": codec.encode_reservation(reservation)}


def job_row(job: Job) -> Row:
    body = codec.encode_job(job)
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
    }


def decision_row(decision: Decision) -> Row:
    return {
        "at": decision.at,
        "job": decision.placement.job,
        "policy": decision.policy,
        "body": codec.encode_decision(decision),
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
    if not any(job.spec.notify for job in step.jobs):
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
