"""What owners ask of their jobs and processes: adopt, cancel, hold, release, update, requeue."""

from __future__ import annotations

from dataclasses import replace

from carmad.core.gpus.fleet import Fleet
from carmad.core.jobs import control
from carmad.core.jobs.attempt import Attempt, Cause, Exit
from carmad.core.jobs.endings import Endings, dependency_exit
from carmad.core.jobs.job import Job, advance
from carmad.core.jobs.knowledge import Knowledge
from carmad.core.jobs.ledger import Ledger
from carmad.core.jobs.recurrence import group
from carmad.core.jobs.states import Active, JobState, Waiting
from carmad.core.messages import (
    Action,
    Adopted,
    CancelRequested,
    EstimateMemory,
    HoldRequested,
    Launch,
    RequeueRequested,
    UpdateRequested,
)
from carmad.core.rules.share import Shares
from carmad.options import OPTIONS


class Requests:
    """Each method returns the actions that the request needs."""

    def __init__(
        self,
        ledger: Ledger,
        fleet: Fleet,
        knowledge: Knowledge,
        endings: Endings,
        shares: Shares,
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._knowledge = knowledge
        self._endings = endings
        self._shares = shares

    def adopt(self, event: Adopted) -> list[Action]:
        """No job comes of it if the process is not where a job may be."""
        beside = [job for gpu in event.gpus for job in self._ledger.residents(gpu)]
        free = event.gpus and self._fleet.gpus.keys() >= set(event.gpus)
        if not free or any(
            job.exclusive or job.spec.process == event.spec.process for job in beside
        ):
            return []
        spec = event.spec
        its = Attempt(1, event.gpus, event.mode, event.at, shared=bool(beside))
        job = Job(event.id, spec, Active(JobState.STARTING, its), event.at, group=group(spec))
        self._ledger.put(replace(job, estimate=spec.declared))
        for resident in beside:
            self._ledger.put(resident.with_attempt(shared=True))
        return [Launch(self._ledger.jobs[event.id])]

    def cancel(self, event: CancelRequested) -> list[Action]:
        actions: list[Action] = []
        exit = Exit(Cause.CANCELLED, evidence=f"cancelled by {event.by}")
        for job in self._parts(event):
            if not control.cancel(job).acts:
                continue
            if job.lives:
                actions.append(self._ledger.stop(job, Cause.CANCELLED))
            else:
                self._endings.end(job, JobState.CANCELLED, exit, event.at)
        return actions

    def hold(self, event: HoldRequested) -> None:
        for job in self._parts(event):
            if control.hold(job, event.held).acts:
                barred = job.barred if event.held else ""
                self._ledger.put(replace(job, held=event.held, barred=barred))

    def update(self, event: UpdateRequested) -> list[Action]:
        return [action for job in self._parts(event) for action in self._update(job, event)]

    def _parts(self, event: CancelRequested | HoldRequested | UpdateRequested) -> list[Job]:
        return self._ledger.jobs.parts(range(event.job, event.job + 1 + event.more))

    def _update(self, job: Job, event: UpdateRequested) -> list[Action]:
        verdict, spec = control.update(job, event, self._ledger.jobs, event.at)
        if not verdict.acts:
            return []
        actions: list[Action] = []
        anew = any(OPTIONS[name].memory for name in event.names) and not job.lives
        job = replace(job, spec=spec, group=group(spec))
        if anew and job.state is JobState.QUEUED:
            job = advance(job, Waiting(JobState.PENDING))
        if anew:
            doubted = self._shares.doubts(spec, event.at)
            job = replace(job, estimate=None, estimate_late=False, crash="", doubted=doubted)
            job = self._knowledge.with_history(job, event.at)
            actions.append(EstimateMemory(job))
        self._ledger.put(job)
        if event.by != spec.user:
            self._ledger.note(job.id, f"{event.by} {verdict.words}")
        if why := dependency_exit(job, self._ledger.ended):
            self._endings.end(self._ledger.jobs.rows[job.id], JobState.CANCELLED, why, event.at)
        return actions

    def requeue(self, event: RequeueRequested) -> list[Action]:
        job = event.job
        jobs = self._ledger.jobs
        if (live := jobs.get(job.id)) and live.lives:
            acts = control.requeue(live, {}).acts
            return [self._ledger.stop(live, Cause.REQUEUED)] if acts else []
        latest = self._ledger.ended
        ended = {id: state for id, state in event.ended if id not in jobs}
        ended |= {one.job: latest[one.job] for one in job.spec.after if one.job in latest}
        if next(jobs.within(job.ids), None) or not control.requeue(job, ended).acts:
            return []
        doubted = self._shares.doubts(job.spec, event.at)
        estimate = job.estimate if doubted == job.doubted else None
        again = advance(
            job,
            Waiting(JobState.QUEUED if estimate else JobState.PENDING),
            earlier=job.past,
            estimate=estimate,
            doubted=doubted,
            retry=None,
            overtaken=0,
            requeued_after=job.attempt,
            estimate_late=False,
        )
        again = self._knowledge.with_history(again, event.at)
        self._ledger.ended.forget(again.ids)
        self._ledger.put(again)
        return [EstimateMemory(again)] if again.state is JobState.PENDING else []
