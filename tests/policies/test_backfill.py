"""Backfilling by the ends of jobs (EASY): the default of policies that keep the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from carma_testing import FakeServer
from carmad.config import Limits, Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Prediction
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import DrainRequested
from carmad.learning.models import Model
from policies import builtin
from policies.backfilling import SEEN
from tests.daemon import NO_KERNELS, running
from tests.waiting import until

HOUR_S = 3600.0
ALONE = Settings(policy="exclusive")


def waiting_head(settings: Settings = ALONE, **running: object) -> tuple[FakeServer, JobId, JobId]:
    """Two GPUs: one is in use, and the job that is first in line wants both."""
    server = FakeServer(gpus=2, settings=settings)
    first = server.submit(**({"time_limit_s": HOUR_S} | running))
    server.run_kernel(first)
    server.pass_time(40, 10)
    return server, first, server.submit(gpus=2)


def started(server: FakeServer, **spec: object) -> bool:
    return server.job(server.submit(**spec)).state is JobState.STARTING


@pytest.mark.parametrize(
    ("spec", "starts"),
    [
        ({"time_limit_s": HOUR_S / 2}, True),
        ({"time_limit_s": HOUR_S}, False),  # 40 s have passed
        ({"time_limit_s": HOUR_S, "expected_s": 60.0}, False),  # the limit is what is certain
        ({"expected_s": HOUR_S - 60}, True),
        ({"expected_s": HOUR_S}, False),
        ({}, False),
    ],
)
def test_only_who_ends_in_time_goes_before_the_head(spec: dict[str, float], starts: bool) -> None:
    server, _, head = waiting_head()
    assert started(server, **spec) is starts
    placement = server.scene.decisions[head].placement
    (promised,) = placement.reasons
    assert (promised.code, promised.have) == ("promised", 2)
    assert promised.need == pytest.approx(HOUR_S - 40)


def test_what_its_owners_other_jobs_took_lets_nobody_pass() -> None:
    class Guess:
        name = "guess"

        def predict(
            self, job: Job, history: History, models: Mapping[str, Model], now: float
        ) -> Prediction:
            return Prediction(1.0, "history", is_guess=True)

    server = FakeServer(gpus=2, settings=ALONE, predictor=Guess())
    first = server.submit(time_limit_s=HOUR_S)
    server.run_kernel(first)
    server.pass_time(40, 10)
    server.submit(gpus=2)
    assert not started(server)
    assert started(server, time_limit_s=5.0)


def test_the_head_starts_when_it_was_promised_however_many_go_first() -> None:
    server, first, head = waiting_head()
    promised_at = server.now + server.scene.decisions[head].placement.reasons[0].need
    passing = [server.submit(time_limit_s=HOUR_S / 4) for _ in range(20)]
    ran = 0
    while server.now < promised_at:
        server.pass_time(60, 60)
        for id in passing:
            job = server.scheduler.jobs.get(id)
            if job and job.state is JobState.STARTING:
                server.run_kernel(id)
            elif job and job.state is JobState.RUNNING and job.attained_s(server.now) >= 840:
                server.exit(id)
                ran += 1
    assert ran >= 3
    for id in (first, *passing):
        job = server.scheduler.jobs.get(id)
        assert job is None or not job.holds_gpus or id == first
    server.exit(first)
    assert server.job(head).state is JobState.STARTING


def test_gpus_that_the_head_cannot_use_are_for_others() -> None:
    server = FakeServer(gpus=3, settings=ALONE)
    server.submit(time_limit_s=HOUR_S)
    server.submit(time_limit_s=4 * HOUR_S)
    head = server.submit(gpus=2)  # gets the free one and the first
    assert server.scene.decisions[head].placement.reasons[0].need == pytest.approx(HOUR_S)
    assert not started(server)
    assert started(server, time_limit_s=HOUR_S / 2)


def test_while_nobody_knows_when_the_head_can_start_others_go_first_for_a_minute() -> None:
    server, first, head = waiting_head(time_limit_s=None)
    assert started(server, time_limit_s=1.0)
    (unknown,) = server.scene.decisions[head].placement.reasons
    assert (unknown.code, unknown.need, unknown.detail) == ("no_promise", 60.0, f"job {first}")
    server.exit(JobId(head + 1))
    server.pass_time(30)
    assert started(server)


def test_then_gpus_are_kept_but_for_who_ends_before_that_is_likely() -> None:
    """The first job has run for 100 s, and is taken to run for as long again."""
    server, first, head = waiting_head(time_limit_s=None)
    server.pass_time(60)
    assert not started(server)
    (kept,) = server.scene.decisions[head].placement.reasons
    assert (kept.code, kept.have, kept.detail) == ("kept", 2, f"job {first}")
    assert not started(server, time_limit_s=101.0)
    assert started(server, time_limit_s=99.0)


def test_what_a_job_has_outlived_is_a_guess() -> None:
    server, first, head = waiting_head(time_limit_s=None, expected_s=30.0)
    assert started(server)
    (unknown,) = server.scene.decisions[head].placement.reasons
    assert (unknown.code, unknown.detail) == ("no_promise", f"job {first}")


def test_a_gpu_that_was_kept_stays_so_although_another_is_likely_to_be_free_first() -> None:
    """Or each would be opened in turn, and never be empty."""
    server = FakeServer(gpus=2, settings=Settings(policy="magm"))
    old = [server.submit(memory_mib=20_000)]
    server.run_kernel(old[0], 20_000)
    server.pass_time(20)
    old += [server.submit(memory_mib=20_000)]
    server.run_kernel(old[1], 20_000)
    server.pass_time(70)
    head = server.submit(memory_mib=38_000)
    server.pass_time(61)
    for _ in range(2):
        young = server.submit(memory_mib=6_000)
        assert server.job(young).gpus == server.job(old[1]).gpus
        server.run_kernel(young, 6_000)
        server.pass_time(70)
    kept = server.job(old[0]).gpus
    server.exit(old[0])
    assert server.job(head).gpus == kept


def test_a_head_that_not_even_empty_gpus_would_suit_is_passed() -> None:
    server = FakeServer(gpus=2, settings=ALONE)
    server.tell(DrainRequested(server.now, server.gpus[0].id, "repair", "root"))
    head = server.submit(gpus=2)
    assert started(server)
    server.tell(DrainRequested(server.now, server.gpus[0].id, None, "root"))
    assert not started(server, gpus=2)
    codes = [reason.code for reason in server.scene.decisions[head].placement.reasons]
    assert "no_promise" in codes


def test_a_head_that_only_waits_for_a_gpu_to_settle_is_not_overtaken() -> None:
    settings = Settings()
    server = FakeServer(gpus=1, settings=settings, policy=builtin.magm(settings))
    server.submit(time_limit_s=HOUR_S, memory_mib=1000)
    head = server.submit(memory_mib=1000)
    assert server.why(head)[1] == []
    assert not started(server, time_limit_s=60.0, memory_mib=1000)


def test_it_can_be_turned_off_and_counted_instead() -> None:
    off = replace(ALONE, limits=Limits(backfill=0))
    assert not started(waiting_head(off)[0], time_limit_s=60.0)
    counted = replace(ALONE, limits=Limits(backfill=1))
    assert started(waiting_head(counted)[0])


def test_a_plan_looks_at_a_few_jobs_only() -> None:
    server, _, _ = waiting_head()
    jobs = [server.submit() for _ in range(SEEN + 5)]
    late = server.submit(time_limit_s=60.0)
    assert server.job(late).state is JobState.QUEUED
    assert not {server.job(id).overtaken for id in jobs} - {0}


def test_the_daemon_backfills_and_why_tells_who_waits_for_what(tmp_path: Path) -> None:
    with running(tmp_path, "2xA100-40GB", **NO_KERNELS) as carmad:
        carmad.await_state(carmad.sh("sleep 600", time_limit_s=3600.0), "starting", "running")
        head = carmad.sh("true", gpus=2, exclusive=True)
        until(lambda: "GPUs kept for it: 2" in carmad.carma("why", str(head)), "a promise")
        long = carmad.sh("true", time_limit_s=7200.0)
        carmad.ended(carmad.sh("true", time_limit_s=60.0))
        kept = f"is kept for job {head}"
        until(lambda: kept in carmad.carma("why", str(long)), "the long one to be refused")
        assert carmad.job(head)["state"] == "queued"
