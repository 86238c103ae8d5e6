"""What the core has learned survives the daemon, and is in the journal."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from carma_testing import FakeServer, a_job, a_spec, changed
from carmad import registry
from carmad.config import Settings
from carmad.core.jobs.attempt import Cause, GpuId, JobId, ProfilingRun
from carmad.core.jobs.findings import Indicator, Profile
from carmad.core.jobs.history import BIN_S, BINS, History
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState, Waiting
from carmad.core.messages import Step, Stop, Tick, Trained
from carmad.core.placing.decision import Placement, Proposal, Reason
from carmad.core.placing.view import Policy, View
from carmad.learning.models import Node, Tree
from carmad.store import codec, journal
from carmad.store.sql import SqlStore
from carmad.store.values import table_row
from lab.replay import reproduce
from policies import builtin
from tests.busy import Busy
from tests.daemon import Carmad, train
from tests.recorded import PLENTY, Recorded

LEAF = Tree("a class", "a test", ("x",), ("tiny",), (Node((1,)),), 1, 0.0)


class Plain(Busy):
    """No ended job is requeued, as the store would know only its last end."""

    def _whim(self, rng: random.Random, ended: list[JobId]) -> None:
        pass


def seen(history: History, now: float) -> object:
    """Everything that a policy can read from it."""
    runs = list(history.runs)
    return (
        runs,
        [history.by_group.of(run.group) for run in runs],
        [history.by_user.of(run.owner) for run in runs],
        [history.by_gpus.median(run.gpus) for run in runs],
        [history.profile(run.group) for run in runs],
        history.traffic(now),
    )


def test_a_restart_forgets_nothing_of_the_past(tmp_path: Path) -> None:
    server = Plain(3)
    for _ in server.busy_day(300):
        pass
    with closing(SqlStore.open(tmp_path / "carma.db")) as store:
        for step in server.steps:
            store.commit(step)
        past = store.past(server.now)
    again = History(past.runs, past.submissions)
    later = server.now + BIN_S
    assert len(past.runs) > 20
    assert seen(again, later) == seen(server.scheduler.state.history, later)


def test_a_quiet_week_is_told_from_an_unknown_one(tmp_path: Path) -> None:
    now = 100 * BINS * BIN_S
    long_ago, just_now = now - 2 * BINS * BIN_S, now - 2 * BIN_S
    with closing(SqlStore.open(tmp_path / "carma.db")) as store:
        for id, at in enumerate((long_ago - 5, long_ago, just_now), 1):
            job = Job(JobId(id), a_spec(gpus=id), Waiting(JobState.QUEUED), at)
            store.commit(Step((Tick(at),), (job,), (), ()))
        past = store.past(now)
    assert past.submissions == ((long_ago, 2, 1), (just_now, 3, 1))
    traffic = History((), past.submissions).traffic(now)
    assert len(traffic) == BINS
    assert [count for count in traffic if count != (0, 0)] == [(1, 3)]


@pytest.mark.parametrize("evict", [True, False])
def test_a_profiling_run_ends_though_the_daemon_was_down_when_it_was_over(evict: bool) -> None:
    server = FakeServer()
    id = server.submit()
    server.run_kernel(id)
    server.sample(1.0)
    running = changed(server.job(id), profiling=ProfilingRun(server.now + 50, evict))
    after = FakeServer()
    after.scheduler.restore([running])
    after.alive = server.alive
    after.now = server.now + 49
    assert after.tell(Tick(after.now)).jobs == ()
    after.now += 2  # before any sample: nothing is known of it
    step = after.tell(Tick(after.now))
    assert after.last(id).profiling is None
    assert (after.last(id).profile is not None) == evict
    stops = [action.job.stop for action in step.actions if isinstance(action, Stop)]
    assert stops == ([Cause.PROFILED] if evict else [])


def test_a_killed_daemon_knows_the_job_when_it_is_back(tmp_path: Path) -> None:
    """And it has the models. With real processes and files."""
    carmad = Carmad(tmp_path, "1xA100-40GB", CARMA_PROFILING__RUN_S="0.5")
    carmad.start()
    try:
        first = carmad.submit(*train(memory_mib=2000, seconds=2))
        carmad.ended(first)
        carmad.kill()
        (carmad.state / "models").mkdir()
        (carmad.state / "models/leaf.json").write_text(codec.encode(LEAF))
        (carmad.state / "models/broken.json").write_text("nonsense")
        carmad.start()
        second = carmad.submit(*train(memory_mib=2000, seconds=2))
        carmad.ended(second)
        again = carmad.job(second)
        names = [one["name"] for one in carmad.get("/v1/models")["models"]]
    finally:
        carmad.clear_away()
    assert again["profile"]["of"] == first
    assert again["profile"]["peak_mib"] == 2000
    assert "leaf" in names and "broken" not in names
    assert "broken.json is not a model" in carmad.log.read_text()


# -- the journal


@dataclass(frozen=True, slots=True)
class Learned:
    """Records with each placement what it knows about the past."""

    policy: Policy
    name: str = "learned"

    def order(self, job: Job) -> float:
        return self.policy.order(job)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        history = view.history
        past = Reason(
            "past",
            sum(run.duration_s for run in history.runs),
            sum(gpus * n for n, (_, gpus) in enumerate(history.traffic(view.now), 1)),
            detail=",".join(sorted(view.models)),
        )
        plan = self.policy.plan(view)
        return tuple(
            replace(each, reasons=(*each.reasons, past)) if isinstance(each, Placement) else each
            for each in plan
        )


def learned(settings: Settings) -> Policy:
    return Learned(builtin.rr(settings))


def test_every_segment_has_the_past_and_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENTS", PLENTY)  # each flush fills one
    monkeypatch.setattr(builtin, "magm", learned)
    monkeypatch.setattr(registry, "bare_policy", learned)
    server = Recorded(tmp_path)
    for second in server.busy_day(240):
        if second % 60 == 20:
            server.now += 700  # into another ten minutes
            server.tell(Trained(server.now, ((f"model{second}", LEAF),)))
        if second % 60 == 30:
            server.journal.flush()
    server.journal.flush()
    found = [reproduce(path) for path in journal.segments(tmp_path)]
    assert len(found) == 5
    assert [each.first for each in found] == [None] * 5
    assert sum(each.decisions for each in found) == sum(server.decided) > 50
    begin, _ = journal.read(journal.segments(tmp_path)[-1])
    assert len(begin.models) == 4
    assert len(begin.runs) > 10
    assert sum(each.jobs for each in begin.submissions) > 30


def test_a_segment_without_them_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that the test above can fail."""
    monkeypatch.setattr(builtin, "magm", learned)
    monkeypatch.setattr(registry, "bare_policy", learned)
    server = Recorded(tmp_path)
    for _ in server.busy_day(30):
        pass
    server.scheduler.state.models["unheard"] = LEAF
    for _ in server.busy_day(30, seed=1):
        pass
    server.journal.flush()
    (path,) = journal.segments(tmp_path)
    assert reproduce(path).first is not None


# -- the table


def test_a_row_has_what_models_learn_from() -> None:
    job = a_job(
        spec=a_spec(gpus=2, batch_size=64, amp=True),
        state=JobState.SUCCEEDED,
        group="f00",
        attempt=2,
        gpus=(GpuId("GPU-a"), GpuId("GPU-b")),
        submitted_at=100.0,
        started_at=160.0,
        ended_at=460.0,
        served_s=40.0,
        profile=Profile(30.0, 900, (Indicator("gpu_utilization", 0.5, 0.01),), of=JobId(3)),
    )
    found = table_row(job)
    assert (found["group"], found["gpus"], found["batch_size"], found["amp"]) == (
        "f00",
        2,
        64,
        True,
    )
    assert (found["started_at"], found["duration_s"]) == (160.0, 340.0)
    assert (found["gpu_utilization"], found["gpu_utilization_variance"]) == (0.5, 0.01)
    assert (found["profile_of"], found["profile_peak_mib"], found["peak_mib"]) == (3, 900, None)


def test_a_job_that_never_ran_has_no_duration() -> None:
    found = table_row(a_job(state=JobState.CANCELLED, ended_at=5.0))
    assert found["duration_s"] is found["started_at"] is None
    assert found["state"] == "cancelled"
