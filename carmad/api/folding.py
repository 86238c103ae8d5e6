"""Shortens long lines: tasks of an array that wait for the same reason are one row, and only some
rows are shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from carmad.api.render import Jobs, label, state_code
from carmad.api.responses.jobs import JobOut
from carmad.core.scene import Scene
from carmad.core.tasks import indices
from carmad.core.types import Job

FIRST_ROWS = 50  # of the line, for everybody
OWN_ROWS = 50  # and so many of one's own that stand behind these
SPANS = 8  # of indices, that a row names

Row = Sequence[Job]  # jobs of one array, or a single one, which may stand for several tasks, too


def folded(jobs: Iterable[Job], one: Jobs) -> list[Row]:
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


def waiting(scene: Scene, one: Jobs) -> list[Row]:
    """All that hold no GPUs, the first in line first: the same for everybody who looks."""
    return scene.memo.recall("waiting", lambda: folded(scene.waiting(), one))


def seen_by(owner: tuple[int, str], rows: Sequence[Row]) -> tuple[list[Row], int]:
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
    return out


def row_label(row: Row) -> str:
    """What people call the jobs of a row: `42`, or `42_[2-7,9]` of an array."""
    first = label(row[0])
    return first if count(row) == 1 else f"{first.partition('_')[0]}_[{_tasks(row)}]"


def _tasks(row: Row) -> str:
    """As squeue writes them: `2-7,9%4`; of many spans the first, and an ellipsis."""
    found = sorted(chain.from_iterable(map(indices, row)))
    spans = list(islice(_spans(found), SPANS + 1))
    words = [f"{low}-{high}" if high > low else f"{low}" for low, high in spans[:SPANS]]
    if len(spans) > SPANS:
        words.append("...")
    array = row[0].spec.array
    limit = f"%{array.limit}" if array and array.limit is not None else ""
    return ",".join(words) + limit


def _spans(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    low = high = indices[0]
    for index in indices[1:]:
        if index != high + 1:
            yield low, high
            low = index
        high = index
    yield low, high
