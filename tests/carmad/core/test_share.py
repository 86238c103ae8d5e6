"""Fair shares: what users have used, and whose jobs go first."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from carma_testing import FakeServer, a_gpu, a_spec
from carmad.api.fairness import overtaken, shares_out
from carmad.config import Fairness, Host, Limits, Settings
from carmad.core.jobs.attempt import Cause, Exit, JobId, Mode
from carmad.core.jobs.job import stopping
from carmad.core.jobs.states import JobState
from carmad.core.messages import (
    Adopted,
    CancelRequested,
    Discovered,
    Exited,
    HoldRequested,
    Reconfigured,
    RequeueRequested,
    Submitted,
)
from carmad.core.rules.share import (
    DAY_S,
    RANKED_EVERY_S,
    SAVED_EVERY_S,
    Account,
    Rates,
    Shares,
    bands,
)
from carmad.store import codec
from carmad.store.sql import SqlStore
from tests.owners import UID, who

HOUR_S = 3600.0
WEEK_S = 7 * DAY_S
ALONE = Settings(policy="exclusive", fairness=Fairness(band_hours=0.0))


def shared(settings: Fairness | None = None, **hours: float) -> Shares:
    accounts = (Account(user, UID, used_s=used * HOUR_S) for user, used in hours.items())
    return Shares(settings or Fairness(), accounts)


def test_use_counts_half_after_a_half_life() -> None:
    ada = Account("ada", UID, at=0.0, used_s=HOUR_S)
    assert ada.as_of(WEEK_S, WEEK_S).used_s == pytest.approx(HOUR_S / 2)
    assert ada.as_of(2 * WEEK_S, WEEK_S).used_s == pytest.approx(HOUR_S / 4)


def test_what_is_being_used_counts_exactly_however_often_it_is_settled() -> None:
    ada = Account("ada", UID, rate=1.5)
    at_once = ada.as_of(WEEK_S, WEEK_S)
    bit_by_bit = ada
    for day in range(1, 8):
        bit_by_bit = bit_by_bit.as_of(day * DAY_S, WEEK_S)
    assert bit_by_bit.used_s == pytest.approx(at_once.used_s)
    assert at_once.used_s == pytest.approx(1.5 * WEEK_S / math.log(2) / 2)
    assert dict(at_once.days) == pytest.approx({**dict.fromkeys(range(7), 1.5 * DAY_S), 7: 0.0})
    assert ada.as_of(HOUR_S, WEEK_S).used_s == pytest.approx(1.5 * HOUR_S, rel=0.01)


def test_days_are_forgotten() -> None:
    ada = Account("ada", UID, rate=1.0).as_of(100.5 * DAY_S, WEEK_S)
    assert len(ada.days) == 31
    assert ada.since(100, 100.75 * DAY_S) == pytest.approx(0.75 * DAY_S)
    later = replace(ada, rate=0.0).as_of(131 * DAY_S, WEEK_S)
    assert not later.days, "nothing was used since"


def test_what_is_being_used_is_saved_every_minute_and_not_more_often() -> None:
    shares, rates = shared(ada=0), Rates()
    shares.follow(rates, 0.0)
    shares.accounts[who("ada")] = Account("ada", UID, at=1000.0, rate=1.0)
    shares.follow(rates, 1000.0)
    shares.follow(rates, 1000.0 + SAVED_EVERY_S - 1)
    assert shares.accounts[who("ada")].at == 1000.0
    shares.follow(rates, 1000.0 + SAVED_EVERY_S)
    assert shares.accounts[who("ada")].at == 1000.0 + SAVED_EVERY_S


def test_who_has_no_urgent_jobs_uses_none_of_the_budget_for_them() -> None:
    shares = shared()
    shares.note_groups(who("ada"), ("staff",), 0.0)
    assert shares.urgent_s(who("ada"), DAY_S) == shares.urgent_s(who("bob"), DAY_S) == 0.0


def test_weights_divide_what_was_used() -> None:
    shares = shared(Fairness(weights={"ada": 4.0}), ada=30, bob=10)
    assert shares.rerank(20.0)
    assert (shares.rank(who("ada")), shares.rank(who("bob")), shares.rank(who("new"))) == (1, 2, 0)


def test_users_are_not_ranked_all_the_time() -> None:
    shares = shared(ada=30, bob=10)
    shares.rerank(20.0)
    ranks = shares.ranks
    assert not shares.rerank(20.0 + RANKED_EVERY_S / 2)
    assert shares.ranks is ranks
    shares.rerank(20.0 + RANKED_EVERY_S)
    assert shares.ranks.at == 20.0 + RANKED_EVERY_S


def test_the_users_of_a_group_with_a_weight_share_it() -> None:
    shares = shared(Fairness(weights={"@lab": 2.0}), ada=1, bob=9, carl=8)
    for user in ("ada", "bob"):
        shares.note_groups(who(user), ("staff", "lab"), 0.0)
    shares.rerank(20.0)
    assert [shares.rank(who(user)) for user in ("ada", "bob", "carl")] == [1, 2, 3]
    assert shares.group(who("ada")) == "@lab"


def test_users_whose_use_differs_by_less_than_a_band_are_equal() -> None:
    """On eight GPUs, a band of an hour is eight GPU-hours."""
    shares = shared(Fairness(weights={"dora": 4.0}), ada=1, bob=8, carl=30, dora=28, eve=200)
    shares.rerank(20.0, (who("ada"), who("bob"), who("carl"), who("dora"), who("eve")), gpus=8)
    assert {owner.user: shares.rank(owner) for owner in (*shares.accounts, who("new"))} == {
        "new": 0,
        "ada": 0,
        "bob": 0,
        "dora": 0,
        "carl": 1,
        "eve": 2,
    }


def test_a_band_begins_at_the_user_with_the_least_use_who_waits() -> None:
    shares = shared(ada=90, bob=97, carl=99)
    shares.rerank(20.0, (who("bob"), who("carl")), gpus=8)
    assert shares.rank(who("bob")) == shares.rank(who("carl")) == 1
    assert shares.rank(who("new")) == 0, "who has used far less goes first"
    shares.rerank(40.0, (who("ada"), who("bob"), who("carl")), gpus=8)
    assert (shares.rank(who("ada")), shares.rank(who("bob")), shares.rank(who("carl"))) == (1, 1, 2)


def test_within_a_group_bands_count_too_and_between_equal_groups_arrival() -> None:
    weights = {"@lab": 1.0, "@course": 2.0}
    shares = shared(Fairness(weights=weights), ada=2, bob=18, carl=41, dora=60)
    for user, group in (("ada", "lab"), ("bob", "lab"), ("carl", "course"), ("dora", "")):
        shares.note_groups(who(user), (group,), 0.0)
    shares.rerank(20.0, gpus=8)
    assert {owner.user: shares.rank(owner) for owner in shares.accounts} == {
        "ada": 1,
        "carl": 1,  # the group's 41 of weight 2 are as the lab's 20
        "bob": 2,
        "dora": 3,
    }


def test_bands_order_users_by_their_use() -> None:
    rng = random.Random(5)
    for width in (0.0, 1.0, 8.0):
        used = {number: rng.uniform(0, 40) for number in range(20)}
        waiting = set(rng.sample(sorted(used), 6))
        its = bands(used, waiting, width)
        by_use = sorted(used, key=used.__getitem__)
        assert [its[each] for each in by_use] == sorted(its.values())
        least = min(used[each] for each in waiting)
        near = {each for each in waiting if used[each] - least < width}
        assert {its[each] for each in near} <= {0}
        assert all(its[each] for each in waiting if used[each] - least > width)


def test_a_debug_run_of_the_user_with_most_use_is_not_always_last() -> None:
    settings = replace(ALONE, fairness=Fairness())
    server = FakeServer(gpus=1, settings=settings)
    server.scheduler.state.shares = shared(settings.fairness, ada=0.1, bob=0.3, carl=2.0)
    server.run_kernel(server.submit(user="ada"))
    carl, bob, ada = (server.submit(user=user) for user in ("carl", "bob", "ada"))
    server.pass_time(2 * RANKED_EVERY_S, RANKED_EVERY_S)
    assert line(server) == [bob, ada, carl]
    assert overtaken(server.job(ada), server.scene) == ""
    assert overtaken(server.job(carl), server.scene) == (
        f"job {bob} goes first: bob has used 0.3 GPU-h recently, and carl 2 GPU-h"
        "; that changes while they use GPUs"
    )
    assert shares_out(server.scene)["band_gpu_hours"] == 1.0


def busy() -> tuple[FakeServer, JobId]:
    """One GPU. Ada's job has run on it for an hour; now Bob's does."""
    server = FakeServer(gpus=1, settings=ALONE)
    first = server.submit(user="ada")
    server.run_kernel(first)
    server.pass_time(HOUR_S, 1800)
    now = server.submit(user="bob")
    server.exit(first)
    server.run_kernel(now)
    server.pass_time(60, 30)
    return server, now


def line(server: FakeServer) -> list[int]:
    return [job.id for job in server.scene.line]


def test_who_has_used_less_goes_first() -> None:
    server, _ = busy()
    adas = [server.submit(user="ada") for _ in range(2)]
    bobs, carls = server.submit(user="bob"), server.submit(user="carl")
    assert line(server) == [carls, bobs, *adas]
    ada, job = shares_out(server.scene)["users"][-1], server.job(adas[0])
    assert (ada["user"], ada["gpu_hours"], ada["rank"]) == ("ada", pytest.approx(1, rel=0.01), 2)
    assert overtaken(job, server.scene) == (
        f"job {carls} goes first: carl has used 0 GPU-h recently, and ada 0.998 GPU-h;"
        " that changes while they use GPUs"
    )


def test_arrival_decides_among_equals_and_without_fairness() -> None:
    server, _ = busy()
    jobs = [server.submit(user=user) for user in ("ada", "bob", "carl", "dora", "carl")]
    off = replace(ALONE, fairness=Fairness(enabled=False))
    by_share = [jobs[2], jobs[3], jobs[4], jobs[1], jobs[0]]
    assert line(server) == by_share
    server.tell(Reconfigured(server.now, off))
    assert line(server) == jobs
    server.tell(Reconfigured(server.now, ALONE))
    assert line(server) == by_share


def test_priorities_and_a_policys_own_order_come_before_the_share() -> None:
    server, _ = busy()
    ada = server.submit(user="ada")
    yields = server.submit(user="carl", nice=1)
    assert line(server) == [ada, yields]
    assert overtaken(server.job(yields), server.scene) == ""
    server = FakeServer(gpus=1, settings=replace(ALONE, policy="sjf"))
    server.scheduler.state.shares = shared(ada=1)
    server.submit(user="bob", expected_s=1.0)
    long, short = (
        server.submit(user="carl", expected_s=9.0),
        server.submit(user="ada", expected_s=8),
    )
    server.pass_time(2 * RANKED_EVERY_S, RANKED_EVERY_S)
    assert line(server) == [short, long]


def test_a_shared_gpu_is_divided() -> None:
    settings = Settings(policy="first_fit", limits=Limits())
    server = FakeServer(gpus=1, settings=settings)
    first = server.submit(user="ada", memory_mib=1000)
    server.run_kernel(first)
    server.pass_time(100)
    second = server.submit(user="bob", memory_mib=1000)
    assert server.job(second).state is JobState.STARTING
    server.pass_time(60)
    used = {
        user: server.scheduler.state.shares.usage_s(who(user), server.now)
        for user in ("ada", "bob")
    }
    assert used == pytest.approx({"ada": 130, "bob": 30}, rel=0.01)
    server.exit(first)
    assert server.scheduler.state.shares.accounts[who("bob")].rate == 1.0
    assert server.scheduler.state.shares.accounts[who("ada")].rate == 0.0


def test_shares_survive_a_restart_and_a_reboot_ends_what_was_used(tmp_path: Path) -> None:
    server = FakeServer(gpus=1, settings=ALONE)
    store = SqlStore.open(tmp_path / "carma.db")
    store.keep_time("boot", 0.0)
    job = server.submit(user="ada")
    server.tell(Submitted(server.now, JobId(9), (a_spec(user="bob"),), groups=("lab",)))
    server.run_kernel(job)
    server.pass_time(100)
    for step in server.steps:
        store.commit(step)
    store.close()
    used_s = server.scheduler.state.shares.usage_s(who("ada"), server.now + 50)

    store = SqlStore.open(tmp_path / "carma.db")
    store.keep_time("boot", 0.0)
    saved = store.restore()
    server.scheduler.restore(saved.jobs, accounts=saved.accounts)
    server.sample(50)
    after = server.scheduler.state.shares
    assert after.usage_s(who("ada"), server.now) == pytest.approx(used_s)
    assert after.accounts[who("bob")].groups == ("lab",)
    store.keep_time("boot", 1000.0)
    shifted = {each.user: each for each in store.restore().accounts}
    assert shifted["ada"].at == next(a.at for a in saved.accounts if a.user == "ada") + 1000
    store.keep_time("another boot", 5000.0)
    assert {each.rate for each in store.restore().accounts} == {0.0}
    store.close()


def test_a_long_line_is_sorted_anew_only_when_ranks_change() -> None:
    server, _ = busy()
    for user in ("ada", "bob"):
        server.submit(user=user)
    before = server.scene.line
    server.pass_time(3 * RANKED_EVERY_S, RANKED_EVERY_S)
    assert server.scene.line is before


# -- urgent jobs


def test_an_urgent_job_goes_before_all_that_are_not() -> None:
    server, _ = busy()
    yields = server.submit(user="carl", nice=-5)
    ada = server.submit(user="ada", urgent=True)
    assert line(server) == [ada, yields]
    assert overtaken(server.job(yields), server.scene) == f"job {ada} goes first: it is urgent"
    assert overtaken(server.job(ada), server.scene) == ""


def test_urgent_jobs_are_paid_from_a_budget_that_comes_back() -> None:
    settings = replace(ALONE, fairness=Fairness(urgent_gpu_hours=1.0))
    server = FakeServer(gpus=2, settings=settings)
    paid, usual = server.submit(user="ada", urgent=True), server.submit(user="ada")
    for id in (paid, usual):
        server.run_kernel(id)
    server.pass_time(HOUR_S / 2, 600)
    shares = server.scheduler.state.shares
    assert shares.urgent_s(who("ada"), server.now) == pytest.approx(HOUR_S / 2)
    carl, urgent = server.submit(user="carl"), server.submit(user="ada", urgent=True)
    assert line(server) == [urgent, carl]
    server.pass_time(HOUR_S / 2, 600)  # what it holds counts while it runs
    assert line(server) == [carl, urgent]
    assert shares.ranks.spent == {who("ada")}
    assert shares.urgent_again_at(who("ada"), server.now) == 7 * DAY_S
    server.exit(usual)
    server.exit(paid)
    ada = shares.accounts[who("ada")]
    assert (ada.rate, ada.urgent_rate) == (1.0, 1.0)  # of the one that waited
    server.tell(Reconfigured(server.now, ALONE))
    assert shares.ranks.spent == frozenset()


def test_without_a_budget_nothing_is_urgent() -> None:
    server, _ = busy()
    carl, ada = server.submit(user="carl"), server.submit(user="ada", urgent=True)
    assert line(server) == [ada, carl]
    server.tell(Reconfigured(server.now, replace(ALONE, fairness=Fairness(urgent_gpu_hours=0))))
    assert line(server) == [carl, ada]


# -- jobs without GPUs

HOST = replace(ALONE, host=Host(cpus=8, memory_mib=64 * 1024))


def flooded(settings: Settings = HOST) -> tuple[FakeServer, list[JobId]]:
    """For ten minutes, Ada has filled the CPUs of a server with two GPUs. As many of her jobs
    wait."""
    server = FakeServer(gpus=2, settings=settings)
    jobs = [server.submit(user="ada", gpus=0, cpus=4) for _ in range(4)]
    server.pass_time(600, 60)
    return server, jobs


def test_who_floods_the_cpus_loses_rank() -> None:
    server, jobs = flooded()
    bob = server.submit(user="bob", gpus=0, cpus=4)
    assert line(server) == [bob, *jobs[2:]]
    server.exit(jobs[0])
    assert server.job(bob).state is JobState.RUNNING


def test_it_loses_rank_in_the_line_for_gpus_too() -> None:
    server, _ = flooded()
    server.submit(user="carl", gpus=2)
    ada, bob = server.submit(user="ada"), server.submit(user="bob")
    assert [job for job in line(server) if job in (ada, bob)] == [bob, ada]
    assert overtaken(server.job(ada), server.scene) == (
        f"job {bob} goes first: bob has used 0 GPU-h recently, and ada 0.333 GPU-h;"
        " that changes while they use GPUs"
    )


def test_a_job_without_gpus_counts_as_the_part_of_the_gpus_that_it_has_of_the_host() -> None:
    server, jobs = flooded()
    ada = server.scheduler.state.shares.accounts[who("ada")]
    assert (ada.rate, ada.host_rate) == (0.0, 2.0), "all CPUs: as two GPUs"
    assert server.scheduler.state.shares.usage_s(who("ada"), server.now) == pytest.approx(
        1200, rel=0.01
    )
    (shown,) = shares_out(server.scene)["users"]
    assert (shown["gpus"], shown["host_gpus"]) == (0.0, 2.0)
    assert shown["gpu_hours"] == pytest.approx(1 / 3, rel=0.01)
    for job in jobs:
        server.exit(job)
    assert server.scheduler.state.shares.accounts[who("ada")].host_rate == 0.0


def test_the_larger_of_its_parts_of_cpus_and_memory_counts() -> None:
    for cpus, memory_mib, gpus in ((1, None, 0.25), (1, 48 * 1024, 1.5), (4, 1024, 1.0)):
        server = FakeServer(gpus=2, settings=HOST)
        server.submit(gpus=0, cpus=cpus, host_memory_mib=memory_mib)
        assert server.scheduler.state.shares.accounts[who("ada")].host_rate == gpus


def test_to_split_a_job_into_many_changes_nothing() -> None:
    for jobs in (1, 2, 8):
        server = FakeServer(gpus=3, settings=HOST)
        for _ in range(jobs):
            server.submit(gpus=0, cpus=8 // jobs)
        assert server.scheduler.state.shares.accounts[who("ada")].host_rate == 3.0


def test_what_they_count_as_is_neither_gpus_held_nor_gpu_hours_of_a_limit() -> None:
    server, _ = flooded()
    shares = server.scheduler.state.shares
    assert shares.accounts[who("ada")].since(0, server.now) == 0.0
    assert shares.accounts[who("ada")].urgent_since(0, server.now) == 0.0
    quotas = server.scene.gate.quotas
    assert (quotas.gpus_held(who("ada")), quotas.hours_used(who("ada"), "day")) == (0, 0.0)


def test_where_nobody_counts_cpus_or_there_are_no_gpus_they_count_as_nothing() -> None:
    server, _ = flooded(ALONE)
    assert server.scheduler.state.shares.usage_s(who("ada"), server.now) == 0.0
    server = FakeServer(gpus=0, settings=HOST)
    server.submit(gpus=0, cpus=8)
    server.pass_time(60)
    assert server.scheduler.state.shares.usage_s(who("ada"), server.now) == 0.0


def test_other_settings_and_other_gpus_count_at_once() -> None:
    server, _ = flooded()
    shares = server.scheduler.state.shares
    more = replace(HOST, host=Host(cpus=16))
    server.tell(Reconfigured(server.now, more))
    assert shares.accounts[who("ada")].host_rate == 2.0, "four jobs of four CPUs, of sixteen"
    server.tell(Discovered(server.now, (a_gpu(0),)))
    assert shares.accounts[who("ada")].host_rate == 1.0
    made = len(server.steps)
    server.pass_time(10)
    assert not any(step.accounts for step in server.steps[made:]), "no job has started or ended"


def test_an_account_with_a_part_of_the_host_is_stored(tmp_path: Path) -> None:
    server, _ = flooded()
    store = SqlStore.open(tmp_path / "carma.db")
    store.keep_time("boot", 0.0)
    for step in server.steps:
        store.commit(step)
    used_s = server.scheduler.state.shares.usage_s(who("ada"), server.now + 50)
    saved = store.restore()
    server.scheduler.restore(saved.jobs, accounts=saved.accounts)
    server.sample(50)
    assert server.scheduler.state.shares.usage_s(who("ada"), server.now) == pytest.approx(used_s)
    store.keep_time("another boot", 5000.0)
    assert {each.host_rate for each in store.restore().accounts} == {0.0}
    store.close()
    old = '{"user":"ada","at":5.0,"used_s":7.0,"rate":1.0,"days":[[3,9.0]]}'
    assert codec.decode_account(old) == Account(
        "ada", at=5.0, used_s=7.0, rate=1.0, days=((3, 9.0),)
    )


# -- what users might try


def test_cancelling_and_submitting_again_gains_neither_use_nor_a_place() -> None:
    server, jobs = flooded()
    used_s = server.scheduler.state.shares.usage_s(who("ada"), server.now)
    bob = server.submit(user="bob", gpus=0, cpus=4)
    carl = server.submit(user="carl", gpus=0, cpus=4)
    for job in jobs:
        server.tell(CancelRequested(server.now, job, "ada", 0))
    ada = server.scheduler.state.shares.accounts[who("ada")]
    assert ada.host_rate == 2.0, "until its processes are gone"
    again = server.submit(user="ada", gpus=0, cpus=4)
    assert line(server) == [bob, carl, again]
    server.tell(CancelRequested(server.now, bob, "bob", 0))
    bob = server.submit(user="bob", gpus=0, cpus=4)
    assert line(server) == [carl, bob, again]
    for job in jobs[:2]:
        server.exit(job, Exit(Cause.CANCELLED))
    assert server.scheduler.state.shares.usage_s(who("ada"), server.now) == used_s


def test_an_early_arrival_that_was_kept_gains_nothing_against_who_has_used_less() -> None:
    """By holding a job, or by running an ended one again."""
    server, jobs = flooded()
    server.tell(HoldRequested(server.now, jobs[2], True, "ada"))
    server.tell(CancelRequested(server.now, jobs[3], "ada", 0))
    bob = server.submit(user="bob", gpus=0, cpus=4)
    server.tell(HoldRequested(server.now, jobs[2], False, "ada"))
    server.tell(RequeueRequested(server.now, server.last(jobs[3]), "ada"))
    server.pass_time(60, 30)
    assert line(server) == [bob, jobs[2], jobs[3]]


def test_a_held_job_counts_as_nothing_and_one_that_is_being_preempted_until_it_is_gone() -> None:
    server, jobs = flooded()
    server.tell(HoldRequested(server.now, jobs[2], True, "ada"))
    assert server.scheduler.state.shares.accounts[who("ada")].host_rate == 2.0, (
        "of the two that run"
    )
    server = FakeServer(gpus=1, settings=replace(ALONE, limits=Limits(preemption=True)))
    job = server.submit(user="ada")
    server.run_kernel(job)
    server.pass_time(60)
    shares, ledger = server.scheduler.state.shares, server.scheduler.state.ledger
    ledger.put(stopping(ledger.jobs[job], Cause.PREEMPTED))
    server.pass_time(60)
    assert shares.accounts[who("ada")].rate == 1.0
    server.tell(Exited(server.now, job, 1, Exit(Cause.FAILURE, signal=15)))
    assert server.scheduler.state.shares.usage_s(who("ada"), server.now) == pytest.approx(
        120, rel=0.01
    )


def test_an_adopted_job_counts_from_its_adoption_on() -> None:
    server = FakeServer(gpus=1, settings=HOST)
    server.pass_time(600, 60)
    gpu = server.gpus[0].id
    spec = a_spec(user="ada", process=(4711, 99), interactive=True)
    server.tell(Adopted(server.now, JobId(50), spec, (gpu,), Mode.STREAMS))
    assert server.scheduler.state.shares.accounts[who("ada")].rate == 1.0
    server.pass_time(60)
    assert server.scheduler.state.shares.usage_s(who("ada"), server.now) == pytest.approx(
        60, rel=0.01
    )
