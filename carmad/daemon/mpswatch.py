"""Watches MPS while jobs run: daemons that are gone, servers with faults, jobs that run outside
their server."""

from __future__ import annotations

import logging
import threading

from carmad import beats
from carmad.attempt.evidence import Evidence, Key
from carmad.core.messages import Noticed
from carmad.core.scheduler import Scheduler
from carmad.core.types import Job, JobState, Mode
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.gpu.mps import Mps
from carmad.gpu.mps_daemon import ServerState

log = logging.getLogger(__name__)

EVERY_S = 30.0
LATE_S = 60.0  # for one job: each question to its daemon has a deadline


class MpsWatch:
    def __init__(self, mps: Mps, inbox: Inbox, evidence: Evidence) -> None:
        self._mps = mps
        self._inbox = inbox
        self._evidence = evidence
        self._outside: set[Key] = set()  # the attempts without a client at the last round
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mps-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)

    def look(self) -> None:
        """Check all jobs under MPS, and their servers."""
        outside = set()
        for job in self._inbox.ask(_running_under_mps).result():
            beats.at(f"the MPS server of job {job.id}")
            gpu = job.gpus[0]  # all its GPUs have the same server
            if not self._mps.healthy(gpu):
                self._notice(job, "its MPS daemon does not answer")
                continue
            if self._runs_outside(job):
                outside.add((job.id, job.attempt))
            if (state := self._mps.server_state(gpu)) is ServerState.FAULT:
                self._notice(job, f"its MPS server is in state {state}: one of its clients crashed")
        self._outside = outside

    def _runs_outside(self, job: Job) -> bool:
        """Whether its processes use the GPU, but none of them is a client. Reported the second
        time, since a process that has just started may be about to connect."""
        attempt = (job.id, job.attempt)
        clients = self._mps.clients(job.gpus[0])
        running = self._evidence.running(attempt)  # last: an ended process is not a client
        if not running or running & clients:
            return False
        if attempt in self._outside:
            self._notice(job, "runs outside MPS: it is time-sliced with its neighbours")
        return True

    def _run(self) -> None:
        with beats.beating("mps-watch", LATE_S):
            while not self._stopped.wait(EVERY_S):
                beats.at("the jobs under MPS")
                try:
                    self.look()
                except CarmaError as error:
                    log.error("%s; %s", error, error.hint)
                except Exception:
                    log.exception("the MPS watch failed")
                beats.idle()

    def _notice(self, job: Job, note: str) -> None:
        self._inbox.post(Noticed(self._inbox.clock(), job.id, note))


def _running_under_mps(core: Scheduler) -> list[Job]:
    """Jobs that were launched under MPS and have run a kernel, so should be clients by now."""
    return [
        job
        for job in core.jobs.rows.values()
        if job.mode is Mode.MPS and job.kernels and job.state is JobState.RUNNING
    ]
