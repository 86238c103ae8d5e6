"""A database with many jobs that have ended, made through the store as the daemon would."""

from __future__ import annotations

from pathlib import Path

from benchmarks import server
from carmad.core.messages import Event, Exited, Step, Submitted
from carmad.core.types import Cause, Exit, Job, JobState
from carmad.store.sql import SqlStore
from carmad.testing import changed

AT_ONCE = 1000


def write(directory: Path, ended: int) -> None:
    store = SqlStore.open(directory / "carma.db")
    try:
        for first in range(1, ended + 1, AT_ONCE):
            ids = range(first, min(first + AT_ONCE, ended + 1))
            store.commit(_step([server.job(id) for id in ids]))
    finally:
        store.close()


def _step(queued: list[Job]) -> Step:
    """Submitted, run and ended, all in one commit."""
    done = Exit(Cause.SUCCESS, 0)
    gpu = server.CARDS[0].id
    running = [
        changed(job, state=JobState.RUNNING, attempt=1, gpus=(gpu,), started_at=server.BEGUN)
        for job in queued
    ]
    ended = [
        changed(job, state=JobState.SUCCEEDED, exit=done, ended_at=server.BEGUN + 60)
        for job in running
    ]
    events: tuple[Event, ...] = (
        Submitted(server.BEGUN, queued[0].id, tuple(job.spec for job in queued)),
        *(Exited(server.BEGUN + 60, job.id, 1, done) for job in queued),
    )
    return Step(events, (*queued, *running, *ended), (), ())
