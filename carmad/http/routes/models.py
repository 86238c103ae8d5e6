"""The models that policies and predictors use, and the past jobs that they learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from carmad.api.models import detail_out, model_out
from carmad.api.responses import SCHEMA
from carmad.api.responses.models import ModelDetailOut, ModelsOut, PastOut, TrainingOut
from carmad.api.times import iso, parse_time
from carmad.core.types import ENDED
from carmad.engine.threads import run_in_threadpool
from carmad.http.answers import PROBLEMS, Asked, Call, answer
from carmad.http.problems import Conflict, NotFound
from carmad.http.routes.jobs import Before, Limit, Moment, ended
from carmad.learned.models import lacking, shipped
from carmad.models import Model
from carmad.store.table import row

router = APIRouter(prefix="/v1", responses=PROBLEMS, default_response_class=Response)

Name = Annotated[str, Path(description="of the model", max_length=128)]


@router.get("/models", responses={200: {"model": ModelsOut}})
async def models(call: Asked) -> Response:
    """The models that came with CARMA, and those trained here, which take precedence."""
    found = await _models(call)
    training = await run_in_threadpool(_training, call)
    out: ModelsOut = {
        "schema": SCHEMA,
        "models": [model_out(name, model) for name, model in sorted(found.items())],
        "training": training,
    }
    return answer(out)


@router.get("/models/{name}", responses={200: {"model": ModelDetailOut}})
async def model(call: Asked, name: Name) -> Response:
    """One model, with everything needed to draw it."""
    found = (await _models(call)).get(name)
    if found is None:
        raise NotFound(f"there is no model {name!r:.80}", "See `carma models`.")
    return answer(detail_out(name, found, call.peer.admin))


@router.post("/models/train", status_code=202, responses={202: {"model": TrainingOut}})
async def train(call: Asked) -> Response:
    """Start training models on this server's past jobs. It takes minutes."""
    call.require_admin("train models")
    if call.service.models.under_way:
        raise Conflict("models are already being trained", "See `carma models`.")
    call.service.models.begin()
    return answer(await run_in_threadpool(_training, call), 202)


@router.get("/past", responses={200: {"model": PastOut}})
async def past(
    call: Asked,
    user: Annotated[str | None, Query(max_length=256)] = None,
    since: Moment = None,
    until: Moment = None,
    limit: Limit = 100,
    before: Before = None,
) -> Response:
    """Jobs that have ended, latest first, as the table that models are trained on: the caller's
    own, or for administrators everyone's. `before`: only those with a smaller id."""
    since_at, until_at = parse_time(since), parse_time(until)
    async with call.service.listings:
        found = await ended(call, user, since_at, until_at, ENDED, limit, before)

        def render() -> Response:
            out: PastOut = {"schema": SCHEMA, "rows": [dict(row(job)) for job in found]}
            return answer(out)

        return await run_in_threadpool(render)


async def _models(call: Call) -> Mapping[str, Model]:
    trained = await call.service.ask(lambda core: dict(core.knowledge.models))
    return {**await run_in_threadpool(shipped), **trained}


def _training(call: Call) -> TrainingOut:
    models = call.service.models
    return {
        "every_days": call.service.settings.models.retrain_days,
        "lacking": lacking(),
        "under_way": models.under_way,
        "last_at": iso(models.trained_at),
        "last_words": list(models.last_words) if call.peer.admin else [],
    }
