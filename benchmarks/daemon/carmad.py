"""A real carmad, on emulated GPUs or the machine's own: starts it, asks it, kills and stops it, and
measures what it takes of the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from carmad import configfile, paths, units
from carmad.attempt.proc import own_environment
from carmad.config import Settings
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu.mps import Mps
from cli import client
from cli.problems import Refused, Unreachable

GPUS = 8
SPEC = f"{GPUS}xA100-40GB"
START_S = 60.0
STOP_S = 30.0
LOG_LINES = 100  # of its log that are shown when something went wrong
SLEEPER = ["/bin/sleep", "100000"]
KIB = 1024


def plain_environment() -> dict[str, str]:
    """Without settings of CARMA's, and with bytecode as every installed program has it."""
    ours = ("CARMA_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


class NotStarted(SystemExit):
    """carmad did not come up. A benchmark ends with that, unless it has more to measure."""


class Daemon:
    """With `directory`, which may hold a database, everything in it is kept. `gpus` "": the
    machine's own."""

    def __init__(
        self, directory: Path | None = None, gpus: str = SPEC, settings: Settings | None = None
    ) -> None:
        self._gpus = gpus
        self._settings = settings or Settings()
        self._ids: frozenset[str] = frozenset()  # of its GPUs
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="carma-bench-"))
        self.socket = str(self.directory / "sock")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (self.directory / "config.toml").write_text(configfile.dump(self._settings))
        self.start()
        return self

    def start(self) -> None:
        """Returns when it is up. After a `kill`, it starts again on the same state."""
        words = [sys.executable, "-m", "carmad.daemon.main"]
        words += ["--emulated", self._gpus] if self._gpus else []
        words += ["--state-dir", str(self.directory), "--socket", self.socket]
        words += ["--config", str(self.directory / "config.toml")]
        words += ["--log-file", str(self.directory / "carmad.log")]
        self._process = subprocess.Popen(
            words, env=plain_environment(), stdin=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(Unreachable):
                self._ids = frozenset(gpu["id"] for gpu in self.get("/v1/gpus")["gpus"])
                return
            time.sleep(0.005)
        self.kill()
        self._show_log()
        raise NotStarted(f"carmad did not start; see {self.directory}/carmad.log")

    def kill(self) -> None:
        """Like a crash: its jobs go on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves nothing of it on the machine, whatever happened."""
        try:
            if kind is not None:
                self._show_log()
            self._stop()
        except (CarmaError, subprocess.TimeoutExpired):
            if kind is None:
                self._show_log()
                raise
        finally:
            self._kill_all()
            self._stop_mps()
            if self._temporary:
                shutil.rmtree(self.directory, ignore_errors=True)

    def _stop(self) -> None:
        """Raises TimeoutExpired if it does not end."""
        assert self._process is not None
        with contextlib.suppress(Refused):  # there is no job
            self.post("/v1/cancel", {"select": "all"})
        try:
            self.await_idle()
        except TimeoutError as error:  # what was measured is not lost by that: they are killed
            print(f"{error}: killed", file=sys.stderr)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=STOP_S)

    def _kill_all(self) -> None:
        """Kill it, and its jobs and their supervisors, which are meant to outlive it."""
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_S)
        socket = str(Path(self.socket).absolute())
        jobs = str(self.directory / "jobs")
        left = [
            process
            for process in psutil.process_iter(["cwd"])
            if own_environment(process.pid).get("CARMA_SOCKET") == socket
            or (process.info["cwd"] or "").startswith(jobs)
        ]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=STOP_S)

    def _stop_mps(self) -> None:
        """Stop the control daemons of its GPUs, which are meant to outlive it, too. There may be
        others: all of root's share a folder."""
        folder = Path(paths.mps_dir(str(self.directory)))
        if self._settings.collocation.mps and folder.exists():
            mps = Mps(folder, multiuser=False, systemd=units.available())
            for gpu in map(GpuId, self._ids):
                with contextlib.suppress(CarmaError):
                    if mps.stop(gpu):
                        shutil.rmtree(mps.daemon(gpu).pipe.parent, ignore_errors=True)

    def _show_log(self) -> None:
        with contextlib.suppress(OSError):
            lines = (self.directory / "carmad.log").read_text(errors="replace").splitlines()
            print(*lines[-LOG_LINES:], sep="\n", file=sys.stderr, flush=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def get(self, path: str, **query: Any) -> Any:
        os.environ["CARMA_SOCKET"] = self.socket
        return client.get(path, **query)

    def post(self, path: str, body: object) -> Any:
        os.environ["CARMA_SOCKET"] = self.socket
        return client.post(path, body)

    def request(self, argv: list[str], **fields: object) -> dict[str, Any]:
        """The body of a submission, as the command line would send it."""
        env = plain_environment()
        return {"argv": argv, "cwd": str(self.directory), "env": env, **fields}

    def run(self, argv: list[str], **fields: object) -> int:
        job: int = self.post("/v1/jobs", self.request(argv, **fields))["id"]
        return job

    def state(self, job: int) -> str:
        state: str = self.get(f"/v1/jobs/{job}")["state"]
        return state

    def await_queued(self, job: int, within_s: float = 60.0) -> None:
        """Raises TimeoutError if it is not estimated by then."""
        deadline = time.monotonic() + within_s
        while self.state(job) == "pending":
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job} is not estimated after {within_s:g} s")
            time.sleep(0.05)

    def await_idle(self, within_s: float = 30.0) -> None:
        """Raises TimeoutError if jobs are left."""
        deadline = time.monotonic() + within_s
        while self.get("/v1/jobs")["jobs"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"its jobs have not ended in {within_s:g} s")
            time.sleep(0.05)

    def cpu_s(self) -> float:
        """Processor time of all its threads so far, without that of its jobs."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def rss_mb(self) -> float:
        return memory_mb(self.pid, "status", "VmRSS:")

    def peak_mb(self) -> float:
        """The most that it had so far."""
        return memory_mb(self.pid, "status", "VmHWM:")

    def pss_mb(self) -> float:
        """What it would give back, shared libraries counted in parts."""
        return memory_mb(self.pid, "smaps_rollup", "Pss:")


def memory_mb(pid: int | str, file: str, field: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * KIB / 1e6
    raise ValueError(f"{file} has no {field}")
