"""Watches those `carma run` without which a job is over: they can repeat it, or are in another
system's allocation."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from carmad import beats
from carmad.attempt.proc import running
from carmad.attempt.supervisor import open_followed
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.messages import CancelRequested, Step
from carmad.edge import Follower
from carmad.engine.inbox import Inbox

LATE_S = 10.0
BY = "carmad: its `carma run` is gone"


@dataclass(frozen=True, slots=True)
class _Runner:
    job: Job
    pidfd: int

    def is_gone(self, ended: set[int]) -> bool:
        """`ended`: descriptors, of which one may have been closed since, and have become ours."""
        assert self.job.spec.runner
        return self.pidfd in ended and not running(*self.job.spec.runner)


class Runners(Follower):
    """The thread begins with the first such job."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()
        self._watched: dict[JobId, _Runner] = {}
        self._poller = select.epoll()
        self._thread: threading.Thread | None = None

    def on_commit(self, step: Step) -> None:
        self.watch(step.jobs)

    def watch(self, jobs: Iterable[Job]) -> None:
        """Also those of an earlier daemon: what has ended meanwhile is found at once."""
        for job in jobs:
            if job.spec.runner:
                with self._lock:
                    self._update(job, *job.spec.runner)

    def _update(self, job: Job, pid: int, start: int) -> None:
        known = self._watched.get(job.id)
        if job.ended:
            self._forget(job.id)
        elif known:
            self._watched[job.id] = _Runner(job, known.pidfd)
        elif (pidfd := open_followed(pid, start)) < 0:
            if not running(pid, start):  # else there are too many open files
                self._cancel(job)
        else:
            self._watched[job.id] = _Runner(job, pidfd)
            self._poller.register(pidfd, select.EPOLLIN)
            if self._thread is None:
                self._thread = beats.thread("runners", LATE_S, self._run)
                self._thread.start()

    def _run(self) -> None:
        while True:
            beats.idle()
            ended = {fd for fd, _ in self._poller.poll()}
            beats.at("runners that have ended")
            with self._lock:
                gone = [each.job for each in self._watched.values() if each.is_gone(ended)]
                for job in gone:
                    self._forget(job.id)
            for job in gone:
                self._cancel(job)

    def _cancel(self, job: Job) -> None:
        self._inbox.post(CancelRequested(self._inbox.clock(), job.id, BY))

    def _forget(self, id: JobId) -> None:
        if known := self._watched.pop(id, None):
            with contextlib.suppress(OSError):
                self._poller.unregister(known.pidfd)
            os.close(known.pidfd)
