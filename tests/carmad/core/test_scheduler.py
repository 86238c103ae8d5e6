"""What the core decides, event by event."""

from dataclasses import replace
from math import inf

import pytest

from carma_testing import FakeServer, a_gpu, a_gpu_view, a_job, a_spec, a_view
from carma_testing.builders import changed
from carma_testing.fake_server import FakeProcess
from carmad.api import why
from carmad.api.job import attempts_out
from carmad.config import Collocation, Limits, Monitor, Recovery, Settings
from carmad.core import messages
from carmad.core.gpus.gpu import ProcessUse
from carmad.core.gpus.gpuview import NodeView
from carmad.core.jobs.attempt import Attempt, Cause, Exit, GpuId, JobId, Mode
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import IllegalTransition, Retry, advance
from carmad.core.jobs.spec import After, AfterKind, ArrayTask, WarnSignal
from carmad.core.jobs.states import Active, JobState
from carmad.core.messages import (
    CancelRequested,
    Closing,
    Discovered,
    DrainRequested,
    Estimated,
    EstimateMemory,
    Event,
    Exited,
    HoldRequested,
    JobEvent,
    Noticed,
    Postponed,
    RequeueRequested,
    Reserved,
    Sampled,
    Signal,
    Submitted,
    Tick,
    UpdateRequested,
    Wake,
)
from carmad.core.placing.decision import AskAgain, Placement, Preemption, Reason, Remember, Verdict
from carmad.core.rules.limits import Reservation
from carmad.core.scheduler import HANDLERS, Scheduler
from carmad.guards import GuardedPolicy, GuardedRecovery
from policies import builtin
from recovery import ladder

OOM = Exit(Cause.GPU_OOM, 1, evidence="torch.OutOfMemoryError: CUDA out of memory.")
S = JobState


def settled(server, id, mib=1000):
    """Let the job run its first kernel, and a full monitoring window pass."""
    server.run_kernel(id, mib)
    server.pass_time(32)


def test_the_bookkeeping_table_of_the_paper_steps_0_to_3():
    """CARMA paper, Table 2."""
    server = FakeServer(gpus=2)
    view = server.scheduler.view(0.0)
    assert [g.settling for g in view.gpus] == [None, None]  # step 0: both take jobs

    first = server.submit()  # step 1: dispatched onto GPU 0
    assert server.job(first).state is S.STARTING
    server.pass_time(60)  # data loading: however long it takes, GPU 0 stays closed
    view = server.scheduler.view(server.now)
    assert [g.settling.code if g.settling else None for g in view.gpus] == ["first_kernel", None]
    second = server.submit()
    assert server.job(second).gpus == (server.gpus[1].id,)  # GPU 1 is open meanwhile
    third = server.submit(argv=("python", "another.py"))  # of unknown memory
    assert server.why(third) == ({0: ["first_kernel"], 1: ["first_kernel"]}, [])

    server.run_kernel(first)  # step 2: the first kernel is seen
    server.sample(1)
    assert server.job(first).state is S.RUNNING
    seen_at = server.now
    assert server.job(first).kernels == ((server.gpus[0].id, seen_at),)
    server.pass_time(29)
    assert server.job(third).state is S.QUEUED
    assert server.why(third)[0][0] == ["settling"]
    server.pass_time(1)  # step 3: one window later it is open again
    assert server.job(third).gpus == (server.gpus[0].id,)


def test_a_job_that_never_touches_its_gpu_does_not_close_it_for_ever():
    settings = Settings(monitor=Monitor(first_kernel_timeout_s=100))
    server = FakeServer(gpus=1, settings=settings)
    idle = server.submit()
    second = server.submit()
    server.pass_time(99)
    assert server.job(second).state is S.QUEUED
    server.pass_time(2)
    assert server.job(second).state is S.STARTING
    assert server.job(idle).notes[-1] == "showed no kernel on GPU 0 in its first 100 s"


def test_a_presence_without_a_kernel_is_no_first_kernel():
    server = FakeServer(gpus=1)
    id = server.submit()
    server.alive[id, 1].memory_mib = 500  # a context, no kernel
    server.pass_time(3)
    assert server.job(id).state is S.STARTING


def test_the_recovery_queue_goes_first_and_alone():
    server = FakeServer(gpus=1)
    first = server.submit()
    settled(server, first)
    second = server.submit()
    assert server.job(second).mode is Mode.STREAMS
    third = server.submit()
    server.exit(second, OOM)
    crashed = server.job(second)
    assert (crashed.state, crashed.exclusive) == (S.QUEUED, True)
    assert server.scene.line[0].id == second  # before the third, who came first
    assert server.why(second) == ({0: ["busy"]}, ["kept"])
    server.exit(first)
    again = server.job(second)
    assert (again.state, again.attempt, again.mode) == (S.STARTING, 2, Mode.EXCLUSIVE)
    settled(server, second)
    assert server.why(third)[0] == {0: ["exclusive"]}


def test_out_of_memory_ends_after_the_retries_with_the_evidence():
    settings = Settings(recovery=Recovery(retries=2))
    server = FakeServer(gpus=1, settings=settings, recovery=StubbornRecovery())
    id = server.submit()
    for _ in range(2):
        server.exit(id, OOM)
        server.sample(1)
    server.exit(id, OOM)
    ended = server.last(id)
    assert (ended.state, ended.attempt, len(ended.failures)) == (S.OUT_OF_MEMORY, 3, 2)
    assert "out of memory" in ended.exit.evidence


class StubbornRecovery:
    name = "stubborn"

    def decide(self, job, exit):
        return Retry("again", exclusive=True)


def test_a_job_that_was_alone_is_not_tried_again():
    server = FakeServer(gpus=1)
    id = server.submit()
    server.exit(id, OOM)
    assert server.last(id).state is S.OUT_OF_MEMORY
    assert server.last(id).attempt == 1


def test_external_processes_count_as_company():
    server = FakeServer(gpus=1)
    server.used_mib[server.gpus[0].id] = 30_000
    server.sample(1)
    id = server.submit()
    server.exit(id, OOM)
    assert server.job(id).state is S.QUEUED
    assert server.why(id) == ({0: ["external"]}, [])


def test_an_incumbent_that_gets_company_is_shared_too():
    server = FakeServer(gpus=1)
    first = server.submit()
    settled(server, first)
    server.submit()
    server.exit(first, OOM)  # the newcomer filled the GPU
    assert server.job(first).retry.exclusive


def test_a_job_without_gpus_shares_none():
    server = FakeServer(gpus=1)
    server.submit()
    assert not server.job(server.submit(gpus=0, cpus=1)).shared


def test_the_adaptive_ladder_tries_another_gpu_first():
    settings = Settings(recovery=Recovery("adaptive", margin_mib=4096))
    server = FakeServer(gpus=2, settings=settings, recovery=ladder.adaptive(settings))
    ids = [server.submit(), server.submit()]
    for id in ids:
        server.run_kernel(id, 5_000)
    server.pass_time(32)
    third = server.submit()
    crashed_on = server.job(third).gpus
    server.exit(third, OOM)
    retried = server.job(third)
    assert retried.state is S.STARTING
    assert retried.gpus != crashed_on
    assert (retried.mode, retried.retry.margin_mib) == (Mode.STREAMS, 4096)
    server.exit(third, OOM)
    assert server.job(third).exclusive


@pytest.mark.parametrize("elsewhere", ["missing", "drained", "at fault"])
def test_the_adaptive_ladder_needs_an_elsewhere(elsewhere):
    """Otherwise the job would wait for ever, and all others behind it."""
    settings = Settings(recovery=Recovery("adaptive"))
    server = FakeServer(
        1 if elsewhere == "missing" else 2, settings, None, ladder.adaptive(settings)
    )
    first = server.submit()
    other = server.gpus[-1].id
    if elsewhere == "drained":
        server.tell(DrainRequested(server.now, other, "a new fan", "root"))
    elif elsewhere == "at fault":
        server.fault[other] = "lost"
    settled(server, first, mib=5_000)
    second = server.submit()
    assert server.job(second).gpus == (server.gpus[0].id,)
    server.exit(second, OOM)
    assert server.job(second).exclusive
    server.exit(first)
    assert server.job(second).state is S.STARTING


def test_a_margin_is_for_neighbours():
    """On a GPU of 4 GiB there are no 2 + 4 GiB free: an empty one must do."""
    settings = Settings(recovery=Recovery("adaptive"))
    server = FakeServer(2, settings, None, ladder.adaptive(settings), memory_mib=4096)
    first = server.submit()
    settled(server, first, mib=1000)
    server.tell(DrainRequested(server.now, server.gpus[1].id, "a new fan", "root"))
    second = server.submit()
    server.tell(DrainRequested(server.now, server.gpus[1].id, None, "root"))
    server.exit(second, OOM)
    assert (server.job(second).retry.margin_mib, server.job(second).state) == (4096, S.STARTING)


def test_a_margin_may_be_used_by_the_job_that_it_was_made_for():
    retry = Retry("out of memory", margin_mib=500)
    declared = Estimate(4000, "declared", firm=True)
    assert a_job(estimate=declared, mode=Mode.MPS).limit_mib == 4000
    assert a_job(estimate=declared, mode=Mode.MPS, retry=retry).limit_mib == 4500


def test_the_evidence_says_who_filled_the_gpu():
    server = FakeServer(gpus=1)
    first = server.submit()
    settled(server, first, mib=30_000)
    second = server.submit()
    server.run_kernel(second, 5_000)
    server.sample(1)
    server.exit(second, OOM)
    assert server.job(second).failures[0].neighbours == ("job 1 held 30000 MiB",)


def test_plain_failures_and_host_oom_are_not_retried():
    for cause in (Cause.FAILURE, Cause.HOST_OOM, Cause.LAUNCH_FAILED):
        server = FakeServer(gpus=1)
        id = server.submit()
        server.exit(id, Exit(cause, 1))
        assert (server.last(id).state, server.last(id).exit.cause) == (S.FAILED, cause)


def test_a_lost_job_runs_again_once_unless_told_not_to():
    server = FakeServer(gpus=1)
    id = server.submit()
    server.exit(id, Exit(Cause.LOST))
    assert (server.job(id).state, server.job(id).attempt) == (S.STARTING, 2)
    server.exit(id, Exit(Cause.LOST))
    assert server.last(id).state is S.FAILED
    other = server.submit(requeue=False)
    server.exit(other, Exit(Cause.LOST))
    assert server.last(other).state is S.FAILED


def test_a_job_that_could_not_be_started_in_time_is_tried_again_even_with_no_requeue():
    server = FakeServer(gpus=1)
    id = server.submit(requeue=False)
    for attempt in range(2, 14):
        server.exit(id, Exit(Cause.UNSTARTED))
        assert (server.job(id).state, server.job(id).attempt) == (S.STARTING, attempt)
    server.exit(id, Exit(Cause.UNSTARTED))
    assert server.last(id).state is S.FAILED
    both = server.submit()  # that it never ran does not count as having been lost
    for cause in (Cause.UNSTARTED, Cause.LOST, Cause.UNSTARTED):
        server.exit(both, Exit(cause))
        assert server.job(both).state is S.STARTING


def test_cancel_frees_the_gpu_only_when_the_processes_are_gone():
    server = FakeServer(gpus=1)
    first, second = server.submit(), server.submit(exclusive=True)
    server.tell(CancelRequested(server.now, first, "ada"))
    assert server.job(first).state is S.STOPPING
    server.pass_time(50)
    assert server.job(second).state is S.QUEUED
    server.exit(first, Exit(Cause.FAILURE, None, 15))
    assert (server.last(first).state, server.last(first).exit.cause) == (
        S.CANCELLED,
        Cause.CANCELLED,
    )
    assert server.job(second).state is S.STARTING


class Scripted:
    """Plans whatever `plan` says."""

    name = "scripted"

    def __init__(self, plan, order=lambda job: 0.0):
        self.plan = plan
        self.order = order


def youngest_first(view):
    """The head takes the GPUs of the first running job."""
    job = view.queue[0]
    if not view.gpus[0].residents:
        return (Placement(job.id, (view.gpus[0].id,)),)
    return (Preemption(view.running[0].id, Reason("behind")),)


PREEMPTING = Settings(limits=Limits(preemption=True))


def test_a_preempted_job_goes_back_in_line_and_keeps_what_it_ran_for():
    server = FakeServer(
        gpus=1, settings=PREEMPTING, policy=Scripted(youngest_first, lambda j: -j.id)
    )
    first = server.submit()
    server.pass_time(40)
    second = server.submit()
    assert (server.job(first).state, server.job(first).stop) == (S.STOPPING, Cause.PREEMPTED)
    assert server.job(second).state is S.QUEUED  # the GPU is not free before the processes are gone
    server.pass_time(5)
    server.exit(first, Exit(Cause.FAILURE, None, 15))
    assert server.job(second).state is S.STARTING
    job = server.job(first)
    assert (job.state, job.served_s, job.failures, job.stop) == (S.QUEUED, 45.0, (), None)
    server.exit(second)
    server.pass_time(10)
    assert server.job(first).attained_s(server.now) == 55.0
    assert server.job(first).attempt == 2


def test_a_job_that_ends_well_while_it_is_preempted_has_ended():
    server = FakeServer(gpus=1, settings=PREEMPTING, policy=Scripted(youngest_first))
    first, _ = server.submit(), server.submit()
    server.exit(first)
    assert server.last(first).state is S.SUCCEEDED


def test_a_preempted_job_can_still_be_cancelled():
    server = FakeServer(gpus=1, settings=PREEMPTING, policy=Scripted(youngest_first))
    first, _ = server.submit(), server.submit()
    server.tell(CancelRequested(server.now, first, "ada"))
    server.exit(first, Exit(Cause.FAILURE, None, 15))
    assert server.last(first).state is S.CANCELLED


def test_the_attempt_of_a_preempted_job_is_told_that_it_was_cancelled():
    """Its own record counts if that cannot be committed."""
    server = FakeServer(gpus=1, settings=PREEMPTING, policy=Scripted(youngest_first))
    first, _ = server.submit(), server.submit()
    step = server.tell(CancelRequested(server.now, first, "ada"))
    assert [action.job.stop for action in step.actions] == [Cause.CANCELLED]


@pytest.mark.parametrize(
    ("stop", "state"), [(Cause.CANCELLED, S.CANCELLED), (Cause.TIME_LIMIT, S.TIMED_OUT)]
)
@pytest.mark.parametrize("exit", [Exit(Cause.FAILURE, None, 15), OOM, Exit(Cause.LOST)])
@pytest.mark.parametrize("preempted", [False, True])
def test_a_stop_that_was_never_committed_is_known_from_the_attempt(stop, state, exit, preempted):
    server = FakeServer(gpus=1, settings=PREEMPTING, policy=Scripted(youngest_first))
    id = server.submit()
    if preempted:
        server.submit()
    assert server.job(id).stop is (Cause.PREEMPTED if preempted else None)
    server.tell(Exited(server.now, id, 1, exit, stop=stop))
    job = server.last(id)
    assert (job.state, job.exit.cause, job.stop) == (state, stop, stop)


def test_what_is_committed_of_a_stop_counts_before_what_the_attempt_says():
    server = FakeServer(gpus=1)
    id = server.submit(time_limit_s=10)
    server.pass_time(11)
    server.tell(Exited(server.now, id, 1, Exit(Cause.FAILURE, None, 15), stop=Cause.CANCELLED))
    assert server.last(id).state is S.TIMED_OUT


def test_the_time_limit_begins_with_an_attempt_that_was_postponed():
    server = FakeServer(gpus=1)
    id = server.submit(time_limit_s=10)
    server.tell(Postponed(server.now, id, 1))
    server.pass_time(1000)
    assert (server.job(id).state, server.job(id).notes) == (S.STARTING, ())
    server.tell(Postponed(server.now, id, 1, over=True))
    server.pass_time(9)
    assert server.job(id).stop is None
    server.pass_time(2)
    assert server.job(id).stop is Cause.TIME_LIMIT


def test_an_attempt_that_never_began_has_no_start_and_teaches_nothing():
    server = FakeServer(gpus=1)
    id = server.submit(time_limit_s=10)
    server.tell(Postponed(server.now, id, 1))
    server.pass_time(1000)
    server.tell(CancelRequested(server.now, id, "ada"))
    server.exit(id, Exit(Cause.LOST))
    job = server.last(id)
    assert (job.state, job.started_at, attempts_out(job)) == (S.CANCELLED, None, [])
    assert not [*server.scheduler.state.history.runs], "it does not take 0 s"


@pytest.mark.parametrize(
    ("settings", "requeue"), [(Settings(), True), (PREEMPTING, False)], ids=["off", "the job's no"]
)
def test_nobody_is_preempted_where_that_is_not_allowed(settings, requeue):
    server = FakeServer(gpus=1, settings=settings, policy=Scripted(youngest_first))
    first, _ = server.submit(requeue=requeue), server.submit()
    assert server.job(first).state is S.STARTING
    assert server.why(first)[1] == ["not_preemptible"]


def one_that_was_preempted():
    """Its time limit is 100 s; it ran for 60 s and runs again."""
    server = FakeServer(
        gpus=1, settings=PREEMPTING, policy=Scripted(youngest_first, lambda j: -j.id)
    )
    first = server.submit(time_limit_s=100)
    server.pass_time(60)
    second = server.submit()
    server.exit(first, Exit(Cause.FAILURE, None, 15))
    server.exit(second)
    return server, first


def test_the_time_limit_counts_what_a_preempted_job_ran_for():
    server, first = one_that_was_preempted()
    server.pass_time(39)
    assert server.job(first).stop is None
    server.pass_time(2)
    assert server.job(first).stop is Cause.TIME_LIMIT


def test_a_preempted_job_whose_time_is_up_does_not_start_again():
    server = FakeServer(
        gpus=1, settings=PREEMPTING, policy=Scripted(youngest_first, lambda j: -j.id)
    )
    first = server.submit(time_limit_s=100)
    server.pass_time(90)
    server.submit()
    server.pass_time(20)  # it took its time to stop
    server.exit(first, Exit(Cause.FAILURE, None, 15))
    assert server.last(first).state is S.TIMED_OUT
    assert server.last(first).exit.cause is Cause.TIME_LIMIT


def test_a_job_that_is_asked_for_again_has_a_clean_slate():
    server, first = one_that_was_preempted()
    server.tell(CancelRequested(server.now, first, "ada"))
    server.exit(first, Exit(Cause.FAILURE, None, 15))
    server.tell(RequeueRequested(server.now, server.last(first), "ada"))
    job = server.job(first)
    assert (job.state, job.stop, job.served_s, job.overtaken) == (S.STARTING, None, 0.0, 0)
    server.exit(first, Exit(Cause.FAILURE, 1))
    assert server.last(first).state is S.FAILED  # and not taken for a preemption


def test_a_preempted_job_can_be_held():
    server = FakeServer(gpus=1, settings=PREEMPTING, policy=Scripted(youngest_first))
    first, second = server.submit(), server.submit()
    server.tell(HoldRequested(server.now, first, True, "ada"))
    server.exit(first, Exit(Cause.FAILURE, None, 15))
    server.exit(second)
    assert (server.job(first).state, server.job(first).held) == (S.QUEUED, True)


@pytest.mark.parametrize("times", [1, 2])
def test_a_policy_that_says_a_thing_twice_does_no_harm(times):
    """The same GPU twice for one job, or one placement twice."""

    def plan(view):
        gpus = (view.gpus[0].id,) * (3 - times)
        return (Placement(view.queue[0].id, gpus),) * times

    server = FakeServer(gpus=1, policy=Scripted(plan))
    id = server.submit()
    if times == 1:
        assert server.why(id)[1] == ["policy_failed"]
    else:
        server.exit(id)
        assert server.last(id).state is S.SUCCEEDED


def test_round_robin_keeps_its_place_when_the_core_is_put_back():
    server = FakeServer(gpus=3, policy=builtin.rr(Settings()))
    server.exit(server.submit())
    server.scheduler.restore(())
    id = server.submit()
    assert server.job(id).gpus == (server.gpus[1].id,)


def test_a_reading_that_is_older_than_the_last_is_ignored():
    server = FakeServer(gpus=1)
    server.sm_active[server.gpus[0].id] = 0.6
    server.pass_time(10)
    before = server.scheduler.view(server.now).gpus[0].score
    old = replace(server.reading(server.gpus[0], server.now - 5), sm_active=0.0)
    server.tell(Sampled(server.now, (old,)))
    assert server.scheduler.view(server.now).gpus[0].score == before


def test_a_policy_s_order_is_the_line_but_recovery_and_niceness_come_first():
    none = Scripted(lambda view: (), order=lambda job: job.spec.expected_s)
    server = FakeServer(policy=none)
    long, short, nice = (
        server.submit(expected_s=expected_s, nice=nice)
        for expected_s, nice in ((900, 0), (60, 0), (1, 5))
    )
    assert [job.id for job in server.scene.line] == [short, long, nice]


def test_what_a_policy_wants_remembered_is_in_its_next_view():
    seen = []

    def plan(view):
        seen.append(view.memory)
        return (Remember(len(seen)),)

    server = FakeServer(policy=Scripted(plan))
    server.submit()
    server.submit()
    assert seen == [None, *range(1, len(seen))]
    assert len(seen) > 1
    assert server.scheduler.view(server.now).memory == len(seen)


def test_a_policy_can_ask_to_be_asked_again():
    server = FakeServer(policy=Scripted(lambda view: (AskAgain(view.now + 5),)))
    server.now = 3.0
    server.submit()
    assert server.steps[-1].actions == (Wake(8.0),)


def test_of_what_policies_ask_the_first_of_the_last_plan_counts():
    plans = [(AskAgain(20.0), AskAgain(10.0)), (), (), (AskAgain(30.0),)]
    server = FakeServer(policy=Scripted(lambda view: plans.pop(0)))
    server.submit()
    for _ in range(3):
        server.sample(1.0)
    asked = [[a for a in step.actions if isinstance(a, Wake)] for step in server.steps[-4:]]
    assert asked == [[Wake(10.0)], [Wake(inf)], [], [Wake(30.0)]]
    assert plans == []


def test_the_time_limit_warns_then_stops():
    server = FakeServer(gpus=1)
    id = server.submit(time_limit_s=100, warn=WarnSignal(12, 30))
    server.pass_time(69)
    assert server.signals == []
    server.pass_time(5)
    assert server.signals == [(id, 12)]  # once
    server.pass_time(26)
    assert server.job(id).state is S.STOPPING
    server.exit(id, Exit(Cause.FAILURE, None, 15))
    assert server.last(id).state is S.TIMED_OUT


@pytest.mark.parametrize(("limit_s", "starts_s"), [(100, 30), (20, 10)])
def test_no_warning_comes_before_the_job_can_have_caught_it(limit_s, starts_s):
    """As with submitit, which asks for it 120 s before any time limit."""
    server = FakeServer(gpus=1)
    id = server.submit(time_limit_s=limit_s, warn=WarnSignal(12, 120))
    server.pass_time(starts_s - 1)
    assert server.signals == []
    server.pass_time(2)
    assert server.signals == [(id, 12)]


def test_a_repeated_report_of_an_old_attempt_changes_nothing():
    server = FakeServer(gpus=1)
    id = server.submit()
    server.exit(id, Exit(Cause.LOST))
    server.tell(Exited(server.now, id, 1, Exit(Cause.SUCCESS, 0)))
    assert server.job(id).attempt == 2


def test_an_end_that_is_learned_of_late_keeps_its_own_time():
    server = FakeServer(gpus=1)
    id = server.submit()
    server.pass_time(60)
    job = server.job(id)
    server.tell(Exited(server.now, id, job.attempt, Exit(Cause.SUCCESS, 0), ended_at=8.0))
    assert server.last(id).ended_at == 8.0


def test_hold_release_and_requeue():
    server = FakeServer(gpus=1)
    running = server.submit(exclusive=True)
    id = server.submit()
    server.tell(HoldRequested(server.now, id, True, "ada"))
    server.exit(running)
    assert server.job(id).state is S.QUEUED
    assert server.scene.gate.blocker(server.job(id)).code == "held"
    server.tell(HoldRequested(server.now, id, False, "ada"))
    assert server.job(id).state is S.STARTING
    server.exit(id, Exit(Cause.FAILURE, 1))
    server.tell(RequeueRequested(server.now, server.last(id), "ada"))
    assert (server.job(id).state, server.job(id).attempt) == (S.STARTING, 2)


@pytest.mark.parametrize("exit", [Exit(Cause.FAILURE, signal=15), Exit(Cause.SUCCESS, 0)])
def test_a_job_that_runs_is_requeued_with_its_whole_limit(exit):
    server = FakeServer(gpus=1)
    id = server.submit(time_limit_s=100.0)
    server.pass_time(60)
    server.tell(RequeueRequested(server.now, server.job(id), "ada"))
    assert (server.job(id).state, server.job(id).stop) == (S.STOPPING, Cause.REQUEUED)
    server.tell(RequeueRequested(server.now, server.job(id), "ada"))  # once more: it is underway
    server.exit(id, exit)
    job = server.job(id)
    assert (job.state, job.attempt, job.attained_s(server.now)) == (S.STARTING, 2, 0.0)
    assert job.failures == () and job.attempts[0].exit.cause is Cause.REQUEUED
    server.tell(RequeueRequested(server.now, job, "ada"))
    server.tell(CancelRequested(server.now, id, "ada"))  # also ends one that is to run again
    server.exit(id, Exit(Cause.FAILURE, signal=15))
    assert server.last(id).state is S.CANCELLED


def test_who_is_not_there_any_more_has_no_job_started_until_it_is_released():
    server = FakeServer(gpus=1)
    id, other = server.submit(exclusive=True), server.submit(exclusive=True)
    server.exit(id, Exit(Cause.NO_ACCOUNT, evidence="there is no ada"))
    job = server.job(id)
    assert (job.state, job.held, job.barred) == (S.QUEUED, True, "there is no ada")
    assert server.scene.gate.blocker(job).code == "no_account"
    assert server.job(other).state is S.STARTING
    server.exit(other)
    assert server.job(id).state is S.QUEUED
    server.tell(HoldRequested(server.now, id, False, "root"))
    assert (server.job(id).state, server.job(id).barred) == (S.STARTING, "")


def test_a_job_cancelled_before_its_estimate_is_estimated_when_it_is_requeued():
    server = FakeServer(gpus=1)
    id = JobId(1)
    spec = a_spec(memory_mib=900)
    server.scheduler.handle(Submitted(0.0, id, (spec,)))  # nobody answers
    server.tell(CancelRequested(server.now, id, "ada"))
    server.tell(RequeueRequested(server.now, server.last(id), "ada"))
    assert server.job(id).estimate.mib == 900
    assert server.job(id).state is S.STARTING


def test_begin_time():
    server = FakeServer(gpus=1)
    id = server.submit(begin_at=50.0)
    server.pass_time(49)
    assert server.job(id).state is S.QUEUED
    server.pass_time(2)
    assert server.job(id).state is S.STARTING


@pytest.mark.parametrize(
    ("kind", "cause", "starts"),
    [
        (AfterKind.OK, Cause.SUCCESS, True),
        (AfterKind.OK, Cause.FAILURE, False),
        (AfterKind.NOT_OK, Cause.FAILURE, True),
        (AfterKind.NOT_OK, Cause.SUCCESS, False),
        (AfterKind.ANY, Cause.FAILURE, True),
    ],
)
def test_dependencies(kind, cause, starts):
    server = FakeServer(gpus=2)
    first = server.submit()
    second = server.submit(after=(After(first, kind),))
    third = server.submit(after=(After(second),))
    assert server.scheduler.snapshot(0.0).gate.blocker(server.job(second)).code == "dependency"
    server.exit(first, Exit(cause, 0 if cause is Cause.SUCCESS else 1))
    if starts:
        assert server.job(second).state is S.STARTING
    else:
        assert server.last(second).exit.cause is Cause.DEPENDENCY
        assert server.last(third).state is S.CANCELLED  # and so on down the line


def test_a_failure_cancels_a_chain_of_any_length():
    server = FakeServer(gpus=1)
    first = server.submit(exclusive=True)
    both = tuple(
        a_spec(after=(After(JobId(n)), After(JobId(n), AfterKind.ANY))) for n in range(1, 2000)
    )
    server.scheduler.handle(Submitted(0.0, JobId(2), both))
    server.exit(first, Exit(Cause.FAILURE, 1))
    assert server.last(JobId(2000)).exit.cause is Cause.DEPENDENCY
    assert not server.scheduler.jobs


def test_a_failure_cancels_all_that_wait_for_it_however_many():
    """More than the ends that the core remembers."""
    server = FakeServer(gpus=1)
    first = server.submit(exclusive=True)
    server.scheduler.handle(Submitted(0.0, JobId(2), (a_spec(after=(After(first),)),) * 5000))
    server.exit(first, Exit(Cause.FAILURE, 1))
    assert not server.scheduler.jobs


def test_a_job_that_waits_for_many_names_a_few():
    server = FakeServer(gpus=1)
    server.tell(Submitted(0.0, JobId(1), (a_spec(),) * 100, held=True))
    server.next_id = 101
    last = server.submit(after=tuple(After(JobId(n)) for n in range(1, 101)))
    assert (
        server.scheduler.snapshot(0.0)
        .gate.blocker(server.job(last))
        .detail.endswith("job 7, job 8, …")
    )


def test_a_dependency_that_failed_just_before_the_submission():
    server = FakeServer(gpus=2)
    first = server.submit()
    server.exit(first, Exit(Cause.FAILURE, 1))
    second = server.submit(after=(After(first),))
    assert server.last(second).state is S.CANCELLED


def test_an_array_keeps_to_its_limit():
    server = FakeServer(gpus=4)
    specs = tuple(a_spec(array=ArrayTask(JobId(1), n, 2)) for n in range(4))
    server.next_id = 5
    server.tell(Submitted(0.0, JobId(1), specs))
    states = [server.job(JobId(n)).state for n in (1, 2, 3, 4)]
    assert states == [S.STARTING, S.STARTING, S.QUEUED, S.QUEUED]
    server.exit(JobId(1))
    assert server.job(JobId(3)).state is S.STARTING


def test_a_quota_holds_its_user_back_and_nobody_else():
    server = FakeServer(gpus=4, settings=Settings(limits=Limits(gpus_per_user=2)))
    mine = [server.submit(gpus=1) for _ in range(3)]
    hers = server.submit(user="bob", uid=1001)
    assert [server.job(i).state for i in mine] == [S.STARTING, S.STARTING, S.QUEUED]
    assert server.scheduler.snapshot(0.0).gate.blocker(server.job(mine[2])).code == "quota"
    assert server.job(hers).state is S.STARTING


def test_who_the_policy_is_not_shown_is_not_placed():
    """One job waits for a quota, and one is not waiting at all."""
    plans = []

    def plan(view):
        plans.append(view)
        idle = [gpu.id for gpu in view.gpus if not gpu.residents]
        proposed = zip((1, 2, 3), idle, strict=False)
        return tuple(Placement(JobId(id), (gpu,)) for id, gpu in proposed if len(plans) < 20)

    settings = Settings(limits=Limits(gpus_per_user=1))
    server = FakeServer(gpus=4, settings=settings, policy=Scripted(plan))
    mine = [server.submit() for _ in range(2)]
    hers = server.submit(user="bob", uid=1001)
    assert [server.job(id).state for id in (*mine, hers)] == [S.STARTING, S.QUEUED, S.STARTING]
    assert server.job(hers).gpus == (server.gpus[3].id,)
    assert len(plans) < 20


def test_a_drained_gpu_takes_nothing_and_keeps_what_it_has():
    server = FakeServer(gpus=1)
    first = server.submit()
    server.tell(DrainRequested(server.now, server.gpus[0].id, "new fan", "root"))
    settled(server, first)
    second = server.submit()
    assert server.why(second) == ({0: ["drained"]}, [])
    assert server.job(first).state is S.RUNNING
    server.tell(DrainRequested(server.now, server.gpus[0].id, None, "root"))
    assert server.job(second).state is S.STARTING


def test_a_step_in_which_only_a_drain_or_a_reservation_changed_is_stored():
    server = FakeServer(gpus=1)
    assert not server.tell(Tick(server.now)).to_write
    drained = server.tell(DrainRequested(server.now, server.gpus[0].id, "riser card", "root"))
    assert drained.to_write and drained.reservations is None
    wish = Reservation(1, (server.gpus[0].id,), ("ada",), (1000.0,), 60.0, "root")
    reserved = server.tell(Reserved(server.now, wish))
    assert reserved.to_write and reserved.drains is None


def test_a_faulty_or_silent_gpu_takes_nothing():
    server = FakeServer(gpus=2)
    server.fault[server.gpus[0].id] = "fallen off the bus"
    server.sample(1)
    first, second = server.submit(), server.submit()
    assert server.job(first).gpus == (server.gpus[1].id,)
    assert server.why(second)[0] == {0: ["fault"], 1: ["first_kernel"]}
    server.now += 60  # no samples at all
    third = server.submit()
    server.tell(Tick(server.now))
    assert server.why(second)[0][0] == ["fault", "stale"]
    assert server.job(third).state is S.QUEUED


def test_a_job_that_fails_on_a_gpu_that_failed_says_so_first():
    server = FakeServer(gpus=2)
    first, second = server.submit(gpus=2), server.submit(gpus=0)
    settled(server, first)
    server.fault[server.gpus[1].id] = "fallen off the bus"
    server.sample(1)
    error = Exit(Cause.FAILURE, 1, evidence="RuntimeError: CUDA error")
    server.exit(first, error)
    server.exit(second, error)
    evidence = "GPU 1 failed: fallen off the bus; RuntimeError: CUDA error"
    assert (server.last(first).state, server.last(first).exit.evidence) == (S.FAILED, evidence)
    assert server.last(second).exit.evidence == "RuntimeError: CUDA error"


def test_a_gpu_that_vanishes_is_not_planned_with():
    server = FakeServer(gpus=2)
    gone = server.submit()
    on = server.job(gone).gpus[0]
    left = tuple(gpu for gpu in server.gpus if gpu.id != on)
    server.tell(Discovered(server.now, left))
    second = server.submit()
    assert server.job(second).gpus == (left[0].id,)
    server.exit(gone, Exit(Cause.FAILURE, 1))
    assert server.last(gone).state is S.FAILED


def test_a_declared_need_is_kept_free_for_life_and_a_guess_until_it_is_measured():
    server = FakeServer(gpus=1)
    first = server.submit(memory_mib=30_000)
    settled(server, first, mib=2_000)
    second = server.submit(memory_mib=12_000)
    assert server.why(second) == ({0: ["memory"]}, [])
    placement = server.scene.decisions[second].placement
    reason = placement.verdicts[0].refused[0]
    assert (reason.need, reason.have, reason.unit) == (12_000, 10_960, "MiB")


def test_external_processes_are_counted_beside_what_is_promised():
    server = FakeServer(gpus=1)
    server.used_mib[server.gpus[0].id] = 20_000
    first = server.submit(memory_mib=15_000)
    settled(server, first, mib=1_000)
    assert server.scheduler.view(server.now).gpus[0].free_mib == 40_960 - 20_000 - 15_000


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (builtin.magm, "memory"),
        (builtin.exclusive, "external"),
        (builtin.lug, "memory"),
    ],
)
def test_a_guess_must_fit_beside_what_others_hold(make, reason):
    server = FakeServer(gpus=1, policy=make(Settings()))
    (gpu,) = server.used_mib
    server.used_mib[gpu] = 30_000
    server.sample(1)
    id = JobId(1)
    guess = Estimated(server.now, id, Estimate(20_000, "trace"))
    server.tell(Submitted(server.now, id, (a_spec(),)), guess)
    assert server.why(id) == ({0: [reason]}, [])
    server.used_mib[gpu] = 0
    server.sample(1)
    assert server.job(id).state is S.STARTING


def test_a_guess_larger_than_the_card_does_not_keep_a_job_off_an_idle_one():
    server = FakeServer(gpus=1)
    (gpu,) = server.used_mib
    server.used_mib[gpu] = 400  # a desktop's
    server.sample(1)
    guess = Estimated(server.now, JobId(1), Estimate(60_000, "trace"))
    server.tell(Submitted(server.now, JobId(1), (a_spec(),)), guess)
    assert server.job(JobId(1)).state is S.STARTING


def test_a_risky_gpu_is_left_alone():
    server = FakeServer(gpus=1)
    first = server.submit()
    gpu = server.gpus[0].id
    server.sm_active[gpu], server.dram_active[gpu] = 0.9, 0.5
    settled(server, first)
    second = server.submit()
    assert server.why(second) == ({0: ["risk"]}, [])
    server.dram_active[gpu] = 0.1  # SMACT alone is no risk
    server.pass_time(31)
    assert server.job(second).state is S.STARTING


def test_the_line_is_held_by_its_head_and_backfill_is_bounded():
    for backfill, started in ((0, 0), (2, 2)):
        settings = Settings(limits=Limits(backfill=backfill))
        server = FakeServer(gpus=4, settings=settings, policy=builtin.exclusive(settings))
        running = server.submit()
        head = server.submit(gpus=4)
        behind = [server.submit() for _ in range(3)]
        states = [server.job(id).state for id in behind]
        assert states.count(S.STARTING) == started
        assert server.job(head).overtaken == started
        server.exit(running)


def test_round_robin_goes_round():
    settings = Settings()
    server = FakeServer(gpus=3, policy=builtin.rr(settings))
    ids = [server.submit() for _ in range(3)]
    assert [server.job(i).gpus[0] for i in ids] == [g.id for g in server.gpus]
    for id in ids:
        server.run_kernel(id)
    server.pass_time(32)
    ids = [server.submit() for _ in range(2)]
    assert [server.job(i).gpus[0] for i in ids] == [g.id for g in server.gpus[:2]]


@pytest.mark.parametrize("name", ["rr", "magm", "lug", "first_fit", "best_fit"])
def test_idle_gpus_are_filled_before_any_is_shared_and_why_says_so(name):
    """GPU 0 has more free memory, and GPU 2 had a job until just now."""
    server = FakeServer(policy=getattr(builtin, name)(Settings()), gpus=3)
    server.tell(DrainRequested(server.now, server.gpus[1].id, "x", "root"))
    first, second = server.submit(), server.submit()
    settled(server, first, 10)
    server.used_mib[server.gpus[2].id], server.sm_active[server.gpus[2].id] = 450, 0.9
    server.run_kernel(second)
    server.pass_time(31)
    server.exit(second)
    third, fourth = server.submit(), server.submit()
    assert server.job(third).gpus == (server.gpus[2].id,)
    told = [server.scene.decisions[id].placement.explanation for id in (first, third, fourth)]
    assert [[reason.code for reason in each] for each in told] == [[], ["idle_first"], []]


def test_a_wide_job_takes_idle_gpus_of_one_node_before_it_shares_on_another():
    """Node a's idle GPU has more free memory than any of node b's."""
    server = FakeServer(gpus=4, policy=builtin.magm(Settings()))
    server.gpus = tuple(replace(gpu, node="ab"[gpu.index // 2]) for gpu in server.gpus)
    server.tell(Discovered(server.now, server.gpus))
    server.sample()
    settled(server, server.submit(), 10)
    for gpu in server.gpus[2:]:
        server.used_mib[gpu.id] = 450
    server.sample(1)
    wide = server.submit(gpus=2)
    assert server.job(wide).gpus == tuple(gpu.id for gpu in server.gpus[2:])


def test_round_robin_goes_round_the_idle_gpus_first():
    server = FakeServer(gpus=4, policy=builtin.rr(Settings()))
    ids = [server.submit() for _ in range(4)]
    for id in ids:
        server.run_kernel(id)
    server.pass_time(32)
    for id in ids[1::2]:
        server.exit(id)
    index = {gpu.id: gpu.index for gpu in server.gpus}
    placed = [index[server.job(server.submit()).gpus[0]] for _ in range(4)]
    assert placed == [1, 3, 0, 2]


def test_round_robin_leaves_no_gpu_idle_that_a_wide_job_can_use():
    """GPU 0 is idle and was used last; 1 to 3 have jobs."""
    server = FakeServer(gpus=4, policy=builtin.rr(Settings()))
    first, *others = (server.submit() for _ in range(4))
    for id in (first, *others):
        server.run_kernel(id)
    server.pass_time(32)
    server.exit(first)
    last = server.submit()
    settled(server, last)
    server.exit(last)
    wide = server.submit(gpus=2)
    assert server.job(wide).gpus == tuple(gpu.id for gpu in server.gpus[:2])


def test_most_memory_least_used_best_and_first_fit_choose_as_named():
    expected = {"magm": 2, "lug": 1, "best_fit": 0, "first_fit": 0}
    for name, index in expected.items():
        settings = Settings()
        server = FakeServer(gpus=3, policy=getattr(builtin, name)(settings))
        ids = [server.submit() for _ in range(3)]
        for id, mib in zip(ids, (9_000, 6_000, 3_000), strict=True):
            on = server.job(id).gpus[0]
            where = [g.id for g in server.gpus].index(on)
            server.run_kernel(id, (9_000, 6_000, 3_000)[where])
            server.sm_active[on] = (0.5, 0.1, 0.3)[where]
            assert mib
        server.pass_time(32)
        id = server.submit()
        assert server.job(id).gpus == (server.gpus[index].id,), name


def test_two_gpu_jobs_take_two_gpus_and_start_when_both_show_a_kernel():
    server = FakeServer(gpus=2)
    id = server.submit(gpus=2)
    assert set(server.job(id).gpus) == {g.id for g in server.gpus}
    server.run_kernel(id)
    server.sample(1)
    assert {g for g, _ in server.job(id).kernels} == set(server.job(id).gpus)


def test_an_mps_server_per_gpu_keeps_users_apart():
    settings = Settings(collocation=Collocation(mps=True))
    server = FakeServer(gpus=2, settings=settings)
    first = server.submit()
    assert server.job(first).mode is Mode.MPS
    settled(server, first)
    hers = server.submit(user="bob", uid=1001)
    assert server.job(hers).gpus == (server.gpus[1].id,)
    third = server.submit(user="bob", uid=1001)
    settled(server, hers)
    assert server.job(third).gpus == (server.gpus[1].id,)
    server.tell(DrainRequested(server.now, server.gpus[1].id, "x", "root"))
    other = server.submit(user="bob", uid=1001)
    assert server.why(other)[0][0] == ["mps_user"]


def test_with_an_mps_server_per_gpu_jobs_of_several_gpus_run_outside_beside_any_user():
    server = FakeServer(gpus=2, settings=Settings(collocation=Collocation(mps=True)))
    narrow = server.submit()
    settled(server, narrow)
    wide = server.submit(gpus=2, user="bob", uid=1001, memory_mib=5_000)
    assert server.job(wide).mode is Mode.STREAMS and server.job(wide).limit_mib is None
    settled(server, wide)
    last = server.submit(user="bob", uid=1001)
    assert server.job(last).mode is Mode.MPS
    assert server.job(last).gpus == (server.gpus[1].id,), "the server of GPU 0 is ada's"


def test_a_multi_gpu_job_of_an_earlier_release_stays_alone():
    server = FakeServer(gpus=1, settings=Settings(collocation=Collocation(mps=True)))
    first = server.submit()
    settled(server, first)
    server.scheduler.state.ledger.put(server.job(first).with_attempt(mode=Mode.EXCLUSIVE))
    assert server.why(server.submit())[0] == {0: ["exclusive"]}


def two_nodes(policy="first_fit", **collocation):
    """GPUs 0 and 1 with one MPS server, and 2 and 3 with another."""
    shared = Collocation(mps=True, mps_scope="node", **collocation)
    server = FakeServer(gpus=4, settings=Settings(policy=policy, collocation=shared))
    server.gpus = tuple(replace(gpu, node="ab"[gpu.index // 2]) for gpu in server.gpus)
    server.tell(Discovered(server.now, server.gpus))
    server.sample()
    return server


def test_with_an_mps_server_per_node_jobs_of_several_gpus_are_clients_too():
    server = two_nodes()
    for gpu in server.gpus[2:]:
        server.tell(DrainRequested(server.now, gpu.id, "x", "root"))
    narrow = server.submit()
    settled(server, narrow)
    wide = server.submit(gpus=2, memory_mib=5_000)
    assert server.job(wide).mode is Mode.MPS and server.job(wide).limit_mib == 5_000
    assert [job.id for job in server.scene.view.gpus[0].residents] == [narrow, wide]


def test_an_mps_server_per_node_serves_one_user_on_all_its_gpus():
    server = two_nodes()
    first = server.submit()
    settled(server, first)
    theirs = server.submit(user="bob", uid=1001)
    assert server.job(theirs).gpus == (server.gpus[2].id,)
    settled(server, theirs)
    outside = server.submit(exclusive=True, user="eve", uid=1002)
    assert server.job(outside).gpus == (server.gpus[1].id,), "it needs no server"
    for gpu in server.gpus[2:]:
        server.tell(DrainRequested(server.now, gpu.id, "x", "root"))
    third = server.submit(user="bob", uid=1001)
    refused = {0: ["mps_user"], 1: ["exclusive"], 2: ["drained"], 3: ["drained"]}
    settled(server, outside)
    assert server.why(third)[0] == refused | {1: ["exclusive", "mps_user"]}
    server.exit(outside)
    assert server.why(third)[0] == refused | {1: ["mps_user"]}
    verdict = server.scene.decisions[third].placement.verdicts[1]
    assert verdict.refused == (Reason("mps_user", detail="ada"),)
    remedies = why._gpu_remedies(server.job(third), verdict, server.scene)
    assert remedies == ["may start when all jobs of ada under MPS have ended"]
    server.exit(first)
    assert server.job(third).state is S.STARTING


def test_a_job_on_a_mig_instance_needs_no_mps_server():
    server = two_nodes()
    whole, *others = server.gpus
    divided = GpuId("GPU-divided")
    slices = tuple(replace(gpu, node=whole.node, parent=divided) for gpu in others)
    server.gpus = (whole, *slices)
    server.tell(Discovered(server.now, server.gpus))
    server.sample()
    settled(server, server.submit())
    theirs = server.submit(user="bob", uid=1001)
    assert server.job(theirs).gpus == (slices[0].id,)
    assert server.job(theirs).mode is Mode.MIG


def test_whose_mps_jobs_have_to_end_is_the_one_that_the_gpu_was_refused_for():
    """After a change of scope, the old servers of two GPUs may be of two users."""
    server = FakeServer(gpus=2, settings=Settings(collocation=Collocation(mps=True)))
    for user, uid in (("ada", 1000), ("bob", 1001)):
        settled(server, server.submit(user=user, uid=uid))
    server.tell(DrainRequested(server.now, server.gpus[0].id, "x", "root"))
    hers = server.submit()
    scene = server.scene
    verdict = scene.decisions[hers].placement.verdicts[1]
    assert verdict.refused == (Reason("mps_user", detail="bob"),)
    views = tuple(replace(view, mps_user=(1000, "ada")) for view in scene.view.gpus)
    node = replace(scene.view.nodes[0], gpus=views)
    scene = replace(scene, view=replace(scene.view, nodes=(node,)))
    remedies = why._gpu_remedies(server.job(hers), verdict, scene)
    assert remedies == ["may start when all jobs of bob under MPS have ended"]


def test_within_a_plan_too_an_mps_server_per_node_serves_one_user():
    server = two_nodes()
    holder = server.submit(gpus=4, exclusive=True)
    mine, theirs, also_mine = (
        server.submit(user=user, uid=uid)
        for user, uid in (("ada", 1000), ("bob", 1001), ("ada", 1000))
    )
    server.exit(holder)
    placed = [server.job(id).gpus for id in (mine, theirs, also_mine)]
    assert placed == [(gpu.id,) for gpu in (server.gpus[0], server.gpus[2], server.gpus[1])]


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("scope", ["gpu", "node"])
def test_a_client_left_on_an_mps_server_keeps_other_users_off_it(scope, ended):
    """Its job may be known still, as one that has ended, or no longer."""
    settings = Settings(collocation=Collocation(mps=True, mps_scope=scope))
    server = FakeServer(gpus=2, settings=settings)
    server.tell(DrainRequested(server.now, server.gpus[0].id, "x", "root"))
    left = ProcessUse(77, 300, 0.0, JobId(9) if ended else None, "ada", mps_uid=1000)
    shown = server.reading
    server.reading = lambda gpu, at: (
        replace(shown(gpu, at), processes=(left,)) if gpu.index == 1 else shown(gpu, at)
    )
    server.sample(1)
    theirs = server.submit(user="bob", uid=1001)
    refused = {0: ["drained", "mps_user"] if scope == "node" else ["drained"], 1: ["mps_user"]}
    assert server.why(theirs)[0] == refused
    verdict = server.scene.decisions[theirs].placement.verdicts[1]
    assert verdict.refused == (Reason("mps_user", detail="pid 77 of ada"),)
    remedies = why._gpu_remedies(server.job(theirs), verdict, server.scene)
    assert remedies == ["may start when pid 77 of ada has ended"]
    server.reading = shown
    server.sample(1)
    assert server.job(theirs).state is S.STARTING


def test_within_a_plan_the_client_left_on_a_gpu_out_of_sight_still_counts():
    """As in a view without the GPUs that are reserved for profiling."""
    settings = Settings(collocation=Collocation(mps=True, mps_scope="node"))
    left = ProcessUse(77, 300, 0.0, user="ada", mps_uid=1000)
    shown = a_gpu_view(0)
    shown = replace(shown, sample=replace(shown.sample, processes=(left,)))
    view = a_view([shown, a_gpu_view(1), a_gpu_view(2)], [], settings)
    node = NodeView(view.nodes[0].name, view.nodes[0].gpus[1:])
    job = a_job(spec=a_spec(exclusive=True, uid=1001))
    alone = changed(job, gpus=(a_gpu(1).id,), started_at=0.0, mode=Mode.EXCLUSIVE)
    after = node.with_resident(a_gpu(1).id, alone, settings)
    assert after.gpus[1].mps_stray == (1000, "pid 77 of ada")


def test_users_share_a_multiuser_server_of_a_node():
    server = two_nodes(mps_multiuser=True)
    first = server.submit()
    settled(server, first)
    other = server.submit(gpus=4, user="bob", uid=1001)
    assert server.job(other).mode is Mode.MPS


def test_a_client_that_comes_or_goes_changes_the_views_of_its_node_alone():
    server = two_nodes(policy="magm")
    before = server.scene.view.gpus
    first = server.submit()
    assert server.scene.view.gpus[1].mps_user == (1000, "ada")
    assert server.scene.view.gpus[2] is before[2]
    settled(server, first)
    for gpu in server.gpus[2:]:
        server.tell(DrainRequested(server.now, gpu.id, "x", "root"))
    between = server.scene.view.gpus
    server.submit()
    now = server.scene.view.gpus
    assert now[1].residents and now[0] is between[0], "it is the same user's server"
    server.exit(first)
    assert server.scene.view.gpus[0].mps_user, "the client on GPU 1 is left"


def test_mig_instances_are_dispatched_exclusively():
    server = FakeServer(gpus=2)
    slices = tuple(
        replace(a_gpu(n), id=GpuId(f"MIG-{n}"), parent=GpuId("GPU-parent")) for n in range(2)
    )
    server.gpus = slices
    server.used_mib = server.sm_active = server.dram_active = dict.fromkeys(
        (g.id for g in slices), 0
    )
    server.tell(Discovered(server.now, slices))
    server.sample(1)
    first, second, third = (server.submit() for _ in range(3))
    assert server.job(first).mode is Mode.MIG
    assert {server.job(first).gpus, server.job(second).gpus} == {(g.id,) for g in slices}
    for id in (first, second):
        server.run_kernel(id)
    server.pass_time(40)
    assert server.why(third)[0] == {0: ["busy"], 1: ["busy"]}
    wide = server.submit(gpus=2)
    server.exit(first)
    server.exit(second)
    server.exit(third)
    assert server.job(wide).state is S.QUEUED


class Broken:
    name = "broken"

    def __init__(self, answer):
        self.answer = answer

    def order(self, job):
        return 0.0

    def plan(self, view):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def decide(self, job, exit):
        return self.plan(None)


ONE, HERE = JobId(1), (GpuId("GPU-00000000"),)
NONSENSE = [
    Placement("1"),
    Placement(ONE, 5),
    Placement(ONE, ([],)),
    Placement(ONE, HERE, None),
    Placement(ONE, HERE, ("fits",)),
    Placement(ONE, HERE, (Verdict(*HERE, rank="best"),)),
    Placement(ONE, (), (Verdict(*HERE, ("full",)),)),
    Placement(ONE, (), (), (Reason(None),)),
    Placement(ONE, (), (), (Reason("memory", "8G"),)),
]


@pytest.mark.parametrize(
    "answer", [ZeroDivisionError("x"), None, "nonsense", [42], *([one] for one in NONSENSE)]
)
def test_a_broken_policy_is_reported_not_fatal(answer):
    server = FakeServer(policy=GuardedPolicy(Broken(answer)))
    id = server.submit()
    assert server.job(id).state is S.QUEUED
    assert server.why(id)[1] == ["policy_failed"]


def test_a_policy_cannot_break_a_hard_rule():
    class Reckless:
        name = "reckless"

        def order(self, job):
            return 0.0

        def plan(self, view):
            return [Placement(job.id, (view.gpus[0].id,) * job.spec.gpus) for job in view.queue]

    server = FakeServer(policy=Reckless())
    first, second = server.submit(), server.submit()
    assert server.job(first).state is S.STARTING
    assert server.why(second)[1] == ["first_kernel"]
    wide = server.submit(gpus=2)
    assert server.why(wide)[1] == ["policy_failed"]


@pytest.mark.parametrize(
    "answer",
    [KeyError("x"), 42, "again", Retry(None), Retry("x", avoid=None), Retry("x", avoid=[])],
)
def test_a_broken_recovery_still_tries_again_alone(answer):
    server = FakeServer(gpus=1, recovery=GuardedRecovery(Broken(answer)))
    id = server.submit()
    server.exit(id, OOM)
    assert server.job(id).exclusive
    assert "the recovery failed" in server.job(id).retry.why


def test_what_is_told_of_a_job_that_waits_is_not_forgotten_when_it_starts():
    server = FakeServer(gpus=1)
    id = JobId(1)
    server.tell(
        Submitted(server.now, id, (a_spec(),)), Noticed(server.now, id, "has no estimate: why")
    )
    assert server.job(id).state is S.STARTING
    assert server.job(id).notes == ("has no estimate: why",)
    server.exit(id, Exit(Cause.LOST))
    assert server.job(id).notes == ()


def test_decisions_are_recorded_when_the_story_changes_not_the_numbers():
    server = FakeServer(gpus=1)
    server.submit()
    id = server.submit()
    server.steps.clear()
    server.pass_time(20)
    assert sum(len(step.decisions) for step in server.steps) == 0
    assert server.scene.decisions[id].at == server.now  # the newest numbers are at hand


def test_what_a_job_used_is_added_up():
    server = FakeServer(gpus=1)
    id = server.submit()
    server.run_kernel(id, 7_000)
    server.sm_active[server.gpus[0].id] = 0.5
    server.pass_time(100)
    server.exit(id)
    usage = server.last(id).usage
    assert usage.peak_mib == 7_000
    assert usage.energy_j == pytest.approx(100 * 100)  # 100 W for 100 s
    assert usage.sm_seconds == pytest.approx(50)
    assert usage.gpu_seconds == pytest.approx(100)


def test_one_that_uses_more_than_its_own_word_is_told_once():
    server = FakeServer(gpus=1)
    id = server.submit(memory_mib=8_000)
    server.run_kernel(id, 8_000)
    server.pass_time(3)
    assert server.job(id).notes == ()
    for mib in (8_001, 9_000, 7_000, 9_500):
        server.run_kernel(id, mib)
        server.pass_time(3)
    told = "uses 8001 MiB, more than the 8000 MiB of its --gpu-mem"
    assert server.job(id).notes == (told,)
    fresh = FakeServer(gpus=1)
    fresh.scheduler.restore([server.job(id)])
    fresh.alive = server.alive
    fresh.pass_time(3)
    assert fresh.job(id).notes == (told,), "nor by the next daemon"
    assert fresh.scene.usage[id].peak_mib == 9_500


def test_one_that_uses_more_than_was_guessed_is_not_told():
    server = FakeServer(gpus=1)
    id = JobId(1)
    guess = Estimated(server.now, id, Estimate(8_000, "trace", high=8_500))
    server.tell(Submitted(server.now, id, (a_spec(),)), guess)
    server.run_kernel(id, 20_000)
    server.pass_time(3)
    assert server.job(id).notes == ()


def test_why_a_job_has_no_estimate_is_told_to_its_owner():
    server = FakeServer(gpus=0)
    server.scheduler.handle(Submitted(server.now, JobId(1), (a_spec(),)))
    server.tell(Estimated(server.now, JobId(1), None, "has no memory estimate: it is no script"))
    assert server.job(JobId(1)).state is S.QUEUED
    assert server.job(JobId(1)).notes == ("has no memory estimate: it is no script",)


def test_of_a_job_that_has_ended_no_decision_is_kept():
    server = FakeServer(gpus=1)
    id = server.submit()
    assert id in server.scheduler.state.plans.decisions
    server.exit(id)
    assert id not in server.scheduler.state.plans.decisions


def test_an_estimate_may_follow_while_a_job_waits():
    server = FakeServer(gpus=0)
    id = JobId(1)
    server.scheduler.handle(Submitted(server.now, id, (a_spec(),)))
    server.tell(Estimated(server.now, id, None, "has no memory estimate: it was slow"))
    assert server.job(id).estimate is None
    follows = Estimate(8_000, "trace")
    server.tell(Estimated(server.now, id, follows))
    assert server.job(id).notes == (), "the first answer does not count any more"
    server.tell(Estimated(server.now, id, None))
    assert (server.job(id).state, server.job(id).estimate) == (S.QUEUED, follows)


def update(server, id, *names, by="ada", admin=False, **changes):
    spec = replace(server.job(id).spec, **changes)
    event = UpdateRequested(server.now, id, spec, tuple(changes), by, admin)
    return server.tell(event)


def test_an_answer_to_what_was_asked_before_a_job_was_changed_does_not_last():
    server = FakeServer(gpus=0)
    id = JobId(1)
    server.scheduler.handle(Submitted(server.now, id, (a_spec(memory_mib=2_000),)))
    step = update(server, id, memory_mib=3_000)
    assert [action.job.spec.memory_mib for action in step.actions] == [3_000]
    for mib in (2_000, 3_000):  # the first was on its way
        server.tell(Estimated(server.now, id, Estimate(mib, "declared", firm=True)))
    assert (server.job(id).state, server.job(id).estimate.mib) == (S.QUEUED, 3_000)
    spec = replace(server.job(id).spec, memory_mib=4_000)
    server.scheduler.handle(UpdateRequested(server.now, id, spec, ("memory_mib",), "ada"))
    assert (server.job(id).state, server.job(id).estimate) == (S.PENDING, None)


def test_a_change_of_one_job_leaves_the_next_one():
    server = FakeServer(gpus=0)
    first, second = server.submit(), server.submit()
    update(server, first, nice=7)
    assert [server.job(id).spec.nice for id in (first, second)] == [7, 0]


def test_dependencies_that_are_changed_are_followed():
    server = FakeServer(gpus=0)
    ids = server.submit(), server.submit(), server.submit()
    update(server, ids[2], after=(After(ids[0]),))
    update(server, ids[2], after=(After(ids[1]),))
    server.tell(CancelRequested(server.now, ids[0], "ada"))
    assert server.job(ids[2]).state is S.QUEUED
    server.tell(CancelRequested(server.now, ids[1], "ada"))
    assert server.scheduler.outcomes[ids[2]] is S.CANCELLED


def test_a_job_that_is_to_follow_one_that_has_failed_meanwhile_is_cancelled():
    server = FakeServer(gpus=0)
    failed, id = server.submit(), server.submit()
    server.tell(CancelRequested(server.now, failed, "ada"))
    step = update(server, id, after=(After(failed),))
    assert server.scheduler.outcomes[id] is S.CANCELLED
    assert step.jobs[-1].exit.evidence == f"job {failed} ended as cancelled"


def test_a_running_job_gets_less_time_from_its_owner_and_more_from_an_administrator():
    server = FakeServer(gpus=1)
    id = server.submit(user="ada", time_limit_s=3600.0)
    server.pass_time(100.0)
    for limit_s, admin, then in (
        (7200.0, False, 3600.0),
        (1800.0, False, 1800.0),
        (50.0, True, 1800.0),
        (None, False, 1800.0),
        (None, True, None),
    ):
        update(server, id, time_limit_s=limit_s, admin=admin)
        assert server.job(id).spec.time_limit_s == then


def test_an_estimate_that_is_to_follow_is_asked_for_by_the_next_daemon():
    server = FakeServer(gpus=0)
    server.scheduler.handle(Submitted(server.now, JobId(1), (a_spec(), a_spec(), a_spec())))
    why = "has no memory estimate: it was slow"
    for id, late in ((1, True), (2, False), (3, True)):
        server.tell(Estimated(server.now, JobId(id), None, why, late=late))
    server.tell(Estimated(server.now, JobId(3), None, "has no memory estimate: it failed"))
    waiting = [server.job(JobId(id)) for id in (1, 2, 3)]
    assert waiting[2].notes == ("has no memory estimate: it failed",)
    assert server.scheduler.restore(waiting) == (EstimateMemory(waiting[0]),)


def test_an_estimate_of_a_job_that_has_started_comes_too_late():
    server = FakeServer(gpus=1)
    id = JobId(1)
    server.tell(Submitted(server.now, id, (a_spec(),)), Estimated(server.now, id, None))
    assert server.job(id).holds_gpus
    server.tell(Estimated(server.now, id, Estimate(8_000, "trace")))
    assert server.job(id).estimate is None


def test_how_its_script_stops_is_kept_with_the_job():
    server = FakeServer(gpus=1)
    server.scheduler.handle(Submitted(server.now, JobId(1), (a_spec(),)))
    server.tell(Estimated(server.now, JobId(1), None, crash="at train.py:1: NameError: x"))
    assert server.job(JobId(1)).crash == "at train.py:1: NameError: x"


def test_no_illegal_move():
    with pytest.raises(IllegalTransition):
        advance(a_job(), Active(JobState.RUNNING, Attempt(1, ())))


def test_a_warning_that_may_not_have_been_sent_is_sent_again():
    server = FakeServer(gpus=1)
    id = server.submit(time_limit_s=100, warn=WarnSignal(12, 30))
    server.run_kernel(id)
    server.pass_time(60)
    fresh = FakeServer(gpus=1)
    assert fresh.scheduler.restore([server.job(id)]) == ()
    server.pass_time(20)
    assert fresh.scheduler.restore([server.job(id)]) == (Signal(server.job(id), 12),)


def test_restore_owes_what_was_left_undone():
    server = FakeServer(gpus=1)
    running, waiting = server.submit(), server.submit()
    server.tell(CancelRequested(server.now, running, "ada"))
    fresh = FakeServer(gpus=1)
    owed = fresh.scheduler.restore([server.job(running), server.job(waiting)])
    assert [type(a).__name__ for a in owed] == ["Stop"]
    assert fresh.scene.line[0].id == waiting


# -- the evidence of an end


def test_what_is_seen_once_a_job_s_processes_died_is_no_company():
    """In that reading its own dead process has no owner, and neither has a newcomer."""
    server = FakeServer(gpus=1)
    gpu = server.gpus[0].id
    id = server.submit()
    server.run_kernel(id, 9_000)
    server.sample(1)
    server.alive[id, 1] = FakeProcess(())
    server.used_mib[gpu], server.strangers = 30_000, (ProcessUse(77, 30_000),)
    server.sample(1)
    server.exit(id, OOM)
    assert server.last(id).state is S.OUT_OF_MEMORY
    assert server.last(id).exit.neighbours == ()


def test_a_process_of_an_earlier_attempt_is_no_kernel_of_the_next():
    """The driver may list it for a while after its attempt was reported."""
    server = FakeServer(gpus=1)
    id = server.submit()
    server.run_kernel(id, 9_000)
    server.sample(1)
    server.strangers = (ProcessUse(77, 9_000, 0.5, job=id, attempt=1),)
    server.exit(id, Exit(Cause.LOST))
    server.pass_time(30)
    assert (server.job(id).attempt, server.job(id).state) == (2, S.STARTING)
    assert server.job(id).kernels == ()
    server.run_kernel(id, 9_000)
    server.sample(1)
    assert server.job(id).state is S.RUNNING


def test_who_was_seen_beside_a_job_was_there_though_he_is_gone_when_it_ends():
    server = FakeServer(gpus=1)
    gpu = server.gpus[0].id
    id = server.submit()
    server.run_kernel(id, 9_000)
    server.used_mib[gpu], server.strangers = 30_000, (ProcessUse(77, 30_000, user="eve"),)
    server.sample(1)
    server.alive[id, 1] = FakeProcess(())
    server.used_mib[gpu], server.strangers = 0, ()
    server.sample(1)
    server.exit(id, OOM)
    assert server.job(id).retry.exclusive
    assert server.job(id).failures[0].neighbours == ("pid 77 (eve) held 30000 MiB",)


def test_what_a_new_daemon_sees_of_a_job_that_died_meanwhile_is_no_company():
    before = FakeServer(gpus=1)
    id = before.submit()
    before.run_kernel(id, 9_000)
    before.sample(1)
    server = FakeServer(gpus=1)
    server.scheduler.restore([before.job(id)])
    server.now, server.alive[id, 1] = before.now, FakeProcess(())
    server.used_mib[server.gpus[0].id], server.strangers = 30_000, (ProcessUse(77, 30_000),)
    server.pass_time(3)
    server.exit(id, OOM)
    assert server.last(id).state is S.OUT_OF_MEMORY


def test_an_end_before_the_gpus_are_known_does_not_make_a_job_exclusive():
    """This happens after a restart."""
    settings = Settings(recovery=Recovery("adaptive", margin_mib=4096))
    job = a_job(1, state=S.RUNNING, gpus=(a_gpu(0).id,), started_at=0.0, shared=True)
    for gpus, where in ((1, ()), (2, (a_gpu(0).id,))):
        core = Scheduler(settings, builtin.magm(settings), ladder.adaptive(settings))
        core.restore([job])
        core.handle(Exited(1.0, job.id, 1, OOM))
        assert core.jobs[job.id].retry.avoid == (a_gpu(0).id,)
        core.handle(Discovered(2.0, tuple(a_gpu(n) for n in range(gpus))))
        retry = core.jobs[job.id].retry
        assert (retry.avoid, retry.exclusive) == (where, not where)


def test_a_job_is_not_run_again_while_what_it_waits_for_has_failed():
    server = FakeServer(gpus=1)
    first = server.submit()
    second = server.submit(after=(After(first),))
    server.exit(first, Exit(Cause.FAILURE, 1))
    failed, cancelled = server.last(first), server.last(second)
    assert cancelled.state is S.CANCELLED
    server.tell(RequeueRequested(server.now, cancelled, "ada"))
    assert second not in server.scheduler.jobs
    forgetful = FakeServer(gpus=1)  # it ended too long ago: the store says how
    ended = ((first, S.FAILED),)
    forgetful.tell(RequeueRequested(server.now, cancelled, "ada", ended))
    assert second not in forgetful.scheduler.jobs
    again = (failed, ()), (cancelled, ended)
    server.tell(*(RequeueRequested(server.now, job, "ada", its) for job, its in again))
    assert (server.job(first).state, server.job(second).state) == (S.STARTING, S.QUEUED)


# -- what was measured is kept


def test_a_peak_survives_an_end_that_could_not_be_committed():
    server = FakeServer(gpus=1)
    id = server.submit()
    server.run_kernel(id, 9_000)
    server.sample(1)
    server.run_kernel(id, 9_001)
    server.sample(1)
    before = server.job(id)
    assert before.usage.peak_mib == 9_000, "one that grew little is not saved at once"
    server.scheduler.handle(Exited(server.now, id, 1, Exit(Cause.SUCCESS, 0)))
    server.scheduler.restore([before])
    server.exit(id)
    assert server.last(id).usage.peak_mib == 9_001
    server.sample(1)
    assert server.scene.usage == {}


def test_what_was_measured_is_saved_once_a_minute_on_a_full_disk_too():
    """Each try that fails costs a restore."""
    server = FakeServer(gpus=1)
    id = server.submit()
    server.run_kernel(id, 9_000)
    server.pass_time(120)
    stored, saved = server.job(id), 0
    for _ in range(75):  # before it is profiled
        server.run_kernel(id, 9_000)
        step = server.scheduler.handle(server.read_gpus())
        if step.jobs:
            saved += 1
            server.scheduler.restore([stored])
        server.now += 1
    assert saved == 1


def test_a_stop_of_the_daemon_saves_what_was_measured():
    server = FakeServer(gpus=1)
    id = server.submit()
    server.run_kernel(id, 9_000)
    server.pass_time(10)
    server.tell(Closing(server.now))
    assert server.job(id).usage == server.scene.usage[id]
    assert server.job(id).usage.energy_j == pytest.approx(1000)


def test_every_event_has_a_handler() -> None:
    kinds = {kind for kind in vars(messages).values() if isinstance(kind, type)}
    assert HANDLERS.keys() == {kind for kind in kinds if issubclass(kind, Event)} - {
        Event,
        JobEvent,
    }
