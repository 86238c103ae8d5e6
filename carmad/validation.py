"""Checks a plugin's answer against its declared type, with all of its parts, as no type checker may
have run on it; and that it is small enough to be stored and shown.
"""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any, TypeGuard

from pydantic import ConfigDict, TypeAdapter, ValidationError

from carmad.core.jobs.findings import Estimate, Prediction, Refusal
from carmad.core.jobs.job import Retry
from carmad.core.placing.decision import AskAgain, Placement, Preemption, Remember

# A traced script may forge an estimate.
MOST_LETTERS = 4096
MOST_NOTES = 64  # and parts
MOST_OTHERS = 16
MOST_MIB = 1 << 40
MOST_S = 1e9


def is_proposal(answer: object) -> bool:
    if isinstance(answer, Remember):
        return True  # it is returned only to the policy itself
    if isinstance(answer, AskAgain):
        return _conforms(answer, AskAgain) and isfinite(answer.at)
    if isinstance(answer, Preemption):
        return _conforms(answer, Preemption)
    return is_placement(answer)


def is_placement(answer: object) -> bool:
    if not isinstance(answer, Placement) or not _conforms(answer, Placement):
        return False
    return answer.profiling is None or isfinite(answer.profiling.until)


def is_retry(answer: object) -> bool:
    return _conforms(answer, Retry)


def is_prediction(answer: object) -> TypeGuard[Prediction]:
    return (
        isinstance(answer, Prediction)
        and _conforms(answer, Prediction)
        and 0 <= answer.seconds <= MOST_S  # nan is not
        and (answer.at_most_s is None or 0 <= answer.at_most_s <= MOST_S)
        and _are_few(answer.notes, answer.parts)
    )


def is_answer(answer: object) -> bool:
    """An estimator's: an Estimate with low ≤ mib ≤ high, or a Refusal."""
    if isinstance(answer, Refusal):
        return _conforms(answer, Refusal) and 0 <= answer.seconds <= MOST_S
    return isinstance(answer, Estimate) and _conforms(answer, Estimate) and _is_estimate(answer)


def _is_estimate(answer: Estimate) -> bool:
    return (
        answer.mib > 0
        and -MOST_MIB <= (answer.low or 0) <= answer.mib <= answer.safe_mib <= MOST_MIB
        and 0 <= answer.seconds <= MOST_S
        and 0 <= answer.batch_mib <= answer.mib
        and 0 <= (answer.traced_mib or 0) <= MOST_MIB
        and _are_few(answer.notes, answer.parts, answer.phases)
        and len(answer.others) <= MOST_OTHERS
        and all(map(_is_estimate, answer.others))
    )


def _are_few(notes: tuple[str, ...], *parts: tuple[tuple[str, float], ...]) -> bool:
    values = [value for some in parts for _, value in some]
    return max(len(notes), *map(len, parts)) <= MOST_NOTES and all(
        -MOST_MIB <= value <= MOST_MIB for value in values
    )


def _conforms(answer: object, kind: Any) -> bool:
    try:
        _adapter(kind).validate_python((answer,))
    except ValidationError:
        return False
    return True


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """It takes instances only, and looks into them."""
    strict = ConfigDict(strict=True, revalidate_instances="always", str_max_length=MOST_LETTERS)
    return TypeAdapter(tuple[kind], config=strict)
