"""The daemon's clock, and running jobs after the wall clock was changed and carmad restarted."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import a_gpu, a_job, a_spec, changed
from carmad.config import Settings
from carmad.core.gpus.gpu import GpuSample
from carmad.core.jobs.attempt import JobId, ProfilingRun
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Discovered, Sampled, Step, Submitted, Tick
from carmad.core.rules.limits import Reservation
from carmad.core.scheduler import Scheduler
from carmad.engine import clock as module
from carmad.engine.clock import Clock, Wall
from carmad.store.database import StoreFull
from carmad.store.sql import SET_S, SqlStore
from policies import builtin
from recovery import ladder

HOUR = 3600.0
GPU = a_gpu()


def test_the_clock_goes_on_through_a_suspend_and_heeds_nobody_who_sets_the_wall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def now(which: int) -> float:
        asked.append(which)
        return 100.0 * len(asked)

    monkeypatch.setattr(time, "clock_gettime", now)
    monkeypatch.setattr(time, "time", lambda: 1_000_100.0)
    clock = Clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock() == 1_000_200.0
    assert Clock(ahead_s=5.0)() == 305.0
    assert set(asked) == {time.CLOCK_BOOTTIME}


def test_a_clock_that_was_set_is_followed_once_it_stays_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mono, set_by, restarts = 0.0, 0.0, list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: mono)
    monkeypatch.setattr(time, "time", lambda: 1000.0 + mono + set_by)
    wall = Wall(lambda: 1000.0 + mono, lambda: restarts.append(mono))

    def passes(seconds: int) -> None:
        nonlocal mono
        for _ in range(seconds):
            mono += 1
            wall.look()

    passes(100)
    set_by = 30.0
    passes(100)
    assert caplog.text == ""
    set_by = HOUR
    passes(30)
    assert caplog.text.count("was set by 3600 s") == 1
    set_by = 0.0  # it was a mistake
    passes(100)
    assert restarts == []
    set_by = -HOUR
    passes(300)
    assert restarts == [mono - 300 + 61]
    assert caplog.text.count("was set by -3600 s; carmad restarts") == 1


def test_a_boot_has_a_name() -> None:
    assert module.boot_id() == module.boot_id() != ""


class Machine:
    """Successive daemons of one boot with one state directory."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "carma.db"
        self.boot = "this boot"
        self.up_s = 50_000.0  # since the boot
        self.wall_ahead_s = 1.7e9
        self.start()

    def start(self) -> None:
        settings = Settings()
        self.store = SqlStore.open(self.path)
        self.ahead_s = self.store.keep_time(self.boot, self.wall_ahead_s)
        self.core = Scheduler(settings, builtin.magm(settings), ladder.exclusive(settings))
        saved = self.store.restore()
        self.core.restore(saved.jobs, saved.ended, saved.drains)
        sample = Sampled(self.now, (GpuSample(GPU.id, self.now, 0, 40_960),))
        self.tell(Discovered(self.now, (GPU,)), sample)

    def restart(self, wall_set_by: float = 0.0) -> None:
        self.store.close()
        self.wall_ahead_s += wall_set_by
        self.start()

    @property
    def now(self) -> float:
        return self.ahead_s + self.up_s

    def tell(self, *events: Any) -> None:
        self.store.commit(self.core.handle(*events))

    def passes(self, seconds: float) -> Job:
        self.up_s += seconds
        self.tell(Tick(self.now))
        return self.core.jobs[JobId(1)]

    def running(self, **spec: Any) -> None:
        job = a_job(
            1,
            spec=a_spec(**spec),
            state=JobState.RUNNING,
            gpus=(GPU.id,),
            attempt=1,
            submitted_at=self.now - 60,
            started_at=self.now,
            kernels=((GPU.id, self.now),),
        )
        self.store.commit(Step((Tick(self.now),), (job,), (), ()))
        self.restart()


@pytest.mark.parametrize("by", [2 * HOUR, -2 * HOUR, 0.0, 8e8, -8e8])
def test_a_time_limit_counts_what_has_passed_and_not_what_the_wall_says(
    tmp_path: Path, by: float
) -> None:
    machine = Machine(tmp_path)
    machine.running(time_limit_s=HOUR)
    assert machine.passes(5).attained_s(machine.now) == pytest.approx(5)
    machine.restart(wall_set_by=by)
    assert machine.now == pytest.approx(machine.wall_ahead_s + machine.up_s)
    assert machine.passes(HOUR - 10).state is JobState.RUNNING
    machine.restart(wall_set_by=by)
    assert machine.passes(4).state is JobState.RUNNING
    assert machine.passes(2).state is JobState.STOPPING


@pytest.mark.parametrize("by", [2 * HOUR, -2 * HOUR])
def test_all_that_is_measured_of_a_job_moves_and_what_its_owner_said_does_not(
    tmp_path: Path, by: float
) -> None:
    machine = Machine(tmp_path)
    at = machine.now
    live = a_job(
        1,
        spec=a_spec(begin_at=at + 9, deadline_at=at + 99),
        state=JobState.RUNNING,
        gpus=(GPU.id,),
        submitted_at=at,
        started_at=at + 1,
        kernels=((GPU.id, at + 2),),
        profiling=ProfilingRun(at + 3, evict=False),
        served_s=7.0,
    )
    waits = a_job(2, submitted_at=at + 1)
    ended = changed(live, id=JobId(3), state=JobState.SUCCEEDED, ended_at=at + 4)
    store = machine.store
    reserved = Reservation(1, (GPU.id,), ("ada",), (at + 50, at + 90), 10.0, "root")
    store.commit(Step((Tick(at),), (live, waits, ended), (), (), reservations=(reserved,)))
    assert store.keep_time(machine.boot, machine.wall_ahead_s + by) == machine.wall_ahead_s + by
    assert tuple(store.restore().reservations) == (reserved,)
    found = {job.id: job for job in store.jobs([JobId(id) for id in (1, 2, 3)])}
    assert found[JobId(1)] == changed(
        live,
        submitted_at=at + by,
        started_at=at + 1 + by,
        kernels=((GPU.id, at + 2 + by),),
        profiling=ProfilingRun(at + 3 + by, evict=False),
    )
    assert found[JobId(2)] == replace(waits, submitted_at=at + 1 + by)
    assert found[JobId(3)] == ended
    moved = [[change.at for change in store.transitions(JobId(id))] for id in (1, 2, 3)]
    assert moved == [[at + by], [at + by], [at]]  # or it had started before it was submitted


def test_a_wall_that_was_not_set_moves_nothing_however_often_it_is_read(tmp_path: Path) -> None:
    """Two clocks are never read at exactly the same moment."""
    machine = Machine(tmp_path)
    machine.running(time_limit_s=HOUR)
    before = machine.store.restore().jobs
    begun_s = machine.ahead_s
    for _ in range(20):
        machine.restart(wall_set_by=0.9 * SET_S / 20)
    assert machine.store.restore().jobs == before
    assert machine.ahead_s == begun_s


def test_after_a_reboot_the_wall_is_read_anew(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.running()
    before = machine.store.restore().jobs
    machine.boot, machine.up_s = "the next boot", 10.0
    machine.restart(wall_set_by=5000)
    assert machine.ahead_s == machine.wall_ahead_s
    assert machine.store.restore().jobs == before  # its attempt is lost anyway


def test_a_shift_that_cannot_be_recorded_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, or if killed halfway, the earlier daemon's time is kept."""
    machine = Machine(tmp_path)
    machine.running(time_limit_s=HOUR)
    before = machine.store.restore().jobs

    def full(_connection: object, _by_s: float) -> None:
        shift(_connection, _by_s)
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        shift = machine.store._shift
        patch.setattr(machine.store, "_shift", full)
        known = machine.store.keep_time(machine.boot, machine.wall_ahead_s + 2 * HOUR)
    assert known == machine.ahead_s
    assert machine.store.restore().jobs == before
    machine.restart(wall_set_by=2 * HOUR)
    assert machine.passes(HOUR - 1).state is JobState.RUNNING
    assert machine.passes(2).state is JobState.STOPPING


def test_submissions_after_it_are_of_the_new_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.restart(wall_set_by=-2 * HOUR)
    machine.tell(Submitted(machine.now, JobId(1), (a_spec(),)))
    assert machine.store.restore().jobs[0].submitted_at == machine.wall_ahead_s + machine.up_s
