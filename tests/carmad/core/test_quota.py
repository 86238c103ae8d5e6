"""Limits of users and groups, as the core applies them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from carma_testing import FakeServer, a_spec
from carmad.config import Fairness, Limits, Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.line import Quotas
from carmad.core.jobs.states import JobState
from carmad.core.messages import LimitRequested, Submitted
from carmad.core.placing.decision import Reason
from carmad.core.rules.limits import DEFAULT, Limit, limit_of
from carmad.core.rules.share import DAY_S, Account, Shares
from carmad.store import journal
from carmad.store.sql import SqlStore
from lab.replay import reproduce
from tests.owners import UID, who
from tests.recorded import PLENTY, Recorded

ALONE = Settings(policy="exclusive")
HOUR_S = 3600.0
NOON = 100.5 * DAY_S


def quotas(*limits: Limit, **accounts: Account) -> Quotas:
    shares = Shares(ALONE.fairness, accounts.values())
    return Quotas({each.subject: each for each in limits}, Limits(), {}, shares, NOON)


def limit(server: FakeServer, subject: str, clear: bool = False, **its: object) -> None:
    new = Limit(subject, by="root", at=server.now, **its)  # type: ignore[arg-type]
    server.tell(LimitRequested(server.now, new, clear))


def submit(server: FakeServer, user: str, *groups: str, gpus: int = 1) -> JobId:
    id = JobId(server.next_id)
    server.next_id += 1
    server.tell(Submitted(server.now, id, (a_spec(user=user, gpus=gpus),), groups=groups))
    return id


def states(server: FakeServer, *jobs: JobId) -> list[JobState]:
    return [server.job(id).state for id in jobs]


def test_ones_own_limit_comes_before_the_default_and_that_before_the_settings() -> None:
    settings = Limits(gpus_per_user=4, queued_per_user=10)
    limits = {"ada": Limit("ada", jobs=99), DEFAULT: Limit(DEFAULT, gpus=2, gpu_hours=1, per="day")}
    ada, bob = limit_of(who("ada"), limits, settings), limit_of(who("bob"), {}, settings)
    assert (ada.gpus, ada.gpu_hours, ada.per, ada.jobs) == (2, 1, "day", 99)
    assert (bob.gpus, bob.gpu_hours, bob.jobs) == (4, None, 10)


def test_a_limit_is_in_force_at_once_and_until_it_is_cleared() -> None:
    server = FakeServer(gpus=3, settings=ALONE)
    first = submit(server, "ada")
    limit(server, "ada", gpus=1)
    second, bobs = submit(server, "ada"), submit(server, "bob")
    assert states(server, first, second, bobs) == ["starting", "queued", "starting"]
    assert server.scene.gate.blocker(server.job(second)) == Reason("quota", 1, 1, "GPUs", "ada")
    limit(server, "ada", gpu_hours=100.0)  # the other stays
    assert states(server, second) == ["queued"]
    limit(server, "ada", clear=True)
    assert states(server, second) == ["starting"]
    assert server.scheduler.state.limits == {}


def test_the_users_of_a_group_share_its_limit() -> None:
    server = FakeServer(gpus=4, settings=ALONE)
    limit(server, "@lab", gpus=2)
    jobs = [submit(server, "ada", "staff", "lab"), submit(server, "bob", "lab", gpus=2)]
    jobs += [submit(server, "bob", "lab"), submit(server, "carl", "staff")]
    assert states(server, *jobs) == ["starting", "queued", "starting", "starting"]
    blocked = server.scene.gate.blocker(server.job(jobs[1]))
    assert blocked == Reason("quota", 2, 2, "GPUs", "@lab")


def test_gpu_hours_of_the_last_days_count() -> None:
    days = tuple((day, 10 * HOUR_S) for day in (80, 94, 95, 99))
    ada = Account("ada", UID, groups=("lab",), at=NOON, days=days)
    bob = Account("bob", UID, groups=("lab",), at=NOON - HOUR_S, rate=2.0)
    weekly, daily = Limit("ada", gpu_hours=30, per="week"), Limit("ada", gpu_hours=10, per="day")
    found = quotas(weekly, Limit("@lab", gpu_hours=32, per="week"), ada=ada, bob=bob)
    assert found.refusal(who("ada"), 1) == Reason("gpu_hours", 30, 30, "GPU-h per week", "ada")
    assert found.frees_at(who("ada")) == 101 * DAY_S  # when day 94 no longer counts
    assert found.refusal(who("bob"), 1) == Reason("gpu_hours", 32, 32, "GPU-h per week", "@lab")
    assert quotas(daily, ada=ada).refusal(who("ada"), 1) is None
    monthly = replace(weekly, gpu_hours=41, per="month")
    assert quotas(monthly, ada=ada).refusal(who("ada"), 1) is None
    none = quotas(replace(weekly, gpu_hours=0), ada=ada)
    assert none.frees_at(who("ada")) == float("inf")


def test_who_has_used_up_the_gpu_hours_starts_nothing_more_but_what_runs_goes_on() -> None:
    server = FakeServer(gpus=2, settings=ALONE)
    limit(server, DEFAULT, gpu_hours=0.5, per="day")
    first = submit(server, "ada")
    server.run_kernel(first)
    server.pass_time(HOUR_S / 2, HOUR_S / 4)
    second, bobs = submit(server, "ada"), submit(server, "bob")
    assert states(server, first, second, bobs) == ["running", "queued", "starting"]
    server.exit(first)
    server.pass_time(DAY_S, DAY_S / 4)
    assert states(server, second) == ["starting"]


def test_limits_are_kept_with_who_set_them_and_when(tmp_path: Path) -> None:
    server = FakeServer(gpus=1, settings=ALONE)
    limit(server, "ada", gpus=1)
    server.sample(5)
    limit(server, "ada", jobs=3)
    limit(server, "@lab", gpus=7)
    limit(server, "@lab", clear=True)
    with contextlib.closing(SqlStore.open(tmp_path / "carma.db")) as store:
        for step in server.steps:
            store.commit(step)
    with contextlib.closing(SqlStore.open(tmp_path / "carma.db")) as store:
        (ada,) = store.restore().limits
        assert ada == Limit("ada", gpus=1, jobs=3, by="root", at=5.0)
        assert [each.at for each in store.limit_changes("ada", 9)] == [5.0, 0.0]
        assert [each.gpus for each in store.limit_changes("@lab", 9)] == [None, 7]
        assert store.limit_changes("ada", 1) == [ada]
        server.scheduler.restore((), limits=(ada,))
    assert server.scheduler.state.limits == {"ada": ada}


@pytest.mark.parametrize("jobs", [10_000])
def test_a_long_line_is_checked_once_per_user_and_size(jobs: int) -> None:
    found = quotas(Limit("ada", gpus=0))
    reasons = {id(found.refusal(who("ada"), 1)) for _ in range(jobs)}
    assert len(reasons) == 1


def test_every_segment_of_a_journal_has_shares_and_limits_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a segment begins, the same decisions follow."""
    monkeypatch.setattr(journal, "SEGMENTS", PLENTY)  # each flush fills one
    fairness = Fairness(urgent_gpu_hours=0.01, band_hours=0.0)
    server = Recorded(tmp_path, limits=Limits(), fairness=fairness, predictor="declared")
    users = ("ada", "bob", "carl")
    for second in server.busy_day(200):
        user = users[second % 3]
        server.submit(user=user, urgent=second % 7 == 0, time_limit_s=30.0 if second % 2 else None)
        if second % 40 == 20:
            limit(server, user, gpus=second // 40)
        if second % 25 == 24:
            server.journal.flush()
    server.journal.flush()
    assert server.scheduler.state.shares.ranks.spent
    assert len({server.scheduler.state.shares.rank(who(user)) for user in users}) == 3
    found = [reproduce(path) for path in journal.segments(tmp_path)]
    assert len(found) >= 8
    assert [each.first for each in found] == [None] * len(found)
