"""Checks a plugin's answer against its declared type, with all of its parts, as no type checker may
have run on it; and that it is small enough to be stored and shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from carmad.core.jobs.findings import Estimate, Prediction, Refusal
from carmad.core.placing.decision import AskAgain, Placement, Preemption, Remember

# A traced script may forge an estimate.
MOST_LETTERS = 4096
MOST_NOTES = 64  # and parts
MOST_OTHERS = 16
MOST_MIB = 1 << 40
MOST_S = 1e9


PROPOSAL = (AskAgain, Preemption, Placement, Remember)
ANSWER = (Estimate, Refusal)  # an estimator's: with low ≤ mib ≤ high


def is_valid(answer: Any, *kinds: type) -> bool:
    """Whether it is a valid value of one of these types."""
    kind = next((each for each in kinds if isinstance(answer, each)), None)
    if kind is None or kind is Remember:  # what a policy remembers goes back to it alone
        return kind is not None
    try:
        _adapter(kind).validate_python((answer,))
    except ValidationError:
        return False
    return kind not in _LIMITS or _LIMITS[kind](answer)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """It takes instances only, and looks into them."""
    strict = ConfigDict(strict=True, revalidate_instances="always", str_max_length=MOST_LETTERS)
    return TypeAdapter(tuple[kind], config=strict)


def _is_estimate(answer: Estimate) -> bool:
    return (
        answer.mib > 0
        and -MOST_MIB <= (answer.low or 0) <= answer.mib <= answer.safe_mib <= MOST_MIB
        and _is_time(answer.seconds)
        and 0 <= answer.batch_mib <= answer.mib
        and 0 <= (answer.traced_mib or 0) <= MOST_MIB
        and _are_few(answer.notes, answer.parts, answer.phases)
        and len(answer.others) <= MOST_OTHERS
        and all(map(_is_estimate, answer.others))
    )


def _is_time(seconds: float) -> bool:
    return 0 <= seconds <= MOST_S  # nan is not


def _are_few(notes: tuple[str, ...], *parts: tuple[tuple[str, float], ...]) -> bool:
    values = [value for some in parts for _, value in some]
    return max(len(notes), *map(len, parts)) <= MOST_NOTES and all(
        -MOST_MIB <= value <= MOST_MIB for value in values
    )


_LIMITS: dict[type, Callable[[Any], bool]] = {
    AskAgain: lambda its: isfinite(its.at),
    Placement: lambda its: its.profiling is None or isfinite(its.profiling.until),
    Prediction: lambda its: (
        _is_time(its.seconds) and _is_time(its.at_most_s or 0.0) and _are_few(its.notes, its.parts)
    ),
    Estimate: _is_estimate,
    Refusal: lambda its: _is_time(its.seconds),
}
