"""Suspending and resuming on this machine: what is refused, and who is told."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing.builders import changed
from carmad.config import Suspending
from carmad.core.jobs.attempt import GpuId, JobId, Suspension
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Noticed, Resume, Resumed, Suspend, Suspended
from carmad.daemon.suspender import Suspender
from carmad.gpu.cuda_state import Outcome, State
from tests.attempts import make_job
from tests.waiting import until

REFUSED = "the kernel refuses: Read-only file system"
GPU = GpuId("GPU-1")


def resuming(job: Job, gone: Suspension) -> Job:
    return changed(job, state=JobState.RESUMING, gpus=(GPU,), suspension=gone)


class Machine:
    """A supervisor that refuses some requests, and a driver. `did`: all that was asked, in order;
    `said`: what the core hears."""

    def __init__(self, *refuses: str, state: State = State.RUNNING) -> None:
        self.refuses = refuses
        self.state = state
        self.did: list[str] = []
        self.said: list[Any] = []
        self.over = threading.Event()

    def _ask(self, what: str) -> str:
        self.did.append(what)
        return REFUSED if what in self.refuses else ""

    def pids(self, job: Job) -> frozenset[int]:
        return frozenset({7})

    def freeze(self, job: Job) -> str:
        return self._ask("freeze")

    def thaw(self, job: Job) -> str:
        return self._ask("thaw")

    def allow(self, job: Job, extra_mib: int) -> str:
        return self._ask(f"allow {extra_mib}")

    def states(self, pids: object) -> dict[int, State]:
        return {7: self.state}

    def suspend(self, *_: object) -> Outcome:
        self.did.append("suspend")
        return Outcome(True)

    def resume(self, *_: object) -> Outcome:
        self.did.append("resume")
        return Outcome(True)

    def report(self, event: Any) -> None:
        self.said.append(event)
        if not isinstance(event, Noticed):
            self.over.set()

    def do(self, action: type[Suspend] | type[Resume], **spec: Any) -> list[Any]:
        gone = Suspension(0.0, "for others", (GPU,), "A100", "0", 900, 900)
        job = resuming(make_job(Path("/"), "sh", **spec), gone)
        its: Any = self
        suspender = Suspender(its, its, Suspending, lambda: 1.0, self.report)
        suspender.perform(action(job))
        assert self.over.wait(60)
        suspender.close()
        return self.said


def test_in_this_order() -> None:
    here = Machine()
    assert here.do(Suspend) == [Suspended(1.0, 1, 1)]
    assert here.did == ["thaw", "allow 900", "suspend", "freeze"]
    here = Machine()
    assert here.do(Resume) == [Resumed(1.0, 1, 1)]
    assert here.did == ["thaw", "resume", "allow 0"]


def test_without_room_on_the_host_nothing_is_suspended() -> None:
    here = Machine("allow 900")
    assert here.do(Suspend) == [Suspended(1.0, 1, 1, REFUSED)]
    assert "suspend" not in here.did


@pytest.mark.parametrize("state", [State.LOCKED, State.CHECKPOINTED])
def test_what_an_earlier_daemon_has_begun_is_finished(state: State) -> None:
    """It was allowed to: the room is there."""
    here = Machine("allow 900", "thaw", state=state)
    assert here.do(Suspend) == [Suspended(1.0, 1, 1)]
    assert here.did[-2:] == ["suspend", "freeze"]


def test_a_job_that_cannot_be_frozen_is_suspended_and_its_owner_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    note, came = Machine("freeze").do(Suspend)
    assert came == Suspended(1.0, 1, 1)
    assert (note.job, note.note) == (
        1,
        f"has left its GPUs, but what it does on the CPUs goes on: {REFUSED}",
    )
    assert note.note in caplog.text


def test_a_job_that_cannot_be_thawed_does_not_resume() -> None:
    here = Machine("thaw")
    assert here.do(Resume) == [Resumed(1.0, 1, 1, REFUSED)]
    assert here.did == ["thaw"]


def test_a_limit_that_cannot_be_lowered_again_is_told() -> None:
    note, came = Machine("allow 0").do(Resume)
    assert came == Resumed(1.0, 1, 1)
    assert note.note == f"its limit of the host's memory (--mem) stays raised: {REFUSED}"


def test_who_is_at_its_terminal_is_not_frozen() -> None:
    here = Machine()
    here.do(Suspend, interactive=True)
    assert "freeze" not in here.did


def test_a_user_with_whose_jobs_the_driver_hangs_holds_up_nobody_else() -> None:
    """Six jobs of one user, then one of another's."""
    here, lets_go = Machine(), threading.Event()
    its: Any = here

    def hang_with_the_first(pids: object, *_: object) -> Outcome:
        assert pids == {8} or lets_go.wait(60)
        return Outcome(True)

    its.resume = hang_with_the_first
    its.pids = lambda job: frozenset({8 if job.spec.uid == 2 else 7})
    suspender = Suspender(its, its, Suspending, lambda: 1.0, here.report)
    gone = Suspension(0.0, "for others", (GPU,), "A100", "0", 900, 900)
    for id, uid in [*((id, 1) for id in range(1, 7)), (7, 2)]:
        job = resuming(make_job(Path("/"), "sh", uid=uid), gone)
        suspender.perform(Resume(replace(job, id=JobId(id))))
    assert here.over.wait(60)
    assert here.said == [Resumed(1.0, 7, 1)]
    lets_go.set()
    until(lambda: len(here.said) == 7, "the others to resume")
    suspender.close()
