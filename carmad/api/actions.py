"""Cancelling, holding, releasing, suspending, requeueing and updating jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from pydantic import Field, StringConstraints, create_model
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.accounts import barring
from carmad.api import refusals
from carmad.api.call import Call, Caller, answer, not_yours, resource
from carmad.api.gpus import Ref, is_named
from carmad.api.intake import find_awaited
from carmad.api.requests import MAX_VARIABLES, Body, EnvName, SubmitIn, Text, User, unmet
from carmad.api.rows import row_label
from carmad.api.wire import SCHEMA, Selection, parse_selection
from carmad.attempt.environment import lacking_note
from carmad.core.jobs import control
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.control import Verdict
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.messages import (
    CancelRequested,
    Event,
    HoldRequested,
    MoveRequested,
    RequeueRequested,
    ResumeRequested,
    SuspendRequested,
    UpdateRequested,
)
from carmad.engine.inbox import QUANTUM
from carmad.errors import CarmaError
from carmad.http.problems import Forbidden, NotFound
from carmad.options import MAX_TASKS, OPTIONS
from carmad.readable import job_name
from carmad.store import retention
from carmad.store.damage import NOTE, stands_in
from carmad.store.database import StoreFull
from carmad.store.secrets import Variables
from carmad.threads import run_in_threadpool

PER_STEP = QUANTUM  # jobs

# Returns the verdict, and the event for the core if the verdict acts.
Act = Callable[[Job, float, str], tuple[Verdict, Event | None]]


class ResultOut(TypedDict):
    """What became of one job, or of `count` tasks of an array, of which `id` is the first."""

    id: int
    label: str
    ok: bool
    message: str
    count: NotRequired[int]


class ResultsOut(TypedDict):
    schema: int
    results: list[ResultOut]
    lacking: NotRequired[list[str]]  # of a requeue that `asks`: variables that it needs


class SelectIn(Body):
    select: Annotated[str, StringConstraints(pattern=r"^[0-9a-z_,%\[\]\- ]+$", max_length=8000)]
    user: User | None = None


class RequeueIn(SelectIn):
    """`all`: of an array, the tasks that succeeded, too. `env`: variables that are not stored any
    more, for jobs of the caller's. With `asks`, nothing is requeued if some are needed: their names
    are the answer's `lacking`."""

    all: bool = False
    env: Annotated[dict[EnvName, Text] | None, Field(max_length=MAX_VARIABLES)] = None
    asks: bool = False


class LimitIn(Body):
    """`limit`: how many tasks of the array may run at once; None: any number."""

    limit: Annotated[int, Field(ge=1, le=MAX_TASKS)] | None


class MoveIn(SelectIn):
    gpus: Annotated[list[Ref], Field(min_length=1, max_length=64)]


if TYPE_CHECKING:

    class UpdateIn(SelectIn, SubmitIn): ...  # type: ignore[misc]  # both are frozen

else:
    UpdateIn = create_model(
        "UpdateIn",
        __base__=SelectIn,
        __doc__="New values of the jobs' options: those that are not in the request stay.",
        __module__=__name__,
        **{
            name: (SubmitIn.model_fields[name].annotation, SubmitIn.model_fields[name])
            for name, option in OPTIONS.items()
            if option.change and name != "array"
        },
        array=(LimitIn | None, None),
    )


router = resource(answers=ResultsOut)


@router.post("/cancel")
async def cancel(call: Caller, body: SelectIn) -> Response:
    def act(job: Job, now: float, by: str) -> tuple[Verdict, Event]:
        return control.cancel(job), CancelRequested(now, job.id, by, job.tasks - 1)

    return await _change(call, body, act)


@router.post("/hold")
async def hold(call: Caller, body: SelectIn) -> Response:
    return await _set_hold(call, body, True)


@router.post("/release")
async def release(call: Caller, body: SelectIn) -> Response:
    return await _set_hold(call, body, False)


async def _set_hold(call: Call, body: SelectIn, held: bool) -> Response:
    def act(job: Job, now: float, by: str) -> tuple[Verdict, Event]:
        return control.hold(job, held), HoldRequested(now, job.id, held, by, job.tasks - 1)

    return await _change(call, body, act, runs=not held)


@router.post("/suspend")
async def suspend(call: Caller, body: SelectIn) -> Response:
    """Move what running jobs hold on GPUs to the host's memory. They keep their processes, and
    wait until they are to resume."""
    scene = await call.service.scene()

    def act(job: Job, now: float, by: str) -> tuple[Verdict, Event]:
        verdict = control.suspend(job, scene.suspension_refusal(job, asked=True))
        return verdict, SuspendRequested(now, job.id, by, job.tasks - 1)

    return await _change(call, body, act)


@router.post("/resume")
async def resume(call: Caller, body: SelectIn) -> Response:
    """Let suspended jobs return to GPUs as soon as there are some for them."""

    def act(job: Job, now: float, by: str) -> tuple[Verdict, Event]:
        return control.resume(job), ResumeRequested(now, job.id, by, job.tasks - 1)

    return await _change(call, body, act)


@router.post("/move")
async def move(call: Caller, body: MoveIn) -> Response:
    """Move a running job to other GPUs of the same kind."""
    scene = await call.service.scene()
    gpus = [gpu for ref in body.gpus for gpu in scene.gpus.values() if is_named(gpu, ref)]
    if len(gpus) != len(body.gpus):
        raise NotFound(f"there are no such GPUs: {', '.join(body.gpus):.200}", "See `carma gpus`.")

    def act(job: Job, now: float, by: str) -> tuple[Verdict, Event]:
        refusal, settings = scene.suspension_refusal(job), scene.view.settings
        verdict = control.move(job, gpus, refusal, settings)
        return verdict, MoveRequested(now, job.id, tuple(gpu.id for gpu in gpus), by)

    return await _change(call, body, act)


@router.post("/requeue")
async def requeue(call: Caller, body: RequeueIn) -> Response:
    """Run jobs again; of an array, unless `all`, the tasks that have ended otherwise than well."""
    selection = parse_selection(body.select)
    if selection.all:
        raise CarmaError("`all` would requeue every past job", "Name the jobs.")
    jobs = await _choose(call, body)
    rest = [job for job in jobs if _is_part_of_named(selection, job) and not _has_failed(job)]
    alone: Counter[JobId] = Counter()
    for job in rest if not body.all else ():
        alone[_array(job)] += job.tasks
    kept = await run_in_threadpool(_kept_secrets, call, jobs)
    if body.asks and (names := {name for id in kept for name in kept[id][1]}):
        out: ResultsOut = {"schema": SCHEMA, "results": [], "lacking": sorted(names)}
        return answer(out)
    awaited = {after.job for job in jobs for after in job.spec.after}
    found = await run_in_threadpool(call.service.store.jobs, awaited)
    ended = {job.id: job.state for job in found if job.ended}

    def act(job: Job, now: float, by: str) -> tuple[Verdict, Event | None]:
        its = tuple((a.job, ended[a.job]) for a in job.spec.after if a.job in ended)
        if (count := alone[_array(job)]) and not _has_failed(job):
            words = f"{count} {'task' if count == 1 else 'tasks'} that did not fail: left alone"
            refused = len(rest) == len(jobs)
            return Verdict(f"{words} (--all requeues every task)", False, refused), None
        verdict = control.requeue(job, ended)
        if verdict.acts and stands_in(job):
            verdict = Verdict(f"cannot run again: {NOTE}", acts=False, refused=True)
        if verdict.acts and job.lives and len(jobs) > 1:  # of several, those that failed are meant
            words = "runs: to stop it and run it again, name it alone"
            verdict = Verdict(words, acts=False, refused=True)
        if verdict.acts:
            ended.pop(job.id, None)  # its dependents wait for its next end
        if job.id not in kept:
            return verdict, RequeueRequested(now, job, by, its)
        (variables, lacking), given = kept[job.id], body.env or {}
        variables += tuple((name, given[name]) for name in lacking if name in given)
        if verdict.acts and (left := [name for name in lacking if name not in given]):
            verdict = replace(verdict, words=f"{verdict.words}, but {lacking_note(left)}")
        names = job.spec.secrets.names if job.spec.secrets else ()
        job = replace(job, spec=retention.with_secrets(job.spec, variables, names))
        return verdict, RequeueRequested(now, job, by, its, variables)

    return _results_out(await _carry_out(call, body, jobs, act, runs=True))


def _kept_secrets(
    call: Call, jobs: Sequence[Job]
) -> dict[JobId, tuple[Variables, tuple[str, ...]]]:
    """Of the caller's jobs that have ended: the variables that are still stored, as another job
    needs the same, and the names of the others."""
    found = {}
    read = cache(call.service.store.secrets)  # tasks of an array share them
    for job in jobs:
        secrets, mine = job.spec.secrets, job.spec.owner == call.peer.owner
        if secrets and job.ended and mine:
            there = read(secrets)
            lacking = tuple(name for name in secrets.names if name not in dict(there))
            found[job.id] = there, lacking
    return found


@router.post("/update")
async def update(call: Caller, body: UpdateIn) -> Response:
    """Change options of jobs that have not ended: most while they wait, some while they run."""
    jobs = await _choose(call, body)
    names, change = await changes(call, body, jobs)
    live = (await call.service.scene()).live
    asked: dict[JobId, JobSpec] = {}

    def act(job: Job, now: float, by: str) -> tuple[Verdict, Event]:
        more = job.tasks - 1
        event = UpdateRequested(now, job.id, job.spec, names, by, call.peer.admin, more)
        try:
            # Without the command, which the journal would have once for each task of an array.
            event = replace(event, spec=replace(change(job.spec), argv=(), env=()))
        except CarmaError as error:
            return Verdict(f"is left as it is: {error.message}", False, refused=True), event
        verdict, spec = control.update(job, event, live, now)
        if verdict.acts:
            asked[job.id] = spec
        return verdict, event

    results = await _carry_out(call, body, jobs, act, runs=True)
    now = await call.service.ask(lambda core: {id: core.jobs.get(id) for id in asked})
    for each in results:
        job = now.get(JobId(each["id"]))
        if each["ok"] and each["id"] in asked and not _has(job, asked[JobId(each["id"])], names):
            began = job is not None and job.holds_gpus
            each["ok"] = False
            each["message"] = f"has {'started' if began else 'ended'} meanwhile"
    return _results_out(results)


def _is_part_of_named(selection: Selection, job: Job) -> bool:
    """Whether the job is a task of an array that is named as a whole."""
    return (selection.last and job.spec.array is not None) or selection.has_array_of(job)


def _has_failed(job: Job) -> bool:
    return job.ended and job.state is not JobState.SUCCEEDED


def _array(job: Job) -> JobId:
    return job.spec.array.array if job.spec.array else job.id


def _has(job: Job | None, spec: JobSpec, names: tuple[str, ...]) -> bool:
    def value(of: JobSpec, name: str) -> object:
        return of.array and of.array.limit if name == "array" else getattr(of, name)

    return job is not None and all(value(job.spec, name) == value(spec, name) for name in names)


async def _change(call: Call, body: SelectIn, act: Act, runs: bool = False) -> Response:
    return _results_out(await _carry_out(call, body, await _choose(call, body), act, runs))


async def _carry_out(
    call: Call, body: SelectIn, jobs: list[Job], act: Act, runs: bool
) -> list[ResultOut]:
    """`runs`: the jobs may run then, so their users must still be there."""
    events, results = await run_in_threadpool(_judge, call, body, jobs, act, runs)
    again = [it.job.spec for it in events.values() if isinstance(it, RequeueRequested)]
    if again:
        await call.service.await_tally()
        refusals.within_the_quota(call, again)
    holding = {job.id for job in jobs if job.holds_gpus}
    stops = {id for id in events.keys() & holding if isinstance(events[id], CancelRequested)}
    # Those that wait come first, or they would be started where others are stopped.
    rest = {id: event for id, event in events.items() if id not in stops}
    failed = await _in_parts(call, rest, at_all=not stops)
    if stops:  # which work on a full disk, too
        await call.request(*(events[id] for id in sorted(stops)))
    return [
        {**each, "ok": False, "message": failed[JobId(each["id"])]}
        if each["id"] in failed
        else each
        for each in results
    ]


def _results_out(results: list[ResultOut]) -> Response:
    out: ResultsOut = {"schema": SCHEMA, "results": results}
    return answer(out)


async def _in_parts(call: Call, events: dict[JobId, Event], at_all: bool) -> dict[JobId, str]:
    """Request a few events per step, so that other users do not wait for a whole array. If the disk
    is full, returns the remaining jobs, with the reason; raises it instead if nothing at all could
    be done and `at_all` is set."""
    jobs = list(events)
    for first in range(0, len(jobs), PER_STEP):
        try:
            await call.request(*map(events.__getitem__, jobs[first : first + PER_STEP]))
        except StoreFull as error:
            if at_all and first == 0:
                raise
            return dict.fromkeys(jobs[first:], error.message)
    return {}


def _judge(
    call: Call, body: SelectIn, jobs: list[Job], act: Act, runs: bool
) -> tuple[dict[JobId, Event], list[ResultOut]]:
    """Events for the core, and results for the caller. Runs in a thread: jobs may be many."""
    now, by = call.service.now(), call.peer.user
    selection, go_on = parse_selection(body.select), any(not job.ended for job in jobs)
    events: dict[JobId, Event] = {}
    results: list[ResultOut] = []
    barred = barring()
    for job in jobs:
        if not call.may_touch(job):
            results.append(_result(job, False, f"is {job.spec.user}'s, not yours"))
            continue
        verdict, event = act(job, now, by)
        if runs and verdict.acts and (why := barred(job.spec.user, job.spec.uid)):
            verdict = Verdict(f"is left as it is: {why}", acts=False, refused=True)
        if verdict.acts and event:
            events[job.id] = event
        # Of an array, the tasks that go on are meant.
        fine = not verdict.refused or (go_on and job.ended and _is_part_of_named(selection, job))
        results.append(_result(job, fine, verdict.words))
    results += [
        {"id": id, "label": str(id), "ok": False, "message": "there is no such job"}
        for id in sorted(selection.ids - _ids(jobs))
    ]
    return events, results


def _ids(jobs: list[Job]) -> set[JobId]:
    """Of these jobs and their arrays."""
    return {job.id for job in jobs} | set(map(_array, jobs))


async def _choose(call: Call, body: SelectIn) -> list[Job]:
    """The selected jobs. Raises NotFound if there are none, Forbidden if the caller may touch
    none."""
    selection, user = parse_selection(body.select), body.user
    if user not in (None, call.peer.user) and not call.peer.admin:
        raise Forbidden("only administrators may change others' jobs", "Leave the user out.")
    scene = await call.service.scene()
    jobs = await call.select(selection, scene)
    if user is not None:
        if selection.all:
            jobs = [*jobs, *(job for job in scene.live.rows.values() if job.spec.user == user)]
        jobs = [job for job in {job.id: job for job in jobs}.values() if job.spec.user == user]
    if not jobs:
        what = f"there is no job {body.select:.80}" + (f" of {user}" if user else "")
        raise NotFound(what, "See `carma queue` and `carma history`.")
    if not any(call.may_touch(job) for job in jobs):
        raise not_yours(jobs[0])
    return jobs


def _result(job: Job, ok: bool, message: str) -> ResultOut:
    out: ResultOut = {"id": job.id, "label": row_label([job]), "ok": ok, "message": message}
    if job.tasks > 1:
        out["count"] = job.tasks
    return out


async def changes(
    call: Call, body: UpdateIn, jobs: Sequence[Job]
) -> tuple[tuple[str, ...], Callable[[JobSpec], JobSpec]]:
    """The names of the options that `body` changes in `jobs`, and a function that changes them. It
    raises CarmaError where the result would be refused if it were submitted."""
    names = tuple(name for name in OPTIONS if name in body.model_fields_set)
    if not names:
        raise CarmaError("nothing to change", "Give options: see `carma update --help`.")
    scene = await call.service.scene()
    refusals.may_be_nice(call.peer, body.nice if "nice" in names else 0)
    new: dict[str, Any] = {name: getattr(body, name) for name in names}
    if "after" in names:
        awaited = await find_awaited(call, body.after, scene)
        refusals.may_wait_for(call.peer, awaited)
        new["after"] = unmet(awaited)
        refusals.few_waits(len(jobs), len(new["after"]))

    def change(spec: JobSpec) -> JobSpec:
        if "name" in names:
            new["name"] = body.name or job_name(spec.argv)
        if "array" in names:
            if spec.array is None or body.array is None:
                raise CarmaError("it is not a task of an array")
            new["array"] = replace(spec.array, limit=body.array.limit)
        changed = replace(spec, **new)
        refusals.needs_gpus(changed)
        if not {"time_limit_s", "deadline_at"}.isdisjoint(names):
            refusals.in_time(replace(changed, deadline_at=new.get("deadline_at")), scene.now)
        if not refusals.CHOOSING.isdisjoint(names) and not scene.unread:
            refusals.fits_the_server(changed, tuple(scene.gpus.values()))
        return changed

    return names, change
