"""Turns a submission into the specs of its jobs, or into the error that says why it is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from carmad.api.outlook import outlook_out
from carmad.api.requests import ArrayIn, SubmitIn, UpdateIn
from carmad.api.responses.jobs import OutlookOut
from carmad.api.select import parse_selection
from carmad.attempt.callers import own_process, slurm_job_of
from carmad.attempt.environment import BATCH_SIZE, scrub
from carmad.attempt.limits import CPU, MEMORY
from carmad.core.decision import Placement, Reason
from carmad.core.messages import Submitted
from carmad.core.recurrence import group
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.core.tasks import spans
from carmad.core.types import (
    After,
    AfterKind,
    ArrayTask,
    Estimate,
    Gpu,
    Job,
    JobId,
    JobSpec,
    JobState,
    Script,
    WarnSignal,
)
from carmad.engine.backlog import QUANTUM
from carmad.engine.threads import run_in_threadpool
from carmad.errors import CarmaError
from carmad.http import lookup, refusals
from carmad.http.layouts import layout, stage_times
from carmad.http.peers import Peer
from carmad.http.problems import Conflict, Forbidden, TooLarge
from carmad.http.service import Service
from carmad.http.tally import Tally
from carmad.options import OPTIONS, PLAIN
from carmad.readable import job_name
from carmad.store import environments

NO_ID = JobId(0)

Request = Callable[[Submitted], Awaitable[None]]


async def submit(
    service: Service, peer: Peer, pid: int, body: SubmitIn, request: Request
) -> tuple[JobId, int]:
    """Queue the job or the tasks of the array; returns the first id and the number of jobs. `pid`:
    of the process that asks for it; 0: not known. `request`: how to ask the core.

    Everything is checked before ids are reserved; when this returns, the jobs are on disk.
    """
    spec = await checked(service, peer, body)
    if body.interactive and pid:
        spec = await run_in_threadpool(_by_process, spec, pid)
        if spec.runner and (known := await service.ask(lambda core: _same(core, spec))):
            return known, 1
    if not (spec.slurm_job and spec.gpus):
        return await _queue(service, peer, body, spec, request)
    granted_gib = await run_in_threadpool(service.granted_gib, spec.slurm_job)
    async with service.granting:  # what its other runs ask for is known then
        if granted_gib is not None:
            others = await service.ask(lambda core: _runs(core, spec.slurm_job))
            refusals.within_grant(granted_gib, spec, others)
        return await _queue(service, peer, body, spec, request)


async def _queue(
    service: Service, peer: Peer, body: SubmitIn, spec: JobSpec, request: Request
) -> tuple[JobId, int]:
    bare = environments.without(spec)
    await require_room(service, peer, _jobs(bare, body.array))
    count = len(body.array.indices) if body.array else 1
    first = service.inbox.next_ids(count)  # no `await` since there was room for them
    specs = _jobs(bare, body.array, first)
    service.tally.expect(first, specs)
    env, text = spec.env, spec.script.text if spec.script else ""  # stored with the first part
    done = first
    while specs:
        part, specs = specs[:QUANTUM], specs[QUANTUM:]
        try:
            now, groups = service.now(), peer.groups
            await request(Submitted(now, done, part, body.held, env, text, groups))
        except CarmaError as error:
            service.tally.give_up(done, (*part, *specs))
            if done > first:
                tasks = f"only the first {done - first} tasks of array {first}"
                error.message = f"{tasks} are queued: {error}"
            raise
        done, env, text = JobId(done + sum(each.tasks for each in part)), (), ""
    return first, count


def _by_process(spec: JobSpec, pid: int) -> JobSpec:
    """With what is known of the process that is to run the job."""
    process, slurm_job = own_process(pid, spec.uid), slurm_job_of(pid)
    watched = spec.requeue or slurm_job
    runner = (process.pid, process.start_ticks) if watched else None
    return replace(spec, runner=runner, slurm_job=slurm_job)


def _runs(core: Scheduler, slurm_job: int | None) -> list[JobSpec]:
    specs = (job.spec for job in core.jobs.rows.values())
    return [one for one in specs if one.slurm_job == slurm_job]


def _same(core: Scheduler, spec: JobSpec) -> JobId | None:
    """The job that this `carma run` has: it asks again if the answer was lost."""
    its = spec.runner, spec.stdout, spec.argv
    jobs = core.jobs.rows.items()
    return next(
        (id for id, job in jobs if its == (job.spec.runner, job.spec.stdout, job.spec.argv)), None
    )


async def foreseen(service: Service, id: JobId) -> OutlookOut | None:
    """Whether a job that was just submitted will meet its deadline, as if it were queued now."""
    now = service.now()

    def look(core: Scheduler) -> tuple[Job | None, Scene]:
        job = core.jobs.get(id)
        if job and job.state is JobState.PENDING:
            job = core.knowledge.with_history(job, now)
        return job, core.snapshot(now)

    job, scene = await service.ask(look)
    return await run_in_threadpool(outlook_out, job, scene) if job else None


async def foretold(
    service: Service, spec: JobSpec
) -> tuple[Scene, Placement, bool, OutlookOut | None]:
    """For a dry run: the scene, the decision that would be made, whether the job would start at
    once, and whether it would meet its deadline."""
    now = service.now()

    def look(core: Scheduler) -> tuple[Placement, bool, Job, Scene]:
        job = tried(core, spec, spec.declared, now)
        scene = core.snapshot(now)
        return *judged(core, job, scene), job, scene

    placement, starts, job, scene = await service.ask(look)
    return scene, placement, starts, await run_in_threadpool(outlook_out, job, scene)


async def require_room(service: Service, peer: Peer, specs: Sequence[JobSpec]) -> None:
    limits, alone = service.settings.limits, Tally.alone(specs)
    if alone.bytes > limits.queued_mib_per_user << 20:
        raise TooLarge(
            f"the commands, environments and scripts of {alone.jobs} jobs come to"
            f" {_mib(alone.bytes)} MiB, and at most {limits.queued_mib_per_user} MiB may wait",
            "Submit fewer at once, or put long arguments into a file and pass its name.",
        )
    waiting, there_is_room = await service.room(peer.uid, specs)
    if there_is_room:
        return
    most = service.limit_of(peer.user).jobs
    if most is not None and waiting.jobs + alone.jobs > most:
        raise Conflict(
            f"you have {waiting.jobs} jobs waiting, and at most {most} are"
            f" allowed: there is no room for {alone.jobs} more",
            "Try again once some have started.",
        )
    raise Conflict(
        f"the commands, environments and scripts of your waiting jobs come to"
        f" {_mib(waiting.bytes)} MiB, and at most {limits.queued_mib_per_user} MiB are allowed:"
        f" there is no room for {_mib(alone.bytes)} MiB more",
        "Try again once some have started. Jobs from the same shell, and the tasks of an array,"
        " share one environment, and those of the same job script one copy of it.",
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}"


async def checked(service: Service, peer: Peer, body: SubmitIn) -> JobSpec:
    """The spec of the job, or of any task of the array."""
    refusals.may_submit(service, peer, body.nice)
    refusals.fits_the_kernel(body)
    refusals.fits_a_terminal(body)
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
    refusals.within_the_quota(body, peer, service)
    if body.urgent:
        refusals.within_the_budget(peer, await service.scene())
    after = await _dependencies(service, peer, body) if body.after else ()
    tasks = len(body.array.indices) if body.array else 1
    refusals.few_waits(tasks, len(after))
    return job_spec(body, peer, after, gpus)


async def updated(
    service: Service, peer: Peer, body: UpdateIn, jobs: Sequence[Job]
) -> tuple[tuple[str, ...], Callable[[JobSpec], JobSpec]]:
    """The names of the options that `body` changes in `jobs`, and a function that changes them. It
    raises CarmaError where the result would be refused if it were submitted."""
    names = tuple(name for name in OPTIONS if name in body.model_fields_set)
    if not names:
        raise CarmaError("nothing to change", "Give options: see `carma update --help`.")
    refusals.may_be_nice(peer, body.nice if "nice" in names else 0)
    new: dict[str, Any] = {name: getattr(body, name) for name in names}
    if "after" in names:
        new["after"] = await _dependencies(service, peer, body)
        refusals.few_waits(len(jobs), len(new["after"]))
    await service.ready()
    gpus, now = service.tally.gpus, service.now()

    def change(spec: JobSpec) -> JobSpec:
        if "name" in names:
            new["name"] = body.name or job_name(spec.argv)
        changed = replace(spec, **new)
        refusals.needs_gpus(changed)
        if not {"time_limit_s", "deadline_at"}.isdisjoint(names):
            refusals.in_time(replace(changed, deadline_at=new.get("deadline_at")), now)
        if "memory_mib" in names and not service.tally.unread:
            refusals.fits_the_server(changed, gpus)
        return changed

    return names, change


def warnings(body: SubmitIn, now: float, limited_by: Collection[str] = (CPU, MEMORY)) -> list[str]:
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
        found.append("the time limit is so short that the warning comes as soon as the job starts")
    sizes = body.batch_size, body.array and body.array.params.get("batch_size")
    if not any(sizes) and any(BATCH_SIZE in word for word in body.argv):
        found.append(f"{BATCH_SIZE} in the command is not replaced without --batch-size")
    for asked, controller in ((body.cpus, CPU), (body.host_memory_mib, MEMORY)):
        if asked is not None and controller not in limited_by:
            what = "CPUs are" if controller == CPU else "host memory is"
            found.append(f"its {what} counted, but this server cannot hold it to that")
    return found


def tried(core: Scheduler, spec: JobSpec, estimate: Estimate | None, now: float) -> Job:
    """The job as if it were queued now, with what is known from earlier runs of it."""
    job = Job(JobId(0), spec, JobState.QUEUED, now, group=group(spec), estimate=estimate)
    return core.knowledge.with_history(job, now)


def judged(core: Scheduler, job: Job, scene: Scene) -> tuple[Placement, bool]:
    """What would be decided if the job were queued now, and whether it would start at once.

    Runs in the core's thread, and changes nothing there.
    """
    if reason := scene.blocked_by(job):
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


async def _dependencies(
    service: Service, peer: Peer, body: SubmitIn | UpdateIn
) -> tuple[After, ...]:
    """Each named job, or all tasks of a named array, except those that are met already."""
    wanted = list(dict.fromkeys((one.job, AfterKind(one.kind)) for one in body.after))
    scene = await service.scene()
    return await run_in_threadpool(_resolved, service, peer, wanted, scene)


def _resolved(
    service: Service, peer: Peer, wanted: list[tuple[str, AfterKind]], scene: Scene
) -> tuple[After, ...]:
    kept: dict[After, None] = {}
    for label, kind in wanted:
        named = lookup.selected(service.store, peer, parse_selection(label), scene)
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
                kept |= dict.fromkeys(After(JobId(id), kind) for id in job.ids)
            elif not kind.met_by(job.state):
                raise CarmaError(
                    f"job {label} has already ended as {job.state}: {kind} can never be met",
                    "Leave the dependency out, or requeue that job first.",
                )
    return tuple(kept)


def job_spec(
    body: SubmitIn, peer: Peer, after: tuple[After, ...], gpus: tuple[Gpu, ...]
) -> JobSpec:
    env = scrub(body.env) | body.export
    plain = {name: getattr(body, name) for name in PLAIN}
    if not body.gpus:  # uncounted, an array of them would start as a whole
        plain["cpus"] = body.cpus or 1
    default = "carma-%A_%a.out" if body.array else "carma-%j.out"
    return JobSpec(
        # A `carma run` that says where the output is kept can run the command again; or else
        # nobody but its owner can.
        **plain | {"requeue": body.requeue and (not body.interactive or bool(body.stdout))},
        argv=tuple(body.argv),
        user=peer.user,
        uid=peer.uid,
        gid=peer.gid,
        cwd=body.cwd,
        name=body.name or job_name(body.argv),
        env=tuple(env.items()),
        script=Script("", 0, body.script.word, body.script.text) if body.script else None,
        stdout=body.stdout or default,
        layout=layout(body),
        stage_times=stage_times(body.stage_times, gpus),
        warn=WarnSignal(body.warn.signum, body.warn.before_s) if body.warn else None,
        after=after,
        umask=int(body.umask, 8),
        interactive=body.interactive,
    )


def _jobs(spec: JobSpec, array: ArrayIn | None, first: JobId = NO_ID) -> tuple[JobSpec, ...]:
    """The job, or the tasks of the array. Those of a sweep differ, and so do their estimates; the
    others are one job as long as they wait, or a few if their indices are not evenly spaced."""
    if array is None:
        return (spec,)
    every, names = array.indices, tuple(array.params)
    ends = len(every), every[0], every[-1]
    if names:
        rows = zip(*array.params.values(), strict=True)
        tasks = (
            ArrayTask(first, index, array.limit, *ends, tuple(zip(names, row, strict=True)))
            for index, row in zip(every, rows, strict=True)
        )
    else:
        tasks = (
            ArrayTask(first, its.start, array.limit, *ends, more=len(its) - 1, step=its.step)
            for its in spans(every)
        )
    return tuple(replace(spec, array=task) for task in tasks)
