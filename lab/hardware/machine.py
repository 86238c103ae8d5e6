"""The machine of a visit for a stage that runs the daemon: its GPU, or an emulated card; the whole
of its memory, or a part."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any
from uuid import uuid4

import psutil

from benchmarks import ROOT
from benchmarks.daemon.carmad import Daemon, NotStarted, plain_environment
from carmad import paths
from carmad.config import Access, Settings
from carmad.errors import CarmaError
from carmad.gpu import emulated
from lab.hardware import pool
from lab.hardware.telemetry import Watch
from lab.hardware.visit import Visit

EMULATED, EMULATED_LARGE = "1xA100-40GB", "1xA100-80GB"
LAID_WITHIN_S = 120.0
GONE_WITHIN_S = 10.0
VICTIM = [sys.executable, "-m", "lab.hardware.victim"]  # to be run in ROOT


def refuse_beside_another(visit: Visit) -> None:
    """Raises CarmaError if the machine's own carmad runs: root's share their MPS daemons, which
    are stopped at the end, and nobody else's jobs are to be measured."""
    if visit.rehearse:
        return
    for path in (paths.SYSTEM_SOCKET, f"{paths.user_runtime_dir()}/carmad.sock"):
        if who := listener(path):
            raise CarmaError(
                f"a carmad listens at {path} ({who}), and stage {visit.stage} starts its own",
                "when its jobs have ended, stop it: carma daemon stop, or systemctl stop"
                " carmad.socket carmad",
            )


def listener(path: str) -> str:
    """Who has a Unix socket bound to `path`; "" if nobody has, or only systemd, which would start a
    carmad for the first client. Connects to nothing."""
    pids = {each.pid for each in psutil.net_connections("unix") if each.laddr == path}
    if None in pids:
        return "of another user"
    with suppress(psutil.NoSuchProcess):
        pids = {pid for pid in pids if psutil.Process(pid).name() != "systemd"}
    return ", ".join(f"pid {pid}" for pid in sorted(pids))


@contextmanager
def running(visit: Visit, settings: Settings) -> Iterator[Daemon]:
    """A daemon that places jobs on the visit's GPU only, and takes root's: on a visit there is
    nobody else."""
    settings = replace(settings, access=Access(root_jobs=True))
    with ExitStack() as stack:
        try:
            made_up = visit.rehearse and settings.monitor.source == "auto"
            gpus = EMULATED if made_up else ""
            daemon = stack.enter_context(Daemon(gpus=gpus, settings=settings))
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
def fake_driver() -> Iterator[dict[str, str]]:
    """For rehearsals: the environment of a process that finds the tests' fake driver, with one GPU.
    Its UUID is new, as the MPS daemons of all of root's carmads share a folder. Raises
    FileNotFoundError without gcc."""
    from tests import fake_gpu

    with TemporaryDirectory(prefix="gpu-", dir="/tmp") as name:  # short: sockets of MPS
        folder = Path(name)
        folder.chmod(0o755)  # some facts are of two users
        env = fake_gpu.environment(folder)
        world = folder / "world"
        world.write_text(world.read_text().replace(fake_gpu.uuid(), f"GPU-{uuid4()}"))
        yield env


@dataclass(frozen=True, slots=True)
class Ballast:
    """What a process of no job holds of the GPU."""

    held_mib: int  # as the driver reports it, contexts included
    source: str  # `monitor.source` of a daemon on that GPU


@contextmanager
def ballast(visit: Visit, leave_mib: int) -> Iterator[Ballast]:
    """A process that holds all of the GPU's free memory but `leave_mib`; in a rehearsal, of an
    emulated card that is larger than that. Raises RuntimeError."""
    with ExitStack() as stack:
        source, env = "auto", pool.on(visit.gpu)
        if visit.rehearse:
            cards = stack.enter_context(TemporaryDirectory(prefix="carma-cards-"))
            emulated.create(Path(cards), EMULATED_LARGE)
            source, env = f"emulated:{cards}", {"CARMA_EMULATED_DIR": cards}
        process = subprocess.Popen(
            [*VICTIM, "ballast", "--leave-mib", str(leave_mib)],
            cwd=ROOT,
            env=plain_environment() | env,
            stdin=subprocess.PIPE,  # it ends with us
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(end, process)
        assert process.stdout
        with deadline(process, LAID_WITHIN_S):
            said = process.stdout.readline()
        if not said.startswith("holds "):
            raise RuntimeError("the ballast could not be laid: see its traceback above, if any")
        with Watch(visit, source) as watch:
            held_mib = watch.used_now()
        yield Ballast(held_mib, source)


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
