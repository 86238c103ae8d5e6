"""Jobs, decisions and events as JSON text, derived from their dataclasses by pydantic.

Old rows stay readable as long as a new field has a default; fields since removed are skipped.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from carmad.core.decision import Decision
from carmad.core.messages import Event, RequeueRequested, Submitted
from carmad.core.types import Job

_JOB = TypeAdapter(Job)
_DECISION = TypeAdapter(Decision)


# pydantic_core.to_json and not TypeAdapter.dump_json, which turns an infinite rank into null.


def encode_job(job: Job) -> str:
    return to_json(job).decode()


def decode_job(text: str) -> Job:
    return _JOB.validate_json(text)


def encode_decision(decision: Decision) -> str:
    return to_json(decision).decode()


def decode_decision(text: str) -> Decision:
    return _DECISION.validate_json(text)


def encode_event(event: Event) -> str:
    """What happened, without the jobs themselves: those have rows of their own."""
    match event:
        case Submitted(at, first, specs, held):
            body: object = {"at": at, "first": first, "count": len(specs), "held": held}
        case RequeueRequested(at, job, by):
            body = {"at": at, "job": job.id, "by": by}
        case _:
            body = event
    return to_json(body).decode()


def decode_event_body(text: str) -> dict[str, Any]:
    body: dict[str, Any] = from_json(text)
    return body
