"""A state carries its data: every transition leads to its shape, and keeps the attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest

from carma_testing.builders import a_job
from carmad.core.jobs.attempt import Attempt, Cause, Exit, GpuId, Suspension
from carmad.core.jobs.job import (
    IllegalTransition,
    Job,
    advance,
    over,
    requeue,
    running,
    start,
    stopping,
)
from carmad.core.jobs.states import (
    ENDED,
    LIVING,
    NEW,
    TRANSITIONS,
    Active,
    JobState,
    Over,
    Paused,
    Status,
    Stopping,
    Waiting,
)
from carmad.store import codec

GPU = GpuId("GPU-1")
CANCELLED: Literal[JobState.CANCELLED] = JobState.CANCELLED
EXIT = Exit(Cause.FAILURE, 1, tail=("it failed",))
GONE = Suspension(5.0, "for others", (GPU,), "A100", "local", 900, 900)
SHAPES: dict[JobState, type[Status]] = {  # type: ignore[valid-type]
    **dict.fromkeys(NEW, Waiting),
    **dict.fromkeys((JobState.STARTING, JobState.RUNNING), Active),
    **dict.fromkeys((JobState.SUSPENDING, JobState.SUSPENDED, JobState.RESUMING), Paused),
    JobState.STOPPING: Stopping,
    **dict.fromkeys(ENDED, Over),
}
MOVES = sorted((before, after) for before, every in TRANSITIONS.items() for after in every)


def a_job_in(state: JobState) -> Job:
    """After one that crashed, with its second attempt if it has one."""
    its = {} if state in NEW else {"gpus": (GPU,), "started_at": 2.0, "attempt": 2}
    return a_job(state=state, failures=(Exit(Cause.GPU_OOM),), **its)


def moved(job: Job, to: JobState) -> Job:
    """As the core moves it."""
    its = job.current
    if to is JobState.STARTING:
        return start(job, job.new_attempt((GPU,), 9.0))
    if to is JobState.RUNNING:
        return running(job)
    if to is JobState.STOPPING:
        return stopping(job, Cause.PREEMPTED)
    if SHAPES[to] is Paused:
        return advance(job, Paused(to, its, job.suspension or GONE))  # type: ignore[arg-type]
    if to in ENDED:
        return over(job, to, EXIT, 9.0)  # type: ignore[arg-type]
    if job.lives:
        return requeue(job, to, EXIT, 9.0)  # type: ignore[arg-type]
    return advance(job, Waiting(to), earlier=job.ended_attempts)  # type: ignore[arg-type]


@pytest.mark.parametrize(("before", "after"), MOVES)
def test_every_transition_leads_to_the_shape_of_a_state(before: JobState, after: JobState) -> None:
    job = a_job_in(before)
    new = moved(job, after)
    assert new.state is after and type(new.status) is SHAPES[after]
    begun = len(job.attempts) + (after is JobState.STARTING)
    assert [each.number for each in new.attempts] == [*range(1, begun + 1)], "none is lost"
    assert new.lives == (after in LIVING) == bool(new.current.number and not new.ended)
    assert new.attempt == begun
    assert (
        all(each.exit for each in new.ended_attempts)
        and len(new.ended_attempts) == begun - new.lives
    )
    assert (new.exit, new.ended_at) == ((EXIT, 9.0) if after in ENDED else (None, None))
    assert codec.decode_job(codec.encode_job(new)) == new


@pytest.mark.parametrize("after", JobState)
@pytest.mark.parametrize("before", JobState)
def test_the_table_alone_says_where_a_job_may_go(before: JobState, after: JobState) -> None:
    job, status = a_job_in(before), a_job_in(after).status
    if (before, after) in MOVES:
        assert advance(job, status).status is status
    else:
        with pytest.raises(IllegalTransition):
            advance(job, status)


IMPOSSIBLE: list[Callable[[], object]] = [
    lambda: Active(JobState.RUNNING),  # type: ignore[call-arg]
    lambda: Waiting(JobState.QUEUED, exit=EXIT),  # type: ignore[call-arg]
    lambda: Paused(JobState.SUSPENDED, Attempt(1, ())),  # type: ignore[call-arg]
    lambda: Stopping(Attempt(1, ())),  # type: ignore[call-arg]
    lambda: Over(JobState.FAILED),  # type: ignore[call-arg]
    lambda: Over(JobState.FAILED, EXIT, 9.0, Attempt(1, ())),  # type: ignore[arg-type]
    lambda: Over(JobState.FAILED, EXIT, 9.0, Attempt(1, ()).ended(EXIT, 8.0, None)),
    lambda: Active(JobState.RUNNING, Attempt(1, ()).ended(EXIT, 9.0, None)),
    lambda: replace(a_job(), state=JobState.RUNNING),  # type: ignore[call-arg]
]


@pytest.mark.parametrize("write", IMPOSSIBLE)
def test_an_impossible_job_cannot_be_written(write: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        write()
