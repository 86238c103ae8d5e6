"""Memory estimates: for a job that is not submitted, and how accurate they have been here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from statistics import median
from threading import Event

from fastapi import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad import registry
from carmad.api.call import Call, Caller, answer, resource
from carmad.api.guesses import EstimateIn, EstimatesOut, FitOut, estimates_out
from carmad.api.intake import read, rehearse
from carmad.api.reasons import reason_out, too_large, verdicts_out
from carmad.api.refusals import refuse
from carmad.api.wire import SCHEMA
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.spec import JobSpec, Owner
from carmad.core.ports import Learns, Run
from carmad.estimates.asking import Guess, patient
from carmad.explanation import ContextOut, ExplanationOut
from carmad.threads import run_in_threadpool

log = logging.getLogger(__name__)

router = resource()


class CalibrationOut(TypedDict):
    """Errors are those of `mib` against the measured peak; the bias is their median."""

    name: str
    jobs: int
    bias_mib: float | None  # above 0: it says too much
    p50_mib: int | None
    p95_mib: int | None
    early_p50_mib: int | None  # of the older half of the jobs
    recent_p50_mib: int | None  # of the newer half
    untaught_p50_mib: int | None  # without what similar jobs have taught
    under: float | None  # share of jobs that used more than `high`


class EstimatorsOut(TypedDict):
    schema: int
    estimator: str  # the one in use
    jobs: int
    estimators: list[CalibrationOut]
    contexts: list[ContextOut]


@router.post("/estimate", responses={200: {"model": EstimatesOut}})
async def estimate(
    request: Request, call: Caller, body: EstimateIn, explain: bool = False
) -> Response:
    """All estimates for a job that is not submitted, and which GPUs would take it now.

    `explain`: also what the traced memory is for, when, and what would lower it.

    `chosen` is the estimate that would be used to place the job; `fits` uses the upper end of its
    interval."""
    asked = await read(call, body)
    refuse(call, asked)
    spec = asked.spec
    guesses, explained = await _ask_estimators(request, call, spec, body.within_s, explain)
    chosen = next((guess.answer for guess in guesses if guess.chosen), None)
    need = chosen if isinstance(chosen, Estimate) else None
    _, scene, placement, _ = await rehearse(call.service, spec, need)
    fits: list[FitOut] = [
        {
            "gpu": gpu.gpu.index,
            "free_mib": max(0, gpu.free_mib),
            "fits": None if need is None else need.safe_mib <= gpu.free_mib,
        }
        for gpu in scene.view.gpus
    ]
    reasons = [reason_out(reason, scene) for reason in placement.reasons]
    beyond, verdicts = too_large(need, scene), verdicts_out(placement, scene)
    out = estimates_out(guesses, explained, beyond, fits, verdicts, reasons)
    return answer(out)


async def _ask_estimators(
    request: Request, call: Call, spec: JobSpec, within_s: float | None, explain: bool
) -> tuple[Sequence[Guess], ExplanationOut | None]:
    """Given up when the client has gone."""
    service, abandoned = call.service, Event()
    server = service.experience.server(explain, abandoned)
    usual_s = patient(service.settings).estimation.within_s
    watching = asyncio.ensure_future(_disconnection(request))
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


async def _disconnection(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@router.get("/estimators", responses={200: {"model": EstimatorsOut}})
async def estimators(call: Caller) -> Response:
    """Every estimator's accuracy on the measured peaks of recent successful jobs."""
    service = call.service

    def render() -> Response:
        by_user = {owner: service.experience.runs(owner) for owner in service.experience.users()}
        runs = [run for runs in by_user.values() for run in runs]
        names = [name for name in registry.names("estimators") if name != "auto"]
        server = service.experience.server()
        able = registry.estimators_that(Learns, service.settings, server)
        out: EstimatorsOut = {
            "schema": SCHEMA,
            "estimator": service.settings.estimator,
            "jobs": len(runs),
            "estimators": calibrations(names, runs),
            "contexts": [*_contexts(able, by_user, call.peer.owner)],
        }
        return answer(out)

    return await run_in_threadpool(render)


def calibrations(names: Iterable[str], runs: Iterable[Run]) -> list[CalibrationOut]:
    """Of each estimator in `names`, and of those that only the runs know."""
    past: dict[str, list[tuple[Estimate, int]]] = {name: [] for name in names}
    for run in sorted(runs, key=lambda run: run.ended_at):
        for estimate in _estimates_of(run):
            past.setdefault(estimate.source, []).append((estimate, run.peak_mib))
    return [_calibration(name, pairs) for name, pairs in past.items()]


def _calibration(name: str, past: Sequence[tuple[Estimate, int]]) -> CalibrationOut:
    """`past`: the newest last."""
    errors = [estimate.mib - peak for estimate, peak in past]
    half = len(errors) // 2
    untaught = [
        (one.mib if one.traced_mib is None else one.traced_mib) - peak for one, peak in past
    ]
    under = sum(peak > estimate.safe_mib for estimate, peak in past)
    return {
        "name": name,
        "jobs": len(past),
        "bias_mib": median(errors) if errors else None,
        "p50_mib": _percentile(errors, 0.50),
        "p95_mib": _percentile(errors, 0.95),
        "early_p50_mib": _percentile(errors[:half], 0.50),
        "recent_p50_mib": _percentile(errors[half:], 0.50),
        "untaught_p50_mib": _percentile(untaught, 0.50),
        "under": round(under / len(past), 4) if past else None,
    }


def _contexts(
    able: Iterable[Learns], runs: Mapping[Owner, Sequence[Run]], owner: Owner
) -> Iterator[ContextOut]:
    for each in able:
        try:
            yield from each.contexts(runs, owner)
        except Exception:  # foreign code
            log.exception("%s cannot tell what it has learned", type(each).__name__)


def _estimates_of(run: Run) -> Iterator[Estimate]:
    """What was said about it: the estimate that it was placed by, and the others'."""
    if run.estimate is not None:
        yield from {each.source: each for each in (*run.estimate.others, run.estimate)}.values()


def _percentile(errors: Sequence[int], share: float) -> int | None:
    """The quantile `share` of the errors' absolute values."""
    sizes = sorted(map(abs, errors))
    return sizes[ceil(share * len(sizes)) - 1] if sizes else None
