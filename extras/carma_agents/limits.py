"""What an agent may change in a session: jobs in some folders, and so many GPU-hours.

They keep an agent from mistakes. They are no wall: a job runs as the user, and may do all that the
user may, `carma submit` included.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from carmad.errors import CarmaError
from cli.client import Broken

HOUR_S = 3600.0
HELD = -1  # in place of an attempt: the job is counted for what it does when it is released

Job = Mapping[str, Any]  # a row of the daemon's, or what a request asks for
Key = tuple[object, int]  # a job's id, and the attempt that is over
Counted = dict[Key, Job]


class Limits:
    """`folders`: jobs work below one of them; none: anywhere. `gpu_hours`: of all jobs that the
    session lets run, by their time limits; None: any number."""

    def __init__(self, folders: Sequence[Path] = (), gpu_hours: float | None = None) -> None:
        self._folders = tuple(folder.resolve() for folder in folders)
        self._gpu_s = None if gpu_hours is None else gpu_hours * HOUR_S
        self._spent_s = 0.0
        self._counted: set[Key] = set()
        self._lock = Lock()  # an agent may call several tools at a time

    def __str__(self) -> str:
        """What an agent has to know of them, in sentences; "" if there are none."""
        said = []
        if self._folders:
            said.append(f"Jobs have to work below {self._list_folders()}: use --chdir.")
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
        self._check_folder(Path(body["cwd"]), "the job would work in", "--chdir")
        self._check_logs(body, "would go to", "--output and --error")

    def check_jobs(self, jobs: Sequence[Job]) -> None:
        """Raises CarmaError for jobs that work or write their logs elsewhere. Others' jobs, of
        which nobody here sees the folder, are left to the daemon: it refuses to change them."""
        for job in jobs:
            if "cwd" in job:
                self._check_folder(Path(job["cwd"]), f"job {job['label']} works in")
                self._check_logs(job, f"of job {job['label']} goes to")

    def _check_logs(self, job: Job, what: str, options: str = "") -> None:
        for name in ("stdout", "stderr"):
            if job[name]:
                self._check_folder(Path(job["cwd"]) / job[name], f"{name} {what}", options)

    def _check_folder(self, path: Path, what: str, options: str = "") -> None:
        real = Path(os.path.normpath(path.resolve()))
        if self._folders and not any(real.is_relative_to(folder) for folder in self._folders):
            instead = f"choose one of these with {options}, or ask" if options else "ask"
            raise CarmaError(
                f"{what} {real}, and this session is limited to {self._list_folders()}",
                f"{instead} the user, who started `carma mcp --folder`",
            )

    def _list_folders(self) -> str:
        return " or ".join(map(str, self._folders))

    def check_time(self, verb: str, jobs: Sequence[Job]) -> None:
        """Raises CarmaError if to do this to them takes more than is left."""
        with self._lock:
            self._afford(self._new_costs(verb, jobs).values())

    @contextmanager
    def spend(self, verb: str, jobs: Sequence[Job]) -> Iterator[Counted]:
        """While this is done to them; what is counted for it. Raises CarmaError for more than is
        left. What carmad refuses is not counted."""
        with self._lock:
            counted = self._new_costs(verb, jobs)
            self._spent_s += self._afford(counted.values())
            self._counted |= counted.keys()
        try:
            yield counted
        except Broken:  # carmad may have done it
            raise
        except CarmaError:
            self.give_back(counted)
            raise

    def give_back(self, counted: Counted) -> None:
        """They are not let run after all."""
        with self._lock:
            self._spent_s -= self._need(counted.values())
            self._counted -= counted.keys()

    def remember(self, ids: Sequence[int]) -> None:
        """These jobs were submitted in this session, and are counted: to release them costs nothing
        more."""
        self._counted.update((id, HELD) for id in ids)

    def _new_costs(self, verb: str, jobs: Sequence[Job]) -> Counted:
        """The jobs whose time this costs, without those for which it is counted already. A job
        costs it once when it is released, and once for each attempt after which it is requeued.
        Others' jobs cost nothing here: carmad refuses to change them."""
        if verb == "submit":
            return {(object(), HELD): job for job in jobs}
        own = [job for job in jobs if "cwd" in job]
        costs: Counted = {}
        if verb == "requeue":
            costs = {(job["id"], job["attempt"]): job for job in own}
        elif verb == "release":
            costs = {(job["id"], HELD): job for job in own if job["held"]}
        return {key: job for key, job in costs.items() if key not in self._counted}

    def _afford(self, jobs: Iterable[Job]) -> float:
        needed_s = self._need(jobs)
        if self._gpu_s is None:
            return needed_s
        left_s = self._gpu_s - self._spent_s
        if needed_s > left_s:
            raise CarmaError(
                f"this may take {_hours(needed_s)} GPU-hours, and this session has"
                f" {_hours(left_s)} left of {_hours(self._gpu_s)}",
                "give a shorter --time or fewer GPUs, or ask the user, who started"
                " `carma mcp --max-gpu-hours`",
            )
        return needed_s

    def _need(self, jobs: Iterable[Job]) -> float:
        """GPU-seconds; 0 if none are counted."""
        limit_s = self._gpu_s
        return 0.0 if limit_s is None else sum(_gpu_seconds(job, limit_s) for job in jobs)


def as_jobs(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The jobs that a request asks for, with what is counted of them."""
    tasks = len(body["array"]["indices"]) if body["array"] else 1
    asked = {"gpus_wanted": body["gpus"], "time_limit_s": body["time_limit_s"], "count": tasks}
    return [asked]


def gpu_hours(jobs: Sequence[Job]) -> float | None:
    """That they may take; None if one has no time limit."""
    if any(job["gpus_wanted"] and job.get("time_limit_s") is None for job in jobs):
        return None
    return sum(_gpu_seconds(job) for job in jobs) / HOUR_S


def _gpu_seconds(job: Job, limit_s: float = 0.0) -> float:
    """Raises CarmaError if the job has no time limit, and so no bound on its GPU time."""
    if not job["gpus_wanted"]:
        return 0.0
    if job.get("time_limit_s") is None:
        raise CarmaError(
            f"a job without a time limit cannot be counted, and this session may use"
            f" {_hours(limit_s)} GPU-hours",
            "give it a time limit, as in --time 2h; the user can give one to a submitted job with"
            " `carma update JOB --time 2h`",
        )
    seconds: float = job["gpus_wanted"] * job["time_limit_s"] * job.get("count", 1)
    return seconds


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.3g}"
