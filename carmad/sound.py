"""Is a plugin's answer what its type says, to the bottom? Nobody ran a type checker on it."""

from __future__ import annotations

from carmad.core.decision import AskAgain, Placement, Preemption, Reason, Verdict
from carmad.core.types import Estimate, Retry


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


def is_estimate(answer: object) -> bool:
    return (
        isinstance(answer, Estimate)
        and isinstance(answer.mib, int)
        and isinstance(answer.source, str)
        and isinstance(answer.low, int | None)
        and isinstance(answer.high, int | None)
        and isinstance(answer.firm, bool)
    )


def _are_gpus(gpus: object) -> bool:
    return isinstance(gpus, tuple) and all(isinstance(gpu, str) for gpu in gpus)


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
