"""The scheduler: takes events in time order, returns steps to commit and carry out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from carmad.config import Settings
from carmad.core import control
from carmad.core.asking import DECIDE, Asked
from carmad.core.deciders import Deciders
from carmad.core.endings import Trying, ending, in_vain, placeable
from carmad.core.fleet import Fleet
from carmad.core.history import History, past
from carmad.core.knowledge import Knowledge, sharing_profiles
from carmad.core.ledger import Ledger
from carmad.core.messages import (
    UNESTIMATED,
    Action,
    Adopted,
    Began,
    CancelRequested,
    Closing,
    Discovered,
    Drain,
    DrainRequested,
    Estimated,
    EstimateMemory,
    Event,
    Exited,
    HoldRequested,
    Launch,
    LimitRequested,
    Measured,
    Noticed,
    Postponed,
    Reconfigured,
    RequeueRequested,
    Reserved,
    Sampled,
    Step,
    Stepped,
    Stop,
    Submitted,
    Trained,
    Unreserved,
    UpdateRequested,
    owed,
)
from carmad.core.placing import Placer
from carmad.core.ports import Policy, Predictor, Recovery
from carmad.core.quota import Limit
from carmad.core.recurrence import group
from carmad.core.reservations import Reservation
from carmad.core.scene import Scene
from carmad.core.share import Account, Ranks, Shares, Standing
from carmad.core.states import advance, stopping
from carmad.core.types import (
    FOR_GOOD,
    Cause,
    Exit,
    Gpu,
    GpuId,
    Job,
    JobId,
    JobState,
)
from carmad.core.view import View
from carmad.core.watching import Watch
from carmad.options import MAX_METRICS, OPTIONS


class Scheduler:
    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        recovery: Recovery,
        predictor: Predictor | None = None,
        fallback: Policy | None = None,
    ) -> None:
        """`fallback` decides while `policy` fails; None: jobs wait until it answers."""
        self.settings = settings
        self.recovery = recovery
        self._asked = Asked()
        self._deciders = Deciders(policy, fallback, self._asked)
        self._fleet = Fleet(settings)
        self.knowledge = Knowledge(settings, self._fleet, predictor, self._asked)
        self._counted = JobId(0)  # the last submission that the history has counted
        self.shares = Shares(settings.fairness)
        self.limits: dict[str, Limit] = {}
        ledger = Ledger(self._deciders.order, standing=self._standing)
        self._watch = Watch(settings, ledger, self._fleet, self.knowledge)
        self._take_up(ledger)
        self._begin()

    # -- the two ways in

    def handle(self, *events: Event) -> Step:
        """Process a batch of events, in time order, then plan once.

        Submissions alone need no plan, as a job joins the queue only once it is estimated. So a
        user need not wait for a plan to learn that a job is safely stored.
        """
        self._begin()
        for event in events:
            self._take(event)
        now = events[-1].at
        for id in self._fleet.over(now):
            self._unreserve(id)
        self._actions += self._watch.expire(now)
        if self.shares.rerank(now):
            self._ledger.rerank()
        if not all(isinstance(event, Submitted) for event in events):
            self._actions += self._placer.plan(now)
        self.shares.follow(self._ledger.rates, now)
        self.check()
        return Step(
            events,
            self._ledger.changed(),
            self._placer.news(),
            tuple(self._actions),
            tuple(self._fleet.drains.values()) if self._drained else None,
            self._asked.failures,
            self._ledger.before(),
            tuple(self.shares.changed.values()),
            tuple(self._limited),
            tuple(self._fleet.reservations.values()) if self._reserved else None,
        )

    def restore(
        self,
        jobs: Iterable[Job],
        ended: Iterable[tuple[JobId, JobState]] = (),
        drains: Iterable[Drain] = (),
        last_placed: GpuId | None = None,
        history: History | None = None,
        accounts: Iterable[Account] = (),
        ranks: Ranks | None = None,
        limits: Iterable[Limit] = (),
        reservations: Iterable[Reservation] = (),
    ) -> tuple[Action, ...]:
        """Restore the state from a store; returns actions that may not have been carried out.

        `last_placed` is round-robin's position. None for it, `history` or `ranks`: this core's
        stay.
        """
        self.knowledge.history = history or self.history
        self.shares = Shares(self.settings.fairness, accounts, ranks or self.shares.ranks)
        ledger = Ledger(self._deciders.order, sharing_profiles(jobs), ended, self._standing)
        for job in ledger.running():
            self.history.learn(job)
        self.limits = {limit.subject: limit for limit in limits}
        self._take_up(ledger, last_placed or self._placer.last_placed)
        self._fleet.drains = {drain.gpu: drain for drain in drains}
        self._fleet.reservations = {each.id: each for each in reservations}
        self._fleet.look_again()
        return tuple(action for job in self.jobs.values() if (action := owed(job)))

    # -- read access

    @property
    def jobs(self) -> Mapping[JobId, Job]:
        """The jobs that have not ended."""
        return self._ledger.jobs

    @property
    def ended(self) -> Mapping[JobId, JobState]:
        """How the most recent jobs ended."""
        return self._ledger.ended

    @property
    def policy(self) -> Policy:
        return self._deciders.policy

    @property
    def acting(self) -> Policy:
        """The policy that decides now: `policy`, or its fallback."""
        return self._deciders.acting

    @property
    def history(self) -> History:
        return self.knowledge.history

    @property
    def gpus(self) -> Mapping[GpuId, Gpu]:
        return self._fleet.gpus

    @property
    def unread(self) -> str:
        """Why the GPUs are not known yet; "" once they are."""
        return self._fleet.unread

    def view(self, now: float, joining: Job | None = None) -> View:
        """What the policy sees; with `joining`, as if that job were queued."""
        return self._placer.view(now, joining)

    def snapshot(self, now: float) -> Scene:
        """A snapshot for other threads: only references are taken, nothing is rendered."""
        return Scene(
            self.view(now),
            dict(self.gpus),
            dict(self.jobs),
            dict(self._fleet.usage),
            self._ledger.line(),
            self._ledger.running(),
            dict(self._placer.decisions),
            self._ledger.held.copy(),
            self.unread,
            dict(self._fleet.drains),
            dict(self.ended),
            self.policy.name,
            self.shares.copy(),
            dict(self.limits),
            self._ledger.places(),
            tuple(self._fleet.reservations.values()),
        )

    def check(self) -> None:
        """Assert the invariants for all jobs that the last step changed."""
        for id in {job.id for job in self._ledger.changed()}:
            job = self.jobs.get(id)
            if job is None or not job.holds_gpus:
                assert id not in self._ledger.holders
                continue
            assert self._ledger.holders[id] is job
            assert len(set(job.gpus)) == job.spec.gpus
            for gpu in job.gpus:
                residents = self._ledger.residents(gpu)
                assert job in residents
                assert len(residents) == 1 or not any(each.exclusive for each in residents)

    # -- events

    def _take(self, event: Event) -> None:
        match event:
            case Discovered():
                self._on_discovered(event)
            case Submitted():
                self._on_submitted(event)
            case Adopted():
                self._on_adopted(event)
            case Estimated():
                self._on_estimated(event)
            case Sampled():
                self._watch.sampled(event)
            case Began():
                self._on_began(event)
            case Postponed():
                self._on_postponed(event)
            case Exited():
                self._on_exited(event)
            case CancelRequested():
                self._on_cancel_requested(event)
            case HoldRequested():
                self._on_hold_requested(event)
            case UpdateRequested():
                self._on_update_requested(event)
            case RequeueRequested():
                self._on_requeue_requested(event)
            case DrainRequested():
                self._on_drain_requested(event)
            case LimitRequested():
                self._on_limit_requested(event)
            case Reserved():
                self._reserved |= self._fleet.reserve(event.reservation)
            case Unreserved():
                self._unreserve(event.id)
            case Noticed():
                self._ledger.note(event.job, event.note)
            case Stepped():
                self._watch.stepped(event)
            case Measured():
                self._on_measured(event)
            case Trained():
                self.knowledge.models.update(event.models)
            case Closing():
                self._watch.save_usage()
                self.shares.save(event.at)
            case Reconfigured():
                self.settings = event.settings
                self.shares.reconfigure(event.settings.fairness, event.at)
                self._placer.reconfigure(event.settings)
                self._fleet.look_again()
            case _:
                pass  # a tick: only time has passed

    def _on_discovered(self, event: Discovered) -> None:
        self._fleet.discover(event.gpus, event.unread)
        for job in self._ledger.line():
            if job.retry and job.retry.avoid:
                retry = placeable(job.retry, job.spec.gpus, self._fleet.usable())
                if retry is not job.retry:
                    self._put(replace(job, retry=retry))

    def _on_measured(self, event: Measured) -> None:
        """Of a name that it reported before, the new value counts."""
        job = self.jobs.get(event.job)
        if job and (metrics := tuple((dict(job.metrics) | dict(event.metrics)).items())):
            self._put(replace(job, metrics=metrics[:MAX_METRICS]))

    def _on_submitted(self, event: Submitted) -> None:
        self.shares.note_groups(event.specs[0].user, event.groups, event.at)
        for id, spec in enumerate(event.specs, event.first):
            job = Job(
                JobId(id), spec, JobState.PENDING, event.at, held=event.held, group=group(spec)
            )
            if id > self._counted:  # after a failed commit, the same event comes again
                self._counted = JobId(id)
                if spec.gpus:
                    self.history.note_submission(event.at, spec.gpus)
            self._put(job)
            if why := in_vain(job, self.ended):
                self._end(job, JobState.CANCELLED, why, event.at)
            else:
                self._actions.append(EstimateMemory(job))

    def _on_adopted(self, event: Adopted) -> None:
        """No job comes of it if the process is not where a job may be."""
        beside = [job for gpu in event.gpus for job in self._ledger.residents(gpu)]
        free = event.gpus and self.gpus.keys() >= set(event.gpus)
        if not free or any(
            job.exclusive or job.spec.process == event.spec.process for job in beside
        ):
            return
        spec = event.spec
        job = Job(event.id, spec, JobState.STARTING, event.at, group=group(spec))
        job = replace(job, estimate=spec.declared)
        self._put(job.placed(event.gpus, event.at, mode=event.mode, shared=bool(beside)))
        for resident in beside:
            self._put(resident.with_attempt(shared=True))
        self._actions.append(Launch(self.jobs[event.id]))

    def _on_estimated(self, event: Estimated) -> None:
        """A later answer counts, too, if it comes before the job starts: its script took long, or
        its options were changed."""
        job = self.jobs.get(event.job)
        if job and job.state is JobState.PENDING:  # else: cancelled meanwhile
            job = advance(job, JobState.QUEUED)
        elif not job or job.state is not JobState.QUEUED or (job.estimate and not event.estimate):
            return
        job = replace(
            job,
            estimate=event.estimate,
            estimate_late=event.late,
            crash=event.crash,
            notes=tuple(note for note in job.notes if not note.startswith(UNESTIMATED)),
        )
        self._put(self.knowledge.with_history(job, event.at))
        if event.note:
            self._ledger.note(event.job, event.note)

    def _on_began(self, event: Began) -> None:
        job = self._ledger.holders.get(event.job)
        if job and job.attempt == event.attempt and job.state is JobState.STARTING:
            self._put(advance(job, JobState.RUNNING))

    def _on_postponed(self, event: Postponed) -> None:
        """Neither its time limit nor the wait for its first kernel begins before the attempt."""
        job = self._ledger.holders.get(event.job)
        if job and job.attempt == event.attempt and job.state is not JobState.STOPPING:
            self._put(job.with_attempt(started_at=event.at if event.over else None))

    def _on_exited(self, event: Exited) -> None:
        job = self.jobs.get(event.job)
        if job is None or not job.holds_gpus or job.attempt != event.attempt:
            return  # a stale or repeated report
        if event.stop and job.stop not in FOR_GOOD:  # the disk was full when it was stopped
            job = stopping(job, event.stop)
            self._put(job)
        monitor, recovery = self.settings.monitor, self.settings.recovery
        trying = Trying(
            lambda job, exit: self._asked.ask(DECIDE, lambda: self.recovery.decide(job, exit)),
            recovery.retries,
            monitor.external_mib,
            self._fleet.usable(),
        )
        end = ending(job, event, self._fleet.beside(job), trying)
        if end.state is JobState.QUEUED:
            self._put(
                advance(
                    _closed(self._fleet.with_usage(job), replace(end.exit, tail=()), end.at),
                    JobState.QUEUED,
                    retry=end.retry,
                    overtaken=0,
                )
            )
        else:
            self._end(job, end.state, end.exit, end.at)

    def _on_cancel_requested(self, event: CancelRequested) -> None:
        job = self.jobs.get(event.job)
        if job is None or not control.cancel(job).acts:
            return
        if job.holds_gpus:
            self._stop(job, Cause.CANCELLED)
        else:
            exit = Exit(Cause.CANCELLED, evidence=f"cancelled by {event.by}")
            self._end(job, JobState.CANCELLED, exit, event.at)

    def _on_hold_requested(self, event: HoldRequested) -> None:
        job = self.jobs.get(event.job)
        if job and control.hold(job, event.held).acts:
            self._put(replace(job, held=event.held))

    def _on_update_requested(self, event: UpdateRequested) -> None:
        job = self.jobs.get(event.job)
        if job is None:
            return
        verdict, spec = control.update(job, event, self.jobs, event.at)
        if not verdict.acts:
            return
        anew = any(OPTIONS[name].memory for name in event.names) and not job.holds_gpus
        job = replace(job, spec=spec, group=group(spec))
        if anew and job.state is JobState.QUEUED:
            job = advance(job, JobState.PENDING)
        if anew:
            job = replace(job, estimate=None, estimate_late=False, crash="")
            self._actions.append(EstimateMemory(job))
        self._put(job)
        if event.by != spec.user:
            self._ledger.note(job.id, f"{event.by} {verdict.words}")
        if why := in_vain(job, self.ended):
            self._end(self.jobs[job.id], JobState.CANCELLED, why, event.at)

    def _on_requeue_requested(self, event: RequeueRequested) -> None:
        job = event.job
        ended = {id: state for id, state in event.ended if id not in self.jobs} | dict(self.ended)
        if job.id in self.jobs or not control.requeue(job, ended).acts:
            return
        again = replace(
            advance(job, JobState.QUEUED if job.estimate else JobState.PENDING),
            exit=None,
            ended_at=None,
            retry=None,
            overtaken=0,
            requeued_after=job.attempt,
        )
        if again.state is JobState.PENDING:
            self._put(again)
            self._actions.append(EstimateMemory(again))
        else:
            self._put(self.knowledge.with_history(again, event.at))

    def _on_drain_requested(self, event: DrainRequested) -> None:
        if event.reason is None:
            self._fleet.drain(event.gpu, None)
        elif event.gpu in self.gpus:
            drain = Drain(event.gpu, event.reason, event.by, event.at)
            self._fleet.drain(event.gpu, drain)
        self._drained = True

    def _on_limit_requested(self, event: LimitRequested) -> None:
        subject = event.limit.subject
        known = self.limits.pop(subject, Limit(subject))
        new = event.limit if event.clear else event.limit.over(known)
        if not new.empty:
            self.limits[subject] = new
        self._limited.append(new)

    def _unreserve(self, id: int) -> None:
        self._reserved |= self._fleet.unreserve(id)

    # -- endings

    def _stop(self, job: Job, cause: Cause) -> None:
        stopped = stopping(job, cause)
        self._put(stopped)
        self._actions.append(Stop(stopped))

    def _end(self, job: Job, state: JobState, exit: Exit, now: float) -> None:
        """End the job; cancel jobs whose dependency on it can no longer be met, transitively."""
        job = self.knowledge.seen_to_end(self._fleet.with_usage(job), state)
        closed = _closed(job, exit, now) if job.holds_gpus else job
        self._put(advance(closed, state, exit=exit, ended_at=now))
        self._watch.inform_others(job, now)
        ends = [(job.id, state)]
        for id, how in ends:  # it grows while iterating: recursion could exhaust the stack
            for waiting in self._ledger.waiting_for(id):
                if why := in_vain(waiting, {id: how}):
                    self._put(advance(waiting, JobState.CANCELLED, exit=why, ended_at=now))
                    ends.append((waiting.id, JobState.CANCELLED))

    # -- bookkeeping

    def _take_up(self, ledger: Ledger, last_placed: GpuId | None = None) -> None:
        """Replace the ledger, and the placer that is built on it."""
        self._ledger = self._watch.ledger = ledger
        self._placer = Placer(
            self.settings,
            self._deciders,
            ledger,
            self._fleet,
            self.history,
            self.knowledge.models,
            self.limits,
            self.shares,
            last_placed,
        )

    def _begin(self) -> None:
        """Forget the last step's changes, and the measurements of attempts that are over: that step
        is on disk, or `restore` would have been called."""
        for job in self._ledger.changed():
            if not job.holds_gpus:
                self._fleet.forget(job.id)
            if job.ended:
                self.knowledge.profiler.forget(job.id)
        self._ledger.forget_changes()
        self.shares.changed.clear()
        self._placer.news()
        self._asked.forget()
        self._actions: list[Action] = []
        self._drained = self._reserved = False
        self._limited: list[Limit] = []

    def _standing(self, job: Job) -> Standing:
        return self.shares.standing(job)

    def _put(self, job: Job) -> None:
        self._ledger.put(job)
        if job.ended:
            self._placer.decisions.pop(job.id, None)
            if run := past(job):
                self.history.remember(run)


def _closed(job: Job, exit: Exit, at: float) -> Job:
    """The job with its current attempt over."""
    return job.with_attempt(exit=exit, ended_at=at, profiling=None)
