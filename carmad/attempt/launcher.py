"""Starts, stops and signals attempts through their supervisors, and cleans up after them.

The supervisor does the work (`supervisor`); the `shepherd` reports how it ended. Nothing here waits
for a job, and every call may be repeated after a crash.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from carmad import units
from carmad.accounts import account
from carmad.attempt import environment, exits, members, process_tree, supervisor
from carmad.attempt.callers import Process
from carmad.attempt.cgroup import SERVER, is_frozen, name_of
from carmad.attempt.environment import ATTEMPT_VARIABLE, REPORT_FD, command, has_log, log_paths
from carmad.attempt.forks import Forks, run_child
from carmad.attempt.starting import Launch
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import FOR_GOOD, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.engine.clock import boot_id
from carmad.errors import CarmaError

# -- copies of job scripts, for attempts and trials: what was submitted, whatever has become of the
# original since

NAMELESS = 0xFFFFFFFF
ACL = "system.posix_acl_access"
ENTRY = struct.Struct("<HHI")  # tag, permissions, id
OWNER, USER, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
R, X = 4, 1


class Copies:
    """One file for each job, replaced for each of its attempts; and one for each trial.

    Users can enter the directory, but not list it. Each can read and execute the copies of their
    own scripts only, and write to none: otherwise they could fill root's file system.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def write(self, name: str, spec: JobSpec) -> None:
        """Copy the spec's script there. Raises OSError."""
        assert spec.script
        path = self._directory / name
        self._directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._directory.chmod(0o711)  # whatever our umask
        part = path.with_name(f"{name}.part")
        part.unlink(missing_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500)
        with os.fdopen(fd, "wb") as file:
            file.write(spec.script.text.encode())
            file.flush()
            if spec.uid != os.geteuid():
                _share(fd, spec.uid)
        part.replace(path)

    def remove(self, name: str) -> None:
        """Does nothing if it is not there."""
        for each in (name, f"{name}.part"):
            with contextlib.suppress(OSError):
                (self._directory / each).unlink(missing_ok=True)

    def clear_trials(self) -> None:
        """Remove what the trials of a daemon that was killed have left."""
        for path in self._directory.glob("trial*"):
            self.remove(path.name)


def copy_name(job: JobId) -> str:
    """The name of its copy."""
    return f"job{job}"


def _share(fd: int, uid: int) -> None:
    """Let this user, and nobody else but us, read and execute it."""
    entries = (
        (OWNER, R | X, NAMELESS),
        (USER, R | X, uid),
        (GROUP, 0, NAMELESS),
        (MASK, R | X, NAMELESS),
        (OTHER, 0, NAMELESS),
    )
    try:
        os.setxattr(fd, ACL, struct.pack("<I", 2) + b"".join(ENTRY.pack(*one) for one in entries))
    except OSError:  # a file system without access control lists
        os.fchown(fd, uid, -1)


SOCKET = "forkserver"  # in the state directory
ANSWERS_WITHIN_S = 10.0  # a supervisor has one thread, which waits for nobody
LOOK_MS = 5.0  # between two looks whether it has answered
DROP_INS = [
    f"{folder}/{kind}/carma-job-.service.d"
    for folder in ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
    for kind in ("system", "user")
] + [str(Path("~/.config/systemd/user/carma-job-.service.d").expanduser())]
UNIT_EXISTS = ("already loaded", "already exists")  # systemd's wording, now and in the past


class NotNow(CarmaError):
    """The machine cannot start an attempt, through no fault of the job: disk full, no answer from
    systemd. The launch may be retried, even if it succeeded without our knowing."""


class Stopped(CarmaError):
    """The attempt was stopped before it started, and never will. `cause`: why, if for good."""

    def __init__(self, job: JobId, why: str) -> None:
        super().__init__(f"job {job} was stopped before it started")
        self.cause = next((cause for cause in FOR_GOOD if cause == why), None)


def attempt_dir(state_dir: Path, job: JobId, attempt: int) -> Path:
    return state_dir / "jobs" / f"{job}.{attempt}"


class Launcher:
    """Supervisors come from a fork server (`forks`). `systemd`: run that in a unit of its own, so
    that it outlives the daemon's; jobs have cgroups below it. Attempts for which systemd has more
    to do have a unit each.

    Otherwise the server is a child in a session of its own, and jobs have cgroups below `group`, a
    delegated one; "": they have none. `cards`: the directory of the emulated GPUs; "": they are
    real.
    """

    def __init__(
        self,
        state_dir: Path,
        copies: Copies | None = None,
        *,
        systemd: bool,
        kill_grace_s: float,
        group: str = "",
        cards: str = "",
        stays: Callable[[int], bool] = lambda pid: False,
    ) -> None:
        """`stays`: whether a user's process is left in its cgroup: another system's limits hold."""
        self._state_dir = state_dir.absolute()
        self._copies = copies or Copies(self._state_dir / "scripts")
        self._systemd = systemd
        self._kill_grace_s = kill_grace_s
        self._group = "" if systemd else group
        self._cards = cards
        self._stays = stays
        self.limited_by = environment.controllers(systemd, group)
        self._forks = Forks(self._state_dir / SOCKET, self._run_server if systemd else run_child)
        jobs = self._state_dir / "jobs"
        try:
            jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CarmaError(f"cannot make the directory {jobs}: {error.strerror}") from error

    def launch(
        self,
        job: Job,
        env: Mapping[str, str],
        follow: Process | None = None,
        cpus: Iterable[int] = (),
        until: float = math.inf,
    ) -> Mapping[str, str]:
        """Start a supervisor for the job's current attempt, unless one has started it. Returns the
        attempt's complete environment. `cpus`: those on which it starts; none: any. `until`: see
        `keep_time`.

        `follow`: the job's command is run by this process, so the supervisor does not.
        Raises NotNow; Stopped; or another CarmaError if the attempt can never start.
        """
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        env = self.mark(job, env)
        if self.has_begun(job):
            return env
        if supervisor.is_stopped(directory):
            raise Stopped(job.id, supervisor.why_stopped(directory))
        script = self._copies.path(copy_name(job.id)) if job.spec.script else None
        its = plan_launch(job, {} if follow else env, self._kill_grace_s, script, self._cards)
        its = its._replace(
            follow=(follow.pid, follow.start_ticks) if follow else None,
            stays=follow is not None and self._stays(follow.pid),
            cpus=tuple(cpus),
            until=until,
            cgroup=f"{self._group}/{name_of(job.id, job.attempt)}" if self._group else None,
            limits=environment.limit_files(job.spec),
            boot_id=boot_id(),
        )
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            if script:
                self._copies.write(copy_name(job.id), job.spec)
            with contextlib.suppress(FileExistsError):
                os.mkfifo(directory / supervisor.CONTROL, 0o600)
            _write(directory / supervisor.LAUNCH, its.dumps())
            if self._systemd and _has_unit(job):
                self._run_unit(job, directory)
            else:
                self._forks.start(directory)
        except OSError as error:
            why = error.strerror or str(error)
            hint = f"check the free space in {self._state_dir}, memory and the process limit"
            raise NotNow(f"cannot start a supervisor: {why}", hint) from error
        return env

    def stop(self, job: Job, grace_s: float) -> None:
        """SIGTERM all the job's processes, and SIGKILL them after `grace_s`. Takes effect even if
        the supervisor is only just starting, or nobody has asked for one yet: then none runs the
        attempt. Needs no disk space once the attempt has a directory. Raises OSError."""
        cause = job.stop.value if job.stop in FOR_GOOD else ""
        lines = f"because {cause}\nstop {grace_s}\n" if cause else f"stop {grace_s}\n"
        if self._tell(job, lines):
            return
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        directory.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (directory / supervisor.STOP).symlink_to(cause or "-")
        self._tell(job, lines)  # it may have started meanwhile without seeing the link

    def revoke(self, job: Job) -> bool:
        """Prevent any supervisor that has not started yet from running the job's current attempt:
        it checks this before it runs anything. False: one has started, and may run it."""
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        directory.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (directory / supervisor.STOP).symlink_to(supervisor.REVOKED)
        return not self.has_begun(job)

    def has_begun(self, job: Job) -> bool:
        """Whether a supervisor has ever started the job's current attempt."""
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        return (directory / supervisor.STARTED).exists()

    def owner_pid(self, job: Job) -> int | None:
        """The pid of the owner's process that runs the job's current attempt, if one does."""
        with contextlib.suppress(ValueError):  # it has not begun, or its record is damaged
            if found := exits.read_start(attempt_dir(self._state_dir, job.id, job.attempt)):
                return found.follows
        return None

    def keep_time(self, job: Job, until: float) -> bool:
        """Have the supervisor end the job as out of time at `until`, in seconds since boot, unless
        somebody has ended it before. False: there is none, yet or any more."""
        return self._tell(job, f"until {until}\n")

    def signal(self, job: Job, signum: int) -> bool:
        """Send a signal to the job's processes. False: it has none, yet or any more."""
        return self._tell(job, f"signal {signum}\n")

    def pids(self, job: Job) -> frozenset[int]:
        """The processes of the job's current attempt, without its supervisor. Raises ValueError if
        the record of its start is damaged."""
        return members.pids(attempt_dir(self._state_dir, job.id, job.attempt), job)

    # The job's cgroup is its supervisor's: carmad's sandbox lets it write nothing there. Each of
    # these three returns why it was not done, for people; "": it was, or there is nothing to do.
    # They may be repeated, take `ANSWERS_WITHIN_S` at most, and raise ValueError if the record of
    # the attempt's start is damaged.

    def freeze(self, job: Job) -> str:
        """Let none of the job's processes run until `thaw`, or a stop, if it has a cgroup."""
        return self._ask(job, "freeze 1") if self.cgroup(job) else ""

    def thaw(self, job: Job) -> str:
        """Let them run again. Done, too, where nobody has frozen them."""
        group = self.cgroup(job)
        why = self._ask(job, "freeze 0") if group else ""
        return why if group and is_frozen(group) else ""

    def allow(self, job: Job, extra_mib: int) -> str:
        """Let the job have so much of the host's memory beyond its limit, if it has one."""
        group, limit_mib = self.cgroup(job), job.spec.host_memory_mib
        if limit_mib is None or group is None or not Path(group, "memory.max").exists():
            return ""
        return self._ask(job, f"allow {(limit_mib + extra_mib) << 20}")

    def _ask(self, job: Job, request: str) -> str:
        """Have its supervisor do that; returns why it did not."""
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        name = os.urandom(8).hex()
        control = self._open_control(job)
        if control is None:
            return "its supervisor is gone"
        answer = directory / process_tree.answer_link(name)
        late = time.monotonic() + ANSWERS_WITHIN_S
        gone = select.poll()
        gone.register(control, 0)  # which leaves POLLERR: nobody reads it any more
        try:
            os.write(control, f"{request} {name}\n".encode())
            while not answer.is_symlink():
                if gone.poll(LOOK_MS):
                    return "its supervisor is gone"
                if time.monotonic() > late:
                    return f"its supervisor does not answer within {ANSWERS_WITHIN_S:g} s"
            said = str(answer.readlink())
            answer.unlink()
        except OSError as error:
            return f"its supervisor cannot be asked: {error.strerror}"
        finally:
            os.close(control)
        return "" if said == process_tree.DONE else said

    def mark(self, job: Job, env: Mapping[str, str]) -> Mapping[str, str]:
        """With the variable that tells whose processes they are."""
        return {**env, ATTEMPT_VARIABLE: self.name(job)}

    def name(self, job: Job) -> str:
        """The value of that variable."""
        return str(attempt_dir(self._state_dir, job.id, job.attempt))

    def cgroup(self, job: Job) -> str | None:
        """That of the job's processes, once its current attempt has begun. None: it has none.
        Raises ValueError if the record of its start is damaged."""
        return members.find(attempt_dir(self._state_dir, job.id, job.attempt), job)

    def join(self, job: Job, process: Process) -> bool:
        """Ask the supervisor to follow this process, too. False: there is none, yet or any more."""
        return self._tell(job, f"follow {process.pid} {process.start_ticks}\n")

    def has_joined(self, job: Job, process: Process) -> bool:
        """Whether the supervisor follows this process since `join`. True only once."""
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        try:
            (directory / process_tree.join_link(process.pid, process.start_ticks)).unlink()
        except OSError:
            return False
        return True

    def release(self, job: JobId) -> None:
        """Remove the directories of an ended job's attempts, and the copy of its script."""
        self._copies.remove(copy_name(job))
        for directory in (self._state_dir / "jobs").glob(f"{job}.*"):
            # First: a late supervisor must not find this, but not `started`.
            with contextlib.suppress(OSError):
                (directory / supervisor.LAUNCH).unlink()
            shutil.rmtree(directory, ignore_errors=True)

    def jobs_on_disk(self) -> set[JobId]:
        """The jobs that have directories of attempts."""
        return set(exits.attempt_folders(self._state_dir / "jobs").values())

    def runs(self, job: JobId) -> bool:
        """Whether any of its attempts has a supervisor that lives, whatever the database has."""
        return any(map(exits.is_alive, self._attempts(job)))

    def has_later(self, job: Job) -> bool:
        """Whether it has begun again since its current attempt: the database is older than that,
        from a backup that was put back."""
        return any(int(path.suffix[1:]) > job.attempt for path in self._attempts(job.id))

    def _attempts(self, job: JobId) -> Iterable[Path]:
        return exits.attempt_folders(self._state_dir / "jobs", f"{job}.*")

    def _open_control(self, job: Job) -> int | None:
        """To write to its supervisor. None: there is none, yet or any more."""
        path = attempt_dir(self._state_dir, job.id, job.attempt) / supervisor.CONTROL
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # ENXIO: nobody reads it; ENOENT: never launched
            return None

    def _tell(self, job: Job, line: str) -> bool:
        control = self._open_control(job)
        if control is None:
            return False
        try:
            os.write(control, line.encode())
        except OSError:
            return False
        finally:
            os.close(control)
        return True

    def _run_server(self, argv: Sequence[str]) -> None:
        """A name of its own, as the cgroup of an earlier one may still have jobs. If that one was
        killed, systemd must not kill these; if it is stopped, it stops them itself."""
        name = f"{SERVER}{os.urandom(4).hex()}"
        self._ask_systemd(name, "CARMA starts jobs", {"KillMode": "process"}, argv)

    def _run_unit(self, job: Job, directory: Path) -> None:
        properties = {"KillMode": "mixed"}
        if _is_podman(job):
            # It has podman's files, and would be gone when its user has logged out.
            runtime = f"user-runtime-dir@{job.spec.uid}.service"
            properties |= {"Wants": runtime, "After": runtime}
        about = f"CARMA job {label(job)} of {job.spec.user}, attempt {job.attempt}"
        argv = supervisor.command(str(directory))
        self._ask_systemd(name_of(job.id, job.attempt), about, properties, argv)

    def _ask_systemd(
        self, name: str, about: str, properties: Mapping[str, str], argv: Sequence[str]
    ) -> None:
        """Every failure here is NotNow: systemd would refuse any other unit, too."""
        hint = "see `systemctl status` and `journalctl -b -p err`"
        always = {
            "Delegate": "yes",  # jobs have cgroups below
            "TimeoutStopSec": f"{self._kill_grace_s + 30:.0f}",
            "LimitNOFILE": "65536",
        }
        try:
            said = units.start(name, about, {**always, **properties}, argv)
        except subprocess.TimeoutExpired as error:
            raise NotNow("systemd does not answer", hint) from error
        # A second launch of the same attempt finds that its unit exists, which is fine.
        if said and not any(words in said for words in UNIT_EXISTS):
            raise NotNow(f"systemd did not start the unit: {said[:300]}", hint)


def _is_podman(job: Job) -> bool:
    return job.spec.container is not None and os.geteuid() == 0


def _has_unit(job: Job) -> bool:
    """Whether systemd has more to do for the job than to let it outlive us: an administrator has
    set something for each job's unit, or podman needs its user's directory in /run."""
    return _is_podman(job) or any(map(os.path.isdir, DROP_INS))


def plan_launch(
    job: Job, env: Mapping[str, str], grace_s: float, script: str | None = None, cards: str = ""
) -> Launch:
    """What a process that has to start `job` reads; `script`: see `command`; `cards`: see
    `Launcher`. Raises NoAccount, or another CarmaError when the job can never start."""
    spec = job.spec
    if os.geteuid() not in (0, spec.uid):
        raise CarmaError(
            f"this daemon cannot run jobs as {spec.user}",
            "run carmad as root, or let each user run a daemon of their own",
        )
    its = account(spec.user, spec.uid)
    spec = replace(spec, gid=its.gid)
    job = replace(job, spec=spec)
    if not spec.argv:
        raise CarmaError("the job has no command", "give one after --")
    stdout, stderr = log_paths(job) if has_log(spec) else (os.devnull, os.devnull)
    words, contained = _program(job, env, script, cards)
    try:
        text = os.fsencode("".join((*words, *env, *env.values(), spec.cwd, stdout, stderr)))
    except UnicodeEncodeError as error:
        raise CarmaError(f"the job's command or environment is not valid text: {error}") from error
    if b"\0" in text:
        where = "the job's command, environment or paths"
        raise CarmaError(f"a NUL character in {where}", "no program accepts one")
    return Launch(
        words,
        env,
        spec.uid,
        spec.gid,
        its.groups,
        spec.umask,
        spec.cwd,
        stdout,
        stderr,
        grace_s,
        rlimits=dict(spec.limits),
        contained=contained,
        report_fd=None if spec.conda_env is None and spec.container is None else REPORT_FD,
    )


def _program(
    job: Job, env: Mapping[str, str], script: str | None, cards: str
) -> tuple[Sequence[str], bool]:
    """What to execute: the job's command, in a container if it names an image; and whether its
    processes then have an engine's around them."""
    words = command(job, script)
    if job.spec.container is None:
        return words, False
    from carmad.attempt import containers  # few jobs need it

    engine = next(filter(None, map(shutil.which, containers.ENGINES)), None)
    if engine is None:
        raise CarmaError(
            "this server cannot run containers: it has neither podman nor apptainer",
            "ask an administrator to install one of them",
        )
    its = containers.wrap(engine, job, words, env, cards, script)
    return its, containers.has_processes(engine)


def _write(path: Path, data: bytes) -> None:
    """Replace a file atomically. Not synced: after a power cut, no job needs it."""
    part = path.with_name(path.name + ".part")
    part.touch(mode=0o600)
    part.write_bytes(data)
    part.replace(path)
