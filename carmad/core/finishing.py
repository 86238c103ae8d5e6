"""Stops jobs, and ends their attempts and themselves."""

from __future__ import annotations

from dataclasses import replace

from carmad.config import Settings
from carmad.core.asking import DECIDE, Asked
from carmad.core.endings import Trying, ending, in_vain
from carmad.core.fleet import Fleet
from carmad.core.history import past
from carmad.core.knowledge import Knowledge
from carmad.core.ledger import Ledger
from carmad.core.messages import Exited, Stop
from carmad.core.ports import Recovery
from carmad.core.states import advance, stopping
from carmad.core.types import FOR_GOOD, Cause, Exit, Job, JobState
from carmad.core.watching import Watch


class Finisher:
    def __init__(
        self,
        ledger: Ledger,
        fleet: Fleet,
        knowledge: Knowledge,
        watch: Watch,
        recovery: Recovery,
        asked: Asked,
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._knowledge = knowledge
        self._watch = watch
        self._recovery = recovery
        self._asked = asked

    def exited(self, event: Exited, settings: Settings) -> None:
        job = self._ledger.jobs.get(event.job)
        if job is None or not job.holds_gpus or job.attempt != event.attempt:
            return  # a stale or repeated report
        if event.stop and job.stop not in FOR_GOOD:  # the disk was full when it was stopped
            job = stopping(job, event.stop)
            self._ledger.put(job)
        monitor, recovery = settings.monitor, settings.recovery
        trying = Trying(
            lambda job, exit: self._asked.ask(DECIDE, lambda: self._recovery.decide(job, exit)),
            recovery.retries,
            monitor.external_mib,
            self._fleet.usable(),
        )
        end = ending(job, event, self._fleet.beside(job), trying)
        if end.state is JobState.QUEUED:
            self._ledger.put(
                advance(
                    _closed(self._fleet.with_usage(job), replace(end.exit, tail=()), end.at),
                    JobState.QUEUED,
                    retry=end.retry,
                    overtaken=0,
                    held=job.held or end.exit.cause is Cause.NO_ACCOUNT,
                    barred=end.exit.evidence if end.exit.cause is Cause.NO_ACCOUNT else "",
                )
            )
        else:
            self.end(job, end.state, end.exit, end.at)

    def stop(self, job: Job, cause: Cause) -> Stop:
        """Begin to stop a job that holds GPUs or runs without any."""
        stopped = stopping(job, cause)
        self._ledger.put(stopped)
        return Stop(stopped)

    def end(self, job: Job, state: JobState, exit: Exit, now: float) -> None:
        """End the job; cancel jobs whose dependency on it can no longer be met, transitively."""
        job = self._knowledge.seen_to_end(self._fleet.with_usage(job), state)
        closed = _closed(job, exit, now) if job.holds_gpus else job
        self._close(advance(closed, state, exit=exit, ended_at=now))
        self._watch.inform_others(job, now)
        ends = [(job.ids, state)]
        for ids, how in ends:  # it grows while iterating: recursion could exhaust the stack
            for id, waiting in self._ledger.dependents(ids):
                if why := in_vain(waiting, {id: how}):
                    self._close(advance(waiting, JobState.CANCELLED, exit=why, ended_at=now))
                    ends.append((waiting.ids, JobState.CANCELLED))

    def _close(self, job: Job) -> None:
        self._ledger.put(job)
        if run := past(job):
            self._knowledge.history.remember(run)


def _closed(job: Job, exit: Exit, at: float) -> Job:
    """The job with its current attempt over."""
    return job.with_attempt(exit=exit, ended_at=at, profiling=None)
