"""Real processes on emulated cards, suspended and resumed by the daemon's helpers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from carmad.gpu import card as cards
from carmad.gpu.card import SUFFIX, Card
from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.cuda_state import (
    ILLEGAL_STATE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    DriverError,
    Outcome,
    State,
    is_gone,
    is_stopped,
)
from carmad.gpu.emulated import EmulatedSource, create
from carmad.gpu.emulated_driver import SPEED, EmulatedDriver
from carmad.gpu.emulated_job import STEP_S
from tests.carmad.gpu.test_emulated import start_job
from tests.waiting import PATIENCE_S, until

DONE = Outcome(True)
Job = subprocess.Popen[str]


class Bench:
    """Two A100 and a T4, and jobs on them."""

    def __init__(self, directory: Path) -> None:
        create(directory, "2xA100-40GB,1xT4-16GB")
        self.directory = directory
        self.source = EmulatedSource(directory)
        self.gpus = [gpu.id for gpu in self.source.discover()]
        self.checkpoints = Checkpoints(str(directory))
        self.driver = EmulatedDriver(str(directory))
        self.jobs: list[Job] = []

    def start(self, mib: int, gpus: str = "0") -> Job:
        words = ("--memory-mib", str(mib), "--warmup", "0", "--seconds", "600")
        job = start_job(self.directory, *words, gpus=gpus)
        self.jobs.append(job)
        on = [int(gpu) for gpu in gpus.split(",")]
        until(lambda: all(self.mib(gpu, job) == mib for gpu in on), "it to have its memory")
        return job

    def mib(self, gpu: int, job: Job) -> int:
        """What it has there, as the readings say."""
        processes = self.source.sample(0.0)[gpu].processes
        return sum(use.memory_mib for use in processes if use.pid == job.pid)

    def used(self) -> list[int | None]:
        return [sample.memory_used_mib for sample in self.source.sample(0.0)]

    def suspend(self, *jobs: Job, within_s: float = PATIENCE_S) -> Outcome:
        return self.checkpoints.suspend(lambda: [job.pid for job in jobs], 1.0, within_s)

    def resume(
        self, *jobs: Job, moves: tuple[tuple[int, int], ...] = (), within_s: float = PATIENCE_S
    ) -> Outcome:
        pairs = [(self.gpus[old], self.gpus[new]) for old, new in moves]
        return self.checkpoints.resume([job.pid for job in jobs], pairs, within_s)

    def card(self, gpu: int) -> Card:
        return Card(str(self.directory / f"{self.gpus[gpu]}{SUFFIX}"))

    def close(self) -> None:
        for job in self.jobs:
            job.kill()
            job.communicate()
        self.source.close()


def work_s(line: str) -> float:
    """How much work a line of an emulated job's log says is done."""
    step = re.match(r"step +(\d+)/", line)
    return int(step[1]) * STEP_S if step else 0.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    its = Bench(tmp_path / "cards")
    yield its
    its.close()


def test_the_memory_of_a_suspended_job_is_free_for_others(bench: Bench) -> None:
    job = bench.start(30_000)
    assert bench.suspend(job) == DONE
    sample = bench.source.sample(0.0)[0]
    assert (sample.memory_used_mib, sample.sm_active, sample.processes) == (0, 0.0, ())
    assert bench.checkpoints.states([job.pid]) == {job.pid: State.CHECKPOINTED}
    other = bench.start(30_000)
    refused = bench.resume(job)
    assert (refused.done, refused.lost) == (False, False)
    assert "not enough free memory" in refused.why
    assert bench.used()[0] == 30_000
    other.kill()
    other.communicate()
    assert bench.resume(job) == DONE
    assert bench.mib(0, job) == 30_000
    assert bench.checkpoints.states([job.pid]) == {job.pid: State.RUNNING}


def test_a_suspended_job_does_no_work(bench: Bench) -> None:
    began = time.monotonic()
    job = bench.start(1000)
    assert bench.suspend(job) == DONE
    worked_s = time.monotonic() - began  # at most
    time.sleep(2.0)
    assert job.poll() is None
    resumed = time.monotonic()
    assert bench.resume(job) == DONE
    time.sleep(1.5)
    job.kill()
    worked_s += time.monotonic() - resumed
    assert max(map(work_s, job.communicate()[0].splitlines())) <= worked_s


def test_the_time_in_which_a_process_was_suspended_is_counted_by_the_driver(bench: Bench) -> None:
    """Frozen, it would not notice."""
    card = bench.card(0)
    card.attach()
    for n in (1, 2):
        bench.driver.lock(os.getpid(), 1.0)
        time.sleep(0.1)
        if n == 2:
            bench.driver.checkpoint(os.getpid())
            bench.driver.restore(os.getpid(), [(bench.gpus[0], bench.gpus[1])])
        assert card.suspended_s() >= n * 0.1
        bench.driver.unlock(os.getpid())
        found = card.suspended_s()
        time.sleep(0.01)
        assert card.suspended_s() == found >= n * 0.1
    card.close()


def test_a_job_moves_to_another_card_and_back(bench: Bench) -> None:
    job = bench.start(20_000)
    for old, new in ((0, 1), (1, 0)):
        assert bench.suspend(job) == DONE
        assert bench.resume(job, moves=((old, new),)) == DONE
        assert (bench.mib(old, job), bench.mib(new, job)) == (0, 20_000)
        until(lambda new=new: bench.source.sample(0.0)[new].sm_active, "it to go on there")
    job.terminate()
    job.communicate()
    until(lambda: bench.used() == [0, 0, 0], "its memory to be freed")
    assert bench.card(0)._vacancy() == bench.card(1)._vacancy() == cards.HEADER


def test_it_may_move_again_before_it_notices(bench: Bench) -> None:
    card = bench.card(0)
    card.attach()
    card.allocate(1000)
    for old, new in ((0, 1), (1, 0), (0, 1)):
        bench.driver.lock(os.getpid(), 1.0)
        bench.driver.checkpoint(os.getpid())
        bench.driver.restore(os.getpid(), [(bench.gpus[old], bench.gpus[new])])
        bench.driver.unlock(os.getpid())
    card.allocate(500)
    assert (card.uuid, bench.used()) == (bench.gpus[1], [0, 1500, 0])
    card.close()
    assert bench.used() == [0, 0, 0]
    assert bench.card(0)._vacancy() == bench.card(1)._vacancy() == cards.HEADER


def test_a_job_of_two_cards_moves_as_a_whole(bench: Bench) -> None:
    job = bench.start(20_000, gpus="0,1")
    bench.start(10_000, gpus="1")
    assert bench.suspend(job) == DONE
    assert bench.used() == [0, 10_000, 0]
    incomplete = bench.resume(job, moves=((0, 1),))
    assert (incomplete.done, incomplete.lost) == (False, False)
    large = bench.start(25_000)
    assert not bench.resume(job, moves=((0, 1), (1, 0))).done
    assert bench.used() == [25_000, 10_000, 0], "all or nothing"
    large.kill()
    large.communicate()
    assert bench.resume(job, moves=((0, 1), (1, 0))) == DONE
    assert bench.used() == [20_000, 30_000, 0]


def test_errors_are_the_drivers(bench: Bench) -> None:
    pid, driver = bench.start(1000).pid, bench.driver
    with pytest.raises(DriverError) as caught:
        driver.checkpoint(pid)
    assert caught.value.code == ILLEGAL_STATE
    driver.lock(pid, 1.0)
    driver.checkpoint(pid)
    for moves in ([(bench.gpus[1], bench.gpus[0])], [(bench.gpus[0], bench.gpus[2])]):
        with pytest.raises(DriverError) as caught:
            driver.restore(pid, moves)
        assert caught.value.code == INVALID_VALUE
    bench.start(40_000)
    with pytest.raises(DriverError) as caught:
        driver.restore(pid, ())
    assert caught.value.code == OUT_OF_MEMORY
    assert driver.state(pid) is State.CHECKPOINTED
    assert driver.state(os.getpid()) is State.NONE


def test_a_job_that_is_killed_while_it_is_suspended_leaves_nothing(bench: Bench) -> None:
    job = bench.start(1000)
    assert bench.suspend(job) == DONE
    job.kill()
    job.communicate()
    assert bench.driver.state(job.pid) is State.NONE
    assert bench.resume(job) == bench.suspend(job) == DONE
    assert bench.used()[0] == 0
    assert bench.card(0)._vacancy() == cards.HEADER


def test_what_is_stopped_is_not_touched(bench: Bench) -> None:
    job = bench.start(1000)
    job.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(job.pid), "it to stop")
    refused = Outcome(False, f"process {job.pid} is stopped (SIGSTOP) or frozen")
    assert bench.suspend(job) == refused
    job.send_signal(signal.SIGCONT)
    assert bench.suspend(job) == DONE
    job.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(job.pid), "it to stop")
    assert bench.resume(job) == refused
    assert bench.suspend(job) == DONE, "there is nothing to do"
    job.send_signal(signal.SIGCONT)
    assert bench.resume(job) == DONE


def test_the_restore_of_a_stopped_process_waits(bench: Bench) -> None:
    """As the real driver's does."""
    job = bench.start(1000)
    assert bench.suspend(job) == DONE
    job.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(job.pid), "it to stop")
    restore = threading.Thread(target=bench.driver.restore, args=(job.pid, ()))
    restore.start()
    restore.join(0.3)
    assert restore.is_alive()
    job.send_signal(signal.SIGCONT)
    restore.join()
    assert bench.driver.state(job.pid) is State.LOCKED


def test_processes_that_it_has_started_meanwhile_are_suspended_too(bench: Bench) -> None:
    first, second = bench.start(1000), bench.start(1000)
    answers = [[first.pid], [first.pid, second.pid], [first.pid, second.pid]]
    assert bench.checkpoints.suspend(lambda: answers.pop(0), 1.0, PATIENCE_S) == DONE
    assert bench.used()[0] == 0


# A helper that takes too long is killed.

LATE_S = 2.0


def test_a_suspension_that_takes_too_long_is_undone(bench: Bench) -> None:
    """One process was suspended by then, the other locked."""
    small, large = bench.start(4), bench.start(30_000)
    (bench.directory / SPEED).write_text("0.01")
    pids = sorted([small.pid, large.pid])
    why = f"the driver did not answer within {LATE_S:g} s"
    assert bench.suspend(small, large, within_s=LATE_S) == Outcome(False, why, hung=True)
    states = bench.checkpoints.states(pids)
    assert states == dict.fromkeys(pids, State.RUNNING)


def test_a_resume_that_takes_too_long_is_undone(bench: Bench) -> None:
    small, large = bench.start(4), bench.start(30_000)
    assert bench.suspend(small, large) == DONE
    (bench.directory / SPEED).write_text("0.01")
    why = f"the driver did not answer within {LATE_S:g} s"
    assert bench.resume(small, large, within_s=LATE_S) == Outcome(False, why, hung=True)
    assert bench.used()[0] == 0


def test_what_cannot_be_brought_back_is_lost(bench: Bench) -> None:
    job, other = bench.start(30_000), bench.start(4)
    bench.driver.lock(job.pid, 1.0)
    bench.driver.checkpoint(job.pid)
    (bench.directory / SPEED).write_text("0.000001")
    outcome = bench.suspend(job, other, within_s=LATE_S)
    assert (outcome.done, outcome.lost) == (False, True)
    assert outcome.why.endswith("and its processes could not be brought back")


def test_a_helper_ends_with_whoever_asks(bench: Bench) -> None:
    """The next daemon must not find one at work."""
    job = bench.start(1000)
    (bench.directory / SPEED).write_text("0.001")
    asking = os.fork()
    if asking == 0:
        bench.suspend(job)
        os._exit(0)
    until(lambda: bench.driver.state(job.pid) is State.LOCKED, "the helper to begin")
    (helper,) = psutil.Process(asking).children()
    os.kill(asking, signal.SIGKILL)
    os.waitpid(asking, 0)
    until(lambda: is_gone(helper.pid), "it to end")
    (bench.directory / SPEED).unlink()
    assert bench.suspend(job) == DONE
