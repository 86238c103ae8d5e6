"""Memory estimates: for a job that is not submitted, and how accurate they have been here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from threading import Event

from fastapi import APIRouter, Request
from starlette.responses import Response

from carmad import registry
from carmad.api.calibration import calibrations, contexts
from carmad.api.decisions import reason_out, verdicts_out
from carmad.api.requests import EstimateIn
from carmad.api.responses import SCHEMA
from carmad.api.responses.estimates import (
    EstimatesOut,
    EstimatorsOut,
    FitOut,
)
from carmad.core.types import Estimate, JobSpec
from carmad.engine.threads import run_in_threadpool
from carmad.http import intake
from carmad.http.answers import PROBLEMS, Asked, Call, answer, gone
from carmad.http.estimated import estimates_out
from carmad.learned.estimates import Guess, patient
from estimators.tracer.report import Explanation

router = APIRouter(prefix="/v1", responses=PROBLEMS, default_response_class=Response)


@router.post("/estimate", responses={200: {"model": EstimatesOut}})
async def estimate(
    request: Request, call: Asked, body: EstimateIn, explain: bool = False
) -> Response:
    """All estimates for a job that is not submitted, and which GPUs would take it now.

    `explain`: also what the traced memory is for, when, and what would lower it.

    `chosen` is the estimate that would be used to place the job; `fits` uses the upper end of its
    interval."""
    spec = await intake.checked(call.service, call.peer, body)
    guesses, explained = await _estimated(request, call, spec, body.within_s, explain)
    chosen = next((guess.answer for guess in guesses if guess.chosen), None)
    need = chosen if isinstance(chosen, Estimate) else None
    now = call.service.now()
    placement, _ = await call.service.ask(
        lambda core: intake.judged(core, intake.tried(core, spec, need, now), core.snapshot(now))
    )
    scene = await call.service.scene()
    fits: list[FitOut] = [
        {
            "gpu": gpu.gpu.index,
            "free_mib": max(0, gpu.free_mib),
            "fits": None if need is None else need.safe_mib <= gpu.free_mib,
        }
        for gpu in scene.view.gpus
    ]
    reasons = [reason_out(reason, scene) for reason in placement.reasons]
    out = estimates_out(guesses, explained, fits, verdicts_out(placement, scene), reasons)
    return answer(out)


async def _estimated(
    request: Request, call: Call, spec: JobSpec, within_s: float | None, explain: bool
) -> tuple[Sequence[Guess], Explanation | None]:
    """Given up when the client has gone."""
    service, abandoned = call.service, Event()
    server = service.experience.server(explain, abandoned)
    usual_s = patient(service.settings).estimation.within_s
    watching = asyncio.ensure_future(gone(request))
    watching.add_done_callback(lambda _: abandoned.set())
    try:
        async with contextlib.AsyncExitStack() as held:
            await held.enter_async_context(call.turn.rest())
            await held.enter_async_context(service.turns[spec.uid])
            if within_s is not None and within_s > usual_s:
                await held.enter_async_context(service.lengthy)
            await held.enter_async_context(service.estimating)
            return await run_in_threadpool(service.estimate, spec, within_s, server)
    finally:
        watching.cancel()


@router.get("/estimators", responses={200: {"model": EstimatorsOut}})
async def estimators(call: Asked) -> Response:
    """Every estimator's accuracy on the measured peaks of recent successful jobs."""
    service = call.service

    def render() -> Response:
        by_user = {uid: service.experience.runs(uid) for uid in service.experience.users()}
        runs = [run for runs in by_user.values() for run in runs]
        names = [name for name in registry.names("estimators") if name != "auto"]
        out: EstimatorsOut = {
            "schema": SCHEMA,
            "estimator": service.settings.estimator,
            "jobs": len(runs),
            "estimators": calibrations(names, runs),
            "contexts": contexts(by_user, call.peer.uid),
        }
        return answer(out)

    return await run_in_threadpool(render)
