"""Suspends and resumes jobs on this machine: memory limit, driver, freezer, in the order that each
needs. Everything may be repeated, from wherever an earlier daemon was killed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from carmad import beats
from carmad.attempt.launcher import Launcher
from carmad.config import Suspending
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Noticed, Resume, Resumed, Suspend, Suspended
from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.cuda_state import Outcome, State
from carmad.threads import SharedThreads

log = logging.getLogger(__name__)

AWAY = {State.LOCKED, State.CHECKPOINTED}  # of a process that is suspended, or nearly
AT_ONCE = 2  # more would share the bandwidth
SLACK = 4.0  # times what moving the memory should take
WITHIN_S = 60.0  # besides
LOOKS = 3  # for processes that a job has started meanwhile: `Checkpoints.suspend`


class Suspender:
    """In threads of its own: a large job takes a minute, and one that hangs its whole limit. One of
    each user's at a time, so that those hang that user's alone. `report` takes the events."""

    def __init__(
        self,
        launcher: Launcher,
        checkpoints: Checkpoints,
        settings: Callable[[], Suspending],
        clock: Callable[[], float],
        report: Callable[[Suspended | Resumed | Noticed], object],
    ) -> None:
        self._launcher = launcher
        self._checkpoints = checkpoints
        self._settings = settings
        self._clock = clock
        self._report = report
        self._threads = SharedThreads(AT_ONCE, "suspender", WITHIN_S)
        self._adopted: dict[JobId, Job] = {}  # of which nothing has been asked since

    def close(self) -> None:
        """What hangs is left to the next daemon."""
        self._threads.shutdown(wait=False)

    def perform(self, action: Suspend | Resume) -> None:
        """A job that resumes has its GPUs already, and keeps them from others."""
        self._adopted.pop(action.job.id, None)
        urgent = isinstance(action, Resume)
        self._threads.submit(action.job.spec.uid, partial(self._perform, action), urgent=urgent)

    def adopt(self, jobs: Sequence[Job]) -> None:
        """Bring those of an earlier daemon to where the database has them. After a backup has been
        put back, what it has as running may have been suspended since, and the other way round."""
        if jobs and self._settings().host_memory_mib:
            self._adopted.update((job.id, job) for job in jobs)
            self._threads.submit(0, partial(self._compare, jobs))

    def _compare(self, jobs: Sequence[Job]) -> None:
        beats.at("what the driver says of running jobs", 2 * WITHIN_S)
        pids = {job.id: self._pids(job) for job in jobs}
        states = self._checkpoints.states(frozenset().union(*pids.values()))
        for job in jobs:
            found = {states.get(pid) for pid in pids[job.id]}
            if job.state is JobState.RUNNING and not AWAY.isdisjoint(found):
                self._threads.submit(job.spec.uid, partial(self._bring_back, job))
            elif job.state is JobState.SUSPENDED and State.RUNNING in found:
                self._threads.submit(job.spec.uid, partial(self._send_away, job))

    def _pids(self, job: Job) -> frozenset[int]:
        try:
            return self._launcher.pids(job)
        except ValueError:  # the record of its start is damaged
            return frozenset()

    def _bring_back(self, job: Job) -> None:
        if self._adopted.pop(job.id, None) is None:
            return
        within_s = self._within_s(job)
        beats.at(f"resume job {job.id}", 2 * LOOKS * within_s)
        why = self._launcher.thaw(job)
        why = why or self._checkpoints.resume(self._launcher.pids(job), (), within_s).why
        self._note(job, f"was suspended, and the database has it as running: {why or 'it resumes'}")
        if not why:
            self._lower(job)

    def _send_away(self, job: Job) -> None:
        if self._adopted.pop(job.id, None):
            self._perform(Suspend(job))

    def _perform(self, action: Suspend | Resume) -> None:
        job = action.job
        within_s = self._within_s(job)
        beats.at(f"{type(action).__name__.lower()} job {job.id}", 2 * LOOKS * within_s)
        suspends = isinstance(action, Suspend)
        try:
            outcome = (self._suspend if suspends else self._resume)(job, within_s)
        except Exception as error:
            log.exception("job %d is not %s", job.id, "suspended" if suspends else "resumed")
            outcome = Outcome(False, f"{type(error).__name__}: {error}")
        if not outcome.done:
            log.warning("job %d: %s: %s", job.id, type(action).__name__, outcome.why)
        told = self._clock(), job.id, job.attempt, outcome.why, outcome.lost
        self._report(Suspended(*told) if suspends else Resumed(*told, outcome.hung))

    def _within_s(self, job: Job) -> float:
        settings, its = self._settings(), job.suspension
        slowest_mib_s = min(settings.out_mib_s, settings.in_mib_s)
        moved_mib = its.host_mib if its else 0
        return WITHIN_S + settings.lock_within_s + SLACK * moved_mib / slowest_mib_s

    def _suspend(self, job: Job, within_s: float) -> Outcome:
        assert job.suspension
        why = self._launcher.thaw(job)  # an earlier daemon may have frozen it
        why = why or self._launcher.allow(job, job.suspension.host_mib)
        if why and not self._has_begun(job):
            self._launcher.allow(job, 0)  # it may only have been too late
            return Outcome(False, why)
        outcome = self._checkpoints.suspend(
            lambda: self._launcher.pids(job), self._settings().lock_within_s, within_s
        )
        if not outcome.done:
            self._lower(job)
        else:
            self._freeze(job)
        return outcome

    def _has_begun(self, job: Job) -> bool:
        """Whether an earlier daemon has already begun to suspend the job."""
        states = self._checkpoints.states(self._launcher.pids(job))
        return not AWAY.isdisjoint(states.values())

    def _freeze(self, job: Job) -> None:
        if job.spec.interactive:  # whoever is at its terminal shall have an answer
            return
        if why := self._launcher.freeze(job):
            self._note(job, f"has left its GPUs, but what it does on the CPUs goes on: {why}")

    def _lower(self, job: Job) -> None:
        if why := self._launcher.allow(job, 0):
            self._note(job, f"its limit of the host's memory (--mem) stays raised: {why}")

    def _note(self, job: Job, note: str) -> None:
        log.warning("job %d: %s", job.id, note)
        self._report(Noticed(self._clock(), job.id, note))

    def _resume(self, job: Job, within_s: float) -> Outcome:
        """The driver does not restore a process that cannot run."""
        assert job.suspension
        if why := self._launcher.thaw(job):
            return Outcome(False, why)
        pairs = tuple(zip(job.suspension.gpus, job.gpus, strict=True))
        moves = pairs if any(old != new for old, new in pairs) else ()
        outcome = self._checkpoints.resume(self._launcher.pids(job), moves, within_s)
        if outcome.done:
            self._lower(job)
        elif not outcome.lost:
            self._freeze(job)
        return outcome
