"""Submitting jobs: a request becomes jobs in the queue, or an error that says why it is refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NotRequired

from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api import refusals
from carmad.api.admission import admission
from carmad.api.call import Call, Caller, answer, resolve, resource
from carmad.api.outlook import OutlookOut, outlook_out
from carmad.api.promised import measurement, remarks
from carmad.api.reasons import ReasonOut, VerdictOut, reason_out, verdicts_out
from carmad.api.requests import AfterIn, SubmitIn, job_spec, tasks_of
from carmad.api.service import Service
from carmad.api.wire import SCHEMA, parse_selection
from carmad.attempt.callers import allocation_of, own_process
from carmad.attempt.environment import BATCH_SIZE, CPU, MEMORY, excluded, scrub
from carmad.core.gpus.sharing import label as label_of
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job
from carmad.core.jobs.knowledge import with_history
from carmad.core.jobs.recurrence import group
from carmad.core.jobs.spec import After, AfterKind, JobSpec
from carmad.core.jobs.states import JobState, Waiting
from carmad.core.jobs.tasks import singly
from carmad.core.messages import Submitted
from carmad.core.placing.decision import Placement, Reason
from carmad.core.rules.promises import weigh
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.engine.inbox import QUANTUM
from carmad.errors import CarmaError
from carmad.http.problems import Conflict, Forbidden
from carmad.store import retention
from carmad.threads import run_in_threadpool
from carmad.words import first_few

router = resource()

EXCLUDED = "this server does not give jobs {}; --export {} passes it on"


class SubmittedOut(TypedDict):
    schema: int
    id: int  # of the job, or of the array
    ids: list[int]  # of the job, or of the array's tasks
    label: str
    warnings: list[str]
    outlook: NotRequired[OutlookOut | None]  # of a job with a deadline; of an array, its first task


class DryRunOut(TypedDict):
    schema: int
    would_start: bool
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    chosen: list[str]
    warnings: list[str]
    outlook: NotRequired[OutlookOut | None]  # of a job with a deadline


async def enqueue(call: Call, body: SubmitIn) -> tuple[JobId, range]:
    """Queue the job or the tasks of the array; returns its id, and the ids of the jobs.

    Everything is checked before ids are reserved; when this returns, the jobs are on disk.
    """
    service, spec = call.service, await check(call, body)
    if body.unless_running is None:
        return await _admit(call, body, spec)
    async with service.naming[spec.owner]:  # of two at once, one comes first
        await _require_unused(service, spec)
        return await _admit(call, body, spec)


async def _admit(call: Call, body: SubmitIn, spec: JobSpec) -> tuple[JobId, range]:
    service = call.service
    if body.interactive and call.pid:
        spec = await run_in_threadpool(_by_process, service, spec, call.pid)
        if spec.runner and (known := await service.ask(lambda core: _same(core, spec))):
            return known, range(known, known + 1)
    async with admission(service, spec) as spec:
        return await _queue(call, body, spec)


async def _queue(call: Call, body: SubmitIn, spec: JobSpec) -> tuple[JobId, range]:
    service, bare = call.service, retention.without_contents(spec)
    await refusals.require_room(call, tasks_of(bare, body.array))
    own = 0 if body.array is None else 1  # the array's
    count = len(body.array.indices) if body.array else 1
    name = service.inbox.next_ids(own + count)  # no `await` since there was room for them
    first = JobId(name + own)
    specs = tasks_of(bare, body.array, name)
    service.tally.expect(first, specs)
    env, text = spec.env, spec.script.text if spec.script else ""  # stored with the first part
    done = first
    while specs:
        part, specs = specs[:QUANTUM], specs[QUANTUM:]
        try:
            now, groups = service.now(), call.peer.groups
            await call.request(Submitted(now, done, part, body.held, env, text, groups))
        except CarmaError as error:
            service.tally.give_up(done, (*part, *specs))
            if done > first:
                tasks = f"only the first {done - first} tasks of array {name}"
                error.message = f"{tasks} are queued: {error}"
            raise
        done, text = JobId(done + sum(each.tasks for each in part)), ""
        if not bare.secrets:  # which go when no job that is stored needs them
            env = ()
    return name, range(first, first + count)


async def _require_unused(service: Service, spec: JobSpec) -> None:
    """Raises Conflict while a job of this owner and name waits or runs."""
    if known := await service.ask(lambda core: _namesake(core, spec)):
        raise Conflict(
            f"nothing is submitted: job {label_of(known)}, {spec.name}, has not ended",
            f"`carma why {label_of(known)}` tells more.",
            code="running",
        )


def _namesake(core: Scheduler, spec: JobSpec) -> Job | None:
    rows = (job for job in core.jobs.rows.values() if job.spec.name == spec.name)
    return next((job for job in rows if job.spec.owner == spec.owner), None)


def _by_process(service: Service, spec: JobSpec, pid: int) -> JobSpec:
    """With what is known of the process that is to run the job."""
    process, allocation = own_process(pid, spec.uid), allocation_of(service.checks, pid)
    watched = spec.requeue or allocation
    runner = (process.pid, process.start_ticks) if watched else None
    return replace(spec, runner=runner, allocation=allocation)


def _same(core: Scheduler, spec: JobSpec) -> JobId | None:
    """The job that this `carma run` has: it asks again if the answer was lost."""
    its = spec.runner, spec.stdout, spec.argv
    jobs = core.jobs.rows.items()
    return next(
        (id for id, job in jobs if its == (job.spec.runner, job.spec.stdout, job.spec.argv)), None
    )


async def foresee(service: Service, id: JobId) -> OutlookOut | None:
    """Whether a job that was just submitted will meet its deadline, as if it were queued now."""
    now = service.now()

    job, scene = await service.ask(lambda core: (core.jobs.get(id), core.snapshot(now)))
    return await run_in_threadpool(outlook_out, job, scene) if job else None


async def rehearse(
    service: Service, spec: JobSpec, known: Estimate | None
) -> tuple[Scene, Placement, bool, OutlookOut | None]:
    """For a dry run: the scene, the decision that would be made, whether the job would start at
    once, and whether it would meet its deadline. `known`: what earlier runs used."""
    now = service.now()

    def look(core: Scheduler) -> tuple[Placement, bool, Job, Scene]:
        job = trial(core, spec, spec.declared or known, now)
        if core.state.shares.doubts(spec, now):
            job = replace(job, estimate=weigh(job, known))
        scene = core.snapshot(now)
        return *judge(core, job, scene), job, scene

    placement, starts, job, scene = await service.ask(look)
    return scene, placement, starts, await run_in_threadpool(outlook_out, job, scene)


async def check(call: Call, body: SubmitIn) -> JobSpec:
    """The spec of the job, or of any task of the array."""
    service = call.service
    refusals.may_submit(call, body.nice)
    refusals.fits_the_kernel(body)
    refusals.fits_a_terminal(body)
    refusals.has_one_name(body)
    refusals.in_time(body, service.now())
    await service.ready()
    gpus, unread = service.tally.gpus, service.tally.unread
    refusals.needs_gpus(body)
    refusals.fits_the_host(body, service.settings.host)
    if not unread:
        refusals.fits_the_server(body, gpus)
    elif any(one.gpu for one in body.stage_times):
        raise CarmaError(
            f"the kinds of GPU are not known yet: {unread}",
            "Leave gpu= out of the stage times, or submit the job later.",
        )
    refusals.within_the_quota(call, body)
    if body.urgent:
        refusals.within_the_budget(call.peer, await service.scene())
    after = await dependencies(call, body.after) if body.after else ()
    tasks = len(body.array.indices) if body.array else 1
    refusals.few_waits(tasks, len(after))
    return job_spec(body, call.peer, after, gpus, service.settings.submit.env_exclude)


def warnings(
    body: SubmitIn, now: float, limited_by: Collection[str] = (CPU, MEMORY), env_exclude: str = ""
) -> list[str]:
    """Warnings about what is odd but allowed. `limited_by`: controllers of this server."""
    found = []
    begin_at, deadline_at = body.begin_at, body.deadline_at
    if begin_at is not None and begin_at <= now:
        found.append("the begin time is in the past: the job may start at once")
    if begin_at is not None and deadline_at is not None and begin_at >= deadline_at:
        found.append("it may begin only after its deadline")
    if body.array and body.array.limit and body.array.limit >= len(body.array.indices) > 1:
        found.append("the array's limit has no effect: there are no more tasks than that")
    if body.warn and body.time_limit_s and body.warn.before_s >= body.time_limit_s:
        found.append("the time limit is so short that the warning comes soon after the start")
    sizes = body.batch_size, body.array and body.array.params.get("batch_size")
    if not any(sizes) and any(BATCH_SIZE in word for word in body.argv):
        found.append(f"{BATCH_SIZE} in the command is not replaced without --batch-size")
    if env_exclude and (names := excluded(scrub(body.env), body.export, env_exclude)):
        found.append(EXCLUDED.format(first_few(", ".join(names)), names[0]))
    for asked, controller in ((body.cpus, CPU), (body.host_memory_mib, MEMORY)):
        if asked is not None and controller not in limited_by:
            what = "--cpus" if controller == CPU else "--mem"
            found.append(f"{what} is counted, but this server cannot enforce it")
    return found


def trial(core: Scheduler, spec: JobSpec, estimate: Estimate | None, now: float) -> Job:
    """The job as if it were queued now, with what is known from earlier runs of it."""
    job = Job(JobId(0), spec, Waiting(JobState.QUEUED), now, group=group(spec), estimate=estimate)
    return with_history(core.state, job, now)


def judge(core: Scheduler, job: Job, scene: Scene) -> tuple[Placement, bool]:
    """What would be decided if the job were queued now, and whether it would start at once.

    Runs in the core's thread, and changes nothing there.
    """
    if reason := scene.blocker(job):
        return Placement(job.id, reasons=(reason,)), False
    if not job.spec.gpus:
        return Placement(job.id), True
    view = core.view(scene.now, joining=job)
    try:
        for queue, starts in ((view.queue, True), ((job,), False)):
            for answer in core.acting.plan(replace(view, queue=queue)):
                if isinstance(answer, Placement) and answer.job == job.id:
                    return answer, starts and bool(answer.gpus)
    except Exception as error:  # noqa: BLE001 - foreign code
        reason = Reason("policy_failed", detail=f"it raised {error!r:.200}")
        return Placement(job.id, reasons=(reason,)), False
    return Placement(job.id, verdicts=view.judge(job)[1]), False


async def dependencies(call: Call, after: Sequence[AfterIn]) -> tuple[After, ...]:
    """Each named job, or all tasks of a named array, except those that are met already."""
    wanted = list(dict.fromkeys((one.job, AfterKind(one.kind)) for one in after))
    return await run_in_threadpool(_unmet, call, wanted, await call.service.scene())


def _unmet(call: Call, wanted: list[tuple[str, AfterKind]], scene: Scene) -> tuple[After, ...]:
    peer = call.peer
    kept: dict[After, None] = {}
    for label, kind in wanted:
        named = resolve(call.service.store, peer, parse_selection(label), scene)
        if not named:
            raise CarmaError(f"there is no job {label} to wait for", "See `carma queue`.")
        for job in named:
            if job.spec.owner != peer.owner and not peer.admin:
                raise Forbidden(
                    f"job {label} is not yours, so your job cannot depend on it",
                    "Name your own jobs.",
                    code="not_yours",
                )
            if not job.ended:
                kept |= dict.fromkeys(After(one.id, kind, label_of(one)) for one in singly([job]))
            elif not kind.accepts(job.state):
                raise CarmaError(
                    f"job {label_of(job)} has already ended as {job.state}:"
                    f" {kind} can never be met",
                    "Leave the dependency out, or requeue that job first.",
                )
    return tuple(kept)


@router.post(
    "/jobs", status_code=201, responses={201: {"model": SubmittedOut}, 200: {"model": DryRunOut}}
)
async def submit(call: Caller, body: SubmitIn) -> Response:
    """Submit a job. It is on disk when this answers."""
    now, settings = call.service.now(), call.service.settings
    notes = warnings(body, now, call.service.limited_by, settings.submit.env_exclude)
    if body.dry_run:
        return await _dry_run(call, body, notes)
    name, ids = await enqueue(call, body)
    first = JobId(ids[0])
    if body.memory_mib is not None and body.gpus:
        job = await call.service.ask(lambda core: core.jobs.get(first))
        if job:  # it has not ended already
            known = await measurement(call.service, job.spec)
            notes += await remarks(call.service, job.spec, known)
    out: SubmittedOut = {
        "schema": SCHEMA,
        "id": name,
        "ids": list(ids),
        "label": str(name),
        "warnings": notes,
    }
    if body.deadline_at is not None:
        out["outlook"] = await foresee(call.service, first)
    return answer(out, 201)


async def _dry_run(call: Call, body: SubmitIn, notes: list[str]) -> Response:
    spec = await check(call, body)
    if body.unless_running is not None:
        await _require_unused(call.service, spec)
    async with admission(call.service, spec) as spec:
        pass  # nothing is stored
    known = None
    if spec.memory_mib is not None and spec.gpus:
        known = await measurement(call.service, spec)
        notes += await remarks(call.service, spec, known)
    scene, placement, starts, outlook = await rehearse(call.service, spec, known)
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
