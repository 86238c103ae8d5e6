"""`carma run --pid`: a process from outside of the queue becomes a job."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from carma_testing import FakeServer, a_spec
from carmad.attempt.callers import own_process
from carmad.core.jobs.attempt import JobId, Mode
from carmad.core.messages import Adopted
from carmad.errors import CarmaError
from tests.daemon import NO_KERNELS, Carmad, running, train, until


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, "2xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


@contextlib.contextmanager
def outsider(daemon: Carmad, *, gpu: int = 0, below: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process on a GPU that the daemon did not start; `below`: a shell's, whose child it is."""
    words = train(memory_mib=3000, seconds=600, warmup=0)
    if below:
        words = ["/bin/sh", "-c", shlex.join(words) + below]
    cards = {"CARMA_EMULATED_DIR": str(daemon.state / "emulated"), "CUDA_VISIBLE_DEVICES": str(gpu)}
    process = subprocess.Popen(
        words, env=os.environ | cards, cwd=daemon.work, stdout=subprocess.DEVNULL
    )

    def is_seen() -> bool:
        there = psutil.Process(process.pid)
        its = {process.pid, *(child.pid for child in there.children(recursive=True))}
        return any(one["pid"] in its for one in daemon.gpus()[gpu]["outsiders"])

    try:
        until(is_seen, "it to be seen")
        yield process
    finally:
        process.kill()
        process.wait()


def test_it_is_tracked_accounted_and_stopped_like_any_job(daemon: Carmad) -> None:
    with outsider(daemon, gpu=1, below="; true") as process:
        said = daemon.carma("run", "--name", "found", "--gpu-mem", "4G", "--pid", str(process.pid))
        assert said == f"Process {process.pid} is now job 1, on GPU 1\n"
        job = daemon.await_state(1, "running")
        assert (job["name"], [gpu["index"] for gpu in job["gpus"]]) == ("found", [1])
        until(lambda: daemon.job(1)["memory"]["used_mib"], "its memory")
        assert not daemon.gpus()[1]["outsiders"]
        assert "belongs to job 1" in daemon.carma("run", "--pid", str(process.pid), rc=1)
        daemon.kill()
        daemon.start()
        until(lambda: daemon.gpus()[1]["jobs"], "the job")
        until(lambda: not daemon.gpus()[1]["outsiders"], "its process")
        daemon.cancel(1)
        assert daemon.ended(1)["state"] == "cancelled"
        assert process.wait() in (-signal.SIGTERM, 128 + signal.SIGTERM)


def test_its_end_and_its_time_limit_are_noticed(daemon: Carmad) -> None:
    with outsider(daemon) as process:
        daemon.carma("run", "--pid", str(process.pid))
        assert daemon.job(1)["argv"][1:3] == ["-m", "carmad.gpu.emulated_job"]
        process.kill()
        process.wait()
        assert daemon.ended(1)["state"] == "failed"
    with outsider(daemon) as process:
        daemon.carma("run", "-t", "0:01", "--pid", str(process.pid))
        assert daemon.ended(2)["state"] == "timed_out"


def test_what_cannot_be_adopted_is_refused(daemon: Carmad) -> None:
    assert "on no GPU" in daemon.carma("run", "--pid", str(os.getpid()), rc=1)
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert "sees no process" in daemon.carma("run", "--pid", str(gone.pid), rc=1)
    assert "whole number from 1" in daemon.carma("run", "--pid", "0", rc=2)
    with pytest.raises(CarmaError, match="not yours"):
        own_process(os.getpid(), os.getuid() + 1)


def test_a_job_that_must_be_alone_keeps_adopted_ones_away() -> None:
    server = FakeServer(gpus=2)
    alone = server.submit(exclusive=True)
    taken = server.job(alone).gpus
    other = tuple(gpu.id for gpu in server.gpus if gpu.id not in taken)
    spec = a_spec(interactive=True, process=(7, 8))
    for gpus in (taken, (), ("GPU-unknown",)):
        server.tell(Adopted(server.now, JobId(9), spec, gpus, Mode.STREAMS))
        assert JobId(9) not in server.scheduler.jobs
    server.tell(Adopted(server.now, JobId(9), spec, other, Mode.STREAMS))
    assert server.job(JobId(9)).gpus == other
    server.tell(Adopted(server.now, JobId(10), spec, other, Mode.STREAMS))
    assert JobId(10) not in server.scheduler.jobs
