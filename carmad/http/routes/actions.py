"""Cancelling, holding, releasing and running again: one selection of jobs, one transaction."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import Response

from carmad.api.render import label
from carmad.api.requests import SelectIn
from carmad.api.responses import SCHEMA, ResultOut, ResultsOut
from carmad.api.select import Selection, parse_selection
from carmad.core.messages import CancelRequested, Event, HoldRequested, RequeueRequested
from carmad.core.types import Job, JobId, JobState
from carmad.errors import CarmaError
from carmad.http import lookup
from carmad.http.answers import PROBLEMS, Asked, Call, answer, not_yours
from carmad.http.intake import require_room
from carmad.http.problems import Forbidden, NotFound
from carmad.store.sql import StoreFull

router = APIRouter(
    prefix="/v1",
    responses=PROBLEMS | {200: {"model": ResultsOut}},
    default_response_class=Response,
)

# What is to happen (None: nothing has to) and the word for it; or the word against it.
Outcome = tuple[Event | None, str] | str
Act = Callable[[Job, float, str], Outcome]


@router.post("/cancel")
async def cancel(call: Asked, body: SelectIn) -> Response:
    return await _act(call, body, _cancelled)


@router.post("/hold")
async def hold(call: Asked, body: SelectIn) -> Response:
    return await _act(call, body, _held)


@router.post("/release")
async def release(call: Asked, body: SelectIn) -> Response:
    return await _act(call, body, _released)


@router.post("/requeue")
async def requeue(call: Asked, body: SelectIn) -> Response:
    if parse_selection(body.select).all:
        raise CarmaError("`all` would run every past job again", "Name the jobs.")
    return await _act(call, body, _requeued)


def _cancelled(job: Job, now: float, by: str) -> Outcome:
    if job.ended:
        return f"has already ended: {_words(job.state)}"
    if job.state is JobState.STOPPING:
        return None, "is being stopped already"
    done = "is being stopped" if job.holds_gpus else "cancelled"
    return CancelRequested(now, job.id, by), done


def _held(job: Job, now: float, by: str) -> Outcome:
    return _hold(job, True, "held", HoldRequested(now, job.id, True, by))


def _released(job: Job, now: float, by: str) -> Outcome:
    return _hold(job, False, "released", HoldRequested(now, job.id, False, by))


def _hold(job: Job, held: bool, word: str, event: Event) -> Outcome:
    if job.ended:
        return f"has already ended: {_words(job.state)}"
    if job.holds_gpus:
        return f"is {_words(job.state)}: only a job that waits can be {word}"
    if job.held == held:
        return None, "was held already" if held else "was not held"
    return event, word


def _requeued(job: Job, now: float, by: str) -> Outcome:
    if not job.ended:
        return f"has not ended: it is {_words(job.state)}"
    return RequeueRequested(now, job, by), "queued again"


async def _act(call: Call, body: SelectIn, act: Act) -> Response:
    selection = parse_selection(body.select)
    jobs = await _chosen(call, selection, body.user)
    now, by = call.service.now(), call.peer.user
    events: list[Event] = []
    results: list[ResultOut] = []
    for job in jobs:
        outcome = act(job, now, by) if call.may_touch(job) else f"is {job.spec.user}'s, not yours"
        if isinstance(outcome, str):
            results.append(_result(job, False, outcome))
            continue
        event, word = outcome
        if event is not None:
            events.append(event)
        results.append(_result(job, True, word))
    found = {job.id for job in jobs}
    results += [
        {"id": id, "label": str(id), "ok": False, "message": "there is no such job"}
        for id in sorted(selection.ids - found)
    ]
    if again := [event.job.spec for event in events if isinstance(event, RequeueRequested)]:
        await require_room(call.service, call.peer, again)
    # A full disk does not keep a job from being stopped: that is not to fail with the rest.
    holding = {job.id for job in jobs if job.holds_gpus}
    stops, rest = _parted(events, holding)
    if stops:
        await call.service.request(*stops)
    if rest:
        try:
            await call.service.request(*rest)
        except StoreFull as error:
            if not stops:
                raise
            failed = {event.job for event in rest if isinstance(event, CancelRequested)}
            results = [
                {**each, "ok": False, "message": error.message} if each["id"] in failed else each
                for each in results
            ]
    out: ResultsOut = {"schema": SCHEMA, "results": results}
    return answer(out)


def _parted(events: list[Event], holding: set[JobId]) -> tuple[list[Event], list[Event]]:
    """The cancels of jobs that hold GPUs, and all else."""
    stops: list[Event] = []
    rest: list[Event] = []
    for event in events:
        stop = isinstance(event, CancelRequested) and event.job in holding
        (stops if stop else rest).append(event)
    return stops, rest


async def _chosen(call: Call, selection: Selection, user: str | None) -> list[Job]:
    """Those that exist; if none is the caller's to touch, that is an error."""
    if user not in (None, call.peer.user) and not call.peer.admin:
        raise Forbidden("only administrators may touch the jobs of others", "Leave the user out.")
    scene = await call.service.scene()
    jobs = await lookup.select(call, selection, scene, ended=True)
    if user is not None:
        if selection.all:
            jobs = [*jobs, *(job for job in scene.live.values() if job.spec.user == user)]
        jobs = [job for job in {job.id: job for job in jobs}.values() if job.spec.user == user]
    if not jobs:
        raise NotFound("no job is selected", "See `carma queue` and `carma history`.")
    if not any(call.may_touch(job) for job in jobs):
        raise not_yours(jobs[0])
    return jobs


def _result(job: Job, ok: bool, message: str) -> ResultOut:
    return {"id": job.id, "label": label(job), "ok": ok, "message": message}


def _words(state: JobState) -> str:
    return state.value.replace("_", " ")
