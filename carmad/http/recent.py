"""Jobs that ended a moment ago, in memory: whoever looks at the status need not wait for the disk,
nor for the interpreter's lock at each row that is read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from carmad.api.folding import row_out
from carmad.api.render import Jobs
from carmad.core.messages import Step
from carmad.core.types import ENDED, Job, JobId
from carmad.http.listing import as_json
from carmad.http.tally import weight
from carmad.loop import Follower
from carmad.store.sql import SqlStore

RECENT_S = 600.0
MOST = 20  # jobs of a user, and of all users for those who may see them
MOST_BYTES = 256 << 10  # likewise, of their commands
READ = 2000  # of those that ended before this daemon started


@dataclass(slots=True)
class Ended:
    job: Job
    _row: bytes = b""

    def row(self, one: Jobs) -> bytes:
        """As JSON, for those who may see all of it: it changes no more."""
        self._row = self._row or as_json(row_out([self.job], one))
        return self._row


@dataclass(slots=True)
class _Ends:
    jobs: OrderedDict[JobId, Ended] = field(default_factory=OrderedDict)  # the last to end is last
    bytes: int = 0

    def add(self, ended: Ended) -> None:
        job = ended.job
        self._drop(job.id)
        self.jobs[job.id] = ended
        self.bytes += weight(job.spec)
        while len(self.jobs) > MOST or (self.bytes > MOST_BYTES and len(self.jobs) > 1):
            self._drop(next(iter(self.jobs)))

    def _drop(self, id: JobId) -> None:
        ended = self.jobs.pop(id, None)
        if ended is not None:
            self.bytes -= weight(ended.job.spec)


class Recent(Follower):
    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._begun = False
        self._of: dict[str | None, _Ends] = {}  # None: of all users
        self._lock = threading.Lock()

    def committed(self, step: Step) -> None:
        with self._lock:
            self._add(step.jobs)

    def ended(self, user: str | None, now: float) -> list[Ended]:
        """The user's, or everybody's, in order of their ids. The first time, it reads those that
        ended before the daemon started."""
        since = now - RECENT_S
        if not self._begun:
            earlier = self._store.history(since=since, states=ENDED, limit=READ)
            with self._lock:
                self._begin(earlier)
        with self._lock:
            known = self._of.get(user, _Ends()).jobs.values()
            found = [each for each in known if _ended_at(each.job) >= since]
        return sorted(found, key=lambda each: each.job.id)

    def _begin(self, earlier: Iterable[Job]) -> None:
        if not self._begun:
            self._begun = True
            later = [each.job for ends in self._of.values() for each in ends.jobs.values()]
            self._add(sorted({job.id: job for job in (*earlier, *later)}.values(), key=_ended_at))

    def _add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.ended:
                ended = Ended(job)
                self._of.setdefault(job.spec.user, _Ends()).add(ended)
                self._of.setdefault(None, _Ends()).add(ended)


def _ended_at(job: Job) -> float:
    return job.ended_at or 0.0
