"""Rows of listings, folded or one for each task; and jobs that ended a moment ago."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from math import fsum

from starlette.responses import StreamingResponse

from carmad.api.job import JobOut, Jobs
from carmad.api.wire import state_code
from carmad.core.gpus.sharing import label
from carmad.core.jobs.job import Job
from carmad.core.jobs.tasks import gapless
from carmad.core.scene import Scene

FIRST_ROWS = 50  # of the line, for everybody
OWN_ROWS = 50  # and so many of one's own that stand behind these
SPANS = 8  # of indices, that a row names

Row = Sequence[Job]  # jobs of one array, or a single one, which may stand for several tasks, too

PIECE = 64 << 10  # bytes


def fold(jobs: Iterable[Job], one: Jobs) -> list[Row]:
    """A row for each job, but one for all tasks of an array that wait for the same reason, or that
    ended alike: it stands where the first of them would."""
    rows: dict[object, list[Job]] = {}
    for job in jobs:
        array = job.spec.array
        if array is None or job.holds_gpus:
            alike: object = job.id
        elif job.ended:
            exit = job.exit
            alike = array.array, job.state, exit and (exit.cause, exit.code, exit.signal)
        else:
            alike = array.array, state_code(job), one.reason(job)
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
