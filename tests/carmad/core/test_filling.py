"""Fillers: jobs that start before their turn, and leave when those before them can start."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from carma_testing import FakeServer
from carmad.config import Limits, Monitor, Settings, Suspending
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.spec import Allocation
from carmad.core.jobs.states import JobState

S = JobState
GIB = 1024
SETTINGS = Settings(
    monitor=Monitor(window_s=5.0),
    limits=Limits(preemption="suspend"),
    suspend=Suspending(host_memory_mib=100 * GIB, moves=True),
)
ALONE = replace(SETTINGS, policy="exclusive")


def runs(on: FakeServer, gib: int, **spec: object) -> JobId:
    """A job that runs with the memory that it declared, and whose GPUs take others."""
    id = on.submit(memory_mib=gib * GIB, **spec)
    on.run_kernel(id, gib * GIB)
    on.pass_time(7)
    assert on.job(id).state is S.RUNNING
    return id


def waits_behind_three() -> tuple[FakeServer, list[JobId], JobId]:
    """Three jobs of 14 GiB on two GPUs, which moving would not help, and one of 36 GiB that waits.
    Nobody gave a --time."""
    here = FakeServer(2, SETTINGS)
    three = [runs(here, 14) for _ in range(3)]
    head = here.submit(memory_mib=36 * GIB)
    here.pass_time(2)
    assert here.job(head).state is S.QUEUED
    return here, three, head


def test_no_gpu_is_idle_beside_a_job_that_waits_though_nobody_gave_a_time() -> None:
    here, _, head = waits_behind_three()
    small = here.submit(memory_mib=4 * GIB)
    here.pass_time(2)
    assert here.job(small).state is S.STARTING and here.job(small).current.filler
    (why,) = here.scene.decisions[head].placement.reasons
    assert why.code == "filled"
    grounds = here.scene.decisions[small].placement.explanation
    assert [(each.code, each.detail) for each in grounds][-1] == ("filler", f"job {head}")


def test_the_filler_is_suspended_as_soon_as_the_head_can_start_without_it() -> None:
    here, three, head = waits_behind_three()
    small = runs(here, 6)
    (gpu,) = here.job(small).gpus
    beside = [id for id in three if here.job(id).gpus == (gpu,)]
    for id in beside:
        here.exit(id)
    assert here.job(head).gpus == (gpu,)
    changed = (job for step in here.steps for job in step.jobs if job.id == small)
    (suspension,) = {job.suspension for job in changed if job.state is S.SUSPENDED}
    assert suspension and suspension.why == f"job {head} goes first"
    here.pass_time(2)
    assert here.job(small).gpus != (gpu,), "it goes on elsewhere"
    assert here.job(small).state is S.RUNNING and not here.job(small).current.filler, (
        "it is its turn"
    )


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, limits=Limits()),
        replace(SETTINGS, limits=Limits(preemption=True)),
        replace(SETTINGS, suspend=Suspending()),
        replace(SETTINGS, suspend=Suspending(host_memory_mib=3 * GIB)),
        replace(SETTINGS, limits=Limits(preemption="suspend", backfill=0)),
    ],
    ids=["nobody is preempted", "only requeued", "nobody is suspended", "too large", "the paper's"],
)
def test_without_suspension_nobody_fills(settings: Settings) -> None:
    here = FakeServer(1, settings)
    runs(here, 8)
    here.submit(memory_mib=36 * GIB)
    small = here.submit(memory_mib=4 * GIB)
    here.pass_time(70)
    assert not here.job(small).current.filler


@pytest.mark.parametrize(
    "spec",
    [
        {"gpus": 2},
        {"requeue": False},
        {"interactive": True, "nice": 1},
        {"allocation": Allocation("Slurm", 7)},
    ],
)
def test_who_may_not_be_suspendable_does_not_fill(spec: dict[str, object]) -> None:
    here = FakeServer(3, ALONE)
    here.submit()
    here.submit(gpus=3, urgent=True)
    id = here.submit(**spec)
    here.pass_time(3)
    assert here.job(id).state is S.QUEUED
    other = here.submit()
    here.pass_time(2)
    assert here.job(other).attempt, "those behind it may"


def test_a_filler_that_has_run_no_kernel_is_queued_again() -> None:
    here = FakeServer(2, ALONE)
    first = here.submit()
    head = here.submit(gpus=2)
    small = here.submit()
    here.pass_time(2)
    assert here.job(small).current.filler and here.job(small).state is S.STARTING
    here.exit(first)
    assert here.job(small).state is S.STOPPING
    here.exit(small, Exit(Cause.FAILURE, signal=15))
    assert here.job(head).state is S.STARTING
    assert here.job(small).state is S.QUEUED


def test_a_gpu_that_is_being_freed_is_kept_for_the_head() -> None:
    here = FakeServer(2, ALONE)
    first = here.submit()
    here.run_kernel(first)
    head = here.submit(gpus=2)
    small = here.submit()
    here.pass_time(1)
    here.run_kernel(small)
    here.pass_time(2)
    late = here.submit()
    posted: list[object] = []
    here._post = posted.append
    here.exit(first)
    assert here.job(small).state is S.SUSPENDING
    here.pass_time(3)
    assert here.job(late).state is S.QUEUED
    (reason,) = here.scene.decisions[head].placement.reasons
    assert (reason.code, reason.have, reason.detail) == ("making_room", 1, f"job {small}")
    here._post = here.tell
    here.tell(posted[0])  # type: ignore[arg-type]
    assert here.job(head).state is S.STARTING


def test_a_load_that_may_be_the_fillers_keeps_the_head_away_for_a_window_only() -> None:
    here = FakeServer(1, SETTINGS)
    first, second = runs(here, 8), runs(here, 8)
    head = here.submit(memory_mib=30 * GIB)
    small = runs(here, 6)
    (gpu,) = here.gpus
    here.sm_active[gpu.id] = here.dram_active[gpu.id] = 0.95
    here.pass_time(6)
    here.exit(first)
    assert here.job(small).state is S.SUSPENDED
    here.sm_active[gpu.id] = here.dram_active[gpu.id] = 0.2
    here.pass_time(1)
    assert here.why(head)[0] == {0: ["risk"]}
    assert here.job(small).state is S.SUSPENDED, "it would be the load again"
    here.pass_time(4)
    assert here.job(head).state is S.STARTING
    assert here.job(second).state is S.RUNNING


def test_a_first_kernel_is_awaited_for_a_minute_before_others_fill() -> None:
    here = FakeServer(2, SETTINGS)
    first = here.submit(memory_mib=8 * GIB)
    head = here.submit(memory_mib=8 * GIB, gpus=2)
    small = here.submit(memory_mib=4 * GIB)
    here.pass_time(58)
    assert here.job(small).state is S.QUEUED, "the head may start in a moment"
    here.pass_time(5)
    assert here.job(small).current.filler
    here.run_kernel(small)
    here.run_kernel(first)
    here.pass_time(8)
    assert here.job(head).state is S.STARTING


def test_a_promise_is_filled_too_by_who_outlasts_it() -> None:
    here = FakeServer(2, ALONE)
    first = here.submit(time_limit_s=3600.0)
    here.run_kernel(first)
    head = here.submit(gpus=2)
    long, short = here.submit(), here.submit(time_limit_s=600.0)
    here.pass_time(2)
    assert (here.job(long).current.filler, here.job(short).state) == (True, S.QUEUED)
    here.run_kernel(long)
    here.pass_time(1)
    here.exit(first)
    here.pass_time(2)
    assert here.job(head).state is S.STARTING
    assert here.job(long).state is S.SUSPENDED


def test_fillers_do_not_put_a_promise_off() -> None:
    here = FakeServer(3, ALONE)
    here.submit(time_limit_s=3600.0)
    head = here.submit(gpus=3)
    long = here.submit()
    here.pass_time(2)
    assert here.job(long).current.filler
    (reason,) = here.scene.decisions[head].placement.reasons
    assert reason.code == "promised" and reason.need < 3600.0
    short = here.submit(time_limit_s=600.0)
    here.pass_time(2)
    assert (here.job(short).state, here.job(short).current.filler) == (S.STARTING, False)


def test_a_filler_gives_way_to_all_before_it_but_not_to_those_behind() -> None:
    here = FakeServer(2, ALONE)
    first = here.submit()
    heads = [here.submit(gpus=2), here.submit(gpus=2)]
    small = here.submit()
    behind = here.submit(gpus=2)
    here.pass_time(2)
    here.run_kernel(small)
    here.pass_time(1)
    here.exit(first)
    here.pass_time(2)
    assert here.job(heads[0]).state is S.STARTING
    here.exit(heads[0])
    here.pass_time(2)
    assert here.job(heads[1]).state is S.STARTING, "the filler has not come before it"
    here.exit(heads[1])
    here.pass_time(2)
    assert here.job(small).state is S.RUNNING and not here.job(small).current.filler
    here.pass_time(2)
    assert here.job(behind).state is S.QUEUED


def test_a_job_just_resumed_runs_for_a_quantum_and_not_for_longer() -> None:
    here = FakeServer(2, replace(ALONE, suspend=replace(ALONE.suspend, fixed_s=0.1)))
    first = here.submit()
    head = here.submit(gpus=2)
    small = here.submit()
    here.run_kernel(small, 2000)
    here.pass_time(2)
    here.exit(first)
    here.pass_time(2)
    here.run_kernel(head)
    blocker = here.submit(nice=-1)
    last = here.submit(gpus=2, nice=-1)
    here.exit(head)
    here.pass_time(2)
    assert here.job(blocker).state is S.STARTING
    assert here.job(small).state is S.RUNNING and here.job(small).current.filler
    here.exit(blocker)
    here.pass_time(5)
    assert here.job(small).state is S.RUNNING, "it has just resumed"
    assert here.job(last).state is S.QUEUED
    here.pass_time(80)
    assert here.job(small).state is S.SUSPENDED
    assert here.job(last).state is S.STARTING


# -- at random


class Crowd:
    """Jobs of random sizes that run on a server for random times, which nobody knows."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.rng = random.Random(seed)
        self.here = FakeServer(self.rng.randint(2, 3), settings)
        self.lasts_s: dict[JobId, float] = {}
        self.mib: dict[JobId, int] = {}
        self.idle_s = 0.0  # for how long a GPU has been idle beside a job that waits for one
        self.longest_idle_s = 0.0

    def submit(self, least_s: float, most_s: float, gib: int, **spec: object) -> JobId:
        mib = self.rng.randint(1, gib) * GIB
        id = self.here.submit(memory_mib=mib, **spec)
        self.lasts_s[id], self.mib[id] = self.rng.uniform(least_s, most_s), mib
        return id

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.here.sample(1.0)
            for job in list(self.here.scheduler.jobs.rows.values()):
                if job.state is S.STARTING and (job.started_at or 0) < self.here.now:
                    self.here.run_kernel(job.id, self.mib[job.id])
                elif job.state is S.STOPPING:
                    self.here.exit(job.id, Exit(Cause.FAILURE, signal=15))
                elif job.lives and job.attained_s(self.here.now) >= self.lasts_s[job.id]:
                    self.here.exit(job.id)
            view = self.here.scene.view
            idle = any(not gpu.residents for gpu in view.gpus)
            waits = any(job.spec.gpus == 1 for job in view.queue)
            self.idle_s = self.idle_s + 1 if idle and waits else 0.0
            self.longest_idle_s = max(self.longest_idle_s, self.idle_s)

    def head_starts_at(self) -> float:
        """The server is in use, a job needs much of it, and small ones come behind it."""
        spec = {"gpus": 2} if self.rng.random() < 0.5 else {}
        for _ in range(self.rng.randint(2, 5)):
            self.submit(60, 200, 20)
            self.pass_time(8)
        head = self.submit(500, 500, 39, **spec)
        state = self.rng.getstate()
        for _ in range(8):
            self.submit(10, 150, 8)
        self.rng.setstate(state)
        while not (job := self.here.job(head)).attempts:
            assert self.here.now < 3000
            self.pass_time(5)
        return job.attempts[0].started_at or 0.0


QUICK = replace(SETTINGS.suspend, out_mib_s=1e6, in_mib_s=1e6, fixed_s=0.01, most_per_hour=99)


@pytest.mark.parametrize("policy", ["magm", "lug", "first_fit", "exclusive"])
@pytest.mark.parametrize("seed", range(12))
def test_the_head_starts_when_it_would_have_without_fillers(policy: str, seed: int) -> None:
    settings = replace(SETTINGS, policy=policy, suspend=QUICK)
    filled = Crowd(seed, settings)
    without = Crowd(seed, replace(settings, limits=Limits()))
    starts_at, alone_at = filled.head_starts_at(), without.head_starts_at()
    assert starts_at <= alone_at + 5.0
    assert filled.longest_idle_s <= 60.0
