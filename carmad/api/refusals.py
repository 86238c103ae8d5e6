"""What a submission is refused for: each check raises CarmaError, or a kind of it.

`refuse` makes all of them, in one order; an update makes those of the options that it changes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from carmad.api.call import Call
from carmad.api.requests import Awaited, Submission, SubmitIn
from carmad.config import Host
from carmad.core.gpus.gpu import Gpu, filter_gpus, parse_choice
from carmad.core.gpus.sharing import label
from carmad.core.jobs.recurrence import fill
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.rules.limits import limit_of
from carmad.core.rules.share import HOUR_S
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.http.connections import Peer
from carmad.http.problems import Conflict, Forbidden, TooLarge
from carmad.options import MAX_SCRIPT_BYTES, OPTIONS
from carmad.readable import duration, gib
from carmad.words import clock

MAX_ARGV_BYTES = 1 << 17  # kept in memory while the job waits
MAX_ENV_BYTES = 1 << 20
MAX_WAITS = 100_000  # tasks × dependencies of each
MAX_WORD_BYTES = (1 << 17) - 1  # the kernel's limit for one (MAX_ARG_STRLEN)
CHOOSING = frozenset(("memory_mib", "constraint", "on", "not_on"))  # which GPUs a job may use
OF_GPUS = (*sorted(CHOOSING), "exclusive", "watch_stages", "urgent")  # no meaning without GPUs


def refuse(call: Call, asked: Submission, jobs: Sequence[JobSpec] = ()) -> None:
    """Raises the CarmaError of the first check that fails. `jobs`: those that would be stored: a
    dry run and an estimate need no room. An estimate may be asked for while it runs.

    Until the caller's next `await`, no other request can use up the quota.
    """
    peer, spec, tally, settings = call.peer, asked.spec, call.service.tally, call.service.settings
    may_submit(call)
    may_be_nice(peer, asked.body.nice)  # not the spec's: a check of submissions may give more
    fits_the_kernel(asked.body)
    fits_a_terminal(asked.body)
    has_one_name(asked.body)
    in_time(spec, asked.at)
    needs_gpus(spec)
    fits_the_host(spec, settings.host)
    may_wait_for(peer, asked.awaited)
    array = asked.body.array
    few_waits(len(array.indices) if array else 1, len(spec.after))
    if asked.scene:
        if spec.urgent:
            within_the_budget(peer, asked.scene)
        if asked.body.unless_running is not None and (jobs or asked.body.dry_run):
            is_alone(spec, asked.scene)
    if not tally.unread:
        fits_the_server(spec, tally.gpus)
    within_the_quota(call, jobs, spec.gpus)


def may_submit(call: Call) -> None:
    service, peer = call.service, call.peer
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


def may_be_nice(peer: Peer, nice: int) -> None:
    if nice < 0 and not peer.admin:
        raise Forbidden("only administrators may use a negative --nice", "Use 0 or more.")


def few_waits(tasks: int, after: int) -> None:
    if tasks * after > MAX_WAITS:
        raise TooLarge(
            f"{tasks} tasks with {after} dependencies each: at most {MAX_WAITS} in all",
            "Let them depend on one job that depends on the others.",
        )


def fits_the_kernel(body: SubmitIn) -> None:
    env = [f"{name}={value}" for name, value in (body.env | body.export).items()]
    params = body.array.params.items() if body.array else ()
    longest = tuple((name, max(values, key=len)) for name, values in params)
    argv = fill(tuple(body.argv), longest) if longest else body.argv
    for what, words, most in (
        ("arguments", argv, MAX_ARGV_BYTES),
        ("environment", env, MAX_ENV_BYTES),
    ):
        sizes = [len(word.encode()) + 1 for word in words]
        if sum(sizes) > most or max(sizes, default=0) > MAX_WORD_BYTES:
            raise TooLarge(
                f"the job's {what}: {sum(sizes)} bytes, the longest {max(sizes)}; the limits are"
                f" {most} in all and {MAX_WORD_BYTES} each",
                "Put long values into a file, and give the job its name.",
            )
    if body.script and len(body.script.text.encode()) > MAX_SCRIPT_BYTES:
        raise TooLarge(
            f"the job script is larger than {MAX_SCRIPT_BYTES >> 20} MiB",
            "Submit it with --no-copy, or move its data into another file.",
        )
    if body.script and body.script.word >= len(body.argv):
        raise CarmaError(f"the command has no word {body.script.word}", "They count from 0.")


def fits_a_terminal(body: SubmitIn) -> None:
    if body.container and body.conda_env:
        raise CarmaError(
            "--container and --conda cannot be used together",
            "Name an image that has the environment.",
        )
    if body.interactive and (body.array or body.conda_env or body.container):
        array_or_env = "an array" if body.array else "a conda environment to activate"
        what = "a container" if body.container else array_or_env
        raise CarmaError(f"a job at a terminal cannot have {what}", "Submit it as a batch job.")


def has_one_name(body: SubmitIn) -> None:
    if body.unless_running is not None and body.name not in (None, body.unless_running):
        raise CarmaError("--unless-running and --name give the job two names", "Leave out --name.")


def in_time(spec: JobSpec, now: float) -> None:
    if spec.warn and spec.time_limit_s is None:
        raise CarmaError("--signal needs a time limit", "Add --time.")
    if spec.deadline_at is not None and spec.deadline_at <= now:
        raise CarmaError(
            f"the deadline was {duration(now - spec.deadline_at)} ago",
            "Give a time in the future, such as --deadline 8h.",
        )


def fits_the_server(spec: JobSpec, gpus: tuple[Gpu, ...]) -> None:
    """Refuse a job that could never start, instead of letting it wait for ever."""
    if not spec.gpus:
        return
    gpus = _choose(spec, gpus)
    whole = [gpu for gpu in gpus if not gpu.is_mig]
    usable = len(gpus) if spec.gpus == 1 else len(whole)
    if spec.gpus > usable:
        kind = " that are not MIG instances" if spec.gpus > 1 and len(whole) < len(gpus) else ""
        raise CarmaError(
            f"the job wants {spec.gpus} GPUs, and this server has {usable}{kind}",
            f"Ask for {usable} or fewer." if usable else "Run `carma doctor` to find out why.",
        )
    candidates = gpus if spec.gpus == 1 else whole
    sizes = sorted((gpu.memory_mib for gpu in candidates), reverse=True)
    if spec.memory_mib is not None and spec.memory_mib > sizes[spec.gpus - 1]:
        raise CarmaError(
            f"the job wants {gib(spec.memory_mib)} of memory per GPU, and this server has"
            f" {'no GPU' if spec.gpus == 1 else f'not {spec.gpus} GPUs'} of that size",
            f"Ask for {gib(sizes[spec.gpus - 1])} or less.",
        )


def _choose(spec: JobSpec, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Those that the job accepts. Raises CarmaError if they are too few."""
    chosen = parse_choice(spec.constraint, spec.on, spec.not_on)
    if chosen is None:
        return gpus
    fitting = tuple(filter_gpus(gpus, chosen))
    if len(fitting) >= spec.gpus:
        return fitting
    names = Counter(gpu.name for gpu in gpus)
    here = ", ".join(f"{count} × {name}" for name, count in names.items())
    wanted = "a GPU" if spec.gpus == 1 else f"{spec.gpus} GPUs"
    raise CarmaError(
        f"the job wants {wanted} with {chosen}, and this server has {len(fitting) or 'none'}",
        f"It has {here}: see `carma gpus`.",
    )


def needs_gpus(spec: JobSpec) -> None:
    """Refuse what has no meaning without GPUs."""
    if not spec.gpus and (given := [name for name in OF_GPUS if getattr(spec, name)]):
        raise CarmaError(
            f"the job wants no GPU, so {OPTIONS[given[0]].flag} has no meaning",
            "Leave it out, or ask for GPUs with --gpus.",
        )


def fits_the_host(spec: JobSpec, host: Host) -> None:
    """Refuse a job that could never start. `host`: the CPUs and memory that jobs may have."""
    if spec.cpus is not None and host.cpus is not None and spec.cpus > host.cpus:
        raise CarmaError(
            f"the job wants {spec.cpus} CPUs, and this server has {host.cpus} for jobs",
            f"Ask for {host.cpus} or fewer with --cpus.",
        )
    wanted, most = spec.host_memory_mib, host.memory_mib
    if wanted is not None and most is not None and wanted > most:
        raise CarmaError(
            f"the job wants {gib(wanted)} of the host's memory, and this server has {gib(most)}"
            " for jobs",
            f"Ask for {gib(most)} or less with --mem.",
        )


def within_the_budget(peer: Peer, scene: Scene) -> None:
    most = scene.view.settings.fairness.urgent_gpu_hours
    used_s = scene.shares.urgent_s(peer.owner, scene.now)
    if used_s < most * HOUR_S:
        return
    again_at = scene.shares.urgent_again_at(peer.owner, scene.now)
    again = f" from {clock(again_at)} on, or now" if math.isfinite(again_at) else ""
    raise Conflict(
        f"your urgent jobs have used {used_s / HOUR_S:.3g} GPU-h in the last seven days, and"
        f" {most:g} are allowed",
        f"Submit it{again} without --urgent.",
    )


def may_wait_for(peer: Peer, awaited: Iterable[Awaited]) -> None:
    for named, kind, jobs in awaited:
        if not jobs:
            raise CarmaError(f"there is no job {named} to wait for", "See `carma queue`.")
        for job in jobs:
            if job.spec.owner != peer.owner and not peer.admin:
                raise Forbidden(
                    f"job {named} is not yours, so your job cannot depend on it",
                    "Name your own jobs.",
                    code="not_yours",
                )
            if job.ended and not kind.accepts(job.state is JobState.SUCCEEDED):
                raise CarmaError(
                    f"job {label(job)} has already ended as {job.state}: {kind} can never be met",
                    "Leave the dependency out, or requeue that job first.",
                )


def is_alone(spec: JobSpec, scene: Scene) -> None:
    """No job of this owner and name waits or runs."""
    for job in scene.live.rows.values():
        if job.spec.name == spec.name and job.spec.owner == spec.owner:
            raise Conflict(
                f"nothing is submitted: job {label(job)}, {spec.name}, has not ended",
                f"`carma why {label(job)}` tells more.",
                code="running",
            )


def within_the_quota(call: Call, jobs: Sequence[JobSpec], gpus: int = 0) -> None:
    """`jobs`: that are to wait. `gpus`: that each of them would hold."""
    owner, tally, settings = call.peer.owner, call.service.tally, call.service.settings.limits
    limit, most_mib = limit_of(owner, tally.limits, settings), settings.queued_mib_per_user
    groups = [tally.limits[name] for it in call.peer.groups if (name := f"@{it}") in tally.limits]
    for each in (limit, *groups):
        if each.gpus is not None and gpus > each.gpus:
            raise CarmaError(
                f"the job wants {gpus} GPUs, and {each.subject} may hold {each.gpus} at once",
                "Administrators set that; see `carma limit`.",
            )
    if not jobs:
        return
    waiting, then = tally.waiting(owner), tally.waiting(owner, jobs)
    if limit.jobs is not None and then.jobs > limit.jobs:
        raise Conflict(
            f"you have {waiting.jobs} jobs waiting, and at most {limit.jobs} are"
            f" allowed: there is no room for {then.jobs - waiting.jobs} more",
            "Try again once some have started.",
        )
    if then.bytes > most_mib << 20:
        raise Conflict(
            f"the commands, environments and scripts of your waiting jobs come to"
            f" {_mib(waiting.bytes)} MiB, and at most {most_mib} MiB are allowed:"
            f" there is no room for {_mib(then.bytes - waiting.bytes)} MiB more",
            "Submit fewer at once, or put long arguments into a file and pass its name. Jobs from"
            " the same shell, and the tasks of an array, share one environment, and those of the"
            " same job script one copy of it.",
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}"
