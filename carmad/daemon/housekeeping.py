"""Regular chores: deleting old jobs, backups, keeping the daemon's files small, and others'."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from carmad import beats
from carmad.accounts import barring
from carmad.attempt import exits
from carmad.config import Retention
from carmad.core.jobs.job import Job
from carmad.core.messages import HoldRequested
from carmad.core.scheduler import Scheduler
from carmad.edge import Chore
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.store.sql import SqlStore
from carmad.threads import Threads

_log = logging.getLogger(__name__)

_FLUSH_S = 30
_BY = "carmad: the account is there again"
_SOON = timedelta(minutes=2)  # a daemon that never lives an hour has to purge, too
_LOG_BYTES = 16 * 1024**2
_SETTLED_S = 86_400.0
_AT_ONCE = 4  # a training takes long
_LATE_S = 1800.0  # a backup, a purge
_END_WITHIN_S = 10.0  # each of these, when the daemon stops


class Housekeeping:
    """A thread that does each chore when it is due. A failed chore is retried the next time.
    `retention` may be replaced while it runs."""

    def __init__(
        self,
        store: SqlStore,
        retention: Retention,
        state_dir: Path,
        flush: Callable[[], None],
        chores: Sequence[Chore] = (),
    ) -> None:
        """`chores`: others', besides."""
        self._store = store
        self.retention = retention
        self._state_dir = state_dir
        backup = Chore("backup", self.backup, "cron", {"hour": 3})  # local time
        self._chores = (
            Chore("flush", flush, "interval", {"seconds": _FLUSH_S}, at_stop=True),
            Chore("trim", self.trim, "interval", {"minutes": 1}),
            Chore("purge", self.purge, "interval", {"hours": 1}, at_start=True),
            *([backup] if retention.backups else ()),
            *chores,
        )
        # No misfire limit, as the default of one second skips runs when the machine is busy;
        # coalesce, as a laptop that slept for a week needs no week of purges.
        self._scheduler = BackgroundScheduler(
            executors={"default": _Hands()},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )

    def start(self) -> None:
        soon = datetime.now().astimezone() + _SOON
        for chore in self._chores:
            its = {"next_run_time": soon} if chore.at_start else {}
            do = _guard(chore.name, chore.do)
            try:
                self._scheduler.add_job(do, chore.trigger, name=chore.name, **its, **chore.when)
            except Exception:  # noqa: BLE001 - a package's trigger
                _log.exception("%s cannot be planned, and is left out", chore.name)
        self._scheduler.start()

    def stop(self) -> None:
        """Wait for the current chores, but not for one that hangs, and do once more what is to be
        on disk."""
        self._scheduler.shutdown(wait=True)
        for chore in self._chores:
            if chore.at_stop:
                _guard(chore.name, chore.do)()

    def purge(self) -> None:
        purged = self._store.purge(time.time(), self.retention)
        attempts = remove_attempts(self._state_dir / "jobs", self._store)
        shorten_logs(self._state_dir)
        _log.info("forgot %d jobs and %d attempt directories", purged, attempts)

    def trim(self) -> None:
        if forgotten := self._store.trim(self.retention):
            _log.info("forgot %d jobs of users who have too many", forgotten)

    def backup(self) -> None:
        _log.info("backed up to %s", self._store.backup(self.retention.backups))


class _Hands(BasePoolExecutor):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(Threads(_AT_ONCE, "housekeeping", _LATE_S))

    def shutdown(self, wait: bool = True) -> None:
        self._pool.shutdown(wait, within_s=_END_WITHIN_S)


def release(inbox: Inbox) -> None:
    """Release the jobs that were held as their users were not to be found, and are: a directory
    server that does not answer looks the same as an account that was deleted."""

    def list_held(core: Scheduler) -> list[Job]:
        return [job for job in core.jobs.rows.values() if job.barred]

    barred = barring()
    for job in inbox.ask(list_held).result():
        if not barred(job.spec.user, job.spec.uid):
            inbox.post(HoldRequested(inbox.clock(), job.id, False, _BY, job.tasks - 1))


def remove_attempts(directory: Path, store: SqlStore) -> int:
    """Remove the `<id>.<attempt>` directories of jobs that the store no longer has; how many.

    Recently used ones stay: after an older backup was restored, they may belong to running jobs.
    """
    settled = time.time() - _SETTLED_S
    found = {
        path: job
        for path, job in exits.attempt_folders(directory).items()
        if path.lstat().st_mtime < settled
    }
    known = store.existing(set(found.values()))
    gone = [path for path, job in found.items() if job not in known]
    for path in gone:
        shutil.rmtree(path)
    return len(gone)


def shorten_logs(directory: Path) -> None:
    """Move the end of a log that has grown too long to `NAME.1`, and truncate it.

    In place, as its writer keeps it open. Jobs' directories are left alone.
    """
    for folder, below, names in os.walk(directory):
        if "jobs" in below:
            below.remove("jobs")
        for path in (Path(folder, name) for name in names if name.endswith(".log")):
            if path.is_symlink():
                continue
            with _open(path, os.O_RDWR) as log:
                status = os.fstat(log.fileno())
                # Blocks, as a writer that does not append leaves a hole where the old text was.
                if status.st_blocks * 512 > _LOG_BYTES:
                    log.seek(max(0, status.st_size - _LOG_BYTES))
                    rest = path.with_name(path.name + ".1")
                    with _open(rest, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as old:
                        shutil.copyfileobj(log, old)
                    log.truncate(0)


def _open(path: Path, flags: int) -> BinaryIO:
    """Open a file without following links, and without waiting for a pipe."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "wb")


def _guard(chore: str, do: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        beats.at(chore)
        try:
            do()
        except CarmaError as error:
            _log.error("%s: %s. %s", chore, error, error.hint)
        except (Exception, SystemExit):  # noqa: BLE001 - the top of a thread's work
            _log.exception("%s failed", chore)

    return run
