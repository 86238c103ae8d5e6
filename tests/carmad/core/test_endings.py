"""What the end of an attempt means, and what owners may do to a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carma_testing import a_gpu, a_job, a_spec, changed
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.jobs import control
from carmad.core.jobs.attempt import (
    KEPT,
    Attempt,
    Cause,
    EndedAttempt,
    Exit,
    JobId,
    MemoryLimits,
    with_room,
)
from carmad.core.jobs.control import Verdict
from carmad.core.jobs.endings import Ending, Retries, ending
from carmad.core.jobs.job import Job, Retry
from carmad.core.jobs.spec import After, AfterKind
from carmad.core.jobs.states import TRANSITIONS, JobState
from carmad.core.messages import Exited
from recovery import ladder

GPU = a_gpu().id
OOM = Exit(Cause.GPU_OOM, 1)
GONE = Exit(Cause.FAILURE, signal=15)
ALONE = Retry("again, alone", exclusive=True)


def running(**changes: object) -> Job:
    return a_job(1, **{"state": JobState.RUNNING, "gpus": (GPU,), "started_at": 3.0, **changes})


def stopping(cause: Cause, **changes: object) -> Job:
    return running(state=JobState.STOPPING, stop=cause, **changes)


def of_shared(job: Job, exit: Exit) -> Retry | None:
    return ALONE if job.shared else None


def ended(job: Job, exit: Exit, *beside: GpuSample, usable: tuple[str, ...] = (GPU,)) -> Ending:
    event = Exited(9.0, job.id, job.attempt, exit)
    return ending(job, event, beside, Retries(of_shared, 3, 1000, set(usable)))


@pytest.mark.parametrize(
    ("job", "exit", "state", "cause"),
    [
        (running(), Exit(Cause.SUCCESS, 0), JobState.SUCCEEDED, Cause.SUCCESS),
        (running(), Exit(Cause.FAILURE, 2), JobState.FAILED, Cause.FAILURE),
        (running(), OOM, JobState.OUT_OF_MEMORY, Cause.GPU_OOM),
        (running(shared=True), OOM, JobState.QUEUED, Cause.GPU_OOM),
        (running(), Exit(Cause.LOST), JobState.QUEUED, Cause.LOST),
        (running(failures=(Exit(Cause.LOST),)), Exit(Cause.LOST), JobState.FAILED, Cause.LOST),
        (running(), Exit(Cause.UNSTARTED), JobState.QUEUED, Cause.UNSTARTED),
        (stopping(Cause.CANCELLED), GONE, JobState.CANCELLED, Cause.CANCELLED),
        (stopping(Cause.CANCELLED), Exit(Cause.SUCCESS), JobState.CANCELLED, Cause.CANCELLED),
        (stopping(Cause.TIME_LIMIT), GONE, JobState.TIMED_OUT, Cause.TIME_LIMIT),
        (stopping(Cause.IDLE), GONE, JobState.TIMED_OUT, Cause.IDLE),
        (stopping(Cause.PREEMPTED), GONE, JobState.QUEUED, Cause.PREEMPTED),
        (stopping(Cause.PROFILED), GONE, JobState.QUEUED, Cause.PROFILED),
        (stopping(Cause.PREEMPTED), Exit(Cause.SUCCESS), JobState.SUCCEEDED, Cause.SUCCESS),
        # It had crashed when it was told to stop: that was no preemption.
        (stopping(Cause.PREEMPTED), OOM, JobState.QUEUED, Cause.GPU_OOM),
    ],
)
def test_what_becomes_of_a_job(job: Job, exit: Exit, state: JobState, cause: Cause) -> None:
    end = ended(job, exit)
    assert (end.state, end.exit.cause, end.at) == (state, cause, 9.0)
    assert end.state in TRANSITIONS[job.state]


@pytest.mark.parametrize(
    ("code", "signal", "earlier", "again"),
    [
        (75, None, 0, True),
        (75, None, 2, True),
        (75, None, 3, False),
        (7, None, 0, False),
        (None, 9, 0, True),
        (None, None, 0, False),
    ],
)
def test_a_job_is_repeated_after_the_exit_codes_that_its_owner_names(
    code: int | None, signal: int | None, earlier: int, again: bool
) -> None:
    failed = Exit(Cause.FAILURE, 75)
    job = running(spec=a_spec(retry_on="75,137", requeue=False), failures=(failed,) * earlier)
    end = ended(job, Exit(Cause.FAILURE, code, signal))
    assert end.state is (JobState.QUEUED if again else JobState.FAILED)
    assert ended(job, replace(failed, left=True)).state is JobState.FAILED
    assert ended(stopping(Cause.CANCELLED, spec=job.spec), failed).state is JobState.CANCELLED
    at_terminal = a_spec(retry_on="75", interactive=True, requeue=False)
    assert ended(running(spec=at_terminal), failed).state is JobState.FAILED


@pytest.mark.parametrize(
    ("job", "exit", "state"),
    [
        (running(shared=True), OOM, JobState.OUT_OF_MEMORY),
        (running(), Exit(Cause.LOST), JobState.FAILED),
        (stopping(Cause.PREEMPTED), GONE, JobState.FAILED),
        (stopping(Cause.CANCELLED), GONE, JobState.CANCELLED),
    ],
)
def test_no_attempt_follows_one_whose_processes_could_not_be_killed(
    job: Job, exit: Exit, state: JobState
) -> None:
    assert ended(job, replace(exit, left=True)).state is state
    assert state in TRANSITIONS[job.state]


def test_a_preempted_job_whose_time_is_up_has_timed_out() -> None:
    job = stopping(Cause.PREEMPTED, spec=a_spec(time_limit_s=10.0), served_s=4.0)
    assert ended(job, GONE).state is JobState.TIMED_OUT
    longer = changed(job, spec=a_spec(time_limit_s=10.5))
    assert ended(longer, GONE).state is JobState.QUEUED


def test_who_held_memory_is_told_by_the_readings_it_is_given() -> None:
    use = (ProcessUse(1, 500, job=JobId(1)), ProcessUse(2, 700, job=JobId(2)), ProcessUse(3, 900))
    reading = GpuSample(GPU, 8.0, 30_000, processes=use)
    assert ended(running(shared=True), OOM, reading).exit.neighbours == (
        "job 2 held 700 MiB",
        "pid 3 (?) held 900 MiB",
    )
    # Nobody shared its GPU: that is what a job before it held.
    assert ended(running(), OOM, reading).exit.neighbours == ("pid 3 (?) held 900 MiB",)
    assert ended(running(), OOM, reading).retry == ALONE  # 28.8 GB are nobody's


def full(job_mib: int, other_mib: int) -> GpuSample:
    used = job_mib + other_mib
    its = (ProcessUse(1, job_mib, job=JobId(1)), ProcessUse(2, other_mib, job=JobId(2)))
    return GpuSample(GPU, 8.0, used, 40_960 - used, processes=its)


@pytest.mark.parametrize(
    ("held_mib", "other_mib", "tried_mib", "limit_mib", "met"),
    [
        (11_900, 9_000, 512, 12_288, True),  # the GPU has room
        (9_000, 9_000, 512, 12_288, True),  # it has grown since this reading
        (12_000, 28_500, 512, 12_288, True),
        (12_000, 28_500, None, 12_288, False),  # only the GPU is known to be full
        (8_000, 32_700, 512, 12_288, False),
        (40_000, 0, 2_048, 40_960, False),  # alone: its limit is the GPU's
        (11_900, 9_000, 512, None, False),
    ],
)
def test_a_job_that_met_its_own_limit_is_told_from_one_on_a_full_gpu(
    held_mib: int, other_mib: int, tried_mib: int | None, limit_mib: int | None, met: bool
) -> None:
    job = running(shared=True, memory_limits=(MemoryLimits(GPU, 8_192, limit_mib),))
    exit = replace(OOM, evidence="CUDA out of memory", tried_mib=tried_mib)
    end = ended(job, exit, full(held_mib, other_mib))
    assert (end.state, end.retry) == (JobState.QUEUED, ALONE)
    assert (end.exit.limit_mib == 12_288) is met
    assert bool(end.exit.neighbours) is not met or not other_mib
    own = "it met its own limit of 12.0G, as others were promised the rest: CUDA out of memory"
    assert end.exit.evidence == (own if met else "CUDA out of memory")


def test_where_only_its_limit_was_in_the_way_more_memory_anywhere_comes_before_alone() -> None:
    job, met = running(shared=True), replace(OOM, limit_mib=12_288)
    adaptive = ladder.Adaptive(4096)
    first = adaptive.decide(job, met)
    assert first and (first.avoid, first.margin_mib, first.exclusive) == ((), 4096, False)
    again = adaptive.decide(replace(job, retry=first), met)
    assert again and again.exclusive
    assert ladder.Exclusive().decide(job, met) == replace(again)


def test_without_an_elsewhere_it_is_tried_alone_and_with_no_gpu_known_as_it_was_to_be() -> None:
    elsewhere = Retry("elsewhere", avoid=(GPU,))
    assert elsewhere.placeable(1, {GPU}) == Retry("elsewhere", exclusive=True)
    assert elsewhere.placeable(1, {GPU, "other"}) == elsewhere
    assert elsewhere.placeable(1, set()) == elsewhere


def test_of_many_attempts_those_that_crashed_are_kept() -> None:
    crash = Attempt(2, (GPU,)).ended(OOM, 2.0, None)
    attempts: tuple[EndedAttempt, ...] = ()
    for number in range(1, 3 * KEPT):
        preempted = Attempt(number, (GPU,)).ended(GONE, number, Cause.PREEMPTED)
        attempts = (*with_room(attempts), crash if number == 2 else preempted)
    assert len(attempts) == KEPT
    assert (attempts[0], attempts[-1].number) == (crash, 3 * KEPT - 1)


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.PROFILED])
def test_a_job_on_its_way_back_in_line_can_be_cancelled_and_held(cause: Cause) -> None:
    job = stopping(cause)
    assert control.cancel(job) == Verdict("is being stopped")
    assert control.hold(job, True) == Verdict("held")


def test_what_may_be_done_depends_on_the_state() -> None:
    over = a_job(state=JobState.TIMED_OUT, ended_at=1.0)
    refused = {"acts": False, "refused": True}
    assert control.cancel(a_job()) == Verdict("cancelled")
    assert control.cancel(running()) == Verdict("is being stopped")
    assert control.cancel(over) == Verdict("has already ended: timed out", **refused)
    again = control.cancel(stopping(Cause.TIME_LIMIT))
    assert again == Verdict("is already being stopped", acts=False)
    assert control.hold(a_job(held=True), True) == Verdict("was already held", acts=False)
    assert control.hold(a_job(), False) == Verdict("was not held", acts=False)
    why = "is running: only a waiting job can be released"
    assert control.hold(running(), False) == Verdict(why, **refused)
    assert control.requeue(running(), {}) == Verdict("is being requeued")
    assert "requeue" not in control.actions(running())
    kept = control.requeue(running(spec=a_spec(requeue=False)), {})
    assert kept == Verdict("runs, and was submitted with --no-requeue", **refused)
    back = control.requeue(stopping(Cause.REQUEUED), {})
    assert back == Verdict("is being requeued already", acts=False)
    why = "is being stopped: requeue it when it has ended"
    assert control.requeue(stopping(Cause.CANCELLED), {}) == Verdict(why, **refused)
    why = "is queued: it waits for its turn already"
    assert control.requeue(a_job(state=JobState.QUEUED), {}) == Verdict(why, **refused)
    assert control.requeue(over, {}) == Verdict("requeued")


def test_a_job_that_would_wait_in_vain_is_not_requeued() -> None:
    spec = a_spec(after=(After(JobId(7), AfterKind.OK),))
    job = a_job(8, spec=spec, state=JobState.CANCELLED, ended_at=1.0)
    verdict = control.requeue(job, {JobId(7): JobState.TIMED_OUT})
    assert verdict == Verdict("depends on job 7, which ended as timed out", False, True)
    assert control.requeue(job, {JobId(7): JobState.SUCCEEDED}).acts
