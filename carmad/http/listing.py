"""Long listings as JSON: each row is rendered once and shared by all answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import to_json
from starlette.responses import StreamingResponse

from carmad.api.folding import Row, row_out
from carmad.api.render import Jobs
from carmad.core.types import Job, JobId

PIECES = 256  # written at a time


def as_json(value: object) -> bytes:
    return to_json(value, inf_nan_mode="null")  # a rank may be infinite, JSON's numbers may not


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
        """A JSON array, in pieces."""
        pieces = [b"["]
        for row in rows:
            job = row[0]
            if len(row) > 1 or job.tasks > 1 or job.holds_gpus or job.ended:
                pieces += [as_json(row_out(row, one)), b","]
            elif one.sees(job):
                pieces += [self._full(job, one), as_json(one.moving(job))[1:], b","]
            else:
                pieces += [self._outline(job, one), b","]
        return [*pieces[: -1 if len(pieces) > 1 else None], b"]"]

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


class Pieces(StreamingResponse):
    """JSON sent in pieces, never assembled in memory. It has a length, since HTTP/1.0 clients
    cannot read chunks."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        length = {"content-length": str(sum(map(len, pieces)))}
        super().__init__(_joined(pieces), headers=length, media_type="application/json")


async def _joined(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for first in range(0, len(pieces), PIECES):
        yield b"".join(pieces[first : first + PIECES])
