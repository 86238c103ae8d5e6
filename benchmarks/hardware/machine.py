"""The machine of a visit for a stage that runs the daemon: its GPU, or an emulated card; the whole
of its memory, or a part."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from benchmarks.daemon.carmad import Daemon, NotStarted, plain_environment
from benchmarks.hardware import pool
from benchmarks.hardware.visit import Visit
from benchmarks.harness.data import ROOT
from carmad.config import Access, Settings

EMULATED = "1xA100-40GB"
VICTIM = [sys.executable, "-m", "benchmarks.hardware.victim"]  # to be run in ROOT


@contextmanager
def running(visit: Visit, settings: Settings) -> Iterator[Daemon]:
    """A daemon that places jobs on the visit's GPU only, and takes root's: on a visit there is
    nobody else."""
    settings = replace(settings, access=Access(root_jobs=True))
    with ExitStack() as stack:
        try:
            daemon = stack.enter_context(
                Daemon(gpus=EMULATED if visit.rehearse else "", settings=settings)
            )
        except NotStarted as error:  # there is more to measure
            raise RuntimeError(error.code) from error
        chosen = its_gpu(visit, daemon)["id"]
        for gpu in daemon.get("/v1/gpus")["gpus"]:
            if gpu["id"] != chosen:
                daemon.post(f"/v1/gpus/{gpu['index']}/drain", {"reason": "not this visit's"})
        yield daemon


def its_gpu(visit: Visit, daemon: Daemon) -> Any:
    """The visit's GPU, as the daemon sees it; the emulated one."""
    gpus = daemon.get("/v1/gpus")["gpus"]
    return next((gpu for gpu in gpus if gpu["id"] == visit.gpu), gpus[0])


def has_mps(visit: Visit) -> bool:
    """Emulated cards have none."""
    return not visit.rehearse and shutil.which("nvidia-cuda-mps-control") is not None


@contextmanager
def ballast(visit: Visit, leave_mib: int) -> Iterator[int]:
    """A process that holds all of the GPU's free memory but that much. Gives what it holds, in
    MiB. An emulated card is as small as it is."""
    if visit.rehearse:
        yield 0
        return
    process = subprocess.Popen(
        [*VICTIM, "ballast", "--leave-mib", str(leave_mib)],
        cwd=ROOT,
        env=plain_environment() | pool.on(visit.gpu),
        stdin=subprocess.PIPE,  # it ends with us
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        held = process.stdout.readline().partition("holds ")[2]
        if not held:
            raise RuntimeError("the ballast could not be laid: see its traceback above")
        yield int(held.split()[0])
    finally:
        process.kill()
        process.wait()
