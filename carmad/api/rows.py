"""Rows of listings, folded or one for each task; and jobs that ended a moment ago."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import chain, islice
from math import fsum

from starlette.responses import StreamingResponse

from carmad.api.job import JobOut, Jobs
from carmad.api.tally import weight
from carmad.api.wire import state_code
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Owner
from carmad.core.jobs.states import ENDED
from carmad.core.jobs.tasks import gapless
from carmad.core.messages import Step
from carmad.core.scene import Scene
from carmad.edge import Follower
from carmad.store.sql import SqlStore

FIRST_ROWS = 50  # of the line, for everybody
OWN_ROWS = 50  # and so many of one's own that stand behind these
SPANS = 8  # of indices, that a row names

Row = Sequence[Job]  # jobs of one array, or a single one, which may stand for several tasks, too

PIECE = 64 << 10  # bytes

RECENT_S = 600.0
MOST = 20  # jobs of a user, and of all users for those who may see them
MOST_BYTES = 256 << 10  # likewise, of their commands
READ = 2000  # of those that ended before this daemon started


def fold(jobs: Iterable[Job], one: Jobs) -> list[Row]:
    """A row for each job, but one for all tasks of an array that wait for the same reason: it
    stands where the first of them would."""
    rows: dict[object, list[Job]] = {}
    for job in jobs:
        array = job.spec.array
        if array is None or job.holds_gpus or job.ended:
            rows[job.id] = [job]
        else:
            alike = array.array, state_code(job), one.reason(job)
            rows.setdefault(alike, []).append(job)
    return list(rows.values())


def fold_past(jobs: Iterable[Job]) -> list[Row]:
    """Of jobs that have ended, a row for each, but one for all tasks of an array that ended alike:
    it stands where the first of them would."""
    rows: dict[object, list[Job]] = {}
    for job in jobs:
        array, exit = job.spec.array, job.exit
        how = exit and (exit.cause, exit.code, exit.signal)
        alike = (array.array, job.state, how) if array else job.id
        rows.setdefault(alike, []).append(job)
    return list(rows.values())


def waiting(scene: Scene, one: Jobs) -> list[Row]:
    """All jobs that hold no GPUs, in the order of the line: the same for every reader."""
    return scene.memo.recall("waiting", lambda: fold(scene.line, one))


def visible_rows(owner: tuple[int, str], rows: Sequence[Row]) -> tuple[list[Row], int]:
    """The first rows and one's own, and how many jobs are in the others."""
    own = (row for row in rows[FIRST_ROWS:] if row[0].spec.owner == owner)
    shown = [*rows[:FIRST_ROWS], *islice(own, OWN_ROWS)]
    return shown, sum(map(count, rows)) - sum(map(count, shown))


def count(row: Row) -> int:
    """How many jobs it shows."""
    return sum(job.tasks for job in row)


def row_out(row: Row, one: Jobs) -> JobOut:
    """The first job of the row, which tells of the others in `tasks` and `count`."""
    first = row[0]
    out = one(first)
    if count(row) > 1:
        out["count"] = count(row)
        out["tasks"] = _tasks(row)
        out["params"] = dict.fromkeys(out.get("params", ()), "*")  # they have different ones
        out["label"] = row_label(row)
        if len(row) > 1 and first.ended:
            _sum_up(out, [one(job) for job in row])
    return out


def _sum_up(out: JobOut, tasks: Sequence[JobOut]) -> None:
    """When the first of the tasks started and the last ended, the longest times and the largest
    memory of one, and the energy of all."""
    started = [task["started_at"] for task in tasks if task["started_at"]]
    peaks = [task["memory"]["peak_mib"] or 0 for task in tasks]
    energy = [joules for task in tasks if (joules := task.get("energy_j"))]
    out["started_at"] = min(started, default=None)
    out["ended_at"] = max((task.get("ended_at") or "" for task in tasks), default="") or None
    out["elapsed_s"] = max(task["elapsed_s"] for task in tasks)
    out["wait_s"] = max(task.get("wait_s", 0.0) for task in tasks)
    out["memory"] = {**out["memory"], "peak_mib": max(peaks) or None}
    out["energy_j"] = round(fsum(energy), 3) or None


def row_label(row: Row) -> str:
    """What people call the jobs of a row: `42`, or `42_[2-7,9]` of an array."""
    first = label(row[0])
    return first if count(row) == 1 else f"{first.partition('_')[0]}_[{_tasks(row)}]"


def _tasks(row: Row) -> str:
    """As squeue writes them: `2-7,9%4`; of many spans the first, and an ellipsis."""
    spans = list(islice(gapless(row), SPANS + 1))
    words = [f"{its[0]}-{its[-1]}" if len(its) > 1 else f"{its[0]}" for its in spans[:SPANS]]
    if len(spans) > SPANS:
        words.append("...")
    array = row[0].spec.array
    limit = f"%{array.limit}" if array and array.limit is not None else ""
    return ",".join(words) + limit


class Pieces(StreamingResponse):
    """JSON sent in pieces, as each that waits to be read is a copy. It has a length, since HTTP/1.0
    clients cannot read chunks."""

    def __init__(self, body: bytes) -> None:
        length = {"content-length": str(len(body))}
        super().__init__(_cut(body), headers=length, media_type="application/json")


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), PIECE):
        yield body[at : at + PIECE]


class Recent(Follower):
    """Jobs that ended a moment ago, in memory, so that a request for the status does not wait for
    the disk."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._begun = False
        # By user, None: of all users; the last to end is last.
        self._of: dict[Owner | None, OrderedDict[JobId, Job]] = {}
        self._lock = threading.Lock()

    def on_commit(self, step: Step) -> None:
        with self._lock:
            self._add(step.jobs)

    def latest(self, owner: Owner | None, now: float) -> list[Job]:
        """The user's, or everybody's, in order of their ids. The first time, it reads those that
        ended before the daemon started."""
        since = now - RECENT_S
        if not self._begun:
            earlier = self._store.history(since=since, states=ENDED, limit=READ)
            with self._lock:
                self._begin(earlier)
        with self._lock:
            known = tuple(self._of[owner].values()) if owner in self._of else ()
        return sorted((job for job in known if _end(job) >= since), key=lambda job: job.id)

    def _begin(self, earlier: Iterable[Job]) -> None:
        if not self._begun:
            self._begun = True
            later = chain.from_iterable(jobs.values() for jobs in self._of.values())
            self._add(sorted({job.id: job for job in (*earlier, *later)}.values(), key=_end))

    def _add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            for owner in (job.spec.owner, None) if job.ended else ():
                known = self._of.setdefault(owner, OrderedDict())
                known[job.id] = job
                known.move_to_end(job.id)
                while len(known) > MOST or (len(known) > 1 and _bytes(known) > MOST_BYTES):
                    known.popitem(last=False)


def _bytes(jobs: Mapping[JobId, Job]) -> int:
    return sum(weight(job.spec) for job in jobs.values())


def _end(job: Job) -> float:
    return job.ended_at or 0.0
