"""Converts jobs and decisions to and from JSON text; pydantic derives it from their dataclasses.

Old rows stay readable as long as new fields have defaults; fields that were removed are ignored.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, TypeAdapter
from pydantic_core import to_json

from carmad.core.decision import Decision
from carmad.core.messages import Drain
from carmad.core.quota import Limit
from carmad.core.reservations import Reservation
from carmad.core.share import Account
from carmad.core.sharing import JobSummary
from carmad.core.types import Job, Profile
from carmad.models import Model

_JOB = TypeAdapter(Job)
# As a union, since pydantic takes no configuration for a bare dataclass.
_JOB_AS_IS = TypeAdapter(Job | None, config=ConfigDict(ser_json_inf_nan="constants"))
_DECISION = TypeAdapter(Decision)
_DRAIN = TypeAdapter(Drain)
_ACCOUNT = TypeAdapter(Account)
_LIMIT = TypeAdapter(Limit)
_RESERVATION = TypeAdapter(Reservation)
_MODEL: TypeAdapter[Model] = TypeAdapter(Annotated[Model, Discriminator("kind")])
_FORMER = (
    (b'"grounds":', b'"explanation":'),
    (b'"code":"outsiders"', b'"code":"external"'),
    (b'"outsider_mib":', b'"external_mib":'),
)


# pydantic_core.to_json and not TypeAdapter.dump_json, which turns an infinite rank into null unless
# it is configured. For jobs it is: that takes less than half the time, and they are written most.


def encode_job(job: Job) -> str:
    return _JOB_AS_IS.dump_json(job).decode()


def decode_job(text: str) -> Job:
    return _JOB.validate_json(text)


@cache  # made when first needed: a daemon may never be
def _ran() -> TypeAdapter[JobSummary]:
    return TypeAdapter(JobSummary)


def decode_ran(text: str) -> JobSummary:
    """Of a job's JSON only what reports need, in a third of the time."""
    return _ran().validate_json(text)


def decode_profile(text: str) -> Profile:
    return _profile().validate_json(text)


@cache
def _profile() -> TypeAdapter[Profile]:
    return TypeAdapter(Profile)


def encode_decision(decision: Decision) -> str:
    return to_json(decision).decode()


def decode_decision(text: str) -> Decision:
    return _DECISION.validate_json(in_current_names(text.encode()))


def in_current_names(text: bytes) -> bytes:
    """JSON of a decision or the journal by 0.1.0, with today's names. Strings cannot match, as
    quotes in them are escaped."""
    for former, name in _FORMER:
        text = text.replace(former, name)
    return text


def drain_of(row: dict[str, Any]) -> Drain:
    """From a table's row. Raises ValueError, as all decoding here."""
    return _DRAIN.validate_python(row)


def encode_account(account: Account) -> str:
    return to_json(account).decode()


def decode_account(text: str) -> Account:
    return _ACCOUNT.validate_json(text)


def encode_limit(limit: Limit) -> str:
    return to_json(limit).decode()


def decode_limit(text: str) -> Limit:
    return _LIMIT.validate_json(text)


def encode_reservation(reservation: Reservation) -> str:
    return to_json(reservation).decode()


def decode_reservation(text: str) -> Reservation:
    return _RESERVATION.validate_json(text)


def encode_model(model: Model) -> str:
    return to_json(model).decode()


def decode_model(text: str) -> Model:
    """Raises ValueError if it is not a model."""
    return _MODEL.validate_json(text)
