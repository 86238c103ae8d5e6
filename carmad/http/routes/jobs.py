"""Submitting and viewing jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from carmad.api.decisions import reason_out, verdicts_out
from carmad.api.folding import count, folded, row_out
from carmad.api.outlook import outlook_out, start_out
from carmad.api.render import CODES, attempts_out
from carmad.api.requests import MetricsIn, StepIn, SubmitIn
from carmad.api.responses import SCHEMA
from carmad.api.responses.decisions import DryRunOut, WhyOut
from carmad.api.responses.jobs import JobOut, JobsOut, StartsOut, SubmittedOut
from carmad.api.select import parse_selection
from carmad.api.times import parse_time, stamp
from carmad.api.why import why_out
from carmad.core import control
from carmad.core.company import untold
from carmad.core.messages import Measured, Stepped
from carmad.core.outlook import FORESEEN
from carmad.core.scene import Scene
from carmad.core.tasks import singly
from carmad.core.types import ENDED, Job, JobId, JobState, StageTimes
from carmad.engine.threads import run_in_threadpool
from carmad.errors import CarmaError
from carmad.http import intake, lookup
from carmad.http.answers import PROBLEMS, Asked, Call, answer, gone, not_yours
from carmad.http.listing import Pieces
from carmad.http.problems import Conflict, Forbidden
from carmad.http.reporting import receipt_of
from carmad.http.turns import ROWS
from carmad.options import MAX_METRICS, MAX_TASKS

router = APIRouter(prefix="/v1", responses=PROBLEMS, default_response_class=Response)

PAST_DECISIONS = 20
MAX_IDS_EVER = 10**15
STATES = {state.value: frozenset({state}) for state in JobState} | {
    code.lower(): frozenset(state for state, its in CODES.items() if its == code)
    for code in CODES.values()
}

Label = Annotated[str, Path(json_schema_extra={"pattern": "^[0-9]{1,15}(_[0-9]{1,7})?$"})]
Select = Annotated[
    str | None,
    Query(max_length=8000, json_schema_extra={"pattern": r"^[0-9a-z_,%\[\]\- ]+$"}),
]
Limit = Annotated[int, Query(ge=1, le=MAX_TASKS)]
Before = Annotated[int | None, Query(ge=1, le=MAX_IDS_EVER)]
Moment = Annotated[str | None, Query(json_schema_extra={"format": "date-time"})]


@router.post(
    "/jobs", status_code=201, responses={201: {"model": SubmittedOut}, 200: {"model": DryRunOut}}
)
async def submit(call: Asked, body: SubmitIn) -> Response:
    """Submit a job. It is on disk when this answers."""
    notes = intake.warnings(body, call.service.now(), call.service.limited_by)
    if body.dry_run:
        return await _dry_run(call, body, notes)
    first, count = await intake.submit(call.service, call.peer, call.pid, body, call.request)
    out: SubmittedOut = {
        "schema": SCHEMA,
        "id": first,
        "ids": list(range(first, first + count)),
        "label": str(first),
        "warnings": notes,
    }
    if body.deadline_at is not None:
        out["outlook"] = await intake.foreseen(call.service, first)
    return answer(out, 201)


async def _dry_run(call: Call, body: SubmitIn, notes: list[str]) -> Response:
    spec = await intake.checked(call.service, call.peer, body)
    scene, placement, starts, outlook = await intake.foretold(call.service, spec)
    out: DryRunOut = {
        "schema": SCHEMA,
        "would_start": starts and not body.held,
        "verdicts": verdicts_out(placement, scene),
        "reasons": [reason_out(reason, scene) for reason in placement.reasons],
        "chosen": [] if body.held else list(placement.gpus),
        "warnings": notes,
    }
    if outlook is not None:
        out["outlook"] = outlook
    return answer(out)


@router.get("/jobs", responses={200: {"model": JobsOut}})
async def jobs(
    call: Asked,
    select: Select = None,
    user: Annotated[str | None, Query(max_length=256)] = None,
    states: Annotated[str | None, Query(max_length=256)] = None,
    since: Moment = None,
    limit: Limit = MAX_TASKS,
    fold: bool = False,
    slurm_job: Annotated[int | None, Query(ge=1, lt=1 << 32)] = None,
) -> Response:
    """The live jobs, unless others are selected. Other users' jobs are shown in outline.

    `fold`: one row for all tasks of an array that wait for the same reason. `slurm_job`: only those
    of the caller's that run in this Slurm job; administrators see everybody's."""
    wanted = parse_states(states)
    since_at = parse_time(since)
    service = call.service
    scene = await service.scene()
    found: Iterable[Job]
    past = since_at is not None or bool(wanted and wanted & ENDED)
    if select is not None:
        async with service.listings:
            found = await lookup.select(call, parse_selection(select), scene)
    elif past:
        async with service.listings:
            old = await ended(call, user, since_at, None, wanted or ENDED, limit)
        # One that has ended since the scene was taken is in both.
        found = {job.id: job for job in (*scene.live.rows.values(), *old)}.values()
    else:
        found = sorted(scene.live.rows.values(), key=lambda job: job.id)

    def write() -> list[bytes]:
        chosen = (
            job
            for job in found
            if (user is None or job.spec.user == user)
            and (wanted is None or job.state in wanted)
            and (slurm_job is None or (job.spec.slurm_job == slurm_job and call.may_touch(job)))
        )
        return _written(call, scene, chosen, limit, fold)

    if select is not None or past:
        return await _listed(call, await service.listed(write))
    asked = "jobs", call.peer, user, states, limit, fold, slurm_job
    return await _listed(call, await service.once(scene, asked, write))


async def _listed(call: Call, pieces: list[bytes]) -> Response:
    """Two or three pieces are a row."""
    await call.turn.afford(len(pieces) / (2 * ROWS))
    return Pieces(pieces)


def _written(call: Call, scene: Scene, found: Iterable[Job], limit: int, fold: bool) -> list[bytes]:
    one = call.renderer(scene)
    rows = folded(found, one) if fold else [[job] for job in singly(found)]
    more = sum(map(count, rows[limit:]))
    listed = call.service.rows.json(rows[:limit], one)
    return [b'{"schema":%d,"more":%d,"jobs":' % (SCHEMA, more), *listed, b"}"]


@router.get("/history", responses={200: {"model": JobsOut}})
async def history(
    call: Asked,
    user: Annotated[str | None, Query(max_length=256)] = None,
    since: Moment = None,
    until: Moment = None,
    states: Annotated[str | None, Query(max_length=256)] = None,
    limit: Limit = 100,
    before: Before = None,
    attempts: bool = False,
) -> Response:
    """Jobs that have ended, latest first: the caller's own, or for administrators everyone's.

    `before`: only those with a smaller id. `attempts`: each with all its attempts."""
    wanted = parse_states(states) or ENDED
    since_at, until_at = parse_time(since), parse_time(until)
    scene = await call.service.scene()
    async with call.service.listings:
        found = await ended(call, user, since_at, until_at, wanted, limit, before)
        older = found[-1:] and await ended(call, user, since_at, until_at, wanted, 1, found[-1].id)
        return await run_in_threadpool(_past, call, scene, found, len(older), attempts)


def _past(call: Call, scene: Scene, found: Sequence[Job], more: int, attempts: bool) -> Response:
    one = call.renderer(scene)
    out: JobsOut = {"schema": SCHEMA, "jobs": [row_out([job], one) for job in found], "more": more}
    if attempts:
        for job, listed in zip(found, out["jobs"], strict=True):
            listed["attempts"] = attempts_out(job)
    return answer(out)


async def ended(
    call: Call,
    user: str | None,
    since: float | None,
    until: float | None,
    states: frozenset[JobState],
    limit: int,
    before: int | None = None,
) -> list[Job]:
    peer = call.peer
    if not peer.admin and user not in (None, peer.user):
        raise Forbidden("only administrators may see other users' past jobs", "Leave the user out.")

    def read() -> list[Job]:
        name = user if peer.admin else peer.user
        asked = states & ENDED
        return call.service.store.history(
            user=name,
            since=since,
            until=until,
            states=asked,
            before=None if before is None else JobId(before),
            limit=limit,
        )

    return [job for job in await run_in_threadpool(read) if call.may_touch(job)]


@router.get("/jobs/{label}", responses={200: {"model": JobOut}})
async def show(call: Asked, label: Label) -> Response:
    """One job, with every change of its state, its past attempts, what can be done to it, and what
    sharing cost it and gave."""
    job, scene = await mine(call, label)
    return await run_in_threadpool(_shown, call, job, scene)


def _shown(call: Call, job: Job, scene: Scene) -> Response:
    out = call.renderer(scene)(job)
    out["outlook"] = outlook_out(job, scene)
    out["receipt"] = receipt_of(job, call.service.store, scene)
    out["attempts"] = attempts_out(job)
    out["actions"], out["changeable"] = list(control.actions(job)), list(control.changeable(job))
    out["history"] = [
        {
            "at": stamp(move.at),
            "before": move.before.value if move.before else None,
            "after": move.after.value,
            "attempt": move.attempt,
        }
        for move in call.service.store.transitions(job.id)
    ]
    return answer(out)


@router.get("/jobs/{label}/why", responses={200: {"model": WhyOut}})
async def why(call: Asked, label: Label) -> Response:
    """Why the job waits, or why it runs where it does."""
    job, scene = await mine(call, label)
    return await run_in_threadpool(_explained, call, job, scene)


def _explained(call: Call, job: Job, scene: Scene) -> Response:
    past = call.service.store.decisions(job.id, PAST_DECISIONS)
    out = why_out(job, scene, past, call.renderer(scene))
    out["job"]["outlook"] = outlook_out(job, scene)
    out["start"] = start_out(job, scene)
    return answer(out)


@router.get("/starts", responses={200: {"model": StartsOut}})
async def starts(
    call: Asked, user: Annotated[str | None, Query(max_length=256)] = None
) -> Response:
    """When waiting jobs are expected to start, in order of the line."""
    scene = await call.service.scene()
    return await call.service.listed(lambda: _foreseen(scene, user))


def _foreseen(scene: Scene, user: str | None) -> Response:
    line = [job for job in scene.line if user in (None, job.spec.user)]
    first = islice(singly(line), FORESEEN)
    shown = [start for job in first if (start := start_out(job, scene))]
    out: StartsOut = {"schema": SCHEMA, "starts": shown, "more": count(line) - len(shown)}
    return answer(out)


@router.post("/jobs/{label}/step", responses={200: {"model": JobOut}})
async def step(call: Asked, label: Label, body: StepIn) -> Response:
    """Report how long a running job's training step and its stages take. `unused` says why that has
    no effect, if it has none."""
    job, scene = await mine(call, label)
    if not job.holds_gpus:
        raise Conflict(f"job {label} is not running", "Only a running job can report its steps.")
    others = _neighbours(job, scene)
    if len(others) > 1 or any(set(job.gpus).difference(other.gpus) for other in others):
        raise Conflict(
            f"job {label} shares some of its GPUs, or shares them with several jobs",
            "It can report its steps while it is alone, or shares all its GPUs with one other job.",
        )
    stages = StageTimes(**body.stages.model_dump()) if body.stages else None
    await call.request(Stepped(call.service.now(), job.id, body.seconds, stages))
    job, scene = await mine(call, str(job.id))
    out: JobOut = {**call.renderer(scene)(job), "unused": _unused(job, scene)}
    return answer(out)


@router.post("/jobs/{label}/metrics", responses={200: {"model": JobOut}})
async def metrics(call: Asked, label: Label, body: MetricsIn) -> Response:
    """Report metrics of a running job. Of each name, the last value is kept."""
    job, _ = await mine(call, label)
    if not job.holds_gpus:
        raise Conflict(f"job {label} is not running", "Only a running job can report its metrics.")
    if len(dict(job.metrics) | body.metrics) > MAX_METRICS:
        raise Conflict(
            f"job {label} would have more than {MAX_METRICS} metrics",
            "Report the same names each time.",
        )
    reported = tuple(body.metrics.items())
    await call.request(Measured(call.service.now(), job.id, reported))
    job, scene = await mine(call, str(job.id))
    return answer(call.renderer(scene)(job))


def _neighbours(job: Job, scene: Scene) -> Sequence[Job]:
    gpus = set(job.gpus)
    return [it for it in scene.view.running if it.id != job.id and gpus.intersection(it.gpus)]


def _unused(job: Job, scene: Scene) -> str:
    """Why a report of the job's steps had no effect; empty if it had one."""
    if not scene.view.node_of.keys() >= set(job.gpus[:1]):
        return "its GPU is no longer there"
    return next(
        (untold(job, other, scene.view.gpu(job.gpus[0]).gpu) for other in _neighbours(job, scene)),
        "",
    )


@router.get("/jobs/{label}/wait", responses={200: {"model": JobOut}})
async def wait(
    request: Request,
    call: Asked,
    label: Label,
    timeout_s: Annotated[float, Query(ge=0, le=300, allow_inf_nan=False)] = 30.0,
    start: bool = False,
) -> Response:
    """The job once it has ended, or in its current state when the timeout has passed. `start`: also
    once it has GPUs."""
    job, scene = await mine(call, label)
    moments = call.service.starts if start else call.service.endings
    come = moments.expect(job.id)
    try:
        if await call.service.ask(lambda core: _is_to_come(core.jobs.get(job.id), start)):
            async with call.turn.rest():
                await _first(request, come, timeout_s)
    finally:
        moments.forget(job.id, come)
    if not call.service.stopping:
        job, scene = await mine(call, str(job.id))
    return answer(call.renderer(scene)(job))


def _is_to_come(job: Job | None, start: bool) -> bool:
    return job is not None and not (start and job.holds_gpus)


async def _first(request: Request, come: asyncio.Event, timeout_s: float) -> None:
    """Wait until the job has come so far, the timeout has passed, or the client has gone."""
    waits = {asyncio.ensure_future(come.wait()), asyncio.ensure_future(gone(request))}
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiting in waits:
            waiting.cancel()


async def mine(call: Call, label: str) -> tuple[Job, Scene]:
    """A job that the caller may touch. Raises Forbidden, NotFound."""
    scene = await call.service.scene()
    job = await lookup.find(call, label, scene)
    if not call.may_touch(job):
        raise not_yours(job)
    return job, scene


def parse_states(text: str | None) -> frozenset[JobState] | None:
    """Parse `running,queued`, or the codes in listings: `R,PD`."""
    if not text:
        return None
    words = text.lower().split(",")
    if unknown := [word for word in words if word not in STATES]:
        names = ", ".join(state.value for state in JobState)
        raise CarmaError(f"{unknown[0]!r:.80} is not a job state", f"Job states: {names}.")
    return frozenset().union(*(STATES[word] for word in words))
