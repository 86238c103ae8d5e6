"""Submitting jobs: a request becomes jobs in the queue, or an error that says why it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import NotRequired

from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api import refusals
from carmad.api.admission import admission
from carmad.api.call import Call, Caller, answer, resolve, resource
from carmad.api.outlook import OutlookOut, outlook_out
from carmad.api.reasons import ReasonOut, VerdictOut, reason_out, verdicts_out
from carmad.api.remarks import measurement, remarks, warnings
from carmad.api.requests import AfterIn, Awaited, Submission, SubmitIn, array_tasks, job_spec
from carmad.api.service import Service
from carmad.api.wire import SCHEMA, parse_selection
from carmad.attempt.callers import allocation_of, own_process
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job
from carmad.core.jobs.knowledge import with_history
from carmad.core.jobs.recurrence import group
from carmad.core.jobs.spec import AfterKind, JobSpec
from carmad.core.jobs.states import JobState, Waiting
from carmad.core.messages import Submitted
from carmad.core.placing.decision import Placement, Reason
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.engine.inbox import QUANTUM
from carmad.errors import CarmaError
from carmad.store import retention
from carmad.threads import run_in_threadpool

router = resource()


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


@router.post(
    "/jobs", status_code=201, responses={201: {"model": SubmittedOut}, 200: {"model": DryRunOut}}
)
async def submit(call: Caller, body: SubmitIn) -> Response:
    """Submit a job. It is on disk when this answers."""
    service = call.service
    if body.dry_run:
        return await _dry_run(call, body)
    async with AsyncExitStack() as held:
        if body.unless_running is not None:  # of two at once, one comes first
            await held.enter_async_context(service.naming[call.peer.owner])
        asked = await read(call, body)
        if body.interactive and call.pid:
            spec = await run_in_threadpool(_by_process, service, asked.spec, call.pid)
            asked = replace(asked, spec=spec)
        if asked.spec.runner and (known := _same(asked)):
            ids = range(known, known + 1)
        else:
            spec = await held.enter_async_context(admission(service, asked.spec))
            ids = await _store(call, replace(asked, spec=spec))
    first, notes = JobId(ids[0]), warnings(asked, service)
    if body.memory_mib is not None and body.gpus:
        job = await service.ask(lambda core: core.jobs.get(first))
        if job:  # it has not ended already
            known_need = await measurement(service, job.spec)
            notes += await remarks(service, job.spec, known_need)
    name = first - 1 if body.array else first
    out: SubmittedOut = {
        "schema": SCHEMA,
        "id": name,
        "ids": list(ids),
        "label": str(name),
        "warnings": notes,
    }
    if body.deadline_at is not None:
        scene = await service.scene()
        job = scene.live.get(first)
        out["outlook"] = await run_in_threadpool(outlook_out, job, scene) if job else None
    return answer(out, 201)


async def read(call: Call, body: SubmitIn) -> Submission:
    """The request as a submission, with what it is to be checked against."""
    service, peer, at = call.service, call.peer, call.service.now()
    others = body.after or body.urgent or body.unless_running is not None or body.interactive
    scene = await service.scene(settled=True) if others else None
    awaited = await find_awaited(call, body.after, scene) if scene and body.after else ()
    tally, env_exclude = await service.await_tally(), service.settings.submit.env_exclude
    spec = job_spec(body, peer, awaited, tally.gpus, tally.unread, env_exclude)
    return Submission(at, body, spec, array_tasks(body.array), awaited, scene)


async def find_awaited(call: Call, after: Sequence[AfterIn], scene: Scene) -> list[Awaited]:
    """The jobs that are named, or all tasks of arrays that are."""

    def find(label: str, kind: AfterKind) -> Awaited:
        jobs = resolve(call.service.store, call.peer, parse_selection(label), scene)
        return label, kind, jobs

    wanted = list(dict.fromkeys((one.job, AfterKind(one.kind)) for one in after))
    return await run_in_threadpool(lambda: [find(*each) for each in wanted])


async def _store(call: Call, asked: Submission) -> range:
    """Queue the job or the tasks of the array, or refuse it; returns the ids of the jobs.

    Everything is checked before ids are reserved; when this returns, the jobs are on disk.
    """
    service, body = call.service, asked.body
    bare = retention.without_contents(asked.spec)
    specs = [replace(bare, array=task) for task in asked.tasks]
    refusals.refuse(call, asked, specs)
    count = len(body.array.indices) if body.array else 1
    # No `await` since there was room for them. An array has an id, too: the first.
    first = service.inbox.next_ids(count + 1 if body.array else count)
    if body.array:
        arrays = [replace(task, array=first) for task in asked.tasks if task]
        specs, first = [replace(bare, array=task) for task in arrays], JobId(first + 1)
    service.tally.expect(first, specs)
    env, text = asked.spec.env, asked.spec.script.text if asked.spec.script else ""
    done = first
    while specs:
        part, specs = tuple(specs[:QUANTUM]), specs[QUANTUM:]
        try:  # the environment and the script are stored with the first part
            groups = call.peer.groups
            await call.request(Submitted(asked.at, done, part, body.held, env, text, groups))
        except CarmaError as error:
            service.tally.give_up(done, (*part, *specs))
            if done > first:
                tasks = f"only the first {done - first} tasks of array {first - 1}"
                error.message = f"{tasks} are queued: {error}"
            raise
        done, text = JobId(done + sum(each.tasks for each in part)), ""
        if not bare.secrets:  # which go when no job that is stored needs them
            env = ()
    return range(first, first + count)


async def _dry_run(call: Call, body: SubmitIn) -> Response:
    asked = await read(call, body)
    async with admission(call.service, asked.spec) as spec:
        refusals.refuse(call, replace(asked, spec=spec))
    known, notes = None, warnings(asked, call.service)
    if spec.memory_mib is not None and spec.gpus:
        known = await measurement(call.service, spec)
        notes += await remarks(call.service, spec, known)
    job, scene, placement, starts = await rehearse(call.service, spec, spec.declared or known)
    out: DryRunOut = {
        "schema": SCHEMA,
        "would_start": starts and not body.held,
        "verdicts": verdicts_out(placement, scene),
        "reasons": [reason_out(reason, scene) for reason in placement.reasons],
        "chosen": [] if body.held else list(placement.gpus),
        "warnings": notes,
    }
    if body.deadline_at is not None:
        out["outlook"] = await run_in_threadpool(outlook_out, job, scene)
    return answer(out)


def _by_process(service: Service, spec: JobSpec, pid: int) -> JobSpec:
    """With what is known of the process that is to run the job."""
    process, allocation = own_process(pid, spec.uid), allocation_of(service.checks, pid)
    watched = spec.requeue or allocation
    runner = (process.pid, process.start_ticks) if watched else None
    return replace(spec, runner=runner, allocation=allocation)


def _same(asked: Submission) -> JobId | None:
    """The job that this `carma run` has: it asks again if the answer was lost."""

    def run(spec: JobSpec) -> object:
        return spec.runner, spec.stdout, spec.argv

    jobs = asked.scene.live.rows.items() if asked.scene else ()
    return next((id for id, job in jobs if run(job.spec) == run(asked.spec)), None)


async def rehearse(
    service: Service, spec: JobSpec, estimate: Estimate | None
) -> tuple[Job, Scene, Placement, bool]:
    """The job as if it were queued now, with what is known from earlier runs of it; the scene; what
    would be decided, and whether the job would start at once."""
    now = service.now()

    def look(core: Scheduler) -> tuple[Job, Scene, Placement, bool]:
        new = Job(JobId(0), spec, Waiting(JobState.QUEUED), now, group=group(spec))
        job = with_history(core.state, replace(new, estimate=estimate), now)
        scene = core.snapshot(now)
        return job, scene, *_judge(core, job, scene)

    return await service.ask(look)


def _judge(core: Scheduler, job: Job, scene: Scene) -> tuple[Placement, bool]:
    """Runs in the core's thread, and changes nothing there."""
    if reason := scene.gate.blocker(job):
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
