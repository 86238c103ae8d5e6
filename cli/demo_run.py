"""Runs one carmad on emulated GPUs for the demo: starts, feeds, watches and stops it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carmad.sim import shadow
from carmad.sim.outcome import Outcome
from carmad.sim.task import Task
from cli import client
from cli.demo_pane import SETTLED
from cli.demo_trace import argv
from cli.problems import Problem, Unreachable

GPUS = "3xDGX-Station-A100-40GB"  # the CARMA paper's
SETTINGS = {  # the paper's times, compressed like the trace as far as real processes allow
    "CARMA_ESTIMATOR": "declared",  # and nothing is declared, as in the paper's runs (4.3)
    "CARMA_MONITOR__PERIOD_S": "0.1",
    "CARMA_MONITOR__WINDOW_S": "0.7",
    "CARMA_LIMITS__KILL_GRACE_S": "2",
    "CARMA_RETENTION__BACKUPS": "0",
}
START_S = 30.0


@dataclass(slots=True)
class Replay:
    """A daemon under one policy, and what it said last."""

    policy: str
    directory: Path
    gpus: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    _submitted: int = 0  # the newest job's id
    _daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._answers():
            hint = f"wait for it to end, or: carma daemon stop --socket {self._socket}"
            raise Problem("another demo of yours is running", hint)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, mode=0o700)
        settings = {name: value for name, value in os.environ.items() if name[:6] != "CARMA_"}
        words = [sys.executable, "-P", "-m", "carmad.daemon.main", "--emulated", GPUS]
        words += ["--state-dir", str(self.directory), "--socket", self._socket]
        words += ["--config", os.devnull]
        with self.log.open("wb") as log:
            self._daemon = subprocess.Popen(
                words,
                env={**settings, **SETTINGS, "CARMA_POLICY": self.policy},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_health(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._daemon and self._daemon.poll() is None:
            if self._answers():
                return
            time.sleep(0.05)
        raise Problem("the demo's carmad did not start", self.log.read_text()[-2000:])

    @property
    def log(self) -> Path:
        return self.directory / "carmad.log"

    @property
    def _socket(self) -> str:
        return str(self.directory / "sock")

    def get(self, path: str, **query: object) -> Any:
        os.environ["CARMA_SOCKET"] = self._socket
        return client.get(path, **query)  # type: ignore[arg-type]

    def submit(self, task: Task, number: int) -> None:
        os.environ["CARMA_SOCKET"] = self._socket
        body = {
            "argv": argv(task, seed=number),
            "name": task.name,
            "gpus": task.gpus,
            "cwd": str(self.directory),
            "env": dict(os.environ),
        }
        self._submitted = client.post("/v1/jobs", body)["id"]

    def look(self) -> None:
        """Read the GPUs and the jobs once."""
        self.gpus = self.get("/v1/gpus")["gpus"]
        if self._submitted:
            self.jobs = self.get("/v1/jobs", select=f"1-{self._submitted}")["jobs"]

    def outcome(self) -> Outcome:
        """The jobs' outcome; raises CarmaError if none has run."""
        return shadow.from_history(self.get).outcome

    @property
    def done(self) -> int:
        return sum(job["code"] in SETTLED for job in self.jobs)

    def stop(self) -> None:
        """Begin to stop, jobs first."""
        if self._daemon is None:
            return
        try:
            os.environ["CARMA_SOCKET"] = self._socket
            client.post("/v1/cancel", {"select": "all"})
        except (Problem, Unreachable):
            pass  # no jobs left, or no daemon
        self._daemon.send_signal(signal.SIGTERM)

    def await_end(self) -> None:
        if self._daemon is not None:
            self._daemon.wait(timeout=START_S)

    def _answers(self) -> bool:
        try:
            self.get("/v1/health")
        except Unreachable:
            return False
        return True
