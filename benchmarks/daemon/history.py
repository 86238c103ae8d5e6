"""A daemon's database with many jobs, written through the store as the daemon would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.daemon import server
from carmad.core.messages import Event, Exited, Step, Submitted, Tick
from carmad.core.types import Cause, Exit, Job, JobState
from carmad.store.sql import SqlStore

AT_ONCE = 1000


def write_ended(directory: Path, count: int) -> None:
    ids = range(1, count + 1)
    _commit(directory, (_ended(ids[n : n + AT_ONCE]) for n in range(0, count, AT_ONCE)))


def write_waiting(directory: Path, jobs: Sequence[Job]) -> None:
    _commit(directory, (waiting(jobs[n : n + AT_ONCE]) for n in range(0, len(jobs), AT_ONCE)))


def waiting(jobs: Iterable[Job]) -> Step:
    return Step((Tick(server.BEGUN),), tuple(jobs), (), ())


def _commit(directory: Path, steps: Iterator[Step]) -> None:
    with closing(SqlStore.open(directory / "carma.db")) as store:
        for step in steps:
            store.commit(step)


def _ended(ids: range) -> Step:
    """Submitted, run and ended, all in one commit."""
    done, end = Exit(Cause.SUCCESS, 0), server.BEGUN + 60
    ran: dict[str, Any] = {"attempt": 1, "gpus": (server.CARDS[0].id,), "started_at": server.BEGUN}
    queued = [server.job(id) for id in ids]
    running = [server.job(id, state=JobState.RUNNING, **ran) for id in ids]
    ended = [server.job(id, state=JobState.SUCCEEDED, exit=done, ended_at=end, **ran) for id in ids]
    events: tuple[Event, ...] = (
        Submitted(server.BEGUN, queued[0].id, tuple(job.spec for job in queued)),
        *(Exited(end, job.id, 1, done) for job in queued),
    )
    return Step(events, (*queued, *running, *ended), (), ())
