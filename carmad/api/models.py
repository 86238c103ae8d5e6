"""The models that policies and predictors use, and the past jobs that they learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Before, Call, Caller, Limit, Moment, Word, answer, resource
from carmad.api.jobs import past_search, visible
from carmad.api.wire import SCHEMA, iso, pick
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.states import ENDED
from carmad.http.problems import Conflict
from carmad.learning.files import load_shipped
from carmad.learning.models import Model
from carmad.learning.trained import missing_packages
from carmad.store.values import table_row
from carmad.threads import run_in_threadpool

router = resource()

DIGITS = 6  # significant ones


class ModelOut(TypedDict):
    name: str
    kind: str  # tree, boosted, additive, lookup
    about: str  # what it predicts
    source: str  # what it was trained on
    rows: int
    trained_at: str | None  # null: it came with CARMA
    errors: dict[str, float]  # held-out measures, and what the last model's were since
    importance: dict[str, float]  # of each feature, the greatest first


class TrainingOut(TypedDict):
    """Of models from this server's own past jobs."""

    every_days: float  # 0: only when asked for
    lacking: str  # packages that it needs; empty: none
    under_way: bool
    last_at: str | None
    last_words: list[str]  # of this daemon's last training


class ModelsOut(TypedDict):
    schema: int
    models: list[ModelOut]
    training: TrainingOut


class PastOut(TypedDict):
    """Rows of the table that models are trained on; see `carma history --table`."""

    schema: int
    rows: list[dict[str, Any]]


@router.get("/models", responses={200: {"model": ModelsOut}})
async def models(call: Caller) -> Response:
    """The models that came with CARMA, and those trained here, which take precedence."""
    found = await _models(call)
    training = await run_in_threadpool(_training, call)
    out: ModelsOut = {
        "schema": SCHEMA,
        "models": [model_out(name, model) for name, model in sorted(found.items())],
        "training": training,
    }
    return answer(out)


@router.post("/models/train", status_code=202, responses={202: {"model": TrainingOut}})
async def train(call: Caller) -> Response:
    """Start training models on this server's past jobs. It takes minutes."""
    call.require_admin("train models")
    if call.service.models.under_way:
        raise Conflict("models are already being trained", "See `carma doctor --models`.")
    call.service.models.begin()
    return answer(await run_in_threadpool(_training, call), 202)


@router.get("/past", responses={200: {"model": PastOut}})
async def past(
    call: Caller,
    user: Word = None,
    since: Moment = None,
    until: Moment = None,
    limit: Limit = 100,
    before: Before = None,
) -> Response:
    """Jobs that have ended, latest first, as the table that models are trained on: the caller's
    own, or for administrators everyone's. `before`: only those with a smaller id."""
    before_id = None if before is None else JobId(before)
    search = past_search(call, user, ENDED, since, until, before=before_id)

    def write() -> Response:
        found = visible(call, call.service.store.search(search, limit=limit)[0])
        out: PastOut = {"schema": SCHEMA, "rows": [dict(table_row(job)) for job in found]}
        return answer(out)

    return await call.service.render(write)


async def _models(call: Call) -> Mapping[str, Model]:
    trained = await call.service.ask(lambda core: dict(core.state.models))
    return {**await run_in_threadpool(load_shipped), **trained}


def _training(call: Call) -> TrainingOut:
    models = call.service.models
    return {
        "every_days": call.service.settings.models.retrain_days,
        "lacking": missing_packages(),
        "under_way": models.under_way,
        "last_at": iso(models.last_training_at),
        "last_words": list(models.last_words) if call.peer.admin else [],
    }


def model_out(name: str, model: Model) -> ModelOut:
    return pick(
        ModelOut,
        model,
        name=name,
        trained_at=iso(model.trained_at or None),
        errors={what: _short(error) for what, error in model.errors},
        importance={feature: _short(share) for feature, share in model.importance()},
    )


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
