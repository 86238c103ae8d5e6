"""Helpers for tests that run real processes: jobs, directories, and waiting."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from carmad.attempt import supervisor
from carmad.attempt.cgroup import MOUNTS
from carmad.attempt.environment import job_environment
from carmad.attempt.launcher import Launcher, attempt_dir
from carmad.core.jobs.attempt import Attempt, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import Active, JobState
from tests.waiting import until as until

ME = pwd.getpwuid(os.getuid())
# An `exit` as supervisors write it.
EXIT = {
    "code": 3,
    "signal": None,
    "error": "",
    "hint": "",
    "started_at": 1.0,
    "ended_at": 2.0,
    "host_oom_kills": None,
    "stopped": False,
    "interrupted": False,
    "ended_boot_s": None,
    "cause": "",
    "main_ended_boot_s": None,
    "over_limit": None,
    "shared_bytes": None,
    "left": 0,
    "background": 0,
}


def make_job(cwd: Path, *argv: str, id: int = 1, attempt: int = 1, **spec: Any) -> Job:
    spec = {"user": ME.pw_name, "uid": ME.pw_uid, "gid": ME.pw_gid, "name": "test", **spec}
    return Job(
        id=JobId(id),
        spec=JobSpec(argv=argv, cwd=str(cwd), **spec),
        status=Active(JobState.STARTING, Attempt(attempt, ())),
        submitted_at=0.0,
    )


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


class Bench:
    """A state directory, a launcher, and helpers to inspect an attempt."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.cwd = state / "work"
        self.cwd.mkdir()
        self.launcher = Launcher(state, systemd=False, kill_grace_s=0.3)

    def job(self, *argv: str, **spec: Any) -> Job:
        return make_job(self.cwd, *argv, **spec)

    def launch(self, job: Job) -> Job:
        self.launcher.launch(job, job_environment(job, ()))
        return job

    def directory(self, job: Job) -> Path:
        return attempt_dir(self.state, job.id, job.attempt)

    def started(self, job: Job) -> dict[str, Any]:
        path = self.directory(job) / supervisor.STARTED
        until(path.exists, "the supervisor to begin")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def ended(self, job: Job) -> dict[str, Any]:
        path = self.directory(job) / supervisor.EXIT
        try:
            until(path.exists, "the attempt to end")
        except AssertionError:
            print((self.directory(job) / "supervisor.log").read_text())
            raise
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def run(self, *argv: str, **spec: Any) -> dict[str, Any]:
        return self.ended(self.launch(self.job(*argv, **spec)))

    def lines(self, name: str = "carma-1.out") -> list[str]:
        path = self.cwd / name
        return path.read_text().splitlines() if path.exists() else []


@contextmanager
def a_cgroup() -> Iterator[Path]:
    """For jobs to have cgroups below it; all in it is killed at the end. Skips the test where there
    can be none."""
    root = next((Path(mount) for mount in MOUNTS if Path(mount, "cgroup.procs").exists()), None)
    if root is None:
        pytest.skip("no cgroup v2 here")
    group = root / f"carma-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a cgroup: {error}")
    try:
        yield group
    finally:
        (group / "cgroup.kill").write_text("1")
        until(lambda: "populated 0" in (group / "cgroup.events").read_text(), "all to end")
        for each in (*group.glob("carma-job-*"), group):
            until(lambda each=each: not each.exists() or _remove(each), "it to be removed")


def _remove(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


@contextmanager
def in_a_unit(bench: Bench, *argv: str, **spec: Any) -> Iterator[tuple[Job, Path]]:
    """A job that runs in a cgroup as that of a unit of its own."""
    root = next((Path(mount) for mount in MOUNTS if Path(mount, "cgroup.procs").exists()), None)
    if root is None:
        pytest.skip("no cgroup v2 here")
    job = bench.job(*argv, id=os.getpid(), stdout="carma-1.out", **spec)
    unit = root / f"carma-job-{job.id}-{job.attempt}.service"
    try:
        unit.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a cgroup: {error}")
    bench.launcher._forks.start = lambda _: None  # type: ignore[method-assign]
    directory = bench.directory(bench.launch(job))
    enter = f'echo 0 > {unit}/cgroup.procs && exec "$@"'
    program = subprocess.Popen(["sh", "-c", enter, "sh", *supervisor.command(str(directory))])
    try:
        yield job, unit
    finally:
        (unit / "cgroup.kill").write_text("1")
        program.wait()
        until(lambda: "populated 0" in (unit / "cgroup.events").read_text(), "all to end")
        for each in ("job", "supervisors", "."):
            (unit / each).rmdir()
