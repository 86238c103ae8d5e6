"""What waiting jobs know follows from the latest runs, also those that ended while they waited."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from carma_testing import FakeServer, a_spec
from carmad import registry
from carmad.config import Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.knowledge import with_history
from carmad.core.jobs.recurrence import fill
from carmad.core.jobs.states import JobState
from carmad.core.messages import Action, Estimated, EstimateMemory, Submitted
from tests.daemon import running, train
from tests.waiting import until

USED_MIB = 5_000


class Server(FakeServer):
    """The first of a command's jobs get no estimate; then what the last run of it used is known, as
    by the daemon's estimators. Durations are predicted."""

    def __init__(self, gpus: int = 1, **settings: object) -> None:
        self.asked: list[JobId] = []
        self.measured = Estimate(USED_MIB, "history", 4_000, 6_000)
        its = Settings(**settings)  # type: ignore[arg-type]
        super().__init__(gpus, its, predictor=registry.bare_predictor(its))

    def perform(self, action: Action) -> None:
        if isinstance(action, EstimateMemory) and action.again:
            self.asked.append(action.job.id)
            self.tell(Estimated(self.now, action.job.id, self.measured, again=True))
        else:
            super().perform(action)

    def sweep(self, tasks: int, **spec: object) -> list[JobId]:
        return [self.submit(name=f"sweep-{n}", **spec) for n in range(tasks)]

    def run(self, id: JobId, seconds: float, mib: int = USED_MIB) -> None:
        """All of the job, from its start to its end."""
        assert self.job(id).state is JobState.STARTING
        self.run_kernel(id, mib)
        self.pass_time(seconds, period=2.0)
        self.exit(id)


def test_other_braces_than_the_sweep_s_are_left_as_they_are() -> None:
    argv = ("--lr={lr}", "--name={run}")
    assert fill(argv, (("lr", "0.1"),)) == ("--lr=0.1", "--name={run}")


def test_the_later_tasks_of_a_sweep_know_what_its_first_used() -> None:
    server = Server(gpus=2, policy="exclusive")
    first, second, third, *later = server.sweep(6)
    stranger = server.submit(argv=("other.py",))
    declared = server.submit(memory_mib=9_000)
    assert server.job(later[-1]).prediction is None
    server.run(first, 40.0)
    assert server.job(third).state is JobState.STARTING
    for id in later:
        job = server.job(id)
        assert job.prediction and job.prediction.seconds == pytest.approx(40.0, abs=2.0)
        assert job.prediction.notes == ("one earlier run of this job",)
        assert job.estimate == server.measured
        assert job.profile and job.profile.peak_mib == USED_MIB
    assert len(server.asked) == 1, "one question for all of them"
    mean = server.job(stranger).prediction
    assert mean and mean.notes == ("the mean of ada's latest jobs",)
    assert (server.job(stranger).estimate, server.job(stranger).profile) == (None, None)
    assert server.job(declared).estimate == Estimate(9_000, "declared", firm=True)
    server.run(second, 80.0)
    longer = server.job(later[-1]).prediction
    assert longer and longer.notes == ("the median of 2 earlier runs of this job",)
    assert longer.seconds == pytest.approx(80.0, abs=2.0)


def test_jobs_of_other_users_learn_nothing() -> None:
    server = Server(policy="exclusive")
    first = server.submit(user="ada")
    other = server.submit(user="bob")
    server.run(first, 40.0)
    assert server.last(other).prediction is None


def test_what_a_script_showed_is_not_replaced_by_what_earlier_runs_used() -> None:
    server = Server(policy="exclusive")
    first, second, third = server.sweep(3)
    traced = Estimate(8_000, "trace")
    server.tell(Estimated(server.now, third, traced))
    server.run(first, 40.0)
    assert server.job(second).state is JobState.STARTING
    assert server.job(third).estimate == traced


def test_who_waited_before_anything_was_known_is_not_passed_by_all_who_come_after() -> None:
    """Three jobs of 12 s; three of 13 s come when the first has ended."""
    server = Server(policy="carma")
    left: dict[JobId, int] = {}
    starts: list[int] = []

    def second() -> None:
        server.pass_time(1)
        for id in {id for id, _ in server.alive} - left.keys():
            left[id] = 12 if id <= 3 else 13
            starts.append(id)
            server.run_kernel(id, 30_000)
        for id in {id for id, _ in server.alive}:
            left[id] -= 1
            if left[id] <= 0:
                server.exit(id)

    train = ("python", "train.py", "--seconds")
    for _ in range(3):
        server.submit(argv=(*train, "12"), memory_mib=30_000)
    for _ in range(17):
        second()
    for _ in range(3):
        server.submit(argv=(*train, "13"), memory_mib=30_000)
    while len(starts) < 6:
        second()
    assert starts == [1, 2, 3, 4, 5, 6]


def test_an_end_writes_only_what_has_changed() -> None:
    """A thousand tasks wait, of which each has arguments of its own or not, while others end every
    second, after much the same time."""
    server = Server(gpus=4, policy="exclusive")
    for number in range(1_000):
        argv = ("train.py", "--width", str(number)) if number % 2 else ("train.py",)
        spec = a_spec(argv=argv)
        server.tell(Submitted(server.now, JobId(server.next_id), (spec,)))
        server.next_id += 1
    server.sample(1.0)
    made = []
    for seconds, _ in zip(cycle((8, 10, 8, 6, 8)), range(24), strict=False):
        made.append(len(server.steps))
        server.run(min(id for id, _ in server.alive), seconds)
    assert sum(len(step.jobs) for step in server.steps[made[8] :]) < 1_000  # not 16,000
    for id in (JobId(999), JobId(1_000)):
        job = server.job(id)
        latest = with_history(server.scheduler.state, job, server.now).prediction
        assert job.prediction and latest
        assert job.prediction.seconds == pytest.approx(latest.seconds, rel=0.25)


def test_a_question_that_was_open_is_asked_again_after_a_restart() -> None:
    server = Server(policy="exclusive")
    first, second, third = server.sweep(3)
    server.run(first, 40.0)
    jobs = [replace(job, estimate=None) for job in server.scene.live.values()]
    again = [
        action for action in server.scheduler.restore(jobs) if isinstance(action, EstimateMemory)
    ]
    assert [(each.job.id, each.again) for each in again] == [(third, True)]
    assert server.job(second).state is JobState.STARTING


def test_with_the_daemon_a_waiting_run_gets_what_another_one_used(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", CARMA_ESTIMATOR="history") as daemon:
        words = train(memory_mib=8_000, seconds=3, sm=0.5, warmup=0)
        daemon.carma("submit", "--hold", "--", *words, "--seed", "1")
        until(lambda: not daemon.job(1)["estimating"], "an answer")
        assert daemon.job(1)["estimate"] is None
        assert "no earlier run" in daemon.carma("show", "1")
        daemon.carma("submit", "--", *words, "--seed", "2")
        assert daemon.ended(2)["state"] == "succeeded"
        until(lambda: daemon.job(1)["estimate"], "what the other one used")
        waiting = daemon.job(1)
        assert waiting["memory"]["estimate_source"] == "history"
        assert waiting["memory"]["estimate_mib"] == pytest.approx(8_000, rel=0.1)
        assert waiting["prediction"]["notes"] == ["one earlier run of this job"]
        assert "no earlier run" not in daemon.carma("show", "1")
