"""Listing, showing and following jobs; what a running job reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import (
    MAX_IDS_EVER,
    Before,
    Call,
    Caller,
    Label,
    Limit,
    Moment,
    Select,
    Word,
    answer,
    resolve,
    resource,
)
from carmad.api.job import SLURM, JobOut, Jobs, JobsOut, MoveOut, attempts_out
from carmad.api.outlook import StartsOut, outlook_out, start_out
from carmad.api.reporting import receipt_of
from carmad.api.requests import Body, ParamName, StageTimesIn
from carmad.api.rows import Pieces, Row, row_out
from carmad.api.rows import count as count_jobs
from carmad.api.rows import fold as fold_rows
from carmad.api.why import WhyOut, why_out
from carmad.api.wire import SCHEMA, as_json, parse_selection, parse_states, pick, stamp
from carmad.core.gpus.sharing import label as label_of
from carmad.core.gpus.slowdown import why_no_ratio
from carmad.core.jobs import control
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.control import never
from carmad.core.jobs.findings import StageTimes
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Allocation
from carmad.core.jobs.states import ENDED, JobState
from carmad.core.jobs.tasks import part, singly, split
from carmad.core.messages import Measured, Stepped
from carmad.core.placing.outlook import FORESEEN
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.http.problems import Conflict, Forbidden
from carmad.http.shares import ANSWERED
from carmad.options import MAX_METRICS, MAX_TASKS, MAX_TIME_S
from carmad.store.queries import Order, Search
from carmad.threads import run_in_threadpool

router = resource()
SHORTEST_STEP_S = 1e-6

PAST_DECISIONS = 20
MOST_FOLDED, PART = 5000, 500  # jobs that are read for rows of a folded history; at a time
FAILURES = frozenset({JobState.FAILED, JobState.TIMED_OUT, JobState.OUT_OF_MEMORY})


class StepIn(Body):
    """`stages`: what the seconds of a step go to, on the GPUs that the job has."""

    seconds: Annotated[float, Field(ge=SHORTEST_STEP_S, le=MAX_TIME_S)]
    stages: StageTimesIn | None = None


class MetricsIn(Body):
    """`metrics`: values by name."""

    metrics: Annotated[dict[ParamName, float], Field(min_length=1, max_length=MAX_METRICS)]


class CurveOut(TypedDict):
    times: list[float]  # Unix seconds
    values: list[float]


class MetricsOut(TypedDict):
    schema: int
    id: int
    label: str
    metrics: dict[str, CurveOut]


@router.get("/jobs", responses={200: {"model": JobsOut}})
async def jobs(
    call: Caller,
    select: Select = None,
    user: Word = None,
    states: Word = None,
    since: Moment = None,
    limit: Limit = MAX_TASKS,
    fold: bool = False,
    slurm_job: Annotated[int | None, Query(ge=1, lt=1 << 32)] = None,
) -> Response:
    """The live jobs, unless others are selected. Other users' jobs are shown in outline.

    `fold`: one row for all tasks of an array that wait for the same reason. `slurm_job`: only those
    of the caller's that run in this Slurm job; administrators see everybody's."""
    wanted = parse_states(states)
    of_slurm = Allocation(SLURM, slurm_job) if slurm_job else None
    past = since is not None or bool(wanted and wanted & ENDED)
    service = call.service
    scene = await service.scene()

    def write() -> bytes:
        found: Iterable[Job] = scene.live.rows.values()
        if select is not None:
            found = resolve(service.store, call.peer, parse_selection(select), scene)
        elif past:
            search = past_search(call, user, wanted or ENDED, since)
            old = may_see(call, service.store.search(search, limit=limit)[0])
            # One that has ended since the scene was taken is in both.
            found = {job.id: job for job in (*found, *old)}.values()
        else:
            found = sorted(found, key=lambda job: job.id)
        chosen = (
            job
            for job in found
            if (user is None or job.spec.user == user)
            and (wanted is None or job.state in wanted)
            and (of_slurm is None or (job.spec.allocation == of_slurm and call.may_touch(job)))
        )
        return _write(call.renderer(scene), chosen, limit, fold)

    if select is not None or past:
        text = await service.render(write)
    else:
        reader = None if call.peer.admin else call.peer.owner  # all administrators read the same
        asked = "jobs", reader, user, states, limit, fold, slurm_job
        text = await service.once(scene, asked, write)
    await call.turn.share.pay(len(text) // ANSWERED)
    return Pieces(text)


def _write(one: Jobs, found: Iterable[Job], limit: int, alike: bool) -> bytes:
    """`alike`: one row for all tasks of an array that wait alike."""
    listed: Iterable[JobOut]
    if alike:
        rows = fold_rows(found, one)
        more = sum(map(count_jobs, rows[limit:]))
        listed = (row_out(row, one) for row in rows[:limit])
    else:
        first, more = split(found, limit)
        listed = chain.from_iterable(map(one.of_tasks, first))
    return as_json({"schema": SCHEMA, "more": more, "jobs": listed})


@router.get("/history", responses={200: {"model": JobsOut}})
async def history(
    call: Caller,
    user: Word = None,
    since: Moment = None,
    until: Moment = None,
    states: Word = None,
    limit: Limit = 100,
    before: Before = None,
    attempts: bool = False,
    text: Annotated[str, Query(max_length=256)] = "",
    order: Order = "submitted",
    reverse: bool = False,
    first: Annotated[int, Query(ge=0, le=MAX_IDS_EVER)] = 0,
    count: bool = False,
    fold: bool = False,
) -> Response:
    """Jobs that have ended, latest first: the caller's own, or for administrators everyone's.

    `before`: only those with a smaller id. `attempts`: each with all its attempts. `text`: all its
    words are in the job's id, name, parameters or command. `order`: the largest or latest first,
    unless `reverse`. `first`: so many are passed over. `count`: `more` is their number, not 1.
    `fold`: a row, of which there are `limit` at most, stands for all tasks of an array that ended
    alike: with the first start, the last end, the longest times and the largest memory of one, and
    the energy of all."""
    before_id = None if before is None else JobId(before)
    search = past_search(call, user, parse_states(states) or ENDED, since, until, text, before_id)
    one = call.renderer(await call.service.scene())
    read = partial(call.service.store.search, search, order, reverse, count=count)

    def write() -> Response:
        if fold:
            rows, more = _past_rows(call, one, read, limit, first)
        else:
            found, more = read(first=first, limit=limit)
            rows = [[job] for job in may_see(call, found)]
        return _past(one, rows, more, attempts)

    return await call.service.render(write)


@router.get("/failures", responses={200: {"model": JobsOut}})
async def failures(call: Caller, limit: Limit = 20) -> Response:
    """The jobs that failed last, of everybody: other users' in outline, with their ends."""
    one, store = call.renderer(await call.service.scene()), call.service.store

    def write() -> Response:
        found, more = store.search(Search(states=FAILURES), "ended", limit=limit)
        return _past(one, [[job] for job in found], more)

    return await call.service.render(write)


def _past(one: Jobs, rows: Sequence[Row], more: int, attempts: bool = False) -> Response:
    out: JobsOut = {"schema": SCHEMA, "jobs": [row_out(row, one) for row in rows], "more": more}
    if attempts:
        for row, listed in zip(rows, out["jobs"], strict=True):
            listed["attempts"] = attempts_out(row[0])
    return answer(out)


def may_see(call: Call, jobs: Iterable[Job]) -> list[Job]:
    """Of a search, those that the caller may see: a name may have belonged to another account."""
    return [job for job in jobs if call.may_touch(job)]


def past_search(
    call: Call,
    user: str | None,
    states: frozenset[JobState],
    since: float | None = None,
    until: float | None = None,
    text: str = "",
    before: JobId | None = None,
) -> Search:
    """For jobs that ended in one of `states`: the caller's own, or for administrators everyone's.
    Raises Forbidden."""
    peer = call.peer
    if not peer.admin and user not in (None, peer.user):
        raise Forbidden("only administrators may see other users' past jobs", "Leave the user out.")
    return Search(
        user=user if peer.admin else peer.owner,
        states=states & ENDED,
        since=since,
        until=until,
        text=text,
        before=before,
    )


def _past_rows(
    call: Call, one: Jobs, read: Callable[..., tuple[list[Job], int]], limit: int, first: int
) -> tuple[list[Row], int]:
    """As many rows as `limit` says, if not too many jobs are in them, and how many jobs follow.
    `read`: what finds the jobs."""
    found: list[Job] = []
    rows: list[Row] = []
    more = 1
    while more and len(rows) <= limit and len(found) < MOST_FOLDED:
        part = max(limit, PART) if found else 2 * limit
        others, more = read(first=first + len(found), limit=part)
        found += others
        rows = fold_rows(may_see(call, found), one)
    return rows[:limit], more + sum(map(count_jobs, rows[limit:]))


@router.get("/jobs/{label}", responses={200: {"model": JobOut}})
async def show(call: Caller, label: Label) -> Response:
    """One job, with every change of its state, its past attempts, what can be done to it, and what
    sharing cost it and gave."""
    job, scene = await call.own_job(label)
    return await run_in_threadpool(_details, call, job, scene)


def _details(call: Call, job: Job, scene: Scene) -> Response:
    out = call.renderer(scene)(job)
    out["outlook"] = outlook_out(job, scene)
    out["receipt"] = receipt_of(job, call.service.store, scene)
    out["attempts"] = attempts_out(job)
    refusal = scene.suspension_refusal(job, asked=True)
    out["actions"] = list(control.actions(job, refusal))
    out["changeable"] = list(control.changeable(job))
    if job.lives and job.gpus:
        out["unsuspendable"] = never(job, scene.view.settings)
    moves = call.service.store.transitions(job.id)
    out["history"] = [pick(MoveOut, move, at=stamp(move.at)) for move in moves]
    return answer(out)


@router.get("/jobs/{label}/why", responses={200: {"model": WhyOut}})
async def why(call: Caller, label: Label) -> Response:
    """Why the job waits, or why it runs where it does."""
    job, scene = await call.own_job(label)
    return await run_in_threadpool(_explanation, call, job, scene)


def _explanation(call: Call, job: Job, scene: Scene) -> Response:
    past = call.service.store.decisions(job.id, PAST_DECISIONS)
    out = why_out(job, scene, past, call.renderer(scene))
    out["job"]["outlook"] = outlook_out(job, scene)
    return answer(out)


@router.get("/starts", responses={200: {"model": StartsOut}})
async def starts(call: Caller, user: Word = None) -> Response:
    """When waiting jobs are expected to start, in order of the line."""
    scene = await call.service.scene()
    return await call.service.render(lambda: _starts(scene, user))


def _starts(scene: Scene, user: str | None) -> Response:
    line = [job for job in scene.line if user in (None, job.spec.user)]
    first = islice(singly(line), FORESEEN)
    shown = [start for job in first if (start := start_out(job, scene))]
    out: StartsOut = {"schema": SCHEMA, "starts": shown, "more": count_jobs(line) - len(shown)}
    return answer(out)


@router.post("/jobs/{label}/step", responses={200: {"model": JobOut}})
async def step(call: Caller, label: Label, body: StepIn) -> Response:
    """Report how long a running job's training step and its stages take. `unused` says why that has
    no effect, if it has none."""
    job, scene = await call.own_job(label)
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
    job, scene = await call.own_job(str(job.id))
    out: JobOut = {**call.renderer(scene)(job), "unused": _why_unused(job, scene)}
    return answer(out)


@router.post("/jobs/{label}/metrics", responses={200: {"model": JobOut}})
async def metrics(call: Caller, label: Label, body: MetricsIn) -> Response:
    """Report metrics of a running job. Of each name, the last value is kept."""
    job, _ = await call.own_job(label)
    if not job.holds_gpus:
        raise Conflict(f"job {label} is not running", "Only a running job can report its metrics.")
    if len(dict(job.metrics) | body.metrics) > MAX_METRICS:
        raise Conflict(
            f"job {label} would have more than {MAX_METRICS} metrics",
            "Report the same names each time.",
        )
    reported = tuple(body.metrics.items())
    await call.request(Measured(call.service.now(), job.id, reported))
    job, scene = await call.own_job(str(job.id))
    return answer(call.renderer(scene)(job))


def _neighbours(job: Job, scene: Scene) -> Sequence[Job]:
    gpus = set(job.gpus)
    return [it for it in scene.view.running if it.id != job.id and gpus.intersection(it.gpus)]


def _why_unused(job: Job, scene: Scene) -> str:
    """Why a report of the job's steps had no effect; empty if it had one."""
    if not scene.view.node_of.keys() >= set(job.gpus[:1]):
        return "its GPU is no longer there"
    return next(
        (
            why_no_ratio(job, other, scene.view.gpu(job.gpus[0]).gpu)
            for other in _neighbours(job, scene)
        ),
        "",
    )


@router.get("/jobs/{label}/metrics", responses={200: {"model": MetricsOut}})
async def curves(call: Caller, label: Label) -> Response:
    """What the job reported of itself, over time. Of many reports of a name, some are left out."""
    job, _ = await call.own_job(label)
    found = await run_in_threadpool(call.service.store.metrics, job.id)
    out: MetricsOut = {
        "schema": SCHEMA,
        "id": job.id,
        "label": label_of(job),
        "metrics": {
            name: {"times": [at for at, _ in points], "values": [value for _, value in points]}
            for name, points in found.items()
        },
    }
    return answer(out)


@router.get("/jobs/{label}/wait", responses={200: {"model": JobOut}})
async def wait(
    call: Caller,
    label: Label,
    timeout_s: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 30.0,
    start: bool = False,
) -> Response:
    """The job once it has ended, or in its current state when the timeout has passed. `start`: also
    once it has GPUs. Of an array, once that holds for each task: the first that failed, or else the
    last; before, a task that is awaited."""
    clock, service = asyncio.get_running_loop().time, call.service
    until = clock() + timeout_s
    while True:
        tasks, scene = await call.own_tasks(label)
        job = _telling(tasks, start)
        left_s = until - clock()
        if left_s <= 0 or service.stopping or not _is_to_come(job, start):
            return answer(call.renderer(scene)(job))
        with service.events.of_job(job.id) as news:
            if await service.ask(partial(_is_live_to_come, job.id, start)):
                async with call.turn.rest():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(news.wait(), left_s)


def _telling(tasks: Sequence[Job], start: bool) -> Job:
    """What `wait` answers of all tasks of an array."""
    found = [job for job in tasks if _is_to_come(job, start)]
    if not found:
        failed = (job for job in tasks if job.state in ENDED - {JobState.SUCCEEDED})
        found = sorted(failed, key=_first_failure, reverse=True) or [*tasks]
    return part(found[-1], found[-1].ids[-1:])


def _first_failure(job: Job) -> tuple[bool, float]:
    """Sorts those that were cancelled last: they count if there is no other."""
    return job.state is JobState.CANCELLED, job.ended_at or 0.0


def _is_live_to_come(id: JobId, start: bool, core: Scheduler) -> bool:
    job = core.jobs.get(id)
    return job is not None and _is_to_come(job, start)


def _is_to_come(job: Job, start: bool) -> bool:
    return not (job.ended or (start and job.holds_gpus))
