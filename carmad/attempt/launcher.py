"""Starts, stops and signals attempts by way of their supervisors, and clears up after them.

The supervisor does the work (`supervisor`); `shepherd` learns how it went. Nothing here waits
for a job, and every call may be repeated after a crash.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from carmad import units
from carmad.attempt import folders, supervisor
from carmad.attempt.environment import REPORT_FD, command, log_paths
from carmad.core.types import FOR_GOOD, Job, JobId
from carmad.errors import CarmaError

UNIT_EXISTS = ("already loaded", "already exists")  # as systemd puts it, now and formerly
ATTEMPT_VARIABLE = "CARMA_ATTEMPT_DIR"  # in the job's environment: tells whose process it is


class NotNow(CarmaError):
    """The machine cannot start an attempt, for a reason other than the job: no room, no answer on
    systemd's bus. The launch may be retried, even if it has succeeded without our knowing."""


def attempt_dir(state_dir: Path, job: JobId, attempt: int) -> Path:
    return state_dir / "jobs" / f"{job}.{attempt}"


class Launcher:
    """`systemd`: give each attempt a transient unit, so that it outlives the daemon's own unit.

    Without, supervisors are plain children in sessions of their own.
    """

    def __init__(self, state_dir: Path, *, systemd: bool, kill_grace_s: float) -> None:
        self._state_dir = state_dir.absolute()
        self._systemd = systemd
        self._kill_grace_s = kill_grace_s
        self._children: list[subprocess.Popen[bytes]] = []
        jobs = self._state_dir / "jobs"
        try:
            jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CarmaError(f"cannot make the directory {jobs}: {error.strerror}") from error

    def launch(self, job: Job, env: Mapping[str, str]) -> None:
        """Start a supervisor for the job's current attempt, unless one has begun it or it was
        revoked.

        Raises NotNow; any other CarmaError when the attempt can never start.
        """
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        if self.begun(job) or supervisor.why_stopped(directory) == supervisor.REVOKED:
            return
        fields = launch_fields(job, {**env, ATTEMPT_VARIABLE: str(directory)}, self._kill_grace_s)
        self.reap()
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkfifo(directory / supervisor.CONTROL, 0o600)
            _write(directory / supervisor.LAUNCH, fields)
            if self._systemd:
                self._run_unit(job, directory)
            else:
                self._run_child(directory)
        except OSError as error:
            why = error.strerror or str(error)
            hint = f"check the free space in {self._state_dir}, the memory and the processes"
            raise NotNow(f"cannot start a supervisor: {why}", hint) from error

    def stop(self, job: Job, grace_s: float) -> None:
        """SIGTERM to all the job's processes, SIGKILL after the grace; never lost, even when the
        supervisor is only about to start. Needs no room on the disk."""
        cause = job.stop.value if job.stop in FOR_GOOD else ""
        lines = f"because {cause}\nstop {grace_s}\n" if cause else f"stop {grace_s}\n"
        if self._tell(job, lines):
            return
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        if directory.exists():
            with contextlib.suppress(FileExistsError):
                (directory / supervisor.STOP).symlink_to(cause or "-")
            self._tell(job, lines)  # it may have come up meanwhile, and not seen the link

    def revoke(self, job: Job) -> bool:
        """Forbid the job's current attempt to any supervisor that is still to come: it finds that
        on disk before it runs anything. False: one has begun, and may run it."""
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        directory.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (directory / supervisor.STOP).symlink_to(supervisor.REVOKED)
        return not self.begun(job)

    def begun(self, job: Job) -> bool:
        """Whether a supervisor has taken up the job's current attempt, be it long ago."""
        directory = attempt_dir(self._state_dir, job.id, job.attempt)
        return (directory / supervisor.STARTED).exists()

    def signal(self, job: Job, signum: int) -> bool:
        """Send one signal to the job's processes. False: it has none (yet, or any more)."""
        return self._tell(job, f"signal {signum}\n")

    def release(self, job: JobId) -> None:
        """Remove what the attempts of an ended job left in the state directory."""
        for directory in (self._state_dir / "jobs").glob(f"{job}.*"):
            # First: a supervisor that comes late must not find something to run, but not `started`.
            with contextlib.suppress(OSError):
                (directory / supervisor.LAUNCH).unlink()
            shutil.rmtree(directory, ignore_errors=True)

    def launched(self) -> set[JobId]:
        """The jobs that have something in the state directory."""
        return set(folders.found(self._state_dir / "jobs").values())

    def reap(self) -> None:
        """Collect supervisors that have ended, so that none stays a zombie."""
        self._children = [child for child in self._children if child.poll() is None]

    def _tell(self, job: Job, line: str) -> bool:
        path = attempt_dir(self._state_dir, job.id, job.attempt) / supervisor.CONTROL
        try:
            control = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # ENXIO: nobody reads it; ENOENT: never launched
            return False
        try:
            os.write(control, line.encode())
        except OSError:
            return False
        finally:
            os.close(control)
        return True

    def _run_child(self, directory: Path) -> None:
        # What the supervisor itself has to say is a bug's traceback.
        with (directory / "supervisor.log").open("ab") as log:
            child = subprocess.Popen(
                supervisor.command(str(directory)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        self._children.append(child)

    def _run_unit(self, job: Job, directory: Path) -> None:
        """Whatever systemd objects to, it would object to in every job's unit."""
        hint = "see `systemctl status` and `journalctl -b -p err`"
        properties = {
            "KillMode": "mixed",
            "Delegate": "yes",  # the supervisor puts the job into a cgroup below its own
            "TimeoutStopSec": f"{self._kill_grace_s + 30:.0f}",
            "LimitNOFILE": "65536",
        }
        name = f"carma-job-{job.id}-{job.attempt}"
        about = f"CARMA job {job.id} of {job.spec.user}, attempt {job.attempt}"
        try:
            said = units.start(name, about, properties, supervisor.command(str(directory)))
        except subprocess.TimeoutExpired as error:
            raise NotNow("systemd does not answer", hint) from error
        # A second launch of the same attempt finds its unit there already: all is well.
        if said and not any(words in said for words in UNIT_EXISTS):
            raise NotNow(f"systemd did not start the unit: {said[:300]}", hint)


def launch_fields(job: Job, env: Mapping[str, str], grace_s: float) -> bytes:
    """What a process that has to start `job` reads (`starting.Launch`). Raises CarmaError when
    the job can never start."""
    spec = job.spec
    if os.geteuid() not in (0, spec.uid):
        raise CarmaError(
            f"this daemon cannot run jobs as {spec.user}",
            "run carmad as root, or let each user run a daemon of their own",
        )
    if not spec.argv:
        raise CarmaError("the job has no command", "give one after --")
    stdout, stderr = log_paths(job)
    fields = [
        ("uid", str(spec.uid)),
        ("gid", str(spec.gid)),
        ("groups", ",".join(map(str, os.getgrouplist(spec.user, spec.gid)))),
        ("umask", str(spec.umask)),
        ("cwd", spec.cwd),
        ("stdout", stdout),
        ("stderr", stderr),
        ("grace_s", str(grace_s)),
        *(("env", f"{name}={value}") for name, value in env.items()),
        *(("arg", word) for word in command(job)),
    ]
    if spec.conda_env is not None:
        fields.append(("report_fd", str(REPORT_FD)))
    for key, value in fields:
        if "\0" in value:
            raise CarmaError(f"a NUL character in the job's {key}", "no program can take one")
    try:
        return b"".join(os.fsencode(f"{key}={value}\0") for key, value in fields)
    except UnicodeEncodeError as error:
        raise CarmaError(f"the job's words are not valid text: {error}") from error


def _write(path: Path, data: bytes) -> None:
    """Replace a file as a whole. Not forced to disk: a power cut leaves no job that needs it."""
    part = path.with_name(path.name + ".part")
    part.touch(mode=0o600)
    part.write_bytes(data)
    part.replace(path)
