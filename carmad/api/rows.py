"""Rows of listings: folded, rendered once and shared by all answers, kept for a while after the
job's end."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from itertools import count as count_from
from math import fsum
from secrets import randbelow
from typing import TypeVar

from starlette.responses import StreamingResponse

from carmad.api.job import JobOut, Jobs, MovingOut
from carmad.api.tally import weight
from carmad.api.wire import as_json, state_code
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Owner
from carmad.core.jobs.states import ENDED
from carmad.core.jobs.tasks import gapless, indices, singly
from carmad.core.messages import Step
from carmad.core.scene import Scene
from carmad.edge import Follower
from carmad.store.sql import SqlStore

FIRST_ROWS = 50  # of the line, for everybody
OWN_ROWS = 50  # and so many of one's own that stand behind these
SPANS = 8  # of indices, that a row names

NEXT = b",\n"  # between rows

Row = Sequence[Job]  # jobs of one array, or a single one, which may stand for several tasks, too

PIECES = 256  # written at a time

Numbers = tuple[int, int, int]  # a task's id, index and place in line
NUMBERS = b"id", b"index", b"place"

P = TypeVar("P")

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


@dataclass(slots=True)
class _Written:
    job: Job
    reason: str | None
    full: bytes = b""  # for its owner; without the fields that change with time
    outline: bytes = b""  # for others


class Rows:
    """Caches the JSON of waiting jobs while they and their reasons are unchanged. Thread-safe."""

    def __init__(self) -> None:
        self._written: dict[JobId, _Written] = {}

    def __len__(self) -> int:
        return len(self._written)

    def keep(self, live: Mapping[JobId, Job]) -> None:
        """Forget ended jobs, if there must be some."""
        if len(self._written) > len(live):
            known = self._written.copy()  # atomic: other threads may be adding to it
            self._written = {id: row for id, row in known.items() if id in live}

    def json(self, rows: Iterable[Row], one: Jobs) -> list[bytes]:
        """A JSON array with a line for each row, in pieces."""
        pieces: list[bytes] = []
        for row in rows:
            if len(row) > 1 or row[0].tasks > 1:
                pieces += [as_json(row_out(row, one)), NEXT]
            else:
                pieces += self._single(row[0], one)
        return _array(pieces)

    def json_singly(self, jobs: Iterable[Job], one: Jobs) -> list[Piece]:
        """Likewise, with a row for each task."""
        pieces: list[Piece] = []
        for job in jobs:
            pieces += self._single(job, one) if job.tasks == 1 else _alike(job, one)
        return _array(pieces)

    def _single(self, job: Job, one: Jobs) -> tuple[bytes, ...]:
        if job.holds_gpus or job.ended:
            return as_json(row_out([job], one)), NEXT
        if one.sees(job):
            return self._full(job, one), as_json(one.moving(job))[1:], NEXT
        return self._outline(job, one), NEXT

    def _full(self, job: Job, one: Jobs) -> bytes:
        row = self._row(job, one)
        if not row.full:
            out = one(job)
            for name in one.moving(job):
                del out[name]  # type: ignore[misc]
            row.full = as_json(out)[:-1] + b","
        return row.full

    def _outline(self, job: Job, one: Jobs) -> bytes:
        row = self._row(job, one)
        row.outline = row.outline or as_json(one(job))
        return row.outline

    def _row(self, job: Job, one: Jobs) -> _Written:
        reason, row = one.reason(job), self._written.get(job.id)
        # By value: a task is another object whenever those that wait with it have changed.
        if row is None or row.reason != reason or (row.job is not job and row.job != job):
            row = self._written[job.id] = _Written(job, reason)
        return row


def _array(pieces: list[P]) -> list[P | bytes]:
    """Of rows, each with NEXT behind it."""
    return [b"[\n", *pieces[:-1], b"\n]"] if pieces else [b"[]"]


class Alike:
    """Rows with NEXT between them that differ in three numbers, spelt out only while they are sent:
    a long array's take megabytes, and many may be reading them slowly."""

    def __init__(self, pattern: _Pattern, ids: range, indices: range, place: int) -> None:
        self._pattern, self._ids, self._indices, self._place = pattern, ids, indices, place
        self._bytes = len(pattern.blank) * len(ids) + len(NEXT) * (len(ids) - 1)
        self._bytes += sum(map(pattern.digits, self._numbers()))

    @property
    def rows(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[bytes]:
        for at, numbers in enumerate(self._numbers()):
            if at:
                yield NEXT
            yield self._pattern.row(numbers)

    def __len__(self) -> int:
        """In bytes."""
        return self._bytes

    def _numbers(self) -> Iterator[Numbers]:
        return zip(self._ids, self._indices, count_from(self._place), strict=False)


Piece = bytes | Alike


def _alike(job: Job, one: Jobs) -> tuple[Piece, ...]:
    """The rows of all tasks that the job stands for. Those behind the first, which may head the
    line, differ only in their ids, indices and places, so they are written from one pattern."""
    first, second = islice(singly([job]), 2)
    moving = one.moving(second)
    pattern = _pattern(second, moving, one)
    others = Alike(pattern, job.ids[1:], indices(job)[1:], moving["position"] or 0)
    return as_json(one(first)), NEXT, others, NEXT


class _Pattern:
    """A row in which three numbers stand that nobody can have guessed, also in the paths of its
    logs. Others take their place."""

    def __init__(self, row: bytes, numbers: Numbers) -> None:
        found = [b"%d" % number for number in numbers]
        self._used = list(map(row.count, found))
        self._text = row.replace(b"%", b"%%")
        self.blank = row
        for number, name in zip(found, NUMBERS, strict=True):
            self._text = self._text.replace(number, b"%%(%s)d" % name)
            self.blank = self.blank.replace(number, b"")

    def row(self, numbers: Numbers) -> bytes:
        return self._text % dict(zip(NUMBERS, numbers, strict=True))

    def digits(self, numbers: Numbers) -> int:
        """How many it has besides the `blank` part."""
        return sum(
            used * len(str(number)) for used, number in zip(self._used, numbers, strict=True)
        )


def _pattern(task: Job, moving: MovingOut, one: Jobs) -> _Pattern:
    assert task.spec.array
    id, index, place = (10**17 + randbelow(10**17) for _ in range(3))
    array = replace(task.spec.array, index=index)
    out = one(replace(task, id=JobId(id), spec=replace(task.spec, array=array)))
    if one.sees(task):
        out["reason"], out["wait_s"] = one.reason(task), moving["wait_s"]
        out["position"] = moving["position"] and place
    return _Pattern(as_json(out), (id, index, place))


class Pieces(StreamingResponse):
    """JSON sent in pieces, never assembled in memory. It has a length, since HTTP/1.0 clients
    cannot read chunks."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        length = {"content-length": str(sum(map(len, pieces)))}
        super().__init__(_join(pieces), headers=length, media_type="application/json")


async def _join(pieces: Sequence[Piece]) -> AsyncIterator[bytes]:
    spelt = chain.from_iterable((each,) if isinstance(each, bytes) else each for each in pieces)
    while some := b"".join(islice(spelt, PIECES)):
        yield some


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
    """Jobs that ended a moment ago, in memory, so that a request for the status waits neither for
    the disk nor for the interpreter's lock at each row that is read."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._begun = False
        self._of: dict[Owner | None, _Ends] = {}  # None: of all users
        self._lock = threading.Lock()

    def on_commit(self, step: Step) -> None:
        with self._lock:
            self._add(step.jobs)

    def latest(self, owner: Owner | None, now: float) -> list[Ended]:
        """The user's, or everybody's, in order of their ids. The first time, it reads those that
        ended before the daemon started."""
        since = now - RECENT_S
        if not self._begun:
            earlier = self._store.history(since=since, states=ENDED, limit=READ)
            with self._lock:
                self._begin(earlier)
        with self._lock:
            known = self._of.get(owner, _Ends()).jobs.values()
            found = [each for each in known if _end(each.job) >= since]
        return sorted(found, key=lambda each: each.job.id)

    def _begin(self, earlier: Iterable[Job]) -> None:
        if not self._begun:
            self._begun = True
            later = [each.job for ends in self._of.values() for each in ends.jobs.values()]
            self._add(sorted({job.id: job for job in (*earlier, *later)}.values(), key=_end))

    def _add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.ended:
                ended = Ended(job)
                self._of.setdefault(job.spec.owner, _Ends()).add(ended)
                self._of.setdefault(None, _Ends()).add(ended)


def _end(job: Job) -> float:
    return job.ended_at or 0.0
