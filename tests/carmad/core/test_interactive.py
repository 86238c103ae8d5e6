"""What the core makes of jobs at a terminal."""

from dataclasses import replace

import pytest

from carma_testing import FakeServer
from carmad.config import Interactive, Settings
from carmad.core.happenings import how_ended
from carmad.core.jobs.attempt import Cause, Exit
from carmad.core.jobs.spec import Allocation
from carmad.core.jobs.states import JobState
from carmad.core.messages import RequeueRequested, Sampled, UpdateRequested

S = JobState
QUICK = Settings(interactive=Interactive(idle_s=100))


def test_an_idle_shell_does_not_keep_its_gpu_from_others():
    """Others wait for a window, not until it has run a kernel."""
    server = FakeServer(gpus=1)
    shell = server.submit(interactive=True, memory_mib=10_000)
    second = server.submit(memory_mib=1000)
    assert server.why(second) == ({0: ["first_kernel"]}, [])
    server.pass_time(32)
    assert server.job(second).state is S.STARTING
    assert server.scheduler.view(server.now).gpus[0].free_mib <= 40_960 - 11_000
    server.pass_time(700)
    assert server.job(shell).notes == ()


def test_a_shell_that_does_not_use_its_gpu_is_warned_and_then_ended():
    server = FakeServer(gpus=1, settings=QUICK)
    id = server.submit(interactive=True)
    server.run_kernel(id)
    server.pass_time(300)
    assert server.job(id).notes == ()
    server.alive[server.attempt(id)].ran_kernel = False
    server.pass_time(49)
    assert server.job(id).notes == ()
    server.pass_time(2)
    (note,) = server.job(id).notes
    assert "will be ended" in note
    server.alive[server.attempt(id)].ran_kernel = True
    server.pass_time(1)
    server.alive[server.attempt(id)].ran_kernel = False
    server.pass_time(99)
    assert server.job(id).state is S.RUNNING
    server.pass_time(1)
    assert server.job(id).stop is Cause.IDLE
    server.exit(id, Exit(Cause.FAILURE, signal=1))
    assert server.last(id).state is S.TIMED_OUT
    assert how_ended(server.last(id)) == "timed out, it did not use its GPUs"
    assert "had not used its GPUs for" in server.last(id).notes[-1]


@pytest.mark.parametrize(
    ("how", "interactive", "state"),
    [
        (Exit(Cause.FAILURE, signal=2), True, S.CANCELLED),
        (Exit(Cause.FAILURE, 130), True, S.CANCELLED),
        (Exit(Cause.FAILURE, 1), True, S.FAILED),
        (Exit(Cause.FAILURE, signal=2), False, S.FAILED),
    ],
)
def test_ctrl_c_is_its_owners_cancel(how: Exit, interactive: bool, state: JobState):
    """It was a failure, as if the program had a fault."""
    server = FakeServer(gpus=1)
    id = server.submit(interactive=interactive)
    server.run_kernel(id)
    server.exit(id, how)
    job = server.last(id)
    assert job.state is state
    assert ("Ctrl-C" in job.exit.evidence) is (state is S.CANCELLED)


def test_a_run_in_an_allocation_is_not_ended_at_its_time_limit():
    """Slurm does that, as a timeout; or not yet, if the limit was raised there."""
    server = FakeServer(gpus=1)
    id = server.submit(interactive=True, time_limit_s=60, allocation=Allocation("Slurm", 7))
    server.run_kernel(id)
    server.pass_time(300)
    assert server.job(id).state is S.RUNNING and server.job(id).stop is None


def test_time_without_readings_is_nobodys_idleness():
    server = FakeServer(gpus=1, settings=QUICK)
    id = server.submit(interactive=True)
    server.sample(1)
    server.now += 1000
    server.sample(1)
    assert server.job(id).notes == ()


def test_one_used_gpu_is_enough_and_batch_jobs_may_idle():
    server = FakeServer(gpus=3, settings=QUICK)
    shell = server.submit(interactive=True, gpus=2)
    batch = server.submit()
    for _ in range(200):
        server.now += 1
        server.run_kernel(shell)
        used, *others = server.read_gpus().samples
        others = [replace(each, processes=()) for each in others]
        server.tell(Sampled(server.now, (used, *others)))
    assert server.job(shell).stop is None
    assert server.job(batch).stop is None


def test_without_the_limit_a_shell_may_idle():
    server = FakeServer(gpus=1, settings=Settings(interactive=Interactive(idle_s=0)))
    id = server.submit(interactive=True)
    server.pass_time(10_000, period=5)
    assert server.job(id).state is S.STARTING


def test_only_its_owner_can_run_it_again():
    """Neither after an out-of-memory, nor on request, nor when its supervisor is lost."""
    server = FakeServer(gpus=1)
    for cause, state in ((Cause.GPU_OOM, S.OUT_OF_MEMORY), (Cause.LOST, S.FAILED)):
        id = server.submit(interactive=True, requeue=False)
        other = server.submit()
        server.pass_time(32)
        server.run_kernel(id)
        server.exit(id, Exit(cause, 1))
        assert server.last(id).state is state
        server.tell(RequeueRequested(server.now, server.last(id), "alice"))
        assert server.last(id).state is state
        server.pass_time(32)
        server.exit(other)


def test_nothing_can_start_it_again_in_its_terminal():
    """Not even an update: it would be requeued when it is preempted."""
    server = FakeServer(gpus=1)
    id = server.submit(interactive=True, requeue=False)
    spec = replace(server.job(id).spec, requeue=True)
    server.tell(UpdateRequested(server.now, id, spec, ("requeue",), "ada"))
    assert not server.job(id).spec.requeue


def test_a_job_at_no_terminal_may_be_told_to_start_again():
    server = FakeServer(gpus=0)
    id = server.submit(requeue=False)
    spec = replace(server.job(id).spec, requeue=True)
    server.tell(UpdateRequested(server.now, id, spec, ("requeue",), "ada"))
    assert server.job(id).spec.requeue
