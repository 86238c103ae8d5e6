"""Estimates as the API gives them, also where there is no daemon: without its server, which takes
longer to import than all that is needed here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Annotated, Any, NotRequired

from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from carmad.api.reasons import ReasonOut, VerdictOut
from carmad.api.requests import SubmitIn, job_spec
from carmad.api.wire import SCHEMA, Digits, pick
from carmad.config import Settings
from carmad.core.messages import Discovered, Step
from carmad.errors import CarmaError
from carmad.estimates.asking import Guess, ask_all, patient
from carmad.estimates.experience import Experience
from carmad.explanation import ExplanationOut
from carmad.http.connections import Peer, user_of
from carmad.http.invalid import explain_invalid
from carmad.options import MAX_WITHIN_S


def _said(name: str, unless: object = None) -> Callable[[Guess], Any]:
    """Of the answer: an estimate, or why there is none."""
    return lambda guess: getattr(guess.answer, name, unless)


class EstimateOut(TypedDict):
    """One estimator's answer: a number, or `why` it has none."""

    source: str
    mib: Annotated[int | None, _said("mib")]  # per GPU, of the whole process
    low: Annotated[int | None, _said("low")]
    # A GPU with this much free is safe; null: no other than `mib`.
    high: Annotated[int | None, _said("high")]
    seconds: Annotated[float, Digits(4)]
    chosen: bool
    why: Annotated[str | None, _said("why")]
    notes: Annotated[list[str], _said("notes", ())]
    # What it is made of, in MiB; empty if the estimator cannot tell.
    parts: Annotated[dict[str, int], _said("parts", ())]
    # Training, evaluation, …: the most in use in each, in MiB; likewise.
    phases: Annotated[dict[str, int], _said("phases", ())]


class FitOut(TypedDict):
    gpu: int
    free_mib: int
    fits: bool | None


class EstimatesOut(TypedDict):
    schema: int
    crash: str | None  # how the script stops by itself; completes "your script stops …"
    too_large: NotRequired[str | None]  # that no GPU has so much; completes "it …"
    estimates: list[EstimateOut]
    fits: list[FitOut]
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    explanation: ExplanationOut | None  # null: not asked for, or there is no trace


class EstimateIn(SubmitIn):  # type: ignore[misc]  # it is frozen
    """`within_s`: processor time for a script's first two steps, instead of
    `estimation.patient_s`."""

    within_s: Annotated[float, Field(gt=0, le=MAX_WITHIN_S)] | None = None


def estimates_out(
    guesses: Sequence[Guess],
    explained: ExplanationOut | None,
    too_large: str | None = None,
    fits: Sequence[FitOut] = (),
    verdicts: Sequence[VerdictOut] = (),
    reasons: Sequence[ReasonOut] = (),
) -> EstimatesOut:
    return {
        "schema": SCHEMA,
        "crash": next((guess.answer.crash for guess in guesses if guess.answer.crash), None),
        "too_large": too_large,
        "estimates": [pick(EstimateOut, guess) for guess in guesses],
        "fits": list(fits),
        "verdicts": list(verdicts),
        "reasons": list(reasons),
        "explanation": explained,
    }


def estimate_alone(body: dict[str, Any], explain: bool) -> EstimatesOut:
    """The answer of `/v1/estimate` to `body` for a user without a daemon, so without its GPUs and
    earlier jobs. Raises CarmaError."""
    try:
        asked = EstimateIn.model_validate_json(json.dumps(body))
    except ValidationError as error:
        raise CarmaError(explain_invalid(error.errors())) from None
    user, named = user_of(os.getuid())
    me = Peer(os.getuid(), os.getgid(), user, admin=False, named=named)
    spec = job_spec(asked, me)
    settings = patient(Settings(), asked.within_s)
    with closing(Experience(Settings())) as experience:
        experience.on_commit(Step((Discovered(0.0, ()),), (), (), ()))
        return estimates_out(*ask_all(settings, experience.server(explain), spec))
