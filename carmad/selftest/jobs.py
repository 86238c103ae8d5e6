"""Checks of how the kernel's OOM killer is noticed, through a job's own launcher and supervisor."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import time
from pathlib import Path

from carmad import units
from carmad.attempt import records
from carmad.attempt.exits import classify
from carmad.attempt.launcher import Launcher, attempt_dir
from carmad.core.types import Attempt, Job, JobId, JobSpec, JobState
from carmad.selftest.bench import Bench
from carmad.selftest.report import Seen, judged, unknown

LIMIT = "64M"
ENDS_WITHIN_S = 30.0
# Takes the memory when its unit has a limit: `go` says so.
GREEDY = """\
import os, time
while not os.path.exists("go"):
    time.sleep(0.05)
taken = b"x" * (512 << 20)
"""


def host_oom(bench: Bench) -> Seen:
    if not units.available():
        return unknown("this process cannot ask systemd for a unit: jobs run without one")
    folder = bench.folder / "job"
    folder.mkdir()
    launcher = Launcher(folder / "state", systemd=True, kill_grace_s=1.0)
    job = _job(folder)
    launcher.launch(job, {"PATH": os.environ.get("PATH", os.defpath)})
    try:
        return _starved(launcher, job, folder)
    finally:
        launcher.stop(job, 0.0)


def _job(folder: Path) -> Job:
    """With a number that no daemon's job has."""
    spec = JobSpec(
        argv=(sys.executable, "-c", GREEDY),
        user=getpass.getuser(),
        uid=os.geteuid(),
        gid=os.getegid(),
        cwd=str(folder),
        name="selftest",
    )
    number = JobId(10**9 + os.getpid())
    attempts = (Attempt(1, ()),)
    return Job(number, spec, JobState.STARTING, time.time(), attempts=attempts)


def _starved(launcher: Launcher, job: Job, folder: Path) -> Seen:
    manager = ["--user"] if os.geteuid() != 0 else []
    unit = f"carma-job-{job.id}-{job.attempt}.service"
    limits = [f"MemoryMax={LIMIT}", "MemorySwapMax=0"]
    deadline = time.monotonic() + ENDS_WITHIN_S
    while not launcher.has_begun(job) and time.monotonic() < deadline:
        time.sleep(0.05)
    asked = subprocess.run(
        ["systemctl", *manager, "set-property", "--runtime", unit, *limits],
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
    )
    if asked.returncode != 0:
        return unknown(f"systemd sets no limit of memory: {asked.stderr.strip()}")
    (folder / "go").touch()
    record = None
    while record is None and time.monotonic() < deadline:
        time.sleep(0.05)
        record = records.read_exit(attempt_dir(folder / "state", job.id, job.attempt))
    if record is None:
        return unknown(f"the job has not ended in {ENDS_WITHIN_S:g} s")
    if record.code == 0:
        return unknown("the job took more memory than its unit may have, and was not killed")
    kills = record.host_oom_kills
    end = classify(record.code, record.signal, "", host_oom=None if kills is None else kills > 0)
    return judged(
        bool(kills),
        f"a job that took more than {LIMIT} ended with the cause {end.cause.value}",
        oom_kills=kills,
        cause=end.cause.value,
    )
