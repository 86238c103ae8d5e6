"""Checks a plugin's answer against its type, recursively, as no type checker may have run on it.

By hand, because a strict pydantic `TypeAdapter` takes longer (docs/decisions/0040).
"""

from __future__ import annotations

from math import isfinite
from types import UnionType
from typing import TypeGuard

from carmad.core.jobs.attempt import ProfilingRun
from carmad.core.jobs.findings import Estimate, Prediction, Refusal
from carmad.core.jobs.job import Retry
from carmad.core.placing.decision import (
    AskAgain,
    Placement,
    Preemption,
    Reason,
    Remember,
    Verdict,
)

# Limits for storing and showing answers. A traced script may forge one.
MOST_LETTERS = 4096
MOST_NOTES = 64
MOST_PARTS = 64
MOST_OTHERS = 16
MOST_MIB = 1 << 40
MOST_S = 1e9


def is_proposal(answer: object) -> bool:
    if isinstance(answer, Remember):
        return True  # it is returned only to the policy itself
    if isinstance(answer, AskAgain):
        return isinstance(answer.at, float | int) and isfinite(answer.at)
    if isinstance(answer, Preemption):
        return isinstance(answer.job, int) and _are_reasons((answer.reason,))
    return is_placement(answer)


def is_placement(answer: object) -> bool:
    return (
        isinstance(answer, Placement)
        and isinstance(answer.job, int)
        and _are_gpus(answer.gpus)
        and isinstance(answer.verdicts, tuple)
        and all(map(_is_verdict, answer.verdicts))
        and _are_reasons(answer.reasons)
        and _are_reasons(answer.explanation)
        and isinstance(answer.accumulation, int)
        and (answer.profiling is None or _is_profiling(answer.profiling))
    )


def _is_profiling(run: object) -> bool:
    return (
        isinstance(run, ProfilingRun)
        and isinstance(run.until, float | int)
        and isfinite(run.until)
        and isinstance(run.evict, bool)
    )


def is_retry(answer: object) -> bool:
    return (
        isinstance(answer, Retry)
        and isinstance(answer.why, str)
        and isinstance(answer.exclusive, bool)
        and _are_gpus(answer.avoid)
        and isinstance(answer.margin_mib, int)
    )


def is_prediction(answer: object) -> TypeGuard[Prediction]:
    return (
        isinstance(answer, Prediction)
        and _is_time(answer.seconds)
        and _are_words((answer.source,))
        and _are_parts(answer.parts, float | int)
        and _are_notes(answer.notes)
        and (answer.at_most_s is None or _is_time(answer.at_most_s))
    )


def is_answer(answer: object) -> bool:
    """An estimator's: an Estimate with low ≤ mib ≤ high, or a Refusal."""
    if isinstance(answer, Refusal):
        return _are_words((answer.why, answer.source, answer.crash)) and _is_time(answer.seconds)
    return _is_estimate(answer)


def _is_estimate(answer: object) -> bool:
    return (
        isinstance(answer, Estimate)
        and isinstance(answer.mib, int)
        and answer.mib > 0
        and _are_words((answer.source, answer.stack, answer.shape, answer.crash))
        and isinstance(answer.low, int | None)
        and isinstance(answer.high, int | None)
        and -MOST_MIB <= (answer.low or 0) <= answer.mib <= answer.safe_mib <= MOST_MIB
        and isinstance(answer.firm, bool)
        and _is_time(answer.seconds)
        and isinstance(answer.batch_mib, int)
        and 0 <= answer.batch_mib <= answer.mib
        and isinstance(answer.traced_mib, int | None)
        and 0 <= (answer.traced_mib or 0) <= MOST_MIB
        and _are_notes(answer.notes)
        and _are_parts(answer.parts, int)
        and _are_parts(answer.phases, int)
        and isinstance(answer.others, tuple)
        and len(answer.others) <= MOST_OTHERS
        and all(map(_is_estimate, answer.others))
    )


def _are_notes(notes: object) -> bool:
    return isinstance(notes, tuple) and len(notes) <= MOST_NOTES and _are_words(notes)


def _are_parts(parts: object, number: type[float] | UnionType) -> bool:
    return (
        isinstance(parts, tuple)
        and len(parts) <= MOST_PARTS
        and all(
            isinstance(part, tuple)
            and len(part) == 2
            and _are_words(part[:1])
            and isinstance(part[1], number)
            and -MOST_MIB <= float(part[1]) <= MOST_MIB
            for part in parts
        )
    )


def _is_time(seconds: object) -> bool:
    return isinstance(seconds, float | int) and 0 <= seconds <= MOST_S  # nan is not


def _are_words(words: tuple[object, ...]) -> bool:
    return all(
        isinstance(word, str) and len(word) <= MOST_LETTERS and _is_utf8(word) for word in words
    )


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _are_strings(words: tuple[object, ...]) -> bool:
    return all(isinstance(word, str) for word in words)


def _are_gpus(gpus: object) -> bool:
    return isinstance(gpus, tuple) and _are_strings(gpus)


def _is_verdict(verdict: object) -> bool:
    return (
        isinstance(verdict, Verdict)
        and isinstance(verdict.gpu, str)
        and isinstance(verdict.rank, float | int | None)
        and _are_reasons(verdict.refused)
    )


def _are_reasons(reasons: object) -> bool:
    return isinstance(reasons, tuple) and all(
        isinstance(reason, Reason)
        and isinstance(reason.code, str)
        and isinstance(reason.need, float | int)
        and isinstance(reason.have, float | int)
        and isinstance(reason.unit, str)
        and isinstance(reason.detail, str)
        for reason in reasons
    )
