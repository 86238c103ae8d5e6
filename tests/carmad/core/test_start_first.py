"""A job for which a GPU is idle starts at once; what its trial finds comes while it runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from carma_testing import FakeServer, a_spec
from carmad.api import why
from carmad.api.job import Jobs
from carmad.config import Collocation, Limits, Settings
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.spec import ArrayTask
from carmad.core.jobs.states import JobState
from carmad.core.messages import (
    Action,
    CancelRequested,
    Estimated,
    EstimateMemory,
    HoldRequested,
    Launch,
    RequeueRequested,
    Reserved,
    Submitted,
    Tick,
    UpdateRequested,
)
from carmad.core.rules.limits import Reservation
from tests.daemon import running, until

OOM = Exit(Cause.GPU_OOM, 1, evidence="CUDA out of memory")
TRACED = Estimate(8_000, "trace")
AT_ONCE = {"policies.asrpt": {"reserve": False}}  # otherwise it keeps GPUs for shorter jobs
POLICIES = ("magm", "carma", "lucid", "castor", "asrpt", "cuckoo", "exclusive", "rr")


class Server(FakeServer):
    """Estimates take their time: `answer` gives one."""

    def __init__(self, gpus: int = 2, settings: Settings | None = None) -> None:
        self.asked: list[JobId] = []
        super().__init__(gpus, settings)

    def perform(self, action: Action) -> None:
        if isinstance(action, EstimateMemory):
            self.asked.append(action.job.id)
        else:
            super().perform(action)

    def submit(self, **spec: object) -> JobId:
        """And the tick that the daemon sends next."""
        id = super().submit(**spec)
        self.tell(Tick(self.now))
        return id

    def answer(self, id: JobId, estimate: Estimate | None = TRACED, **its: object) -> None:
        self.tell(Estimated(self.now, id, estimate, **its))  # type: ignore[arg-type]

    def state(self, id: JobId) -> JobState:
        return self.job(id).state

    def settle(self, id: JobId, mib: int = 1000) -> None:
        self.run_kernel(id, mib)
        self.pass_time(120)


def rendered(server: Server) -> Jobs:
    return Jobs(server.scene, lambda job, ahead: ("out", "err"), (0, "root"), see_all=True)


def test_a_submission_is_answered_before_anything_is_planned() -> None:
    server = Server()
    FakeServer.submit(server)
    assert server.state(JobId(1)) is JobState.PENDING


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_starts_on_an_idle_gpu_and_its_estimate_follows(policy: str) -> None:
    server = Server(settings=Settings(plugins=AT_ONCE, policy=policy))
    id = server.submit(expected_s=60.0)
    assert server.state(id) is JobState.STARTING
    assert server.asked == [id]
    server.answer(id)
    job = server.job(id)
    assert (job.state, job.estimate, job.estimate_late) == (JobState.STARTING, TRACED, False)
    server.run_kernel(id)
    server.sample(1.0)
    assert server.state(id) is JobState.RUNNING


@pytest.mark.parametrize("policy", POLICIES)
def test_where_it_would_share_it_waits_for_its_estimate(policy: str) -> None:
    server = Server(1, Settings(plugins=AT_ONCE, policy=policy))
    first = server.submit(expected_s=600.0)
    server.answer(first)
    server.settle(first)
    second = server.submit(expected_s=600.0)
    server.pass_time(5)
    assert server.state(second) is JobState.PENDING
    server.answer(second)
    assert server.state(second) is not JobState.PENDING
    if policy == "magm":
        assert server.job(second).shared


def test_so_it_does_where_an_external_process_is() -> None:
    server = Server(1)
    server.used_mib[server.gpus[0].id] = 5_000
    server.sample(1.0)
    id = server.submit()
    assert server.state(id) is JobState.PENDING
    server.answer(id)
    assert server.state(id) is JobState.STARTING


def test_nobody_waits_behind_a_job_that_waits_for_its_estimate() -> None:
    server = Server(1)
    first = server.submit()
    server.answer(first)
    server.settle(first)
    unknown = server.submit()
    known = server.submit(memory_mib=1000)
    server.answer(known, Estimate(1000, "declared", firm=True))
    assert server.state(unknown) is JobState.PENDING
    assert server.state(known) is JobState.STARTING
    assert server.job(unknown).overtaken == 0


def test_an_idle_gpu_is_for_those_ahead_in_line() -> None:
    """The first wants two, and holds the line; a job of unknown need does not pass it."""
    server = Server(2, Settings(policy="exclusive", limits=Limits(backfill=0)))
    busy = server.submit()
    wants_two = server.submit(gpus=2)
    server.answer(busy)
    server.answer(wants_two)
    late = server.submit()
    server.pass_time(3)
    assert server.state(wants_two) is JobState.QUEUED
    assert server.state(late) is JobState.PENDING
    server.exit(busy)
    assert server.job(wants_two).holds_gpus and server.state(late) is JobState.PENDING


def test_a_job_of_two_gpus_wants_both_idle() -> None:
    server = Server(3)
    one = server.submit()
    two = server.submit(gpus=2)
    assert server.job(one).holds_gpus and server.job(two).holds_gpus
    assert not set(server.job(one).gpus) & set(server.job(two).gpus)
    assert server.state(server.submit()) is JobState.PENDING


def test_declared_memory_is_known_before_the_start() -> None:
    """Under MPS it is a limit, and a GPU may be too small."""
    server = Server(1, Settings(collocation=Collocation(mps=True)))
    id = server.submit(memory_mib=4_000)
    assert server.state(id) is JobState.PENDING
    server.answer(id, Estimate(4_000, "declared", firm=True))
    assert server.job(id).limit_mib == 4_000


def test_what_keeps_a_job_waiting_still_does() -> None:
    server = Server(4)
    later = server.submit(begin_at=server.now + 100)
    server.tell(Submitted(server.now, JobId(9), (a_spec(),), held=True))
    server.sample(1.0)
    assert server.state(later) is server.state(JobId(9)) is JobState.PENDING
    server.tell(HoldRequested(server.now, JobId(9), False, "ada"))
    assert server.job(JobId(9)).holds_gpus
    server.tell(CancelRequested(server.now, later, "ada"))
    server.answer(later)
    assert later not in server.scheduler.jobs


def test_a_gpu_that_is_reserved_is_not_idle_for_others() -> None:
    server = Server(1)
    gpus = (server.gpus[0].id,)
    kept = Reservation(1, gpus, ("bob",), (server.now,), 1000.0, "root")
    server.tell(Reserved(server.now, kept))
    assert server.state(server.submit(user="ada")) is JobState.PENDING
    assert server.job(server.submit(user="bob")).holds_gpus


def test_two_users_take_their_turns() -> None:
    server = Server(2)
    for n, user in ((1, "ada"), (2, "ada"), (3, "bob")):
        server.tell(Submitted(server.now, JobId(n), (a_spec(user=user, uid=1000 + n // 3),)))
    server.tell(Tick(server.now))
    assert [server.job(JobId(n)).holds_gpus for n in (1, 2, 3)] == [True, True, False]
    server.exit(JobId(1))
    assert server.job(JobId(3)).holds_gpus


def test_each_task_of_an_array_starts_first_and_those_left_are_asked_for() -> None:
    server = Server(2)
    task = ArrayTask(JobId(1), 0, tasks=5, more=4)
    server.tell(Submitted(server.now, JobId(1), (a_spec(array=task),)))
    server.tell(Tick(server.now))
    jobs = server.scheduler.jobs
    assert [jobs[JobId(n)].holds_gpus for n in range(1, 6)] == [True, True, False, False, False]
    assert server.asked == [1, 2, 3]
    server.answer(JobId(3))
    assert jobs[JobId(5)].estimate == TRACED and jobs[JobId(5)].state is JobState.QUEUED
    server.answer(JobId(1))
    server.answer(JobId(2))
    assert jobs[JobId(2)].estimate == TRACED


def test_that_its_script_stops_does_not_stop_a_job_that_runs() -> None:
    server = Server()
    id = server.submit()
    server.answer(id, None, crash="at t.py:1: NameError: x", note="")
    job = server.job(id)
    assert (job.state, job.crash) == (JobState.STARTING, "at t.py:1: NameError: x")
    assert not server.stops
    assert rendered(server)(job)["crash"] == job.crash
    server.exit(id, Exit(Cause.FAILURE, 1))
    assert server.last(id).state is JobState.FAILED


def test_why_there_is_no_estimate_is_told_of_a_job_that_runs() -> None:
    server = Server()
    id = server.submit()
    server.answer(id, None, note="has no memory estimate: no idea", late=True)
    assert server.job(id).estimate_late and server.job(id).notes
    server.answer(id)
    assert (server.job(id).estimate, server.job(id).notes) == (TRACED, ())
    server.answer(id, Estimate(1, "test"))
    assert server.job(id).estimate == TRACED, "it was answered"


def test_a_job_that_comes_back_before_its_estimate_waits_for_it() -> None:
    server = Server(1)
    id = server.submit()
    server.used_mib[server.gpus[0].id] = 5_000
    server.sample(1.0)
    server.exit(id, Exit(Cause.LOST))
    assert server.state(id) is JobState.PENDING and server.asked == [id]
    server.answer(id)
    assert (server.state(id), server.job(id).attempt) == (JobState.STARTING, 2)


def test_a_retry_uses_the_estimate_that_came_meanwhile() -> None:
    server = Server(1)
    id = server.submit()
    server.settle(id)
    other = server.submit(memory_mib=2_000)
    server.answer(other, Estimate(2_000, "declared", firm=True))
    assert server.job(other).shared
    server.exit(id, OOM)
    assert server.state(id) is JobState.PENDING and server.job(id).retry
    server.answer(id)
    assert server.state(id) is JobState.QUEUED and server.job(id).estimate == TRACED


def test_the_next_daemon_asks_again_and_starts_it_only_once() -> None:
    server = Server(2)
    starting, runs = server.submit(), server.submit()
    server.run_kernel(runs)
    server.sample(1.0)
    waits = server.submit()
    jobs = [server.job(id) for id in (starting, runs, waits)]
    fresh = Server(2)
    owed = fresh.scheduler.restore(jobs)
    asks = [action.job.id for action in owed if isinstance(action, EstimateMemory)]
    launches = [action.job.id for action in owed if isinstance(action, Launch)]
    assert (asks, launches) == ([starting, runs, waits], [starting])
    fresh.answer(runs)
    assert fresh.job(runs).estimate == TRACED and fresh.state(runs) is JobState.RUNNING


def test_a_job_that_is_run_again_or_changed_is_estimated_anew() -> None:
    server = Server(1)
    id = server.submit()
    server.exit(id)
    over = server.last(id)
    server.tell(RequeueRequested(server.now, over, "ada"))
    assert server.job(id).holds_gpus and server.asked == [id, id]
    waits = server.submit()
    server.answer(waits)
    spec = replace(server.job(waits).spec, batch_size=8)
    server.tell(UpdateRequested(server.now, waits, spec, ("batch_size",), "ada"))
    assert server.state(waits) is JobState.PENDING and server.asked[-1] == waits
    server.exit(id)
    assert server.job(waits).holds_gpus


def test_a_job_on_cpus_alone_waits_for_no_estimate() -> None:
    server = Server(1)
    id = server.submit(gpus=0)
    job = server.job(id)
    assert job.state is not JobState.PENDING and job.attempt == 1 and not job.awaits_estimate


def test_carma_why_says_what_a_job_waits_for() -> None:
    server = Server(1)
    server.submit()
    waits = server.job(server.submit())
    found = why.why_out(waits, server.scene, (), rendered(server))
    assert "until then only idle GPUs can take it" in found["headline"]


def test_a_script_runs_before_its_trial_is_over(tmp_path: Path) -> None:
    """The trial hangs for as long as the job has not written its file; the job writes it."""
    script = """
import os, time
if os.environ.get("CUDA_VISIBLE_DEVICES"):
    open("begun", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
else:
    open("tried", "w").close()
    time.sleep(1000)
"""
    endless = {"CARMA_ESTIMATOR": "auto", "CARMA_ESTIMATION__WITHIN_S": "3600"}
    with running(tmp_path, "2xA100-40GB", **endless) as daemon:
        (daemon.work / "train.py").write_text(script)
        id = daemon.submit(sys.executable, "train.py")
        until((daemon.work / "begun").exists, "its first instruction")
        job = daemon.job(id)
        assert (job["estimating"], job["memory"]["estimate_mib"]) == (True, None)
        (daemon.work / "go").touch()
        assert daemon.ended(id)["state"] == "succeeded"
        assert not daemon.job(id)["estimating"]
