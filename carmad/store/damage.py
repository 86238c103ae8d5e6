"""Unreadable rows: each is logged once and skipped. A job that has not ended is replaced by one
made from the row's columns, so that a job that holds GPUs is still watched."""

from __future__ import annotations

import json
import logging
import pwd
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import ValidationError

from carmad.core.jobs.attempt import Attempt, Cause, GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import ArrayTask, JobSpec
from carmad.core.jobs.states import HOLDING, Active, JobState, Status, Stopping, Waiting

log = logging.getLogger(__name__)

FOLDER = "set-aside"  # beside the database: unreadable rows of jobs that had not ended
MOST_NAMED = 100  # longer lists are of no use to people
NOTE = "its record in the database was damaged: its command is no longer known"
NOBODY = 65534
UNKNOWN_UID = -1  # of a row that was damaged before it had one
_NO_COMMAND = ("(unknown: the job's record was damaged)",)  # not a program, so it can never run


class Damage:
    """What in the database could not be read. Thread-safe."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._lock = threading.Lock()

    def note(self, what: str, error: Exception) -> None:
        """Record that `what` cannot be read and is skipped."""
        what = as_text(what)  # it may contain a column's value, and is logged
        with self._lock:
            if what in self._found or len(self._found) >= MOST_NAMED:
                return
            self._found[what] = why = reason(error)
        log.error("%s in the database cannot be read, and is skipped: %s", what, why)

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


def set_aside(state_dir: Path, row: Mapping[str, Any], error: Exception) -> None:
    """Keep the row of a job that has not ended, since its stand-in will overwrite it."""
    path = state_dir / FOLDER / f"job-{row['id']}.json"
    if path.exists():
        return
    log.error(
        "job %s in the database cannot be read (%s): it is ended, and its record kept as %s",
        row["id"],
        reason(error),
        path,
    )
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps({"why": reason(error), "row": dict(row)}, default=repr))
    except OSError as trouble:
        log.error("the record of job %s is lost: %s", row["id"], trouble)


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is valid Unicode: bytes that are not UTF-8 are read as surrogates, which nothing
    else accepts."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def as_text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()


def stand_in(row: Mapping[str, Any]) -> Job:
    """A replacement for an unreadable job that has not ended, made from its columns. If it holds
    GPUs, it keeps them until its processes are gone. It is never launched."""
    gpus = tuple(GpuId(gpu) for gpu in as_text(row["gpus"]).split(",") if gpu)
    holds = row["state"] in HOLDING and bool(gpus)
    number, started_at = max(1, int(_number(row["attempt"]))), _number(row["started_at"])
    attempt = Attempt(number, gpus, started_at=started_at)
    status: Status = Waiting(JobState.QUEUED)
    if holds:  # not STARTING: that would be launched again
        status = Active(JobState.RUNNING, attempt)
    if holds and row["state"] == JobState.STOPPING:
        status = Stopping(attempt, Cause.CANCELLED)
    user = as_text(row["user"])
    uid, gid = _ids(user, int(_number(row["uid"])))
    tasks = int(_number(row["tasks"]))
    return Job(
        JobId(row["id"]),
        JobSpec(
            argv=_NO_COMMAND,
            user=user,
            uid=uid,
            gid=gid,
            cwd="/",
            name=as_text(row["name"]),
            gpus=len(gpus) or 1,
            requeue=False,
            array=ArrayTask(JobId(row["id"]), 0, more=tasks - 1) if tasks > 1 else None,
        ),
        status,
        _number(row["submitted_at"]),
        held=not holds,
        notes=(NOTE,),
    )


def stands_in(job: Job) -> bool:
    """Whether the job is a stand-in."""
    return job.spec.argv == _NO_COMMAND


def _ids(user: str, uid: int) -> tuple[int, int]:
    """Those of the account that the row belongs to, also if another one has the name by now."""
    with suppress(KeyError, ValueError):
        entry = pwd.getpwnam(user)
        if uid in (entry.pw_uid, UNKNOWN_UID):
            return entry.pw_uid, entry.pw_gid
    return (NOBODY if uid == UNKNOWN_UID else uid), NOBODY


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
