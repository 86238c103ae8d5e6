"""Jobs are moved together for one that needs GPUs to itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carma_testing import FakeServer
from carmad.config import Limits, Monitor, Settings, Suspending
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.states import JobState

S = JobState
SETTINGS = Settings(
    policy="magm",
    monitor=Monitor(window_s=5.0),
    limits=Limits(preemption="suspend"),
    suspend=Suspending(host_memory_mib=100_000, moves=True),
)
MOVES_OFF = replace(SETTINGS, suspend=replace(SETTINGS.suspend, moves=False))
NOT_FOR_OTHERS = replace(SETTINGS, limits=Limits())


def spread(settings: Settings = SETTINGS, mib: int = 10_000, gpus: int = 2) -> FakeServer:
    """A job on each GPU, none of known duration."""
    here = FakeServer(gpus, settings)
    for _ in range(gpus):
        here.run_kernel(here.submit(), mib)
        here.pass_time(1)
    here.pass_time(6)
    return here


def where(on: FakeServer) -> list[list[int]]:
    """The jobs on each GPU."""
    return [[job.id for job in on.scene.running if gpu.id in job.gpus] for gpu in on.gpus]


def test_a_job_moves_to_another_so_that_an_exclusive_one_gets_its_gpu() -> None:
    here = spread()
    head = here.submit(exclusive=True)
    here.pass_time(2)
    assert where(here) == [[head], [1, 2]]
    assert here.job(head).state is S.STARTING
    assert [here.job(JobId(id)).attempt for id in (1, 2)] == [1, 1], "nobody was ended"
    here.pass_time(100)
    assert where(here) == [[head], [1, 2]], "and nobody moves again"


def test_a_wide_job_gets_as_many_gpus_as_it_needs() -> None:
    here = spread(gpus=4)
    head = here.submit(exclusive=True, gpus=2)
    here.pass_time(2)
    assert sorted(map(len, where(here))) == [1, 1, 2, 2]
    assert here.job(head).state is S.STARTING


def test_memory_is_gathered_on_one_gpu() -> None:
    here = spread(mib=15_000)
    head = here.submit(memory_mib=35_000)
    here.pass_time(2)
    assert where(here) == [[head], [1, 2]]


@pytest.mark.parametrize(
    ("settings", "mib", "job"),
    [
        (MOVES_OFF, 10_000, {}),
        (NOT_FOR_OTHERS, 10_000, {}),
        (SETTINGS, 25_000, {}),
        (SETTINGS, 10_000, {"gpus": 2}),
    ],
    ids=["no moves", "for nobody", "no room", "would not help"],
)
def test_nobody_is_moved(settings: Settings, mib: int, job: dict[str, object]) -> None:
    here = spread(settings, mib)
    head = here.submit(exclusive=True, **job)
    here.pass_time(10)
    assert here.job(head).state is S.QUEUED
    assert where(here) == [[1], [2]]


def test_nobody_is_moved_for_a_job_that_starts_soon_anyway() -> None:
    here = FakeServer(2, SETTINGS)
    for _ in range(2):
        here.run_kernel(here.submit(time_limit_s=200.0), 10_000)
        here.pass_time(1)
    here.pass_time(6)
    here.submit(exclusive=True)
    here.pass_time(10)
    assert where(here) == [[1], [2]]
