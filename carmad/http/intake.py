"""Turns a submission into the specs of its jobs, or into the error that says why it is refused."""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from carmad.api.outlook import outlook_out
from carmad.api.requests import ArrayIn, SubmitIn
from carmad.api.responses.jobs import OutlookOut
from carmad.api.select import parse_selection
from carmad.attempt.environment import BATCH_SIZE, scrub
from carmad.attempt.limits import CPU, MEMORY
from carmad.config import Host
from carmad.core.decision import Placement, Reason
from carmad.core.messages import Submitted
from carmad.core.recurrence import group
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
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
    WarnSignal,
)
from carmad.engine.threads import run_in_threadpool
from carmad.errors import CarmaError
from carmad.http import lookup
from carmad.http.layouts import layout, stage_times
from carmad.http.peers import Peer
from carmad.http.problems import Conflict, Forbidden, TooLarge
from carmad.http.service import Service
from carmad.http.tally import Tally
from carmad.options import OPTIONS, PLAIN
from carmad.readable import duration, gib
from carmad.store import environments

MAX_ARGV_BYTES = 1 << 17  # kept in memory while the job waits
MAX_ENV_BYTES = 1 << 20
MAX_WAITS = 100_000  # tasks × dependencies of each
MAX_WORD_BYTES = (1 << 17) - 1  # the kernel's limit for one (MAX_ARG_STRLEN)
OF_GPUS = ("memory_mib", "exclusive", "watch_stages")  # no meaning without GPUs
INTERPRETERS = re.compile(r"(python[0-9.]*|bash|sh|zsh|torchrun|accelerate)")


async def submit(service: Service, peer: Peer, body: SubmitIn) -> tuple[JobId, int]:
    """Queue the job or the tasks of the array; returns the first id and the number of jobs.

    Everything is checked before ids are reserved; when this returns, the jobs are on disk.
    """
    spec = await checked(service, peer, body)
    bare, count = environments.without(spec), len(body.array.indices) if body.array else 1
    await require_room(service, peer, [bare] * count)
    first = service.inbox.next_ids(count)  # no `await` from here on: the core needs them in order
    specs = _tasks(bare, body.array, first) if body.array else (bare,)
    service.tally.expect(first, specs)
    try:
        await service.request(Submitted(service.now(), first, specs, body.held, spec.env))
    except CarmaError:
        service.tally.give_up(first, specs)
        raise
    return first, count


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
            f"the commands and environments of {alone.jobs} jobs come to {_mib(alone.bytes)} MiB,"
            f" and at most {limits.queued_mib_per_user} MiB may wait",
            "Submit fewer at once, or put long arguments into a file and pass its name.",
        )
    waiting, there_is_room = await service.room(peer.uid, specs)
    if there_is_room:
        return
    if waiting.jobs + alone.jobs > limits.queued_per_user:
        raise Conflict(
            f"you have {waiting.jobs} jobs waiting, and at most {limits.queued_per_user} are"
            f" allowed: there is no room for {alone.jobs} more",
            "Try again once some have started.",
        )
    raise Conflict(
        f"the commands and environments of your waiting jobs come to {_mib(waiting.bytes)} MiB,"
        f" and at most {limits.queued_mib_per_user} MiB are allowed: there is no room for"
        f" {_mib(alone.bytes)} MiB more",
        "Try again once some have started. Jobs from the same shell, and the tasks of an array,"
        " share one environment.",
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}"


async def checked(service: Service, peer: Peer, body: SubmitIn) -> JobSpec:
    """The spec of the job, or of any task of the array."""
    _may_submit(service, peer, body)
    _fits_the_kernel(body)
    _in_time(body, service.now())
    await service.ready()
    gpus, unread = service.tally.gpus, service.tally.unread
    _fits_the_host(body, service.settings.host)
    if not unread:
        _fits_the_server(body, gpus)
    elif any(one.gpu for one in body.stage_times):
        raise CarmaError(
            f"the kinds of GPU are not known yet: {unread}",
            "Leave gpu= out of the stage times, or submit the job later.",
        )
    _within_the_quota(body, service.settings.limits.gpus_per_user)
    after = await _dependencies(service, peer, body) if body.after else ()
    tasks = len(body.array.indices) if body.array else 1
    if tasks * len(after) > MAX_WAITS:
        raise TooLarge(
            f"{tasks} tasks with {len(after)} dependencies each: at most {MAX_WAITS} in all",
            "Let them depend on one job that depends on the others.",
        )
    return job_spec(body, peer, after, gpus)


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
    if body.batch_size is None and any(BATCH_SIZE in word for word in body.argv):
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


def _may_submit(service: Service, peer: Peer, body: SubmitIn) -> None:
    if service.uid != 0 and peer.uid != service.uid:
        raise Forbidden(
            "this carmad does not run as root, so it can run only its owner's jobs",
            "Start one of your own with `carma daemon start`, or ask for a system-wide one.",
        )
    if not peer.named:
        raise Forbidden(
            f"uid {peer.uid} has no name on this machine, so no job can run as it",
            "Submit as a user that is known on this machine; see `getent passwd`.",
        )
    if service.uid == 0 and peer.uid == 0 and not service.settings.access.root_jobs:
        raise Forbidden(
            "root may not submit jobs",
            "Submit as a normal user, or set root_jobs = true in [access] of carmad's settings.",
        )
    if body.nice < 0 and not peer.admin:
        raise Forbidden("only administrators may use a negative --nice", "Use 0 or more.")


def _fits_the_kernel(body: SubmitIn) -> None:
    env = [f"{name}={value}" for name, value in (body.env | body.export).items()]
    for what, words, most in (
        ("arguments", body.argv, MAX_ARGV_BYTES),
        ("environment", env, MAX_ENV_BYTES),
    ):
        sizes = [len(word.encode()) + 1 for word in words]
        if sum(sizes) > most or max(sizes, default=0) > MAX_WORD_BYTES:
            raise TooLarge(
                f"the job's {what}: {sum(sizes)} bytes, the longest {max(sizes)}; the limits are"
                f" {most} in all and {MAX_WORD_BYTES} each",
                "Put long values into a file, and give the job its name.",
            )


def _in_time(body: SubmitIn, now: float) -> None:
    if body.warn and body.time_limit_s is None:
        raise CarmaError("--signal needs a time limit", "Add --time.")
    if body.deadline_at is not None and body.deadline_at <= now:
        raise CarmaError(
            f"the deadline was {duration(now - body.deadline_at)} ago",
            "Give a time in the future, such as --deadline 8h.",
        )


def _fits_the_server(body: SubmitIn, gpus: tuple[Gpu, ...]) -> None:
    """Refuse a job that could never start, instead of letting it wait for ever."""
    if not body.gpus:
        return
    whole = [gpu for gpu in gpus if not gpu.is_mig]
    usable = len(gpus) if body.gpus == 1 else len(whole)
    if body.gpus > usable:
        kind = " that are not MIG instances" if body.gpus > 1 and len(whole) < len(gpus) else ""
        raise CarmaError(
            f"the job wants {body.gpus} GPUs, and this server has {usable}{kind}",
            f"Ask for {usable} or fewer." if usable else "Run `carma doctor` to find out why.",
        )
    candidates = gpus if body.gpus == 1 else whole
    sizes = sorted((gpu.memory_mib for gpu in candidates), reverse=True)
    if body.memory_mib is not None and body.memory_mib > sizes[body.gpus - 1]:
        raise CarmaError(
            f"the job wants {gib(body.memory_mib)} of memory per GPU, and this server has"
            f" {'no GPU' if body.gpus == 1 else f'not {body.gpus} GPUs'} of that size",
            f"Ask for {gib(sizes[body.gpus - 1])} or less.",
        )


def _fits_the_host(body: SubmitIn, host: Host) -> None:
    """Likewise. The quantities are what jobs may have of the host."""
    if not body.gpus and (given := [name for name in OF_GPUS if getattr(body, name)]):
        raise CarmaError(
            f"the job wants no GPU, so {OPTIONS[given[0]].flags[0]} has no meaning",
            "Leave it out, or ask for GPUs with --gpus.",
        )
    if body.cpus is not None and host.cpus is not None and body.cpus > host.cpus:
        raise CarmaError(
            f"the job wants {body.cpus} CPUs, and this server has {host.cpus} for jobs",
            f"Ask for {host.cpus} or fewer with --cpus.",
        )
    wanted, most = body.host_memory_mib, host.memory_mib
    if wanted is not None and most is not None and wanted > most:
        raise CarmaError(
            f"the job wants {gib(wanted)} of the host's memory, and this server has {gib(most)}"
            " for jobs",
            f"Ask for {gib(most)} or less with --mem.",
        )


def _within_the_quota(body: SubmitIn, quota: int | None) -> None:
    if quota is not None and body.gpus > quota:
        raise CarmaError(
            f"the job wants {body.gpus} GPUs, and a user may hold {quota} at once",
            "That is limits.gpus_per_user, set by the administrator.",
        )


async def _dependencies(service: Service, peer: Peer, body: SubmitIn) -> tuple[After, ...]:
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
            if job.spec.uid != peer.uid and not peer.admin:
                raise Forbidden(
                    f"job {label} is not yours, so your job cannot depend on it",
                    "Name your own jobs.",
                    code="not_yours",
                )
            if not job.ended:
                kept[After(job.id, kind)] = None
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
        **plain,
        argv=tuple(body.argv),
        user=peer.user,
        uid=peer.uid,
        gid=peer.gid,
        cwd=body.cwd,
        name=body.name or _name(body.argv),
        env=tuple(env.items()),
        stdout=body.stdout or default,
        layout=layout(body),
        stage_times=stage_times(body.stage_times, gpus),
        warn=WarnSignal(body.warn.signum, body.warn.before_s) if body.warn else None,
        after=after,
        umask=int(body.umask, 8),
    )


def _tasks(spec: JobSpec, array: ArrayIn, first: JobId) -> tuple[JobSpec, ...]:
    tasks = (ArrayTask(first, index, array.limit) for index in array.indices)
    return tuple(replace(spec, array=task) for task in tasks)


def _name(argv: list[str]) -> str:
    """The program's, or the script's that an interpreter is given."""
    words = [os.path.basename(word) for word in argv]  # noqa: PTH119 - no path need it be
    name = words[0]
    if INTERPRETERS.fullmatch(name):
        name = next((word for word in words[1:] if word and not word.startswith("-")), name)
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", name)[:256] or "job"
