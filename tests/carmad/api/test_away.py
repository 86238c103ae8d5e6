"""`carma why` of a suspended job: for whom it is, and when it is expected back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carma_testing import FakeServer
from carmad.api import why
from carmad.api.job import Jobs
from carmad.api.outlook import foresee
from carmad.config import Limits, Monitor, Settings, Suspending
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.states import JobState
from carmad.core.messages import SuspendRequested
from carmad.words import clock

S = JobState
GIB = 1024
SETTINGS = Settings(
    monitor=Monitor(window_s=5.0),
    limits=Limits(preemption="suspend"),
    suspend=Suspending(host_memory_mib=100 * GIB, moves=True),
)
ALONE = replace(SETTINGS, policy="exclusive")


def headline(on: FakeServer, id: JobId, whose: tuple[int, str] | None = None) -> str:
    owner = whose or on.job(id).spec.owner
    jobs = Jobs(on.scene, lambda job, ahead: ("out", "err"), owner, see_all=True)
    found: str = why.why_out(on.job(id), on.scene, (), jobs)["headline"]
    return found


def run(on: FakeServer, **spec: object) -> JobId:
    id = on.submit(**spec)
    on.run_kernel(id)
    on.pass_time(7)
    return id


def preempted(**first: object) -> tuple[FakeServer, JobId, JobId]:
    """A job of ten hours, which a shorter one has sent away."""
    here = FakeServer(1, replace(ALONE, policy="srtf"))
    long = run(here, expected_s=36_000.0, **first)
    short = here.submit(expected_s=300.0)
    here.pass_time(2)
    assert here.job(long).state is S.SUSPENDED
    return here, long, short


def test_how_much_is_left_of_both_and_by_when_it_is_back() -> None:
    here, long, short = preempted()
    said = headline(here, long)
    assert said.startswith(f"suspended for job {short} (5 min left against your 10.0 h); back by ")
    latest = foresee(here.scene)[long].latest.at
    assert here.now + 298 < latest < here.now + 2 * 298, "it may take longer than expected"
    assert said.endswith((clock(latest), clock(latest)[11:16]))
    assert "against its 10.0 h" in headline(here, long, (4711, "bob"))


def test_a_time_limit_says_by_when_it_is_back() -> None:
    here = FakeServer(1, ALONE)
    long = run(here)
    id = here.submit(urgent=True, time_limit_s=600.0)
    here.pass_time(2)
    said = headline(here, long)
    assert said.startswith(f"suspended for job {id}, which is urgent; back by ")
    assert said.endswith((clock(here.now + 598)[11:16], clock(here.now + 598)))


@pytest.mark.parametrize(
    ("spec", "words"),
    [({"urgent": True}, "which is urgent"), ({"interactive": True}, "which is at a terminal")],
)
def test_for_whom_if_nobody_knows_for_how_long(spec: dict[str, object], words: str) -> None:
    here = FakeServer(1, ALONE)
    long = run(here)
    id = here.submit(**spec)
    here.pass_time(2)
    assert headline(here, long) == f"suspended for job {id}, {words}"


def test_other_causes_in_their_own_words() -> None:
    here = FakeServer(1, SETTINGS)
    id = run(here, memory_mib=GIB)
    here.tell(SuspendRequested(here.now, id, "ada"))
    assert headline(here, id) == "waits: it is suspended until somebody resumes it"
