"""Jobs and decisions as JSON text, derived from their dataclasses by pydantic.

Old rows stay readable as long as a new field has a default; fields since removed are skipped.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, TypeAdapter
from pydantic_core import from_json, to_json

from carmad.core.decision import Decision
from carmad.core.messages import Drain
from carmad.core.types import GpuSample, Job
from carmad.models import Model

_JOB = TypeAdapter(Job)
_DECISION = TypeAdapter(Decision)
_DRAIN = TypeAdapter(Drain)
_SAMPLE = TypeAdapter(GpuSample)
_MODEL: TypeAdapter[Model] = TypeAdapter(Annotated[Model, Discriminator("kind")])


# pydantic_core.to_json and not TypeAdapter.dump_json, which turns an infinite rank into null.


def encode_job(job: Job) -> str:
    return to_json(job).decode()


def decode_job(text: str) -> Job:
    return _JOB.validate_json(text)


def encode_decision(decision: Decision) -> str:
    return to_json(decision).decode()


def decode_decision(text: str) -> Decision:
    return _DECISION.validate_python(upgraded_decision(from_json(text)))


def upgraded_decision(told: Any) -> Any:
    """With `explanation`, which was called `grounds` in 0.1.0."""
    placement = told.get("placement") if isinstance(told, dict) else None
    if isinstance(placement, dict) and "grounds" in placement:
        placement["explanation"] = placement.pop("grounds")
    return told


def drain_of(row: dict[str, Any]) -> Drain:
    """A table's row. Raises ValueError, as all that decodes here."""
    return _DRAIN.validate_python(row)


def sample_of(row: dict[str, Any]) -> GpuSample:
    return _SAMPLE.validate_python(row)


def encode_model(model: Model) -> str:
    return to_json(model).decode()


def decode_model(text: str) -> Model:
    """Raises ValueError where it is none."""
    return _MODEL.validate_json(text)
