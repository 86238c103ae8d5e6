"""Launches that are postponed while systemd fails."""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carma_testing import changed
from carmad.attempt import launcher as launcher_module
from carmad.attempt import shepherd, supervisor
from carmad.attempt.evidence import Evidence
from carmad.attempt.launcher import Launcher, attempt_dir
from carmad.config import Suspending
from carmad.core.jobs.attempt import Cause, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Exited, Launch, Noticed, Postponed, Stop
from carmad.daemon import doctor
from carmad.daemon import world as world_module
from carmad.daemon.world import DaemonWorld
from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.limits import NvmlLimiter
from tests.attempts import EXIT as ENDED
from tests.attempts import make_job, until
from tests.carmad.daemon.test_world import Inbox, declared, unmeasured
from tests.waiting import PATIENCE_S

# Fails as often as `outages` says; then it "runs" the supervisor: here are its records.
SYSTEMD_RUN = """#!/bin/sh
here=$(dirname "$0")
for directory; do :; done
read -r left < "$here/outages"
echo "${directory##*/} $left" >> "$here/asked"
[ ! -p "$here/hangs" ] || read -r _ < "$here/hangs"
if [ "$left" -gt 0 ]; then
    echo $((left - 1)) > "$here/outages"
    [ ! -e "$here/starts-all-the-same" ] || cp "$here/started" "$here/exit" "$directory"
    echo "Failed to connect to bus: No such file or directory" >&2
    exit 1
fi
if [ -L "$directory/stop" ]; then exit 1; fi
cp "$here/started" "$here/exit" "$directory"
"""
STARTED = {"pid": 1, "start_ticks": 1, "boot_id": "another", "at": 1.0}
EXIT = ENDED | {"code": 0}


class Soon:
    """A timer that fires at once, and records its interval."""

    delays: list[float]

    def __init__(self, after_s: float, do: Callable[..., None], words: tuple[Any, ...]) -> None:
        self.delays.append(after_s)
        self._due = lambda: do(*words)
        self.daemon = False

    def start(self) -> None:
        self._due()


class Machine:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        command = self.bin / "systemd-run"
        command.write_text(SYSTEMD_RUN)
        command.chmod(0o755)
        (self.bin / supervisor.STARTED).write_text(json.dumps(STARTED))
        (self.bin / supervisor.EXIT).write_text(json.dumps(EXIT))
        self.fail(0)
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")
        monkeypatch.setattr(Soon, "delays", [], raising=False)
        self.state = folder / "state"
        self.inbox = Inbox()
        monkeypatch.setattr(launcher_module, "DROP_INS", [str(folder)])  # a unit for each job
        launcher = Launcher(self.state, systemd=True, kill_grace_s=1)
        self.world = DaemonWorld(
            state_dir=self.state,
            inbox=self.inbox,  # type: ignore[arg-type]
            estimate=declared,
            measured=unmeasured,
            whole=lambda spec: spec,
            launcher=launcher,
            evidence=Evidence(),
            mps=None,
            checkpoints=Checkpoints(""),
            limiter=NvmlLimiter(),
            suspending=Suspending,
            kill_grace_s=1.0,
            extra_env={},
        )
        self.world.shepherd.start()
        again = self.world._later, (self.world._try_again,)
        soon = lambda _pause, after_s: Soon(after_s, *again).start()  # noqa: E731
        monkeypatch.setattr(self.world._pauses, "submit", soon)

    def fail(self, times: int) -> None:
        (self.bin / "outages").write_text(f"{times}\n")

    def job(self, id: int, **spec: Any) -> Job:
        return make_job(self.state, "true", id=id, **spec)

    def asked(self) -> list[str]:
        path = self.bin / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def ends(self, count: int) -> dict[JobId, Exited]:
        def found() -> list[Exited]:
            return [event for event in self.inbox.events if isinstance(event, Exited)]

        until(lambda: len(found()) >= count, f"{count} ends")
        ends = {event.job: event for event in found()}
        assert len(ends) == len(found()) == count
        return ends

    def notes(self) -> list[Noticed]:
        return [event for event in self.inbox.events if isinstance(event, Noticed)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine(tmp_path, monkeypatch)
    yield machine
    machine.world.close()


def test_an_outage_of_systemd_fails_no_job(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, failures = 200, 9
    machine.fail(failures)
    for id in range(1, jobs + 1):
        machine.world.perform(Launch(machine.job(id)))
    ends = machine.ends(jobs)
    assert {end.exit.cause for end in ends.values()} == {Cause.SUCCESS}
    # One launch at a time finds out whether it is over, and each time a bit later.
    assert len(machine.asked()) == failures + jobs
    assert Soon.delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert machine.world.outage is None
    told = machine.notes()
    assert len({note.job for note in told}) == len(told) == jobs
    assert all("Failed to connect to bus" in note.note for note in told)
    assert caplog.text.count("launches are postponed") == 1


def test_launches_behind_one_that_hangs_are_not_given_up(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor is awaited only once systemd has been asked to start it."""
    monkeypatch.setattr(shepherd, "START_WITHIN_S", 0.0)
    os.mkfifo(machine.bin / "hangs")
    for id in (1, 2):
        machine.world.perform(Launch(machine.job(id)))
    for asked, another, ends in ((["1.1 0"], 3, 1), (["1.1 0", "2.1 0"], 4, 3)):
        until(lambda asked=asked: machine.asked() == asked, "systemd to be asked")  # type: ignore[misc]
        machine.world.shepherd.watch(machine.job(another))  # nobody has launched this one
        assert another in machine.ends(ends), "the shepherd looks around"
        (machine.bin / "hangs").write_text("go on\n")
    causes = {id: end.exit.cause for id, end in machine.ends(4).items()}
    assert causes == {1: Cause.SUCCESS, 2: Cause.SUCCESS, 3: Cause.LOST, 4: Cause.LOST}


def test_a_launch_that_hangs_keeps_no_stop_waiting(machine: Machine) -> None:
    """Of a job that runs, of one that is being launched, and of one that is behind it."""
    runs = machine.job(9)
    control = attempt_dir(machine.state, runs.id, 1) / supervisor.CONTROL
    control.parent.mkdir()
    os.mkfifo(control)
    reader = os.open(control, os.O_RDWR | os.O_NONBLOCK)  # as its supervisor does
    os.mkfifo(machine.bin / "hangs")
    first, behind = machine.job(1), machine.job(2)
    for job in (first, behind):
        machine.world.perform(Launch(job))
    until(lambda: machine.asked() == ["1.1 0"], "systemd to be asked")
    for job in (runs, behind, first):
        machine.world.perform(Stop(changed(job, state=JobState.STOPPING, stop=Cause.CANCELLED)))
    ends = machine.ends(2)
    assert {id: (end.exit.cause, end.stop) for id, end in ends.items()} == {
        1: (Cause.UNSTARTED, Cause.CANCELLED),
        2: (Cause.UNSTARTED, Cause.CANCELLED),
    }
    until(lambda: select.select([reader], [], [], 0)[0], "the stop to reach the job that runs")
    assert os.read(reader, 4096) == b"because cancelled\nstop 1.0\n"
    os.close(reader)
    assert machine.asked() == ["1.1 0"], "systemd still hangs"
    (machine.bin / "hangs").write_text("go on\n")
    machine.world._hands.submit(lambda: None).result(PATIENCE_S)
    assert machine.asked() == ["1.1 0"], "the one behind it is not launched any more"
    assert not (attempt_dir(machine.state, first.id, 1) / supervisor.STARTED).exists()


def test_a_daemon_that_is_told_to_stop_does_not_wait_for_a_launch_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    monkeypatch.setattr(world_module, "CLOSE_WITHIN_S", 0.1)
    os.mkfifo(machine.bin / "hangs")
    machine.world.perform(Launch(machine.job(1)))
    until(lambda: machine.asked() == ["1.1 0"], "systemd to be asked")
    machine.world.close()
    assert machine.asked() == ["1.1 0"]
    (machine.bin / "hangs").write_text("go on\n")
    machine.world._hands.shutdown()
    assert (attempt_dir(machine.state, JobId(1), 1) / supervisor.STARTED).exists()


def test_the_core_hears_when_a_postponed_attempt_begins(machine: Machine) -> None:
    """Until then, its time limit does not count."""
    machine.fail(3)
    machine.world.perform(Launch(machine.job(1)))
    machine.world.perform(Launch(changed(machine.job(2), started_at=None)))  # before a restart
    machine.ends(2)
    told = [event for event in machine.inbox.events if isinstance(event, Postponed | Exited)]
    for id in (1, 2):
        about = [event for event in told if event.job == id]
        assert [getattr(event, "over", "end") for event in about] == [False, True, "end"]


def test_the_next_outage_is_looked_at_as_soon_as_the_first(machine: Machine) -> None:
    for id in (1, 2):
        machine.fail(2)
        machine.world.perform(Launch(machine.job(id)))
        machine.ends(id)
    assert Soon.delays == [1, 2, 1, 2]


def test_a_job_that_alone_cannot_be_started_keeps_no_other_waiting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, because its directory is a damaged file: the others get their turn."""
    monkeypatch.setattr(Soon, "start", lambda timer: waiting.append(timer))
    waiting: list[Any] = []
    attempt_dir(machine.state, JobId(1), 1).write_text("no directory")
    for id in (1, 2, 3):
        machine.world.perform(Launch(machine.job(id)))
    for _ in range(3):
        until(lambda: waiting, "a timer")
        waiting.pop()._due()
    assert machine.ends(2).keys() == {2, 3}


def test_an_outage_that_follows_upon_another_is_waited_for_by_one_timer(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Any] = []
    monkeypatch.setattr(Soon, "start", lambda timer: waiting.append(timer))
    machine.fail(1)
    for id in (1, 2, 3):
        machine.world.perform(Launch(machine.job(id)))
    until(lambda: waiting, "a timer")

    def recover_for_a_moment() -> None:
        machine.world._try_again()  # one starts, and the next is in line to go on
        machine.fail(1)
        machine.world._do(Launch(machine.job(4)))

    machine.world._hands.submit(recover_for_a_moment).result(PATIENCE_S)
    machine.world._hands.submit(lambda: None).result(PATIENCE_S)
    assert len(waiting) == 2
    assert len(machine.asked()) == 3
    waiting.pop()._due()
    assert machine.ends(4).keys() == {1, 2, 3, 4}


def test_an_outage_in_which_no_thread_can_be_started_passes_like_any_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a user has exhausted the machine's processes, no launch succeeds."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.delattr(machine.world._pauses, "submit")
    monkeypatch.setattr(machine.world, "_again_after_s", 0.01)
    machine.fail(2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for id in (1, 2):
            machine.world.perform(Launch(machine.job(id)))
        ends = machine.ends(2)
    assert {end.exit.cause for end in ends.values()} == {Cause.SUCCESS}


def test_what_the_job_itself_caused_is_final(machine: Machine) -> None:
    machine.world.perform(Launch(machine.job(1, env=(("A", "b\0c"),))))
    assert machine.ends(1)[JobId(1)].exit.cause is Cause.LAUNCH_FAILED
    assert not (machine.bin / "asked").exists()


def test_a_launch_that_succeeded_unbeknown_is_not_repeated(machine: Machine) -> None:
    """systemd had started the unit, and said that it had failed."""
    (machine.bin / "starts-all-the-same").touch()
    machine.fail(1)
    machine.world.perform(Launch(machine.job(1)))
    assert machine.ends(1)[JobId(1)].exit.cause is Cause.SUCCESS
    assert machine.asked() == ["1.1 1"]


def test_such_a_launch_is_found_while_the_outage_lasts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(machine.world._pauses, "submit")
    monkeypatch.setattr(machine.world, "_again_after_s", 3600.0)
    monkeypatch.setattr(world_module, "AGAIN_AFTER_S", 0.01)
    (machine.bin / "starts-all-the-same").touch()
    machine.fail(1)
    machine.world.perform(Launch(machine.job(1)))
    assert machine.ends(1)[JobId(1)].exit.cause is Cause.SUCCESS
    machine.world._closed.set()  # the pause is over


def test_the_doctor_says_that_launches_are_postponed_and_why(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Soon, "start", lambda _timer: None)
    machine.fail(1)
    machine.world.perform(Launch(machine.job(1)))
    until(lambda: machine.world.outage, "the outage")
    (found,) = doctor._launches(machine.world.outage)
    assert found["ok"] is False and "Failed to connect to bus" in found["detail"]
    assert "systemctl status" in found["hint"]


@pytest.mark.parametrize("cause", [Cause.CANCELLED, Cause.PREEMPTED])
def test_a_postponed_job_can_be_stopped(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, cause: Cause
) -> None:
    monkeypatch.setattr(Soon, "start", lambda timer: waiting.append(timer))
    waiting: list[Any] = []
    machine.fail(1)
    stopped, other = machine.job(1), machine.job(2)
    for job in (stopped, other):
        machine.world.perform(Launch(job))
    machine.world._hands.submit(lambda: None).result(PATIENCE_S)
    machine.world.perform(Stop(changed(stopped, state=JobState.STOPPING, stop=cause)))
    end = machine.ends(1)[JobId(1)]
    assert end.exit.cause is Cause.UNSTARTED
    assert end.stop is (cause if cause is Cause.CANCELLED else None)
    waiting.pop()._due()
    assert machine.ends(2)[JobId(2)].exit.cause is Cause.SUCCESS
    assert machine.asked() == ["1.1 1", "2.1 0"]
    # Nor is it started by a unit that systemd had queued, or by the next daemon.
    assert os.path.lexists(attempt_dir(machine.state, JobId(1), 1) / supervisor.STOP)


def test_a_postponed_job_that_was_started_unbeknown_is_stopped_for_real(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Soon, "start", lambda _timer: None)
    (machine.bin / "starts-all-the-same").touch()
    machine.fail(1)
    job = machine.job(1)
    machine.world.perform(Launch(job))
    machine.world._hands.submit(lambda: None).result(PATIENCE_S)
    machine.world.perform(Stop(changed(job, state=JobState.STOPPING, stop=Cause.CANCELLED)))
    assert machine.ends(1)[JobId(1)].exit.cause is Cause.SUCCESS  # by the supervisor's word
