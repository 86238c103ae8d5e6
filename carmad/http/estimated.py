"""The API's form of what estimators say about a job that is not submitted."""

from __future__ import annotations

from collections.abc import Sequence

from carmad.api.responses import SCHEMA
from carmad.api.responses.decisions import ReasonOut, VerdictOut
from carmad.api.responses.estimates import (
    EstimateOut,
    EstimatesOut,
    ExplanationOut,
    FitOut,
    HeldOut,
)
from carmad.core.types import Estimate
from carmad.learned.estimates import Guess
from estimators.tracer.report import PARTS, Explanation, Held


def estimates_out(
    guesses: Sequence[Guess],
    explained: Explanation | None,
    fits: Sequence[FitOut] = (),
    verdicts: Sequence[VerdictOut] = (),
    reasons: Sequence[ReasonOut] = (),
) -> EstimatesOut:
    return {
        "schema": SCHEMA,
        "crash": next((guess.answer.crash for guess in guesses if guess.answer.crash), None),
        "estimates": [guess_out(guess) for guess in guesses],
        "fits": list(fits),
        "verdicts": list(verdicts),
        "reasons": list(reasons),
        "explanation": explanation_out(explained) if explained else None,
    }


def guess_out(guess: Guess) -> EstimateOut:
    said = guess.answer
    found = said if isinstance(said, Estimate) else None
    return {
        "source": guess.source,
        "mib": found.mib if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "seconds": round(guess.seconds, 4),
        "chosen": guess.chosen,
        "why": None if isinstance(said, Estimate) else said.why,
        "notes": list(found.notes) if found else [],
        "parts": dict(found.parts) if found else {},
    }


def explanation_out(found: Explanation) -> ExplanationOut:
    def held(ones: Sequence[Held]) -> list[HeldOut]:
        return [
            {"name": one.name, "kind": one.kind, "count": one.count, "mib": one.nbytes >> 20}
            for one in ones
        ]

    return {
        "modules": held(found.modules),
        "lines": held(found.lines),
        "remedies": [
            {"what": one.what, "saved_mib": one.saved >> 20, "exact": one.exact}
            for one in found.remedies
        ],
        "moments": [
            {
                "in_use": {
                    part: nbytes >> 20
                    for part, nbytes in zip(PARTS, one.in_use, strict=True)
                    if part != "cached"
                },
                "held_mib": one.reserved >> 20,
                "mark": one.mark,
            }
            for one in found.moments
        ],
    }
