"""What a submission is refused for: each check raises CarmaError, or a kind of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from carmad.api.call import Call
from carmad.api.requests import SubmitIn
from carmad.api.service import Service
from carmad.api.tally import Tally
from carmad.config import Host
from carmad.core.gpus.gpu import Gpu, filter_gpus, parse_choice
from carmad.core.jobs.recurrence import fill
from carmad.core.jobs.spec import JobSpec, Owner
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


def may_submit(call: Call, nice: int = 0) -> None:
    """Raises Forbidden."""
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
    may_be_nice(peer, nice)


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
    for what, words, most in (
        ("arguments", fill(tuple(body.argv), longest), MAX_ARGV_BYTES),
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


def in_time(body: SubmitIn | JobSpec, now: float) -> None:
    if body.warn and body.time_limit_s is None:
        raise CarmaError("--signal needs a time limit", "Add --time.")
    if body.deadline_at is not None and body.deadline_at <= now:
        raise CarmaError(
            f"the deadline was {duration(now - body.deadline_at)} ago",
            "Give a time in the future, such as --deadline 8h.",
        )


def fits_the_server(body: SubmitIn | JobSpec, gpus: tuple[Gpu, ...]) -> None:
    """Refuse a job that could never start, instead of letting it wait for ever."""
    if not body.gpus:
        return
    gpus = _choose(body, gpus)
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


def _choose(body: SubmitIn | JobSpec, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Those that the job accepts. Raises CarmaError if they are too few."""
    chosen = parse_choice(body.constraint, body.on, body.not_on)
    fitting = tuple(filter_gpus(gpus, chosen))
    if chosen is None or len(fitting) >= body.gpus:
        return fitting
    names = Counter(gpu.name for gpu in gpus)
    here = ", ".join(f"{count} × {name}" for name, count in names.items())
    wanted = "a GPU" if body.gpus == 1 else f"{body.gpus} GPUs"
    raise CarmaError(
        f"the job wants {wanted} with {chosen}, and this server has {len(fitting) or 'none'}",
        f"It has {here}: see `carma gpus`.",
    )


def within_the_quota(call: Call, body: SubmitIn) -> None:
    limits = call.service.tally.limits
    groups = [limits[name] for group in call.peer.groups if (name := f"@{group}") in limits]
    for limit in (call.service.limit_of(call.peer.owner), *groups):
        if limit.gpus is not None and body.gpus > limit.gpus:
            raise CarmaError(
                f"the job wants {body.gpus} GPUs,"
                f" and {limit.subject} may hold {limit.gpus} at once",
                "Administrators set that; see `carma limit`.",
            )


def needs_gpus(body: SubmitIn | JobSpec) -> None:
    """Refuse what has no meaning without GPUs."""
    if not body.gpus and (given := [name for name in OF_GPUS if getattr(body, name)]):
        raise CarmaError(
            f"the job wants no GPU, so {OPTIONS[given[0]].flag} has no meaning",
            "Leave it out, or ask for GPUs with --gpus.",
        )


def fits_the_host(body: SubmitIn, host: Host) -> None:
    """Refuse a job that could never start. `host`: the CPUs and memory that jobs may have."""
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


async def require_room(call: Call, specs: Sequence[JobSpec]) -> None:
    """Raises TooLarge or Conflict if they exceed what the user may have in the queue.

    Until the caller's next `await`, no other request can use up the quota.
    """
    service, owner = call.service, call.peer.owner
    limits, alone = service.settings.limits, Tally.alone(specs)
    if alone.bytes > limits.queued_mib_per_user << 20:
        raise TooLarge(
            f"the commands, environments and scripts of {alone.jobs} jobs come to"
            f" {_mib(alone.bytes)} MiB, and at most {limits.queued_mib_per_user} MiB may wait",
            "Submit fewer at once, or put long arguments into a file and pass its name.",
        )
    await service.ready()
    if not _is_room(service, owner, specs):
        # Steps that freed quota may not have reached the tally yet; by then they have.
        await service.ask(lambda core: None)
    if _is_room(service, owner, specs):
        return
    waiting, most = service.tally.waiting(owner), service.limit_of(owner).jobs
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


def _is_room(service: Service, owner: Owner, specs: Sequence[JobSpec]) -> bool:
    limits, then = service.settings.limits, service.tally.waiting(owner, specs)
    most = service.limit_of(owner).jobs
    return (most is None or then.jobs <= most) and then.bytes <= limits.queued_mib_per_user << 20


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}"
