"""Is a plugin's answer what its type says, to the bottom? Nobody ran a type checker on it."""

from __future__ import annotations

from carmad.core.decision import AskAgain, Placement, Preemption, Reason, Verdict
from carmad.core.types import Estimate, Refusal, Retry


def is_proposal(answer: object) -> bool:
    if isinstance(answer, AskAgain):
        return isinstance(answer.at, float | int)
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
    )


def is_retry(answer: object) -> bool:
    return (
        isinstance(answer, Retry)
        and isinstance(answer.why, str)
        and isinstance(answer.exclusive, bool)
        and _are_gpus(answer.avoid)
        and isinstance(answer.margin_mib, int)
    )


def is_answer(answer: object) -> bool:
    """An estimator's: an Estimate with low ≤ mib ≤ high, or a Refusal."""
    if isinstance(answer, Refusal):
        words = (answer.why, answer.source)
        return _are_strings(words) and isinstance(answer.seconds, float | int)
    return _is_estimate(answer)


def _is_estimate(answer: object) -> bool:
    return (
        isinstance(answer, Estimate)
        and isinstance(answer.mib, int)
        and answer.mib > 0
        and _are_strings((answer.source, answer.stack))
        and isinstance(answer.low, int | None)
        and isinstance(answer.high, int | None)
        and (answer.low or 0) <= answer.mib <= answer.safe_mib
        and isinstance(answer.firm, bool)
        and isinstance(answer.seconds, float | int)
        and isinstance(answer.notes, tuple)
        and _are_strings(answer.notes)
        and isinstance(answer.parts, tuple)
        and all(
            isinstance(part, tuple)
            and len(part) == 2
            and isinstance(part[0], str)
            and isinstance(part[1], int)
            for part in answer.parts
        )
        and isinstance(answer.others, tuple)
        and all(map(_is_estimate, answer.others))
    )


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
