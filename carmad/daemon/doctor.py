"""`carma doctor`: checks what this server has and what is missing, with hints."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from carmad import beats, configfile, paths, registry
from carmad.api.checks import CheckOut, verdict
from carmad.api.gpus import gpu_state
from carmad.attempt import exits
from carmad.attempt.environment import HOOKS
from carmad.config import Settings
from carmad.core.gpus.gpuview import GpuView
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import Mode
from carmad.core.jobs.job import Job
from carmad.core.scene import Scene
from carmad.edge import Known
from carmad.errors import CarmaError
from carmad.gpu.mps import Mps, ServerState
from carmad.gpu.source import Capabilities
from carmad.guards import Trouble
from carmad.installed import how_to_add
from carmad.learning.trained import Models, missing_packages
from carmad.notify.sender import SENDMAIL, find_sendmail
from carmad.readable import gib
from carmad.store.sql import SqlStore

MIB = 1 << 20
LITTLE_SPACE = 1024 * MIB
NO_SPACE = 64 * MIB
CLOCK_OFF_S = 2.0
MOST_NAMED = 10  # of one kind of file
PLUGINS_WITHIN_S = 20.0
RECENT_S = 3600.0

PLUGINS = ("policies", "recoveries", "predictors", "estimators")

# Plugins and their declarations are loaded in a child: the daemon must not import what they import.
LOAD_PLUGINS = """
import json
from importlib.metadata import entry_points
found, installed = {}, entry_points()
for group in sorted(installed.groups):
    project, _, kind = group.partition(".")
    if project != "carma" or kind == "tracer_patches":  # these are for a job's own Python
        continue
    found[kind] = {}
    for point in installed.select(group=group):
        try:
            point.load()
            found[kind][point.name] = ""
        except BaseException as error:
            found[kind][point.name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def checks(
    settings: Settings,
    scene: Scene,
    capabilities: Capabilities,
    store: SqlStore,
    systemd: bool,
    mps: Mps | None,
    models: Models,
    troubles: Sequence[Trouble] = (),
    outage: CarmaError | None = None,
) -> list[CheckOut]:
    """`outage`: why no job can be launched now. Slow: reads files and starts a process."""
    return [
        *_deciding(settings, troubles),
        *_system(settings, scene, models),
        *_threads(),
        _identity(),
        *_hooks(Path(HOOKS)),
        *_gpus(scene, capabilities),
        *_islands(scene),
        *_accounts(scene),
        *_mps(settings, scene, mps),
        *_guarantees(settings, scene),
        *_mail(settings),
        *_state(store.path.parent),
        *_damage(store),
        *_records(store),
        _systemd(systemd),
        *_launches(outage),
        _unit(),
        _cgroup(),
        _clock(scene.now),
        _plugins(),
    ]


def _deciding(settings: Settings, troubles: Sequence[Trouble]) -> Iterator[CheckOut]:
    """Whether the plugins that the core calls work."""
    fallback = settings.policy_fallback
    recent = [each for each in troubles if not each.over or time.time() - each.until < RECENT_S]
    failing = {each.plugin.split(" ")[0] for each in recent}
    deputy = f"; {fallback} takes over if it fails" if fallback else ""
    for kind, detail in (
        ("policy", f"{settings.policy} decides{deputy}"),
        ("predictor", f"{settings.predictor} predicts how long jobs take"),
        ("recovery", f"{settings.recovery.name} decides after out-of-memory crashes"),
    ):
        if kind not in failing:
            yield verdict(kind, True, detail)
    for each in recent:
        at = datetime.fromtimestamp(each.since).astimezone().isoformat(" ", "seconds")
        what = f"{each.times} failures since {at}, the last: {each.error}"
        hint = "The log has more. "
        if each.plugin.startswith("policy ") and not fallback:
            hint += "Set policy_fallback, so that another policy decides meanwhile. "
        if each.over:
            yield verdict(each.plugin, None, f"answers again, after {what}", hint.strip())
        else:
            hint += "Repair it or choose another, and restart carmad: running jobs continue."
            yield verdict(each.plugin, False, f"fails, so {each.without}: {what}", hint)


# What a policy may have to know of a job, and where it comes from.
KNOWN: Mapping[Known, tuple[Callable[[Job], object], str]] = {
    "duration": (lambda job: job.expected_s, "Submit them with --expect."),
    "stages": (lambda job: job.stage_times, "Submit them with --stages or --watch-stages."),
}


def _system(settings: Settings, scene: Scene, models: Models) -> Iterator[CheckOut]:
    """Whether the policy has what its paper gives it."""
    policy, system = settings.policy, registry.systems().get(settings.policy)
    if system is None:
        return
    values, found = configfile.by_name(settings), []
    for name, its in system.settings.items():
        where = settings.origins.get(name, "default")
        other = f" ({where}), not {json.dumps(its)}" if values[name] != its else ""
        found.append(f"{name} is {json.dumps(values[name])}{other}")
    if "profiling.gpus" in system.settings:
        gpus = len(scene.view.gpus)
        size = settings.profiling.pool_size(gpus)
        found.append(f"so that {size} of {gpus} GPUs profile new jobs")
    if found:
        yield verdict("system", True, f"for {policy}, {', '.join(found)}")
    is_used = system.model and settings.predictor == system.settings.get("predictor")
    if is_used and not models.has(system.model):
        said = (each for each in models.last_words if each.startswith(f"{system.model}: "))
        detail = f"{settings.predictor} goes by earlier runs alone, as there is no model yet"
        if packages := missing_packages():
            detail, hint = f"{detail}: {packages} is not installed", how_to_add("policies")
        else:
            detail = f"{detail}: {next(said, 'none has been trained')}"
            hint = "It is trained once enough jobs have run; `carma doctor --train` tries at once."
        yield verdict("system: model", None, detail, hint)
    waiting = [job for job in scene.line if job.spec.gpus]
    for what in system.of_jobs:
        is_known, hint = KNOWN[what]
        if lacking := sum(not is_known(job) for job in waiting):
            detail = f"of {len(waiting)} jobs that wait, {lacking} have no known {what}"
            yield verdict(f"system: {what}", None, detail, hint)


def _threads() -> Iterator[CheckOut]:
    """Whether any has been at the same work for too long."""
    late = beats.late()
    for each in late:
        hint = "The log says where it is. If it does not go on, restart carmad: jobs continue."
        yield verdict(f"thread {each.thread}", False, f"{each}, in {each.call}", hint)
    if not late:
        yield verdict("threads", True, f"{len(beats.ages())} kinds beat, none is late")


def _identity() -> CheckOut:
    uid = os.geteuid()
    if uid == 0:
        return verdict("identity", True, "runs as root: every user's jobs run as that user")
    return verdict(
        "identity",
        None,
        f"runs as uid {uid}: only that user may submit jobs",
        "For a server that several people share, run carmad as root: carma daemon install.",
    )


def _hooks(folder: Path) -> Iterator[CheckOut]:
    """Python silently ignores directories on PYTHONPATH that it may not read."""
    wanted = dict.fromkeys(reversed(folder.parents), stat.S_IXOTH)
    wanted |= dict.fromkeys((folder, *folder.glob("*.py")), stat.S_IROTH)
    closed = [path for path, bit in wanted.items() if not path.stat().st_mode & bit]
    if closed and os.geteuid() == 0:
        yield verdict(
            "watch-stages",
            None,
            f"--watch-stages does nothing: users cannot read {closed[0]}",
            "Install CARMA where they can, such as /opt.",
        )


def _telemetry(capabilities: Capabilities) -> Iterator[CheckOut]:
    provides = ", ".join(capabilities.provides) or "nothing"
    yield verdict("telemetry", True, f"{capabilities.source} provides {provides}")
    for what, why in capabilities.missing:
        yield verdict(f"telemetry: {what}", None, f"not available: {why}")
    for note in capabilities.notes:
        yield verdict("telemetry: note", None, note)


def _gpus(scene: Scene, capabilities: Capabilities) -> Iterator[CheckOut]:
    if scene.unread:
        hint = "Make nvidia-smi work; carmad then finds the GPUs by itself."
        yield verdict("gpus", False, f"cannot be read yet, and jobs wait: {scene.unread}", hint)
        return
    yield from _telemetry(capabilities)
    if not scene.view.gpus:
        hint = "See the notes above." if capabilities.notes else "Does nvidia-smi list any?"
        yield verdict("gpus", False, "there is no GPU that takes jobs", hint)
    for gpu in scene.view.gpus:
        name = f"gpu {gpu.gpu.index}"
        state, detail = gpu_state(gpu, scene)
        match state:
            case "faulty":
                yield verdict(name, False, detail, "See dmesg; the GPU may need a reset.")
            case "drained":
                hint = f"carma drain --undo {gpu.gpu.index}"
                yield verdict(name, None, f"takes no jobs: {detail}", hint)
            case "stale":
                yield verdict(name, False, detail, "Is the driver hanging? Try nvidia-smi.")
            case _:
                yield verdict(name, True, f"{gpu.gpu.name}, {gib(gpu.gpu.memory_mib)}")
        for each in gpu.sample.conditions if gpu.sample else ():
            yield verdict(name, None, f"it works, but {each.message}")


def _islands(scene: Scene) -> Iterator[CheckOut]:
    """Which GPUs are close to each other, unless all are."""
    members: dict[str, list[str]] = {}
    for gpu in scene.view.gpus:
        members.setdefault(gpu.gpu.island, []).append(str(gpu.gpu.index))
    if len(members) > 1:
        detail = "; ".join(f"{name}: GPU {', '.join(its)}" for name, its in members.items())
        yield verdict("islands", True, f"GPUs close to each other: {detail}")


def _accounts(scene: Scene) -> Iterator[CheckOut]:
    """Jobs that may not start, as their users are not there any more."""
    for job in [job for job in scene.live.rows.values() if job.barred][:MOST_NAMED]:
        hint = f"carma cancel {label(job)}; or repair the user database: then it goes on."
        yield verdict("accounts", False, f"job {label(job)} is held: {job.barred}", hint)


def _mps(settings: Settings, scene: Scene, mps: Mps | None) -> Iterator[CheckOut]:
    if mps is None:
        yield verdict("mps", True, "off: jobs that share a GPU take turns on it")
        return
    if shutil.which("nvidia-cuda-mps-control") is None:
        hint = "Install the driver's MPS programs, or set mps = false."
        yield verdict("mps", False, "nvidia-cuda-mps-control is not on PATH", hint)
    else:
        yield _mps_users(settings)
    for name, gpus in _mps_servers(settings, scene.view.gpus):
        used = [each.id for each in gpus if any(job.mode is Mode.MPS for job in each.residents)]
        daemons = [mps.daemon(each) for each in used or [gpus[0].id]]  # they may still be several
        log = daemons[0].log
        if used and not any(each.healthy() for each in daemons):
            yield verdict(name, False, "its control daemon does not answer", f"See {log}")
        elif daemons[0].state() is ServerState.FAULT:
            detail = "a job's fault: new jobs start without MPS until the affected ones have ended"
            yield verdict(name, False, detail, f"See {log}/server.log")


def _mail(settings: Settings) -> Iterator[CheckOut]:
    """Whether the way to send mail is there; only a mail shows that it arrives."""
    way = settings.notify.mail
    if not way:
        return
    if not find_sendmail():
        hint = "Install one: msmtp-mta passes mail on to a server, postfix is one."
        yield verdict("mail", False, f"there is no {SENDMAIL}", hint)
        return
    yield verdict("mail", True, f"by {way}; `carma doctor --notify` sends you one")


def _guarantees(settings: Settings, scene: Scene) -> Iterator[CheckOut]:
    """Whether the driver can do what the setting wants."""
    if not settings.collocation.guarantee_memory:
        return
    without = [str(gpu.gpu.index) for gpu in scene.view.gpus if not gpu.gpu.guarantees]
    if not without:
        yield verdict("guaranteed memory", True, "the driver guarantees what jobs were promised")
        return
    yield verdict(
        "guaranteed memory",
        None,
        f"guarantee_memory has no effect on GPU {', '.join(without)}",
        "It needs driver R615, nvidia-ml-py 13.615, carmad as root, and GPUs outside MIG mode.",
    )


def _mps_users(settings: Settings) -> CheckOut:
    shared = settings.collocation
    if shared.mps_multiuser:
        detail = "on, for several users at once: a fault of one job ends the others on its GPU"
        return verdict("mps", None, detail)
    if shared.mps_scope == "node":
        hint = 'For several users, set mps_multiuser = true or mps_scope = "gpu".'
        return verdict("mps", None, "on: only jobs of one user run at a time, on all GPUs", hint)
    return verdict("mps", True, "on: only jobs of one user share a GPU at a time")


def _mps_servers(
    settings: Settings, gpus: tuple[GpuView, ...]
) -> Iterator[tuple[str, tuple[GpuView, ...]]]:
    """A name for each control daemon, and its GPUs."""
    if settings.collocation.mps_scope == "gpu":
        yield from ((f"mps on gpu {gpu.gpu.index}", (gpu,)) for gpu in gpus)
    elif gpus:
        yield "mps server", gpus


def _state(state_dir: Path) -> Iterator[CheckOut]:
    detail = f"SQLite {sqlite3.sqlite_version}, write-ahead log, one connection"
    yield verdict("database", True, detail)
    try:
        free = shutil.disk_usage(state_dir).free
        with tempfile.TemporaryFile(dir=state_dir, buffering=0) as file:
            file.write(b"carma doctor")
            os.fsync(file.fileno())
    except OSError as error:
        detail = f"{state_dir} cannot be written: {error.strerror}"
        hint = "See `df` and `dmesg`. Until it can, no job is accepted, and no end is recorded."
        yield verdict("disk", False, detail, hint)
        return
    detail = f"{free // MIB} MiB free for {state_dir}"
    hint = (
        "Free some: when the disk is full, no job can be accepted." if free < LITTLE_SPACE else ""
    )
    yield verdict("disk", False if free < NO_SPACE else None if hint else True, detail, hint)


def _damage(store: SqlStore) -> Iterator[CheckOut]:
    for what, why in store.damage.reasons().items():
        hint = "A backup may have it intact."
        yield verdict("damage", None, f"{what} in the database cannot be read: {why}", hint)


def _records(store: SqlStore) -> Iterator[CheckOut]:
    """Entries in `jobs` without a job: a backup was restored, or somebody created them."""
    jobs = store.path.parent / "jobs"
    left = exits.attempt_folders(jobs)
    known = store.existing(set(left.values()))
    for path in [path for path, job in left.items() if job not in known][:MOST_NAMED]:
        cgroup = f"carma-job-{path.name.replace('.', '-')}"
        hint = (
            f"CARMA does not manage it. If `systemd-cgls` shows {cgroup}, let it finish or stop it."
        )
        yield verdict("records", None, f"{path} belongs to no job in the database", hint)
    for path in exits.strange_entries(jobs)[:MOST_NAMED]:
        yield verdict("records", None, f"{path} is not a record of an attempt", "Remove it.")


def _systemd(systemd: bool) -> CheckOut:
    if systemd:
        return verdict("systemd", True, "jobs outlive carmad's own unit")
    return verdict(
        "systemd",
        None,
        "not used: jobs outlive carmad, but not a stop of the service or container it is in",
        "On a server with systemd, run carmad as its service.",
    )


def _launches(outage: CarmaError | None) -> Iterator[CheckOut]:
    if outage:
        yield verdict("launches", False, f"are postponed: {outage}", str(outage.hint))


def _unit() -> CheckOut:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    places = [Path("/etc/systemd/system"), Path("/usr/lib/systemd/system"), home / "systemd/user"]
    for place in places:
        if (place / "carmad.service").exists():
            return verdict("unit", True, f"{place}/carmad.service")
    return verdict(
        "unit",
        None,
        "carmad.service is not installed: carmad does not start after a reboot",
        "Install it as root: carma daemon install.",
    )


def _cgroup() -> CheckOut:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return verdict("cgroup", True, "version 2")
    return verdict(
        "cgroup",
        None,
        "version 1 or none: a job's processes are found only by their ancestry",
        "Boot with systemd.unified_cgroup_hierarchy=1.",
    )


def _clock(now: float) -> CheckOut:
    off = time.time() - now
    if abs(off) < CLOCK_OFF_S:
        return verdict("clock", True, "agrees with the system's")
    return verdict(
        "clock",
        None,
        f"the system's clock was changed since carmad started: they differ by {off:.0f} s",
        "Restart carmad; running jobs continue.",
    )


def _plugins() -> CheckOut:
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-c", f"{paths.FIND}\n{LOAD_PLUGINS}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PLUGINS_WITHIN_S,
            cwd="/",
        )
        found: dict[str, dict[str, str]] = json.loads(child.stdout.strip().splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        return verdict("plugins", None, f"could not be checked: {error}")
    wrong = [
        f"{kind}: {name} ({error})"
        for kind, its in found.items()
        for name, error in its.items()
        if error
    ]
    if wrong:
        detail = f"cannot be loaded: {'; '.join(wrong)}"
        hint = "The optional parts in docs/guides/packages.md, if you want them."
        return verdict("plugins", None, detail, hint)
    counts = ", ".join(f"{len(found[kind])} {kind}" for kind in PLUGINS)
    return verdict("plugins", True, f"all can be loaded: {counts}")
