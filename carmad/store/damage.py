"""Unreadable rows: each is logged once. A job is replaced by one made from the row's columns, so
that one that holds GPUs is still watched, and one that waits is ended; other rows are skipped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, TypeGuard

from pydantic import ValidationError

from carmad.core.jobs.attempt import Attempt, Cause, Exit, GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import ArrayTask, JobSpec
from carmad.core.jobs.states import (
    HOLDING,
    LIVING,
    NEW,
    Active,
    JobState,
    Over,
    Status,
    Stopping,
    Waiting,
)
from carmad.options import MAX_TASKS

log = logging.getLogger(__name__)

MOST_NAMED = 100  # longer lists are of no use to people
NOTE = "its record in the database was damaged: its command is no longer known"
NOBODY = 65534
_NO_COMMAND = ("(unknown: the job's record was damaged)",)  # not a program, so it can never run


class Damage:
    """What in the database could not be read. Thread-safe."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._lock = threading.Lock()

    def note(self, what: str, error: Exception) -> None:
        """Record that `what` cannot be read."""
        what = as_text(what)  # it may contain a column's value, and is logged
        with self._lock:
            if what in self._found or len(self._found) >= MOST_NAMED:
                return
            self._found[what] = why = reason(error)
        log.error("%s in the database cannot be read: %s", what, why)

    def reasons(self) -> Mapping[str, str]:
        """The reason for each, in order of discovery: at most `MOST_NAMED`."""
        with self._lock:
            return dict(self._found)


def reason(error: Exception) -> str:
    """The error without the unreadable text: environments must not be logged."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else first["msg"]
    return f"{error!s:.200}" if type(error) is ValueError else type(error).__name__


def expect(job: Job, id: JobId, ended: bool) -> Job:
    """The job, if it matches its row. Raises ValueError."""
    if job.id != id:
        raise ValueError(f"it says that it is job {job.id}")
    if job.ended is not ended:
        raise ValueError(f"it says that it is {job.state}, and the row does not")
    return job


def expect_live(job: Job, id: JobId) -> Job:
    """Likewise, for a job that the core will continue."""
    if job.holds_gpus and len(set(job.gpus)) != job.spec.gpus:
        raise ValueError(f"it wants {job.spec.gpus} GPUs, and holds {len(set(job.gpus))}")
    return expect(job, id, ended=False)


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is valid Unicode: bytes that are not UTF-8 are read as surrogates, which nothing
    else accepts."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def as_text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()


def stand_in(row: Mapping[str, Any]) -> Job:
    """A replacement for an unreadable job, made from its columns. One that has ended has failed;
    one that holds GPUs keeps them until its processes are gone. It is never launched."""
    gpus = tuple(GpuId(gpu) for gpu in as_text(row["gpus"]).split(",") if gpu)
    number, started_at = max(1, int(_number(row["attempt"]))), _number(row["started_at"])
    attempt = Attempt(number, gpus, started_at=started_at)
    status: Status = Waiting(JobState.QUEUED)
    if row["ended_at"] is not None and row["state"] not in NEW | LIVING:
        failed = Exit(Cause.FAILURE, evidence=NOTE)
        status = Over(JobState.FAILED, failed, _number(row["ended_at"]))
    elif gpus and row["state"] == JobState.STOPPING:
        status = Stopping(attempt, Cause.CANCELLED)
    elif gpus and row["state"] in HOLDING:  # not STARTING: that would be launched again
        status = Active(JobState.RUNNING, attempt)
    uid = int(_number(row["uid"]))
    tasks = count_tasks(row["tasks"])
    return Job(
        JobId(row["id"]),
        JobSpec(
            argv=_NO_COMMAND,
            user=as_text(row["user"]),
            uid=uid if uid >= 0 else NOBODY,
            gid=NOBODY,
            cwd="/",
            name=as_text(row["name"]),
            gpus=len(gpus) or 1,
            requeue=False,
            array=ArrayTask(JobId(row["id"]), 0, more=tasks - 1) if tasks > 1 else None,
        ),
        status,
        _number(row["submitted_at"]),
        held=isinstance(status, Waiting),
        notes=(NOTE,),
    )


def stands_in(job: Job) -> bool:
    """Whether the job is a stand-in."""
    return job.spec.argv == _NO_COMMAND


def count_tasks(tasks: object) -> int:
    """How many jobs a row stands for; one, if its column is damaged."""
    return tasks if isinstance(tasks, int) and 0 < tasks <= MAX_TASKS else 1


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
