"""The machine of a visit for a stage that runs the daemon: its GPU, or an emulated card; the whole
of its memory, or a part."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from errno import ECONNREFUSED, ENOENT
from threading import Timer
from typing import Any

from benchmarks.daemon.carmad import Daemon, NotStarted, plain_environment
from benchmarks.hardware import pool
from benchmarks.hardware.telemetry import Watch
from benchmarks.hardware.visit import Visit
from benchmarks.harness.data import ROOT
from carmad import paths
from carmad.config import Access, Settings
from carmad.errors import CarmaError

EMULATED = "1xA100-40GB"
LAID_WITHIN_S = 120.0
GONE_WITHIN_S = 10.0
VICTIM = [sys.executable, "-m", "benchmarks.hardware.victim"]  # to be run in ROOT


def refuse_beside_another(visit: Visit) -> None:
    """Raises CarmaError if the machine's own carmad answers: root's share their MPS daemons, which
    are stopped at the end, and nobody else's jobs are to be measured."""
    if visit.rehearse:
        return
    for path in (paths.SYSTEM_SOCKET, f"{paths.user_runtime_dir()}/carmad.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) not in (ENOENT, ECONNREFUSED):
                raise CarmaError(
                    f"a carmad answers at {path}, and stage {visit.stage} starts one of its own",
                    "when its jobs have ended, stop it: carma daemon stop, or systemctl stop"
                    " carmad.socket carmad",
                )


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
    """A process that holds all of the GPU's free memory but that much. Gives the MiB that the
    driver then reports as used, contexts included. An emulated card is as small as it is."""
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
        with deadline(process, LAID_WITHIN_S):
            said = process.stdout.readline()
        if not said.startswith("holds "):
            raise RuntimeError("the ballast could not be laid: see its traceback above, if any")
        with Watch(visit) as watch:
            used_mib = watch.used_now()
        yield used_mib
    finally:
        end(process)


@contextmanager
def deadline(process: subprocess.Popen[Any], within_s: float) -> Iterator[None]:
    """Kill the process unless the block ends in time, so that reading from it ends, too."""
    timer = Timer(within_s, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end(process: subprocess.Popen[Any]) -> None:
    """Kill it. One that hangs in the driver is left behind: there is more to measure."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GONE_WITHIN_S)
