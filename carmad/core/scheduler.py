"""The scheduler: takes events in time order, returns steps to commit and carry out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from carmad.config import Settings
from carmad.core.gpus.fleet import Fleet
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.watching import Watch
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.endings import Endings, dependency_exit
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job, advance
from carmad.core.jobs.knowledge import (
    MOST_RENEWED,
    Knowledge,
    ask_again,
    is_new_estimate,
    takes_measurements,
    with_shared_profiles,
)
from carmad.core.jobs.ledger import ENDED_REMEMBERED, Ledger
from carmad.core.jobs.recurrence import group
from carmad.core.jobs.requests import Requests
from carmad.core.jobs.states import JobState, Waiting
from carmad.core.jobs.suspending import Suspensions
from carmad.core.jobs.tasks import Ended, JobsById, Outcome
from carmad.core.messages import (
    CARMAD,
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
    LimitMemory,
    LimitRequested,
    Measured,
    MoveRequested,
    Noticed,
    Postponed,
    Reconfigured,
    RequeueRequested,
    Reserved,
    Resumed,
    ResumeRequested,
    Sampled,
    Silent,
    Step,
    Stepped,
    Submitted,
    Suspended,
    SuspendRequested,
    Trained,
    Unreserved,
    UpdateRequested,
    due_actions,
)
from carmad.core.placing.deciders import Calls, Deciders
from carmad.core.placing.placer import Placer
from carmad.core.placing.relief import Relief
from carmad.core.placing.view import View
from carmad.core.ports import Policy, Predictor, Recovery
from carmad.core.rules import promises
from carmad.core.rules.guarantees import Guarantees
from carmad.core.rules.quota import Limit
from carmad.core.rules.reservations import Reservation
from carmad.core.rules.share import Account, Ranks, Shares, Standing
from carmad.core.scene import Scene
from carmad.options import MAX_METRICS


class Scheduler:
    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        recovery: Recovery,
        predictor: Predictor | None = None,
        fallback: Policy | None = None,
        policies: Callable[[Settings], Policy] | None = None,
    ) -> None:
        """`fallback` decides while `policy` fails; None: jobs wait until it answers. `policies`
        makes the one that new settings name; None: it stays."""
        self.settings = settings
        self.recovery = recovery
        self._policies = policies
        self._calls = Calls()
        self._deciders = Deciders(policy, fallback, self._calls)
        self._fleet = Fleet(settings)
        self.knowledge = Knowledge(settings, self._fleet, predictor, self._calls)
        self._counted = OrderedDict[JobId, None]()  # submissions that the history has lately
        self.shares = Shares(settings.fairness)
        self.limits: dict[str, Limit] = {}
        ledger = Ledger(self._deciders.order, standing=self._standing)
        self._suspensions = Suspensions(ledger, self._fleet, settings)
        self._watch = Watch(settings, ledger, self._fleet, self.knowledge, self._suspensions)
        self._take_up(ledger)
        self._begin()

    # -- the two ways in

    def handle(self, *events: Event) -> Step:
        """Process a batch of events, in time order, then plan once.

        Submissions alone make no plan: it is made with the next event, a tick at the latest. So a
        user need not wait for a plan to learn that a job is safely stored.
        """
        self._begin()
        for event in events:
            self._take(event)
        for job in self._ledger.changes():
            if job.ended:
                self._placer.decisions.pop(job.id, None)
        now = events[-1].at
        self._reserved |= self._fleet.note_bookings(now, self._ledger)
        for id in self._fleet.over(now):
            self._unreserve(id)
        self._actions += self._watch.expire(now)
        waiting = (job.spec.owner for job in self._ledger.line())
        if self.shares.rerank(now, waiting, len(self.gpus)):
            self._ledger.rerank()
        if not all(isinstance(event, Submitted) for event in events):
            self._actions += self._placer.plan(now)
        self._actions += self._relieve(now)
        self._actions[:0] = self._guarantee(events)
        for job in self._ledger.pieces():  # each needs an estimate of its own
            if (row := self.jobs.rows.get(job.id)) and row.awaits_estimate:
                self._actions.append(EstimateMemory(row))
        self._ledger.rates.convert_by(self.settings.host, len(self.gpus))
        self.shares.follow(self._ledger.rates, now)
        self.check()
        return Step(
            events,
            self._ledger.changes(),
            self._placer.news(),
            tuple(self._actions),
            tuple(self._fleet.drains.values()) if self._drained else None,
            self._calls.failures,
            self._ledger.before(),
            tuple(self.shares.changed.values()),
            tuple(self._limited),
            tuple(self._fleet.reservations.values()) if self._reserved else None,
        )

    def restore(
        self,
        jobs: Iterable[Job],
        ended: Iterable[Outcome] = (),
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
        ledger = Ledger(self._deciders.order, with_shared_profiles(jobs), ended, self._standing)
        for job in ledger.running():
            self.history.learn(job)
        self.limits = {limit.subject: limit for limit in limits}
        self._take_up(ledger, last_placed or self._placer.last_placed)
        self._fleet.drains = {drain.gpu: drain for drain in drains}
        self._fleet.reservations = {each.id: each for each in reservations}
        self._fleet.look_again()
        due = [action for job in self.jobs.rows.values() for action in due_actions(job)]
        for name in dict.fromkeys(job.group for job in ledger.line()):
            if self.history.by_group.of(name):  # an answer may have been under way
                due += ask_again(ledger.alike(name))
        return tuple(due)

    # -- read access

    @property
    def jobs(self) -> JobsById:
        """The jobs that have not ended."""
        return self._ledger.jobs

    @property
    def has_line(self) -> bool:
        """Whether any job is queued."""
        return bool(self._ledger.line())

    @property
    def outcomes(self) -> Ended:
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
            self.jobs.copy(),
            dict(self._fleet.usage),
            self._ledger.line(),
            self._ledger.running(),
            dict(self._placer.decisions),
            self._ledger.held.copy(),
            self.unread,
            dict(self._fleet.drains),
            self.policy.name,
            self.shares.copy(),
            dict(self.limits),
            self._ledger.places(),
            tuple(self._fleet.reservations.values()),
        )

    def check(self) -> None:
        """Assert the invariants for all jobs that the last step changed."""
        for id in {job.id for job in self._ledger.changes()}:
            job = self.jobs.rows.get(id)
            if job is None or not job.holds_gpus:
                assert id not in self._ledger.holders
                continue
            assert job.tasks == 1
            assert self._ledger.holders[id] is job
            stops = job.state is JobState.STOPPING and job.suspension
            assert len(set(job.gpus)) == job.spec.gpus or (stops and not job.gpus)
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
                self._actions += self._requests.adopt(event)
            case Estimated():
                self._on_estimated(event)
            case Sampled():
                self._actions += self._watch.take_samples(event)
                if self.settings.suspend.host_memory_mib:
                    self._actions += self._relief.avert(event.samples, event.at)
            case Silent():
                self._fleet.note_silent(event.gpus)
            case Began():
                self._watch.begin(event)
            case Postponed():
                self._watch.postpone(event)
            case Exited():
                self._actions += self._endings.end_attempt(event, self.settings)
            case CancelRequested():
                self._actions += self._requests.cancel(event)
            case HoldRequested():
                self._requests.hold(event)
            case UpdateRequested():
                self._actions += self._requests.update(event)
            case RequeueRequested():
                self._actions += self._requests.requeue(event)
            case SuspendRequested():
                self._actions += self._suspensions.request(event)
            case ResumeRequested():
                self._suspensions.request_return(event)
            case MoveRequested():
                self._actions += self._suspensions.move(event)
            case Suspended():
                self._actions += self._suspensions.take_suspended(event)
            case Resumed():
                self._actions += self._suspensions.take_resumed(event)
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
                self._watch.take_report(event)
            case Measured():
                self._on_measured(event)
            case Trained():
                self.knowledge.models.update(event.models)
            case Closing():
                self._watch.save_usage()
                self.shares.save(event.at)
            case Reconfigured():
                if self._policies and event.settings.policy != self.settings.policy:
                    self._deciders.succeed(self._policies(event.settings))
                    self._placer.forget()
                self.settings = event.settings
                self.shares.reconfigure(event.settings.fairness, event.at)
                self._placer.reconfigure(event.settings)
                self._suspensions.settings = event.settings
                self._fleet.look_again()
            case _:
                pass  # a tick: only time has passed

    def _on_discovered(self, event: Discovered) -> None:
        self._fleet.discover(event.gpus, event.unread)
        for job in self._ledger.line():
            if job.retry and job.retry.avoid:
                retry = job.retry.placeable(job.spec.gpus, self._fleet.usable(job.spec))
                if retry is not job.retry:
                    self._ledger.put(replace(job, retry=retry))

    def _on_measured(self, event: Measured) -> None:
        """Of a name that it reported before, the new value counts."""
        job = self.jobs.get(event.job)
        if job and (metrics := tuple((dict(job.metrics) | dict(event.metrics)).items())):
            self._ledger.put(replace(job, metrics=metrics[:MAX_METRICS]))

    def _on_submitted(self, event: Submitted) -> None:
        self.shares.note_groups(event.specs[0].owner, event.groups, event.at)
        id, pending = event.first, Waiting(JobState.PENDING)
        for spec in event.specs:
            job = Job(id, spec, pending, event.at, held=event.held, group=group(spec))
            job = replace(job, doubted=self.shares.doubts(spec, event.at))
            job = self.knowledge.with_history(job, event.at)
            id = JobId(id + job.tasks)
            if job.id not in self._counted:  # after a failed commit, the same event comes again
                self._counted[job.id] = None
                if len(self._counted) > ENDED_REMEMBERED:
                    self._counted.popitem(last=False)
                if spec.gpus:
                    self.history.note_submission(event.at, spec.gpus, job.tasks)
            self._ledger.put(job)
            if why := dependency_exit(job, self.outcomes):
                self._endings.end(job, JobState.CANCELLED, why, event.at)
            else:
                self._actions.append(EstimateMemory(job))

    def _on_estimated(self, event: Estimated) -> None:
        """A job that waits may get several answers: its script took long, or its options were
        changed. One that runs gets the answer that it did not wait for; a verdict on its script
        does not stop it."""
        if event.again:
            self._share_estimate(event)
            return
        job = self.jobs.rows.get(event.job)
        if not job or not (job.waits or job.awaits_estimate):  # else: cancelled meanwhile
            return
        if job.state is JobState.PENDING:
            job = advance(job, Waiting(JobState.QUEUED))
        elif job.estimate and not event.estimate:
            return
        job = self._with_estimate(job, event)
        estimate = job.estimate
        if job.waits and not job.prediction:  # of an earlier release; or nobody could say
            job = self.knowledge.with_history(job, event.at)
        self._ledger.put(job)
        if event.note and not estimate:
            self._ledger.note(event.job, event.note)
        if job.doubted and estimate and not estimate.firm:
            self._ledger.note(event.job, promises.override_note(job, estimate))

    def _with_estimate(self, job: Job, event: Estimated) -> Job:
        return replace(
            job,
            estimate=self._estimate_of(job, event),
            estimate_late=event.late,
            crash=event.crash,
            notes=tuple(note for note in job.notes if not note.startswith(UNESTIMATED)),
        )

    def _estimate_of(self, job: Job, event: Estimated) -> Estimate | None:
        estimate = promises.weigh(job, event.estimate) if job.doubted else event.estimate
        return self._fleet.with_room(estimate) if estimate and estimate.firm else estimate

    def _share_estimate(self, event: Estimated) -> None:
        """What earlier runs of a job used is news to its runs that wait for the same."""
        asked = self.jobs.get(event.job)
        if asked is None:
            return
        alike = (
            job
            for job in self._ledger.alike(asked.group)
            if job.spec.memory_mib == asked.spec.memory_mib
            and takes_measurements(job)
            and (new := self._estimate_of(job, event))
            and is_new_estimate(job.estimate, new)
        )
        for job in islice(alike, MOST_RENEWED):
            self._ledger.put(self._with_estimate(job, event))

    def _on_drain_requested(self, event: DrainRequested) -> None:
        if event.reason is None:
            self._fleet.drain(event.gpu, None)
        elif event.by == CARMAD and event.gpu in self._fleet.drains:
            return
        elif event.gpu in self.gpus:
            drain = Drain(event.gpu, event.reason, event.by, event.at)
            self._fleet.drain(event.gpu, drain)
            if event.move:
                self._actions += self._suspensions.empty(event)
        self._drained = True

    def _on_limit_requested(self, event: LimitRequested) -> None:
        subject = event.limit.subject
        old = self.limits.pop(subject, None)
        if old is None or old.uid not in (None, event.limit.uid):  # it was an earlier account's
            old = Limit(subject)
        new = event.limit if event.clear else event.limit.over(old)
        if not new.empty:
            self.limits[subject] = new
        self._limited.append(new)

    def _unreserve(self, id: int) -> None:
        self._reserved |= self._fleet.unreserve(id)

    # -- bookkeeping

    def _take_up(self, ledger: Ledger, last_placed: GpuId | None = None) -> None:
        """Replace the ledger, and what is built on it."""
        self._ledger = self._watch.ledger = self._suspensions.ledger = ledger
        self._endings = Endings(
            ledger,
            self._fleet,
            self.knowledge,
            self._watch,
            self.recovery,
            self._calls,
            self.shares,
        )
        self._requests = Requests(ledger, self._fleet, self.knowledge, self._endings, self.shares)
        self._relief = Relief(ledger, self._fleet, self._suspensions)
        self._guarantees = Guarantees(ledger, self._fleet)
        self._placer = Placer(
            self.settings,
            self._deciders,
            ledger,
            self._fleet,
            self.history,
            self.knowledge.models,
            self.limits,
            self.shares,
            self._suspensions,
            last_placed,
        )

    def _begin(self) -> None:
        """Forget the last step's changes, and the measurements of attempts that are over: that step
        is on disk, or `restore` would have been called."""
        for job in self._ledger.changes():
            if not job.holds_gpus:
                self._fleet.forget(job.id)
            if job.ended:
                self.knowledge.profiler.forget(job.id)
        self._ledger.forget_changes()
        self.shares.changed.clear()
        self._placer.news()
        self._calls.forget()
        self._actions: list[Action] = []
        self._drained = self._reserved = False
        self._limited: list[Limit] = []

    def _relieve(self, now: float) -> list[Action]:
        first = self.settings.limits.preemption == "suspend" and self._relief.waiting
        if not (first or any(each.is_on(now) for each in self._fleet.reservations.values())):
            return []
        return self._relief.relieve(self.view(now))

    def _guarantee(self, events: Iterable[Event]) -> list[LimitMemory]:
        """Renew memory limits. These come before launches, so that a job begins with them."""
        readings = (each.samples for each in events if isinstance(each, Sampled))
        sampled = (sample.gpu for samples in readings for sample in samples)
        return self._guarantees.renew(sampled, self.settings.collocation.guarantee_memory)

    def _standing(self, job: Job) -> Standing:
        """Where others are suspended for them, jobs at a terminal go first, as urgent ones do."""
        usual, rank = self.shares.standing(job)
        waits = job.spec.interactive and self.settings.limits.preemption == "suspend"
        return usual and not waits, rank
