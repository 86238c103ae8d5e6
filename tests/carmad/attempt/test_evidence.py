"""Which attempt a process belongs to, and readings of an attempt's GPUs, also after its end."""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from carma_testing import a_gpu, a_job
from carmad.attempt import evidence as module
from carmad.attempt.evidence import Evidence
from carmad.attempt.proc import process_stat
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.jobs.attempt import JobId, MemoryLimits
from tests.attempts import until

GPU = a_gpu(0).id
FIRST, SECOND = (JobId(7), 1), (JobId(7), 2)
SUPERVISOR = """
import subprocess
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
input()
child.kill()
child.wait()
"""


@contextmanager
def supervisor():
    """A supervisor and its one child, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.communicate("\n")


def reading(at=1.0, *pids, free_mib=20_000):
    uses = tuple(ProcessUse(pid, 500) for pid in pids)
    return GpuSample(GPU, at, 40_960 - free_mib, free_mib, processes=uses)


def jobs(evidence, *pids):
    (sample,) = evidence.add([reading(1.0, *pids)])
    return {process.pid: process.job for process in sample.processes}


def test_a_process_that_has_just_died_is_still_its_attempt_s():
    evidence = Evidence()
    with supervisor() as (pid, child):
        evidence.add_supervisor(FIRST, pid)
        assert jobs(evidence, child, 1) == {child: 7, 1: None}
    assert jobs(evidence, child, 1) == {child: 7, 1: None}
    evidence.remove_supervisor(FIRST)
    assert jobs(evidence, child) == {child: 7}


def test_a_process_that_died_before_anybody_asked_is_not_an_external_one():
    """The reading shows it, but its owner can no longer be found."""
    evidence = Evidence()
    with supervisor() as (pid, child):
        evidence.add_supervisor(FIRST, pid)
    assert jobs(evidence, child, 1) == {1: None}


def test_a_pid_that_is_given_again_has_a_new_owner():
    evidence = Evidence()
    with supervisor() as (pid, child), supervisor() as (other, others_child):
        evidence.add_supervisor(FIRST, pid)
        evidence.add_supervisor(SECOND, other)
        assert evidence.attempt_of(others_child) == SECOND
        evidence._owners[others_child] = FIRST  # as if an earlier process of that pid were known
        evidence._attempts[FIRST].processes[others_child] = process_stat(child)[1]
        assert evidence.attempt_of(others_child) == SECOND


def test_an_attempt_s_running_processes_are_those_that_use_a_gpu_and_live():
    evidence = Evidence()
    with supervisor() as (pid, child):
        evidence.add_supervisor(FIRST, pid)
        assert evidence.running(FIRST) == set()
        evidence.add([reading(1.0, child)])
        assert evidence.running(FIRST) == {child}
    assert evidence.running(FIRST) == set()
    assert evidence.running(SECOND) == set()


@pytest.mark.parametrize(("until_s", "full"), [(2.5, True), (9.0, False), (0.5, False)])
def test_a_gpu_was_full_if_it_was_when_the_main_process_ended(until_s, full):
    """Its leftovers may be seen for some seconds, on a GPU whose memory is free again."""
    evidence = Evidence()
    with supervisor() as (pid, child):
        evidence.add_supervisor(FIRST, pid)
        for at, free_mib in ((1.0, 20_000), (2.0, 500), (3.0, 39_000), (4.0, 500)):
            evidence.add([reading(at, *([child] if at < 4 else []), free_mib=free_mib)])
    found = evidence.full_gpu(FIRST, until_s)
    assert bool(found) is full
    assert not found or (found.gpu, round(found.share, 3)) == (GPU, 0.988)
    assert not evidence.full_gpu(SECOND, until_s)


def test_old_readings_are_not_kept():
    evidence = Evidence()
    with supervisor() as (pid, child):
        evidence.add_supervisor(FIRST, pid)
        for at in range(100):
            evidence.add([reading(float(at), child)])
        assert len(evidence._attempts[FIRST].readings) == module.KEPT_S + 1


def test_nothing_stays_of_attempts_that_ended_a_while_ago(monkeypatch):
    evidence = Evidence()
    with supervisor() as (pid, child):
        evidence.add_supervisor(FIRST, pid)
        evidence.add([reading(1.0, child)])
    monkeypatch.setattr(module, "KNOWN_S", 0.0)
    evidence.add([])
    assert evidence._attempts.keys() == {FIRST}, "it has not ended"
    evidence.remove_supervisor(FIRST)
    evidence.add([])
    assert not (evidence._attempts or evidence._owners or evidence._supervisors)


def test_memory_is_gone_at_once_if_no_process_was_ever_seen():
    evidence = Evidence()
    job = a_job(7, attempt=1, gpus=(GPU,))
    assert evidence.memory_gone(job), "nobody knows it"
    evidence.add_supervisor(FIRST, 1)
    assert evidence.memory_gone(job)
    assert evidence.question(0.0) is None


def test_memory_is_gone_by_a_look_that_was_begun_later():
    evidence = Evidence()
    job = a_job(7, attempt=1, gpus=(GPU,))
    with supervisor() as (pid, child):
        evidence.add_supervisor(FIRST, pid)
        evidence.add([reading(1.0, child)])
    before = module.time.monotonic()
    assert not evidence.memory_gone(job)
    assert not evidence.memory_gone(job)
    assert (evidence.question(0.0), evidence.question(0.0)) == (GPU, None), "asked once"
    evidence.answer(GPU, before, frozenset())
    assert not evidence.memory_gone(job), "that look may be older than its end"
    assert evidence.question(0.0) == GPU
    evidence.answer(GPU, module.time.monotonic(), frozenset({child}))
    assert not evidence.memory_gone(job)
    evidence.answer(GPU, module.time.monotonic(), frozenset({1}))
    until(lambda: evidence.memory_gone(job), "no further question")


@pytest.mark.parametrize(("most_mib", "reached"), [(510, True), (520, False), (None, False)])
def test_an_attempt_s_own_limit_counts_like_a_full_gpu(most_mib, reached):
    evidence = Evidence()
    with supervisor() as (pid, child):
        evidence.add_supervisor(FIRST, pid)
        evidence.add([reading(1.0, child, 1)])
    limits = (MemoryLimits(GPU, 0, most_mib),)
    assert bool(evidence.full_gpu(FIRST, 2.0, limits)) is reached
