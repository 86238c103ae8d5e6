"""What each job is guaranteed of a GPU's memory: by hand, by any claims, and in the core."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from carma_testing import FakeServer
from carmad.config import Collocation, Monitor, Preconditions, Settings, Suspending
from carmad.core.gpus.gpu import ProcessUse
from carmad.core.jobs.attempt import JobId, MemoryLimits
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Retry
from carmad.core.jobs.states import JobState
from carmad.core.messages import (
    Action,
    Discovered,
    Estimated,
    Launch,
    LimitMemory,
    Reconfigured,
    SuspendRequested,
    due_actions,
)
from carmad.core.rules.guarantees import Claim, share_out
from carmad.core.rules.promises import STEP_MIB

GIB = 1024
CARD = 40 * GIB
SETTINGS = Settings(
    monitor=Monitor(window_s=5.0),
    collocation=Collocation(guarantee_memory=True),
    preconditions=Preconditions(min_free_mib=0, utilization=False),
    suspend=Suspending(host_memory_mib=100 * GIB, moves=True),
)

claims = st.lists(
    st.builds(
        Claim,
        promised_mib=st.integers(0, 60_000),
        firm=st.booleans(),
        held_mib=st.integers(0, 45_000),
        peak_mib=st.integers(0, 45_000),
        placed_at=st.floats(0, 1000),
    ),
    max_size=8,
)


# -- the function


def test_a_job_alone_may_use_all_that_external_processes_leave() -> None:
    assert share_out([Claim(12 * GIB)], CARD, 0) == ((12 * GIB, CARD),)
    assert share_out([Claim(12 * GIB)], CARD, 2 * GIB) == ((12 * GIB, 38 * GIB),)


def test_a_job_may_use_what_nobody_else_was_promised() -> None:
    shares = share_out([Claim(12 * GIB), Claim(9 * GIB)], CARD, 0)
    assert shares == ((12 * GIB, 31 * GIB), (9 * GIB, 28 * GIB))


def test_a_job_of_unknown_need_is_guaranteed_nothing_and_may_use_the_rest() -> None:
    assert share_out([Claim(0), Claim(9 * GIB)], CARD, 0) == ((0, 31 * GIB), (9 * GIB, CARD))


def test_nobody_is_limited_below_what_they_hold() -> None:
    shares = share_out([Claim(12 * GIB, held_mib=30 * GIB + 1), Claim(15 * GIB)], CARD, 0)
    assert shares[0] == (12 * GIB, 30 * GIB + STEP_MIB)


def test_a_job_placed_by_what_another_was_seen_to_hold_gets_its_promise() -> None:
    settled = Claim(20 * GIB, held_mib=12 * GIB, peak_mib=12 * GIB, placed_at=1.0)
    new = Claim(25 * GIB, placed_at=2.0)
    assert share_out([settled, new], CARD, 0) == ((15 * GIB, 15 * GIB), (25 * GIB, 25 * GIB))


def test_of_promises_beyond_the_card_declared_memory_comes_first() -> None:
    declared = Claim(30 * GIB, firm=True, placed_at=1.0)
    assert share_out([declared, Claim(25 * GIB, placed_at=2.0)], CARD, 0) == (
        (30 * GIB, 30 * GIB),
        (10 * GIB, 10 * GIB),
    )


@given(claims, st.integers(0, 50_000))
def test_whatever_is_claimed_all_that_is_guaranteed_fits(
    its: list[Claim], external_mib: int
) -> None:
    shares = share_out(its, CARD, external_mib)
    assert sum(guaranteed for guaranteed, _ in shares) <= max(0, CARD - external_mib)
    for claim, (guaranteed, most) in zip(its, shares, strict=True):
        assert 0 <= guaranteed <= min(most, claim.promised_mib)
        assert most >= claim.held_mib
        assert most <= max(CARD - external_mib, claim.held_mib + STEP_MIB)


@given(claims, st.integers(0, 20_000))
def test_where_all_promises_fit_each_is_guaranteed(its: list[Claim], external_mib: int) -> None:
    if sum(claim.promised_mib for claim in its) <= CARD - external_mib:
        shares = share_out(its, CARD, external_mib)
        assert [guaranteed for guaranteed, _ in shares] == [claim.promised_mib for claim in its]


# -- the core


def server(settings: Settings = SETTINGS, gpus: int = 1) -> FakeServer:
    here = FakeServer(gpus, settings)
    here.gpus = tuple(replace(gpu, guarantees=True) for gpu in here.gpus)
    here.tell(Discovered(here.now, here.gpus))
    here.sample()
    return here


def runs(on: FakeServer, promised_mib: int | None, held_mib: int = GIB, **spec: object) -> JobId:
    """A job that runs, and whose GPUs take others."""
    id = on.submit(memory_mib=promised_mib, **spec)
    on.run_kernel(id, held_mib)
    on.pass_time(6)
    assert on.job(id).state is JobState.RUNNING
    return id


def limits(on: FakeServer, id: JobId) -> list[tuple[int, int | None]]:
    return [(each.guaranteed_mib, each.most_mib) for each in on.job(id).current.memory_limits]


def limited(actions: Iterable[Action]) -> list[JobId]:
    return [action.job.id for action in actions if isinstance(action, LimitMemory)]


def test_a_neighbour_lowers_the_limit_while_it_is_there() -> None:
    here = server()
    one = runs(here, 12 * GIB)
    assert limits(here, one) == [(12 * GIB, CARD)]
    other = runs(here, 9 * GIB)
    assert limits(here, one) == [(12 * GIB, 31 * GIB)]
    assert limits(here, other) == [(9 * GIB, 28 * GIB)]
    here.exit(other)
    assert limits(here, one) == [(12 * GIB, CARD)]


def test_limits_are_committed_first_lowered_before_raised_and_set_before_the_launch() -> None:
    here = server()
    one = runs(here, 12 * GIB)
    other = here.submit(memory_mib=9 * GIB)
    step = next(each for each in here.steps if limited(each.actions) == [one, other])
    kinds = [type(action) for action in step.actions]
    assert kinds.index(LimitMemory) < kinds.index(Launch)
    for action in step.actions:
        if isinstance(action, LimitMemory):
            assert action.job in step.jobs


def test_readings_alone_set_no_limits_anew() -> None:
    here = server()
    one, other = runs(here, 12 * GIB), runs(here, 9 * GIB)
    before = len(here.steps)
    for at in range(20):
        here.run_kernel(one, 10 * GIB + 37 * at)
        here.run_kernel(other, 5 * GIB - 119 * at)
        here.used_mib[here.gpus[0].id] = 300 * (at % 2)
        here.sample(1.0)
    assert not any(limited(step.actions) for step in here.steps[before:])


def test_external_processes_that_stay_take_from_what_a_job_may_use() -> None:
    here = server()
    one = runs(here, 12 * GIB)
    here.strangers = (ProcessUse(9, 3 * GIB),)
    here.used_mib[here.gpus[0].id] = 3 * GIB
    here.sample(1.0)
    assert limits(here, one) == [(12 * GIB, CARD)]
    here.pass_time(6)
    assert limits(here, one) == [(12 * GIB, 37 * GIB)]
    here.strangers, here.used_mib[here.gpus[0].id] = (), 0
    here.sample(1.0)
    assert limits(here, one) == [(12 * GIB, CARD)]


def estimate_late(on: FakeServer, id: JobId, mib: int) -> None:
    on.scheduler.state.ledger.put(replace(on.job(id), estimate_late=True))
    on.tell(Estimated(on.now, id, Estimate(mib, "history")))


def test_a_job_that_holds_more_than_its_new_limit_keeps_it_until_it_gives_it_back() -> None:
    here = server()
    one = runs(here, 12 * GIB, 36 * GIB)
    estimate_late(here, runs(here, None), 9 * GIB)
    assert limits(here, one) == [(12 * GIB, 36 * GIB)]
    here.run_kernel(one, 20 * GIB)
    here.sample(1.0)
    assert limits(here, one) == [(12 * GIB, 31 * GIB)]


def test_a_suspended_job_leaves_its_guarantee_and_gets_it_back() -> None:
    here = server()
    one, other = runs(here, 12 * GIB), runs(here, 9 * GIB)
    here.tell(SuspendRequested(here.now, one, "ada"))
    assert here.job(one).state is JobState.SUSPENDED
    assert limits(here, one) == [(0, None)]
    assert limits(here, other) == [(9 * GIB, CARD)]
    assert LimitMemory(here.job(one)) in tuple(due_actions(here.job(one)))


def test_limits_are_set_again_after_a_restart() -> None:
    here = server()
    one = runs(here, 12 * GIB)
    owed = here.scheduler.restore(tuple(here.scheduler.jobs.rows.values()))
    assert limited(owed) == [one]
    here.tell(Discovered(here.now, here.gpus))
    before = len(here.steps)
    here.pass_time(3)
    assert not any(limited(step.actions) for step in here.steps[before:])


def test_a_late_estimate_is_guaranteed_as_well() -> None:
    here = server()
    one = runs(here, None)
    assert limits(here, one) == [(0, CARD)]
    estimate_late(here, one, 6 * GIB)
    assert limits(here, one) == [(6 * GIB, CARD)]


def test_without_the_setting_or_the_driver_there_are_no_limits() -> None:
    off = replace(SETTINGS, collocation=Collocation())
    here = server(off)
    one = runs(here, 12 * GIB)
    assert limits(here, one) == []
    here.tell(Reconfigured(here.now, SETTINGS))
    here.sample(1.0)
    assert limits(here, one) == [(12 * GIB, CARD)]
    here.tell(Reconfigured(here.now, off))
    here.sample(1.0)
    assert limits(here, one) == [(0, None)]
    old = FakeServer(1, SETTINGS)
    assert limits(old, runs(old, 12 * GIB)) == []


def test_a_job_has_limits_on_each_of_its_gpus() -> None:
    here = server(gpus=2)
    one = runs(here, 12 * GIB, gpus=2)
    assert here.job(one).current.memory_limits == tuple(
        MemoryLimits(gpu.id, 12 * GIB, CARD) for gpu in here.gpus
    )


def test_a_job_that_is_retried_with_a_margin_is_guaranteed_that_as_well() -> None:
    here = server()
    one = here.submit(memory_mib=12 * GIB)
    retried = replace(here.job(one), retry=Retry("met its own limit", margin_mib=4 * GIB))
    here.scheduler.state.ledger.put(retried)
    here.sample(1.0)
    assert limits(here, one) == [(16 * GIB, CARD)]
