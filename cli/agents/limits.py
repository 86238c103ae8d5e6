"""What an agent may change in a session: jobs in some folders, and so many GPU-hours.

They keep an agent from mistakes. They are no wall: a job runs as the user, and may do all that the
user may, `carma submit` included.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from carmad.errors import CarmaError
from cli.client import Broken

HOUR_S = 3600.0


class Limits:
    """`folders`: jobs work below one of them; none: anywhere. `gpu_hours`: of all jobs that the
    session lets run, by their time limits; None: any number."""

    def __init__(self, folders: Sequence[Path] = (), gpu_hours: float | None = None) -> None:
        self._folders = tuple(folder.resolve() for folder in folders)
        self._gpu_s = None if gpu_hours is None else gpu_hours * HOUR_S
        self._spent_s = 0.0
        self._counted: set[int] = set()
        self._lock = Lock()  # an agent may call several tools at a time

    def __str__(self) -> str:
        """What an agent has to know of them, in sentences; "" if there are none."""
        said = []
        if self._folders:
            said.append(f"Jobs have to work below {self._named_folders()}: use --chdir.")
        if self._gpu_s is not None:
            hours = _hours(self._gpu_s)
            said.append(f"Jobs may use {hours} GPU-hours in this session: give each a --time.")
        return " ".join(said)

    def spent(self) -> str:
        """For a question; "" if nothing is counted."""
        if self._gpu_s is None:
            return ""
        return f"{_hours(self._spent_s)} of this session's {_hours(self._gpu_s)} GPU-hours are used"

    def check_request(self, body: Mapping[str, Any]) -> None:
        """Raises CarmaError for a job that would work or write its logs elsewhere."""
        cwd = Path(body["cwd"])
        self._check_folder(cwd, "the job would work in", "--chdir")
        for name in ("stdout", "stderr"):
            if body[name]:
                self._check_folder(cwd / body[name], f"{name} would go to", "--output and --error")

    def check_jobs(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Raises CarmaError for jobs that work elsewhere. Of others' jobs, the daemon says what
        there is to say."""
        for job in jobs:
            if "cwd" in job:
                self._check_folder(Path(job["cwd"]), f"job {job['label']} works in")

    def _check_folder(self, path: Path, what: str, options: str = "") -> None:
        real = Path(os.path.normpath(path.resolve()))
        if self._folders and not any(real.is_relative_to(folder) for folder in self._folders):
            instead = f"choose one of these with {options}, or ask" if options else "ask"
            raise CarmaError(
                f"{what} {real}, and this session is limited to {self._named_folders()}",
                f"{instead} the user, who started `carma mcp --folder`",
            )

    def _named_folders(self) -> str:
        return " or ".join(map(str, self._folders))

    def check_time(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Raises CarmaError for more than is left."""
        with self._lock:
            self._afford(jobs)

    @contextmanager
    def spend(self, jobs: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """While they are let run. Raises CarmaError for more than is left. What carmad refuses is
        not counted."""
        with self._lock:
            self._spent_s += self._afford(jobs)
        try:
            yield
        except Broken:  # carmad may have done it
            raise
        except CarmaError:
            self.give_back(jobs)
            raise

    def give_back(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """They are not let run after all."""
        with self._lock:
            self._spent_s -= self._need(jobs)

    def remember(self, ids: Sequence[int]) -> None:
        """These jobs were submitted in this session, and are counted."""
        self._counted.update(ids)

    def is_new(self, id: int) -> bool:
        """Whether a job is not counted yet: to release one that is costs nothing more."""
        return id not in self._counted

    def _afford(self, jobs: Sequence[Mapping[str, Any]]) -> float:
        needed_s = self._need(jobs)
        if self._gpu_s is None:
            return needed_s
        left_s = self._gpu_s - self._spent_s
        if needed_s > left_s:
            raise CarmaError(
                f"this may take {_hours(needed_s)} GPU-hours, and of this session's"
                f" {_hours(self._gpu_s)} there are {_hours(left_s)} left",
                "give a shorter --time or fewer GPUs, or ask the user, who started"
                " `carma mcp --max-gpu-hours`",
            )
        return needed_s

    def _need(self, jobs: Sequence[Mapping[str, Any]]) -> float:
        """GPU-seconds; 0 if none are counted."""
        limit_s = self._gpu_s
        return 0.0 if limit_s is None else sum(_gpu_seconds(job, limit_s) for job in jobs)


def as_jobs(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The jobs that a request asks for, with what is counted of them."""
    tasks = len(body["array"]["indices"]) if body["array"] else 1
    asked = {"gpus_wanted": body["gpus"], "time_limit_s": body["time_limit_s"], "count": tasks}
    return [asked]


def gpu_hours(jobs: Sequence[Mapping[str, Any]]) -> float | None:
    """That they may take; None if one has no time limit."""
    if any(job["gpus_wanted"] and job.get("time_limit_s") is None for job in jobs):
        return None
    return sum(_gpu_seconds(job) for job in jobs) / HOUR_S


def _gpu_seconds(job: Mapping[str, Any], limit_s: float = 0.0) -> float:
    """Raises CarmaError if it may take any number."""
    if not job["gpus_wanted"]:
        return 0.0
    if job.get("time_limit_s") is None:
        raise CarmaError(
            f"a job without a time limit cannot be counted, and this session may use"
            f" {_hours(limit_s)} GPU-hours",
            "give it a time limit, as in --time 2h; of a job that is there, `carma update JOB"
            " --time 2h` sets one",
        )
    seconds: float = job["gpus_wanted"] * job["time_limit_s"] * job.get("count", 1)
    return seconds


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.3g}"
