"""A job's suspension: who may suspend it, how it waits, where it resumes, and what fails."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from carma_testing import FakeServer, a_job, a_spec
from carmad.config import Collocation, Interactive, Limits, Monitor, Settings, Suspending
from carmad.core.jobs import control
from carmad.core.jobs.attempt import Cause, Exit, JobId, ProfilingRun, Suspension
from carmad.core.jobs.control import cost_s, never
from carmad.core.jobs.job import advance
from carmad.core.jobs.spec import Allocation, WarnSignal
from carmad.core.jobs.states import JobState, Paused
from carmad.core.jobs.suspending import AGAIN_AFTER_S
from carmad.core.messages import (
    CancelRequested,
    Discovered,
    DrainRequested,
    EstimateMemory,
    HoldRequested,
    Launch,
    MoveRequested,
    Reserved,
    Resume,
    Resumed,
    ResumeRequested,
    Signal,
    Submitted,
    Suspend,
    Suspended,
    SuspendRequested,
    Tick,
    UpdateRequested,
    due_actions,
)
from carmad.core.rules.limits import Reservation
from lab.baselines import FIRST_QUEUE_GPU_S

S = JobState
HOST_MIB = 100_000
SETTINGS = Settings(
    monitor=Monitor(window_s=5.0), suspend=Suspending(host_memory_mib=HOST_MIB, moves=True)
)


def server(gpus: int = 2, settings: Settings = SETTINGS, **changes: object) -> FakeServer:
    return FakeServer(gpus, replace(settings, suspend=replace(settings.suspend, **changes)))


def runs(on: FakeServer, mib: int = 10_000, **spec: object) -> JobId:
    """A job that runs, and whose GPUs take others."""
    id = on.submit(**spec)
    on.run_kernel(id, mib)
    on.pass_time(6)
    assert on.job(id).state is S.RUNNING
    return id


def suspend(on: FakeServer, id: JobId, by: str = "ada") -> None:
    on.tell(SuspendRequested(on.now, id, by))


def resume(on: FakeServer, id: JobId, by: str = "ada") -> None:
    on.tell(ResumeRequested(on.now, id, by))


def test_a_suspended_job_frees_its_gpu_and_goes_on_with_its_attempt() -> None:
    here = server(1)
    id = runs(here, exclusive=True)
    next_one = here.submit(exclusive=True)
    suspend(here, id)
    job = here.job(id)
    assert (job.state, job.held, job.gpus, job.attempt) == (S.SUSPENDED, True, (), 1)
    assert job.suspension and job.suspension.gpus == (here.gpus[0].id,)
    assert (job.suspension.gpu_mib, job.suspension.host_mib) == (10_000, 10_000)
    here.sample(1)
    assert here.job(next_one).state is S.STARTING
    here.exit(next_one)
    here.pass_time(3)
    assert here.job(id).state is S.SUSPENDED, "it is held until somebody resumes it"
    resume(here, id)
    here.sample(1)
    job = here.job(id)
    assert (job.state, job.gpus, job.attempt) == (S.RUNNING, (here.gpus[0].id,), 1)
    assert job.suspension is None
    here.exit(id)
    assert here.last(id).state is S.SUCCEEDED


def test_a_job_resumes_without_the_next_one() -> None:
    here = server(2)
    first, second = runs(here, exclusive=True), runs(here, exclusive=True)
    suspend(here, first)
    assert here.job(second).state is S.RUNNING
    suspend(here, second)
    resume(here, first)
    assert not here.job(first).held
    assert here.job(second).held


def test_what_it_did_not_run_counts_for_no_limit() -> None:
    here = server(1)
    id = runs(here, time_limit_s=60.0)
    ran_s = here.job(id).attained_s(here.now)
    assert here.job(id).due_at == here.now + 60 - ran_s
    suspend(here, id)
    here.pass_time(300)
    assert here.job(id).state is S.SUSPENDED
    assert here.job(id).attained_s(here.now) == ran_s
    assert here.job(id).due_at == inf
    resume(here, id)
    here.sample(0)
    assert here.job(id).attained_s(here.now) == ran_s
    assert here.job(id).due_at == here.now + 60 - ran_s
    here.pass_time(60 - ran_s)
    assert here.job(id).stop is Cause.TIME_LIMIT


def test_its_gpu_is_judged_anew_once_it_has_resumed() -> None:
    here = server(1)
    id = runs(here)
    suspend(here, id)
    resume(here, id)
    other = here.submit()
    assert here.why(other)[0] == {0: ["settling"]}
    here.pass_time(6)
    assert here.job(other).state is S.STARTING


@pytest.mark.parametrize(
    ("moves", "kind", "where"),
    [(True, "A100", 1), (False, "A100", None), (True, "H100", None)],
    ids=["another of the kind", "moves are off", "another kind"],
)
def test_where_it_may_resume(moves: bool, kind: str, where: int | None) -> None:
    here = server(2, moves=moves)
    id = runs(here)
    suspend(here, id)
    gone = here.gpus[0].id
    here.tell(DrainRequested(here.now, gone, "fan", "root"))
    if kind == "H100":
        here.scheduler.state.fleet.gpus[here.gpus[1].id] = replace(here.gpus[1], name=kind)
        here.scheduler.state.fleet.discover(
            here.scheduler.settings, tuple(here.scheduler.gpus.values())
        )
    resume(here, id)
    here.pass_time(6)
    job = here.job(id)
    assert job.gpus == (() if where is None else (here.gpus[where].id,))
    assert job.kernels[0][0] == here.gpus[where or 0].id


def test_it_resumes_only_where_its_memory_fits() -> None:
    """Whatever the policy thinks: rr looks at no memory."""
    here = server(1, replace(SETTINGS, policy="rr"))
    id = runs(here, 30_000)
    suspend(here, id)
    here.sample(1)
    here.used_mib[here.gpus[0].id] = 20_000
    here.pass_time(6)
    resume(here, id)
    here.pass_time(2)
    assert here.job(id).state is S.SUSPENDED
    here.used_mib[here.gpus[0].id] = 5_000
    here.pass_time(2)
    assert here.job(id).state is S.RUNNING


@pytest.mark.parametrize(
    ("spec", "settings", "words"),
    [
        ({}, replace(SETTINGS, suspend=Suspending()), "this server suspends no jobs"),
        ({}, replace(SETTINGS, collocation=Collocation(mps=True)), "it runs under MPS"),
        ({"allocation": Allocation("Slurm", 7)}, SETTINGS, "part of a job of Slurm's"),
        ({"gpus": 0}, SETTINGS, "has no GPUs"),
    ],
)
def test_who_cannot_be_suspended(spec: dict[str, object], settings: Settings, words: str) -> None:
    here = server(2, settings)
    id = here.submit(**spec)
    here.pass_time(1)
    if spec.get("gpus") != 0:
        here.run_kernel(id)
    here.pass_time(2)
    suspend(here, id)
    job = here.job(id)
    assert (job.state, job.suspension) == (S.RUNNING, None)
    assert words in never(job, settings)
    assert words in here.scene.suspension_refusal(job)


def test_the_hosts_memory_is_bounded_for_all_of_them_together() -> None:
    here = server(2, host_memory_mib=15_000)
    first, second = runs(here), runs(here, exclusive=True)
    suspend(here, first)
    suspend(here, second)
    assert (here.job(first).state, here.job(second).state) == (S.SUSPENDED, S.RUNNING)
    refusal = here.scene.suspension_refusal(here.job(second))
    assert "4.9G of 14.6G are left" in refusal
    here.tell(CancelRequested(here.now, first, "ada"))
    here.exit(first)
    suspend(here, second)
    assert here.job(second).state is S.SUSPENDED


def test_what_one_user_has_suspended_leaves_room_for_the_others() -> None:
    here = server(4, host_memory_mib=50_000)
    mine = [runs(here, exclusive=True) for _ in range(3)]
    other = runs(here, user="bob", exclusive=True)
    for id in mine:
        suspend(here, id)
    assert [here.job(id).state for id in mine] == [S.SUSPENDED, S.SUSPENDED, S.RUNNING]
    refusal = here.scene.suspension_refusal(here.job(mine[2]), asked=True)
    assert refusal == (
        "takes 9.8G, and its owner's suspended jobs have 19.5G of the host's memory, of 24.4G"
        " at most ([suspend] per_user)"
    )
    assert not here.scene.suspension_refusal(here.job(mine[2])), "for others it can be"
    suspend(here, other, by="bob")
    assert here.job(other).state is S.SUSPENDED


def test_what_was_suspended_for_others_is_not_kept_beyond_a_users_part() -> None:
    limits = Limits(preemption="suspend")
    here = server(3, replace(SETTINGS, limits=limits), host_memory_mib=50_000)
    mine = [runs(here, exclusive=True) for _ in range(3)]
    here.submit(user="bob", gpus=3, urgent=True)
    here.pass_time(2)
    for id in mine:
        suspend(here, id)
    assert [here.job(id).held for id in mine] == [True, True, False]
    assert {here.job(id).state for id in mine} == {S.SUSPENDED}
    why = here.scene.suspension_refusal(here.job(mine[2]), asked=True)
    assert "takes 9.8G, and its owner's suspended jobs have 19.5G" in why


def test_one_job_may_have_more_than_a_users_part() -> None:
    here = server(1, host_memory_mib=15_000)
    id = runs(here)
    suspend(here, id)
    assert here.job(id).state is S.SUSPENDED


def test_the_time_of_a_job_that_is_left_suspended_goes_on_in_the_end() -> None:
    here = server(2, parked_s=3600.0)
    limited, other = runs(here, time_limit_s=600.0), runs(here, exclusive=True)
    for id in (limited, other):
        suspend(here, id)
    here.pass_time(3600.0 + 500.0)
    assert here.job(limited).state is S.SUSPENDED
    here.pass_time(120.0)
    job = here.job(limited)
    assert (job.state, job.stop) == (S.STOPPING, Cause.TIME_LIMIT)
    assert "its time limit went on" in job.notes[-1]
    assert here.job(other).state is S.SUSPENDED, "it has no limit"


def test_to_wait_in_line_suspended_is_not_to_be_left_suspended() -> None:
    """Who was suspended for others, and then by its owner, is left alone as long as anybody."""
    here = server(1, replace(SETTINGS, limits=Limits(preemption="suspend")), parked_s=360.0)
    id = runs(here, time_limit_s=60.0)
    other = here.submit(user="eve", exclusive=True, urgent=True)
    here.pass_time(500.0)
    assert here.job(other).holds_gpus and here.job(id).state is S.SUSPENDED
    suspend(here, id)
    here.pass_time(360.0)
    assert here.job(id).state is S.SUSPENDED
    resume(here, id)
    here.pass_time(500.0)
    suspend(here, id)  # which does not begin anew
    here.pass_time(50.0)
    assert here.job(id).state is S.SUSPENDED
    here.pass_time(12.0)
    assert (here.job(id).state, here.job(id).stop) == (S.STOPPING, Cause.TIME_LIMIT)


@pytest.mark.parametrize("requeue", [True, False])
def test_who_is_left_suspended_for_long_makes_room_for_an_urgent_job(requeue: bool) -> None:
    limits = Limits(preemption="suspend")
    here = server(2, replace(SETTINGS, limits=limits), host_memory_mib=15_000, parked_s=360.0)
    parked = runs(here, requeue=requeue)
    suspend(here, parked)
    batch = [runs(here, user="bob", exclusive=True) for _ in range(2)]
    urgent = here.submit(user="eve", exclusive=True, urgent=True)
    here.pass_time(60.0)
    assert here.job(parked).state is S.SUSPENDED and here.job(urgent).state is S.QUEUED
    assert "mostly by suspended job 1 of ada" in here.job(urgent).notes[-1]
    here.pass_time(360.0)
    if not requeue:
        assert here.job(parked).state is S.SUSPENDED
        return
    job = here.job(parked)
    assert (job.state, job.stop) == (S.STOPPING, Cause.PREEMPTED)
    assert f"job {urgent} needed the host's memory" in job.notes[-1]
    here.exit(parked, Exit(Cause.FAILURE, signal=15))
    here.pass_time(2)
    assert (here.job(parked).state, here.job(parked).held) == (S.QUEUED, True)
    assert here.job(urgent).state in (S.STARTING, S.RUNNING)
    assert [here.job(id).state for id in batch].count(S.SUSPENDED) == 1


def test_no_more_of_them_make_room_than_are_needed() -> None:
    limits = Limits(preemption="suspend")
    here = server(1, replace(SETTINGS, limits=limits), host_memory_mib=21_000, parked_s=3600.0)
    parked = []
    for user, mib in (("ada", 5_000), ("eve", 10_000)):
        parked.append(runs(here, mib, user=user))
        suspend(here, parked[-1], user)
    runs(here, user="bob", exclusive=True)
    here.submit(user="dan", exclusive=True, urgent=True)
    here.pass_time(3900.0, period=60.0)
    assert [here.job(id).state for id in parked] == [S.STOPPING, S.SUSPENDED]


def test_a_job_that_was_just_resumed_runs_for_a_while_and_may_not_be_suspended_for_ever() -> None:
    here = server(1, most_per_hour=3)
    id = runs(here)
    quantum_s = 30 * cost_s(10_000, SETTINGS.suspend)
    for n in range(3):
        suspend(here, id)
        assert here.job(id).state is S.SUSPENDED, n
        resume(here, id)
        here.sample(1)
        suspend(here, id)
        assert here.job(id).state is S.RUNNING
        if n == 0:
            assert "has just resumed" in here.scene.suspension_refusal(here.job(id))
        here.pass_time(quantum_s + 1, period=5.0)
    suspend(here, id)
    assert here.job(id).state is S.RUNNING
    assert "3 times within an hour" in here.scene.suspension_refusal(here.job(id))
    here.pass_time(3600, period=60.0)
    suspend(here, id)
    assert here.job(id).state is S.SUSPENDED
    assert len(here.job(id).attempts[-1].suspended_at) == 1


def test_what_cannot_be_suspended_runs_on_and_is_not_tried_again() -> None:
    here = server(1)
    id = runs(here)
    here.driver_fails = "its kernels did not end in time"
    suspend(here, id)
    job = here.job(id)
    assert (job.state, job.held, job.suspension) == (S.RUNNING, False, None)
    assert job.gpus == (here.gpus[0].id,)
    assert job.notes == ("cannot be suspended: its kernels did not end in time",)
    here.driver_fails = ""
    suspend(here, id)
    assert here.job(id).state is S.RUNNING


def test_what_cannot_resume_waits_and_tries_again_ever_later() -> None:
    here = server(1)
    id = runs(here)
    suspend(here, id)
    here.driver_fails = "there is no room"
    resume(here, id)
    job = here.job(id)
    assert (job.state, job.gpus) == (S.SUSPENDED, ())
    assert "could not resume: there is no room" in job.notes
    assert job.suspension and job.suspension.again_at == here.now + AGAIN_AFTER_S
    blocker = here.scene.gate.blocker(job)
    assert blocker and blocker.code == "resume_failed"
    here.pass_time(AGAIN_AFTER_S)
    job = here.job(id)
    assert job.suspension and job.suspension.again_at == here.now + 2 * AGAIN_AFTER_S
    here.driver_fails = ""
    here.pass_time(2 * AGAIN_AFTER_S)
    assert here.job(id).state is S.RUNNING


def test_what_the_driver_does_not_answer_twice_waits_for_its_owner() -> None:
    here = server(1)
    id = runs(here)
    suspend(here, id)
    here.driver_fails, here.driver_hangs = "the driver did not answer", True
    resume(here, id)
    assert (here.job(id).state, here.job(id).held) == (S.SUSPENDED, False)
    here.pass_time(AGAIN_AFTER_S)
    job = here.job(id)
    assert (job.state, job.held, job.gpus) == (S.SUSPENDED, True, ())
    assert "after 2 such attempts it stays suspended until `carma resume`" in job.notes[-1]
    here.pass_time(3600.0)
    waits = here.job(id).suspension
    assert waits and (waits.failures, waits.hung) == (2, 2)
    here.driver_fails, here.driver_hangs = "", False
    resume(here, id)
    assert here.job(id).state is S.RUNNING


@pytest.mark.parametrize(("requeue", "state"), [(True, S.QUEUED), (False, S.FAILED)])
@pytest.mark.parametrize("returns", [False, True])
def test_what_the_driver_lost_starts_anew_or_has_failed(
    requeue: bool, state: JobState, returns: bool
) -> None:
    here = server(1)
    id = runs(here, requeue=requeue)
    if returns:
        suspend(here, id)
    here.driver_fails, here.lost = "its CUDA state has failed", True
    (resume if returns else suspend)(here, id)
    assert (here.job(id).state, here.job(id).stop) == (S.STOPPING, Cause.UNRESTORED)
    here.alive[id, 1].gpus = ()
    here.tell(DrainRequested(here.now, here.gpus[0].id, "fan", "root"))
    here.exit(id, Exit(Cause.FAILURE, signal=15))
    job = here.last(id)
    assert job.state is state
    assert job.attempts[-1].exit and job.attempts[-1].exit.cause is Cause.UNRESTORED
    assert job.attempts[-1].gpus == (here.gpus[0].id,)
    assert any("its CUDA state has failed" in note for note in job.notes)


@pytest.mark.parametrize("exit", [Exit(Cause.SUCCESS, 0), Exit(Cause.FAILURE, 1)])
def test_it_may_end_by_itself_meanwhile(exit: Exit) -> None:
    here = server(1)
    id = runs(here)
    suspend(here, id)
    here.pass_time(5)
    ran_s = here.job(id).attained_s(here.now)
    here.exit(id, exit)
    job = here.last(id)
    assert job.ended and not here.scheduler.state.ledger.suspended
    assert job.suspension is None
    assert job.run_s(here.now) == ran_s


def test_it_can_be_cancelled_meanwhile() -> None:
    here = server(1)
    id = runs(here)
    suspend(here, id)
    other = runs(here, exclusive=True)
    here.tell(CancelRequested(here.now, id, "ada"))
    assert here.job(id).state is S.STOPPING and here.stops == [(id, 1, Cause.CANCELLED)]
    here.exit(id, Exit(Cause.FAILURE, signal=15))
    assert here.last(id).state is S.CANCELLED
    assert here.job(other).state is S.RUNNING


def test_a_policys_preemption_suspends_where_the_settings_say_so() -> None:
    limits = Limits(preemption="suspend")
    here = server(1, replace(SETTINGS, policy="srtf", limits=limits))
    long = runs(here, expected_s=10_000.0, exclusive=True)
    short = here.submit(expected_s=10.0, exclusive=True)
    here.pass_time(2)
    assert (here.job(long).state, here.job(long).held) == (S.SUSPENDED, False)
    assert here.job(short).state is S.STARTING
    here.exit(short)
    here.pass_time(2)
    assert (here.job(long).state, here.job(long).attempt) == (S.RUNNING, 1)


@pytest.mark.parametrize("policy", ["srtf", "magm"])
@pytest.mark.parametrize("ok", [False, True])
def test_who_cannot_be_suspended_is_requeued_if_its_owner_agreed(ok: bool, policy: str) -> None:
    """For a policy's sake, or for an urgent job's."""
    limits = Limits(preemption="suspend")
    here = server(1, replace(SETTINGS, policy=policy, limits=limits))
    here.driver_fails = "its kernels did not end in time"
    long = runs(here, expected_s=10_000.0, exclusive=True, requeue_ok=ok)
    suspend(here, long)
    assert here.job(long).unsuspendable
    short = here.submit(expected_s=10.0, exclusive=True, urgent=policy == "magm")
    here.pass_time(2)
    assert here.stops == ([(long, 1, Cause.PREEMPTED)] if ok else [])
    if ok:
        here.exit(long, Exit(Cause.FAILURE, signal=15))
        assert here.job(long).state is S.QUEUED
        assert here.job(short).state is S.STARTING


@pytest.mark.parametrize("policy", ["srtf", "tiresias"])
def test_a_job_that_a_policy_suspended_returns_behind_those_it_was_suspended_for(
    policy: str,
) -> None:
    """Its place in line is by what it has run, not as if it had not begun."""
    limits = Limits(preemption="suspend")
    here = server(1, replace(SETTINGS, policy=policy, limits=limits))
    long = runs(here, expected_s=30_000.0, exclusive=True)
    here.pass_time(2 * FIRST_QUEUE_GPU_S)
    first, second = (here.submit(expected_s=15_000.0, exclusive=True) for _ in range(2))
    here.pass_time(2)
    assert here.job(long).state is S.SUSPENDED
    here.exit(first)
    here.pass_time(2)
    assert here.job(second).state is S.STARTING, "of the first queue, and with less left"
    assert here.job(long).state is S.SUSPENDED


def test_a_policy_looks_elsewhere_while_a_job_cannot_be_suspended() -> None:
    """The last in line has just resumed."""
    limits = Limits(preemption="suspend")
    here = server(2, replace(SETTINGS, policy="srtf", limits=limits))
    longest = runs(here, 20_000, expected_s=20_000.0, exclusive=True)
    long = runs(here, 20_000, expected_s=15_000.0, exclusive=True)
    suspend(here, longest)
    resume(here, longest)
    here.pass_time(2)
    assert here.job(longest).state is S.RUNNING
    head = here.submit(expected_s=10.0, exclusive=True)
    assert here.job(long).state is S.SUSPENDED
    here.pass_time(2)
    assert here.job(head).state is S.STARTING
    assert here.job(longest).state is S.RUNNING


def test_after_a_restart_what_is_due_is_repeated() -> None:
    here = server(1)
    id = runs(here)
    posted: list[object] = []
    here._post = posted.append
    suspend(here, id)
    (suspending,) = (here.job(id),)
    assert [type(each) for each in due_actions(suspending)] == [Suspend]
    assert posted == [Suspended(here.now, id, 1)]
    here.tell(Suspended(here.now, id, 1))
    assert not list(due_actions(here.job(id)))
    resume(here, id)
    assert [type(each) for each in due_actions(here.job(id))] == [Resume]
    here.tell(Resumed(here.now, id, 2), Suspended(here.now, id, 1))  # of others, or late
    assert here.job(id).state is S.RESUMING
    here.tell(Resumed(here.now, id, 1))
    assert here.job(id).state is S.RUNNING


def test_what_owners_are_told() -> None:
    waiting, ended = a_job(1), a_job(1, state=S.FAILED, ended_at=1.0)
    assert control.suspend(waiting, "is queued: …").refused
    assert control.suspend(ended, "").refused and control.resume(ended).refused
    assert control.resume(waiting).words == "is queued: only a suspended job can resume"
    here = server(1)
    id = runs(here)
    suspend(here, id)
    job = here.job(id)
    assert control.suspend(job, "").words == "is suspended already"
    assert control.hold(job, True).words == "is suspended: use carma suspend"
    assert control.cancel(job).words == "is being stopped"
    assert set(control.actions(job)) == {"cancel", "resume"}
    resumed = replace(job, held=False)
    assert control.suspend(resumed, "").words == "stays suspended"
    assert control.resume(resumed).words == "waits for GPUs already"
    here.tell(HoldRequested(here.now, id, False, "ada"))
    assert here.job(id).held, "only resuming ends it"
    spec = a_spec(memory_mib=5)
    here.tell(UpdateRequested(here.now, id, spec, ("memory_mib",), "ada"))
    assert here.job(id).spec.memory_mib is None, "it is too late for that"


def test_times_are_moved_with_the_clock() -> None:
    here = server(1)
    id = runs(here)
    suspend(here, id)
    job = here.job(id).shift(100.0)
    assert job.suspension and job.suspension.at == here.now + 100
    again = replace(job.suspension, parked_at=job.suspension.at)
    assert again.shift(7.0).has_parked_s(here.now + 110) == 3.0
    assert job.attempts[-1].suspended_at == (here.now + 100,)
    assert job.attained_s(here.now + 200) == here.job(id).attained_s(here.now)
    resume(here, id)
    its = here.job(id).shift(100.0).attempts[-1]
    assert its.resumed_at == here.now + 100


def test_one_that_is_profiled_stays_alone_where_it_resumes() -> None:
    here = server(1)
    id = here.submit()
    job = here.job(id).with_attempt(profiling=ProfilingRun(here.now + 1000, evict=False))
    here.scheduler.state.ledger.put(job)
    here.run_kernel(id)
    here.pass_time(6)
    suspend(here, id)
    resume(here, id)
    here.pass_time(6)
    assert here.job(id).state is S.RUNNING and here.job(id).profiling
    here.tell(Tick(here.now))
    other = here.submit()
    assert "profiling" in here.why(other)[0][0]


# -- who makes room

ROOM = replace(SETTINGS, limits=Limits(preemption="suspend"))


@pytest.mark.parametrize("first", [{"urgent": True}, {"interactive": True}])
def test_an_urgent_job_and_one_at_a_terminal_get_the_gpu_that_is_cheapest_to_free(
    first: dict[str, object],
) -> None:
    here = server(2, ROOM)
    large, small = runs(here, 30_000, exclusive=True), runs(here, 5_000, exclusive=True)
    behind = here.submit(exclusive=True)
    id = here.submit(exclusive=True, **first)
    here.pass_time(2)
    assert here.job(id).gpus == (here.gpus[1].id,)
    assert (here.job(small).state, here.job(small).held) == (S.SUSPENDED, False)
    suspension = here.job(small).suspension
    assert suspension and suspension.why == f"for job {id}"
    assert here.job(large).state is S.RUNNING and here.job(behind).state is S.QUEUED
    here.exit(id)
    here.pass_time(2)
    assert here.job(small).state is S.RUNNING, "it came before the one that waits"


def test_nobody_is_suspended_before_the_policy_has_looked_for_room() -> None:
    here = server(2, ROOM)
    here.gpus = tuple(replace(gpu, node="ab"[gpu.index]) for gpu in here.gpus)
    here.tell(Discovered(here.now, here.gpus))
    runs(here, exclusive=True)
    urgent = Submitted(here.now, JobId(2), (a_spec(urgent=True),))
    steps = here.scheduler.handle(urgent), here.scheduler.handle(Tick(here.now))
    assert [[type(each) for each in step.actions] for step in steps] == [[EstimateMemory], [Launch]]


def test_nobody_is_suspended_for_a_usual_job_nor_where_it_would_not_help() -> None:
    here = server(2, ROOM)
    first, second = runs(here, exclusive=True), runs(here, exclusive=True, urgent=True)
    here.submit(exclusive=True)
    here.pass_time(2)
    assert {here.job(first).state, here.job(second).state} == {S.RUNNING}
    here.submit(exclusive=True, gpus=2, urgent=True)  # it would need the urgent one's, too
    here.pass_time(2)
    assert {here.job(first).state, here.job(second).state} == {S.RUNNING}


def test_nobody_is_suspended_for_a_job_that_is_being_made_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = server(3, ROOM)
    batch = [runs(here, exclusive=True) for _ in range(3)]
    monkeypatch.setattr(here, "_move", lambda *_: None)  # the driver takes its time
    for _ in range(2):
        here.submit(exclusive=True, urgent=True)
        here.pass_time(2)
    states = [here.job(id).state for id in batch]
    assert sorted(states) == [S.RUNNING, S.SUSPENDING, S.SUSPENDING]


def test_all_gpus_that_are_freed_are_kept_until_the_last_is_free() -> None:
    """The first that was suspended does not resume meanwhile: it could not leave again at once."""
    limits = Limits(preemption="suspend")
    here = server(2, replace(SETTINGS, limits=limits))
    ids = [runs(here, 20_000, exclusive=True) for _ in range(2)]
    head = here.submit(gpus=2, urgent=True)
    here.pass_time(2)
    assert [here.job(id).state for id in ids] == [S.SUSPENDED, S.SUSPENDED]
    assert here.job(head).state is S.STARTING


def test_nobody_is_suspended_where_the_host_has_room_for_a_part_only() -> None:
    limits = Limits(preemption="suspend")
    here = server(2, replace(SETTINGS, limits=limits), host_memory_mib=30_000)
    ids = [runs(here, 20_000, exclusive=True) for _ in range(2)]
    here.submit(gpus=2, urgent=True)
    here.pass_time(2)
    assert [here.job(id).attempts[-1].suspended_at for id in ids] == [(), ()]


def test_a_job_moves_with_all_its_memory_so_another_makes_room_if_that_is_too_much() -> None:
    """On each of its GPUs the larger one holds less than the smaller one does on its only one."""
    here = server(3, ROOM, host_memory_mib=15_000)
    large = runs(here, 10_000, exclusive=True, gpus=2)
    small = runs(here, 12_000, exclusive=True)
    id = here.submit(exclusive=True, urgent=True)
    here.pass_time(2)
    assert here.job(small).state is S.SUSPENDED and here.job(large).state is S.RUNNING
    assert here.job(id).state is S.STARTING


def test_who_is_in_the_way_of_an_urgent_job_is_told_by_all_the_memory_that_would_move() -> None:
    here = server(3, ROOM, host_memory_mib=30_000)
    parked, large = runs(here, 25_000, exclusive=True), runs(here, 10_000, exclusive=True, gpus=2)
    suspend(here, parked)
    here.pass_time(2)
    other = runs(here, exclusive=True, urgent=True)
    id = here.submit(exclusive=True, urgent=True)
    here.pass_time(2)
    assert here.job(large).state is here.job(other).state is S.RUNNING
    assert f"mostly by suspended job {parked} " in here.job(id).notes[-1]


def test_a_reservation_suspends_the_others_when_it_begins_and_lets_them_back() -> None:
    here = server(1, ROOM)
    id = here.submit(user="bob")
    wish = Reservation(1, (here.gpus[0].id,), ("ada",), (here.now + 600.0,), 300.0, "root")
    here.tell(Reserved(here.now, wish))
    late = here.submit(user="bob", exclusive=True)
    here.run_kernel(id)
    here.pass_time(20)
    here.exit(id)
    here.sample(1)
    assert here.job(late).state is S.STARTING, "of unknown length, within the notice"
    here.run_kernel(late)
    here.pass_time(600, period=5.0)
    assert here.job(late).state is S.SUSPENDED
    assert here.job(late).notes == ()
    ada = here.submit(user="ada")
    here.sample(1)
    assert here.job(ada).state is S.STARTING
    here.exit(ada)
    here.pass_time(300, period=5.0)
    assert here.job(late).state is S.RUNNING


def test_who_cannot_be_suspended_is_still_there_when_a_reservation_begins() -> None:
    here = server(1, replace(ROOM, suspend=Suspending()))
    id = runs(here, user="bob")
    wish = Reservation(1, (here.gpus[0].id,), ("ada",), (here.now + 5.0,), 300.0, "root")
    here.tell(Reserved(here.now, wish))
    here.pass_time(10)
    assert here.job(id).state is S.RUNNING
    assert "is still on GPU 0, which is now reserved (ada)" in here.job(id).notes[0]


def test_an_idle_job_at_a_terminal_is_suspended_and_not_ended() -> None:
    settings = replace(ROOM, interactive=Interactive(idle_s=20.0))
    here = server(1, settings)
    id = here.submit(interactive=True)
    here.run_kernel(id)
    here.pass_time(3)
    here.alive[id, 1].ran_kernel = False
    here.pass_time(25)
    job = here.job(id)
    assert (job.state, job.held) == (S.SUSPENDED, True)
    assert job.notes[-1].startswith("was suspended because it had not used its GPUs for 20 s")
    other = runs(here, exclusive=True)
    resume(here, id)  # its owner is back, and waits at a terminal
    here.pass_time(2)
    assert here.job(id).state is S.RUNNING
    assert here.job(other).state is S.SUSPENDED
    here.pass_time(40)
    assert here.job(id).state is S.RUNNING, "it is idle again, but has just resumed"
    here.pass_time(20)
    assert here.job(id).state is S.SUSPENDED
    assert here.job(other).state is S.RUNNING


def test_what_else_is_due_is_not_forgotten_while_an_idle_job_cannot_be_suspended() -> None:
    never_now = replace(ROOM.suspend, most_per_hour=0)
    here = server(1, replace(ROOM, interactive=Interactive(idle_s=20.0), suspend=never_now))
    id = here.submit(interactive=True, time_limit_s=100, warn=WarnSignal(12, 60))
    here.run_kernel(id)
    here.pass_time(3)
    here.alive[id, 1].ran_kernel = False
    here.pass_time(60)
    assert here.job(id).state is S.RUNNING and here.job(id).current.warned
    signals = [each for step in here.steps for each in step.actions if isinstance(each, Signal)]
    assert len(signals) == 1, "and not at every reading"


# -- a crash averted


def growing(on: FakeServer, id: JobId, mib_s: int, seconds: int) -> None:
    for _ in range(seconds):
        on.alive[id, 1].memory_mib += mib_s
        on.sample(1)


def together(**settings: object) -> tuple[FakeServer, JobId, JobId, JobId]:
    """A job that holds 20,000 MiB, and a young one with 4,000, on one of two GPUs; the other GPU
    has a job of its own."""
    here = server(2, replace(SETTINGS, policy="first_fit"), **settings)
    first = runs(here, 20_000)
    other = here.submit(exclusive=True)
    here.run_kernel(other)
    here.sample(1)
    second = runs(here, 4_000)
    assert here.job(first).gpus == here.job(second).gpus
    return here, first, second, other


def test_a_job_that_would_fill_a_shared_gpu_is_suspended_in_time_and_alone_until_it_is_steady() -> (
    None
):
    here, first, second, _other = together()
    growing(here, second, 3_000, 4)
    assert here.job(second).state is S.RUNNING, "there is room until after the next reading"
    growing(here, second, 3_000, 1)
    job = here.job(second)
    assert (job.state, job.held) == (S.SUSPENDED, False)
    assert job.retry and job.retry.exclusive
    assert job.suspension and job.suspension.why == "its GPU's memory was about to be full"
    here.pass_time(10)
    assert here.job(second).state is S.SUSPENDED, "no GPU is idle"
    here.exit(first)
    here.pass_time(2)
    job = here.job(second)
    assert (job.state, job.attempt, job.failures) == (S.RUNNING, 1, ())
    late = here.submit()
    growing(here, second, 1_000, 10)
    here.pass_time(3)
    assert here.job(late).state is S.QUEUED, "it is alone"
    here.pass_time(3)
    assert here.job(second).retry is None, "its memory has been the same for a window"
    assert here.job(late).state is S.STARTING
    assert here.job(late).gpus == here.job(second).gpus


def test_where_time_is_left_the_one_with_the_least_memory_is_suspended() -> None:
    here, first, second, other = together()
    growing(here, first, 1_000, 13)
    assert here.job(second).state is S.RUNNING
    growing(here, first, 1_000, 1)
    job = here.job(second)
    assert job.state is S.SUSPENDED
    assert job.retry and job.retry.avoid == here.job(first).gpus
    growing(here, first, 1_000, 2)
    assert here.job(first).state is S.RUNNING
    assert here.job(second).state is S.SUSPENDED, "there is room, but not for long"
    here.tell(CancelRequested(here.now, other, "ada"))
    here.exit(other)
    here.pass_time(2)
    assert here.job(second).gpus == (here.gpus[1].id,)


def test_a_job_on_several_nodes_does_not_avoid_the_only_gpus_to_which_it_can_return() -> None:
    here = server(4)
    id = runs(here, gpus=2)
    job = here.job(id)
    spread = Suspension(here.now, "room", job.gpus, "A100", "", 10_000, 20_000, after="elsewhere")
    leaving = advance(job, Paused(S.SUSPENDING, job.current, spread))
    here.scheduler.state.ledger.put(leaving)
    here.tell(Suspended(here.now, id, 1))
    retry = here.job(id).retry
    assert retry and (retry.exclusive, retry.avoid) == (True, ())
    here.pass_time(10)
    assert here.job(id).state in (S.RESUMING, S.RUNNING)


@pytest.mark.parametrize("memory_mib", [10_000, None])
def test_whom_its_promise_tells_from_a_leak(memory_mib: int | None) -> None:
    """What is expected of jobs and fits is no danger, however fast it comes."""
    here = server(1)
    first = runs(here, 28_000, memory_mib=30_000)
    id = here.submit(memory_mib=memory_mib)
    here.run_kernel(id, 1_000)
    here.sample(1)
    growing(here, id, 3_000, 3)
    assert here.job(id).state is (S.SUSPENDED if memory_mib is None else S.RUNNING)
    assert here.job(first).state is S.RUNNING


def test_a_job_that_is_alone_and_one_that_shrinks_are_let_alone() -> None:
    here = server(1)
    id = runs(here, 20_000)
    growing(here, id, 4_000, 5)
    assert here.job(id).state is S.RUNNING
    here, first, second, _other = together()
    growing(here, second, 2_500, 4)
    growing(here, first, -3_000, 5)
    assert {here.job(first).state, here.job(second).state} == {S.RUNNING}


def test_without_leave_to_suspend_nobody_is() -> None:
    here, first, second, _other = together(host_memory_mib=0)
    growing(here, second, 3_000, 5)
    assert {here.job(first).state, here.job(second).state} == {S.RUNNING}


# -- moves


def test_a_job_moves_to_the_gpu_that_its_owner_names() -> None:
    here = server(3)
    id = runs(here)
    to = here.gpus[2].id
    here.tell(MoveRequested(here.now, id, (to,), "ada"))
    here.sample(1)
    job = here.job(id)
    assert (job.state, job.gpus, job.attempt) == (S.RUNNING, (to,), 1)
    assert here.scene.decisions[id].policy == "move"


def test_where_it_cannot_go_after_all_it_waits_like_others() -> None:
    here = server(2)
    id = runs(here)
    other = runs(here, exclusive=True)
    here.tell(MoveRequested(here.now, id, here.job(other).gpus, "ada"))
    here.sample(1)
    job = here.job(id)
    assert (job.state, job.gpus) == (S.RUNNING, (here.gpus[0].id,))
    assert job.notes == ("could not move to GPU 1 after all: see carma why",)


@pytest.mark.parametrize(
    ("gpus", "changes", "words"),
    [
        ((0,), {}, "is there already"),
        ((1, 2), {}, "has 1 GPUs: name as many"),
        ((1,), {"moves": False}, "jobs resume only where they were"),
        ((1,), {"host_memory_mib": 0}, "this server suspends no jobs"),
    ],
)
def test_who_is_not_moved(gpus: tuple[int, ...], changes: dict[str, object], words: str) -> None:
    here = server(3, **changes)
    id = runs(here)
    to = [here.gpus[n] for n in gpus]
    here.tell(MoveRequested(here.now, id, tuple(gpu.id for gpu in to), "ada"))
    assert here.job(id).state is S.RUNNING
    scene = here.scene
    refusal = scene.suspension_refusal(here.job(id))
    assert words in control.move(here.job(id), to, refusal, scene.view.settings).words


@pytest.mark.parametrize("moves", [True, False])
def test_a_drained_gpu_can_be_emptied(moves: bool) -> None:
    here = server(2, moves=moves)
    first = runs(here)
    here.tell(DrainRequested(here.now, here.gpus[0].id, "fan", "root", move=True))
    here.pass_time(2)
    assert here.job(first).gpus == (here.gpus[moves].id,)


def test_a_job_that_had_run_out_of_memory_when_it_was_suspended_is_tried_again() -> None:
    here, first, second = together()[:3]
    suspend(here, second)
    assert here.job(first).shared
    here.exit(second, Exit(Cause.GPU_OOM, 1))
    job = here.job(second)
    assert (job.state, job.failures[0].cause) == (S.QUEUED, Cause.GPU_OOM)
    assert job.retry and job.retry.exclusive


def test_what_the_driver_lost_can_be_released_before_it_is_in_line_again() -> None:
    here = server(1)
    id = runs(here)
    suspend(here, id)
    here.driver_fails, here.lost = "its CUDA state has failed", True
    resume(here, id)
    here.tell(HoldRequested(here.now, id, True, "ada"))
    assert here.job(id).held
    here.tell(HoldRequested(here.now, id, False, "ada"))
    assert not here.job(id).held


def test_a_drain_moves_nobody_unless_it_is_told_to() -> None:
    here = server(2)
    id = runs(here)
    had = here.job(id).gpus
    here.tell(DrainRequested(here.now, had[0], "fan", "root"))
    here.pass_time(2)
    assert (here.job(id).state, here.job(id).gpus) == (S.RUNNING, had)
