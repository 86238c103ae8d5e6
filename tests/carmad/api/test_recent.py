"""What ended a moment ago, as the status shows it: from memory, and after a restart from disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import a_job
from carmad.api import rows as recent
from carmad.api.rows import Recent
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Owner
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step, Tick
from carmad.store.sql import SqlStore
from tests import api_server

NOW = 10_000.0


def ended(id: int, user: str = "ada", at: float = NOW, name: str = "train") -> Job:
    job = a_job(id, state=JobState.SUCCEEDED, ended_at=at)
    return replace(job, spec=replace(job.spec, user=user, name=name))


def owner(user: str) -> Owner:
    return ended(0, user).spec.owner


def step(*jobs: Job) -> Step:
    return Step((Tick(NOW),), jobs, (), ())


def held(daemon: api_server.Daemon) -> int:
    body = {"argv": ["train"], "cwd": "/", "held": True}
    return int(daemon.call("POST", "/v1/jobs", body)[1]["id"])


def ids(found: list[Job]) -> list[int]:
    return [job.id for job in found]


@pytest.fixture
def store(tmp_path: Path) -> SqlStore:
    return SqlStore.open(tmp_path / "carma.db")


def test_it_is_a_user_s_own_and_everybody_s_in_order_of_ids(store: SqlStore) -> None:
    known = Recent(store)
    known.on_commit(step(ended(3), ended(2, "bob"), a_job(4, state=JobState.QUEUED)))
    known.on_commit(step(ended(1), ended(5, at=NOW - recent.RECENT_S - 1)))
    assert ids(known.latest(owner("ada"), NOW)) == [1, 3]
    assert ids(known.latest(owner("bob"), NOW)) == [2]
    assert ids(known.latest(None, NOW)) == [1, 2, 3]
    assert known.latest(owner("eve"), NOW) == []


def test_a_job_that_ended_twice_is_there_once_as_it_is_now(store: SqlStore) -> None:
    known = Recent(store)
    known.on_commit(step(ended(1, name="before")))
    known.on_commit(step(ended(1, name="after")))
    assert [job.spec.name for job in known.latest(owner("ada"), NOW)] == ["after"]


def test_it_is_limited_by_number_and_by_length_and_no_user_pushes_out_another_s(
    store: SqlStore,
) -> None:
    known = Recent(store)
    known.on_commit(step(ended(1)))
    known.on_commit(step(*(ended(id, "bob") for id in range(2, 2 * recent.MOST))))
    known.on_commit(step(*(ended(id, "eve", name="x" * recent.MOST_BYTES) for id in (901, 902))))
    assert ids(known.latest(owner("ada"), NOW)) == [1]
    assert ids(known.latest(owner("bob"), NOW)) == list(range(recent.MOST, 2 * recent.MOST))
    assert ids(known.latest(owner("eve"), NOW)) == [902]


def test_the_status_reads_the_disk_once_and_not_for_every_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finished(daemon: api_server.Daemon) -> None:
        daemon.call("POST", "/v1/cancel", {"select": str(held(daemon))})

    def shown(daemon: api_server.Daemon) -> list[int]:
        return [job["id"] for job in daemon.call("GET", "/v1/status")[1]["jobs"]]

    reads: list[Any] = []
    history = SqlStore.history
    with api_server.running(tmp_path) as daemon:
        finished(daemon)
        before = shown(daemon)
        assert len(before) == 1
    Path(daemon.path).unlink()
    monkeypatch.setattr(
        SqlStore, "history", lambda self, **asked: reads.append(asked) or history(self, **asked)
    )
    with api_server.running(tmp_path) as daemon:
        daemon.inbox.next_ids(1)
        for _ in range(3):
            finished(daemon)
            now = shown(daemon)
        assert set(before) < set(now) and len(now) == 4
    assert len(reads) == 1
