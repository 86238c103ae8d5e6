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
from carmad.core.knowledge import Knowledge, sharing_profiles, with_report
from carmad.core.ledger import Ledger
from carmad.core.messages import (
    Action,
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
    Noticed,
    Postponed,
    Reconfigured,
    RequeueRequested,
    Sampled,
    Signal,
    Step,
    Stepped,
    Stop,
    Submitted,
    Trained,
    owed,
)
from carmad.core.placing import Placer
from carmad.core.ports import Policy, Predictor, Recovery
from carmad.core.recurrence import group
from carmad.core.scene import Scene
from carmad.core.states import advance
from carmad.core.types import (
    FOR_GOOD,
    Attempt,
    Cause,
    Exit,
    Gpu,
    GpuId,
    Job,
    JobId,
    JobState,
)
from carmad.core.view import View

USAGE_SAVED_EVERY_S = 60.0
PEAK_SAVED_AT = 1.25  # times the saved peak: then it is saved at once


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
        self._ledger = Ledger(self._deciders.order)
        self._placer = self._new_placer()
        self._usage_saved_at = 0.0
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
        self._expire(now)
        if not all(isinstance(event, Submitted) for event in events):
            self._actions += self._placer.plan(now)
        self.check()
        return Step(
            events,
            self._ledger.changed(),
            self._placer.news(),
            tuple(self._actions),
            tuple(self._fleet.drains.values()) if self._drained else None,
            self._asked.failures,
        )

    def restore(
        self,
        jobs: Iterable[Job],
        ended: Iterable[tuple[JobId, JobState]] = (),
        drains: Iterable[Drain] = (),
        last_placed: GpuId | None = None,
        history: History | None = None,
    ) -> tuple[Action, ...]:
        """Restore the state from a store; returns actions that may not have been carried out.

        `last_placed` is round-robin's position. None for it or `history`: keep this core's.
        """
        self.knowledge.history = history or self.history
        self._ledger = Ledger(self._deciders.order, sharing_profiles(jobs), ended)
        for job in self._ledger.running():
            self.history.learn(job)
        self._placer = self._new_placer(last_placed or self._placer.last_placed)
        self._fleet.drains = {drain.gpu: drain for drain in drains}
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
            dict(self._placer.decisions),
            self._ledger.held.copy(),
            self.unread,
            dict(self._fleet.drains),
            dict(self.ended),
            self.policy.name,
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
            case Estimated():
                self._on_estimated(event)
            case Sampled():
                self._on_sampled(event)
            case Postponed():
                self._on_postponed(event)
            case Exited():
                self._on_exited(event)
            case CancelRequested():
                self._on_cancel_requested(event)
            case HoldRequested():
                self._on_hold_requested(event)
            case RequeueRequested():
                self._on_requeue_requested(event)
            case DrainRequested():
                self._on_drain_requested(event)
            case Noticed():
                self._note(event.job, event.note)
            case Stepped():
                self._on_stepped(event)
            case Trained():
                self.knowledge.models.update(event.models)
            case Closing():
                self._save_usage()
            case Reconfigured():
                self.settings = event.settings
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

    def _on_submitted(self, event: Submitted) -> None:
        for id, spec in enumerate(event.specs, event.first):
            job = Job(
                JobId(id), spec, JobState.PENDING, event.at, held=event.held, group=group(spec)
            )
            if id > self._counted:  # after a failed commit, the same event comes again
                self._counted = JobId(id)
                self.history.note_submission(event.at, spec.gpus)
            self._put(job)
            if why := in_vain(job, self.ended):
                self._end(job, JobState.CANCELLED, why, event.at)
            else:
                self._actions.append(EstimateMemory(job))

    def _on_estimated(self, event: Estimated) -> None:
        job = self.jobs.get(event.job)
        if job and job.state is JobState.PENDING:  # else: cancelled meanwhile
            joining = advance(job, JobState.QUEUED, estimate=event.estimate)
            self._put(self.knowledge.with_history(joining, event.at))
            if event.note:
                self._note(event.job, event.note)

    def _on_sampled(self, event: Sampled) -> None:
        for sample in event.samples:
            residents = self._ledger.residents(sample.gpu)
            before = self._fleet.add(sample, residents)
            self.knowledge.profiler.add(residents, before, sample, self.settings.monitor.stale_s)
            for job in residents:
                self._note_kernel(job, sample.gpu, event.at)
                self._note_overrun(self.jobs[job.id])
                self._note_profile(self.jobs[job.id], event.at)
                self._note_peak(self.jobs[job.id])
        if event.at - self._usage_saved_at >= USAGE_SAVED_EVERY_S:
            self._usage_saved_at = event.at
            self._save_usage()

    def _note_kernel(self, job: Job, gpu: GpuId, now: float) -> None:
        """TTFK bookkeeping, step 2 of the CARMA paper's Table 2."""
        if job.state is JobState.STOPPING or gpu in dict(job.kernels):
            return
        if any(p.belongs_to(job) and p.ran_kernel for p in self._fleet.processes(gpu)):
            attempts = job.attempts_with(kernels=(*job.kernels, (gpu, now)))
            if job.state is JobState.STARTING:
                self._put(advance(job, JobState.RUNNING, attempts=attempts))
            else:
                self._put(replace(job, attempts=attempts))

    def _note_overrun(self, job: Job) -> None:
        """Note, once, that the job exceeds its declared memory; the usage is stored with it."""
        if job.estimate is None or not job.estimate.firm:
            return
        promised, metered = job.estimate.mib, self._fleet.with_usage(job)
        if job.usage.peak_mib <= promised < metered.usage.peak_mib:
            self._put(metered)
            used = metered.usage.peak_mib
            self._note(job.id, f"uses {used} MiB, more than the {promised} MiB of its --gpu-mem")

    def _note_peak(self, job: Job) -> None:
        """Save a peak at once if it has grown much: it cannot be measured again."""
        usage = self._fleet.usage.get(job.id, job.usage)
        if usage.peak_mib > job.usage.peak_mib * PEAK_SAVED_AT:
            self._put(replace(job, usage=usage))

    def _save_usage(self) -> None:
        for id in self._fleet.newly_metered():
            if holder := self._ledger.holders.get(id):
                self._put(self._fleet.with_usage(holder))

    def _note_profile(self, job: Job, now: float) -> None:
        """Profile a job that has run alone long enough, even without a profiling run."""
        unknown = not job.profiled and job.profiling is None and job.state is JobState.RUNNING
        if unknown and self.knowledge.watched_enough(job):
            self._put(self.knowledge.profiled(job))
            self._inform_others(self.jobs[job.id], now)

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
            job = self._stopping(job, event.stop)
        if job.started_at is None:  # it never started
            job = job.with_attempt(started_at=min(event.at, event.ended_at or event.at))
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
                    self._fleet.with_usage(job),
                    JobState.QUEUED,
                    attempts=_closed(job, end.exit, end.at),
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

    def _on_stepped(self, event: Stepped) -> None:
        """Ignores reports while the job shares GPUs, and changes of less than 1 %."""
        job = self._ledger.holders.get(event.job)
        if job is None or any(len(self._ledger.residents(gpu)) > 1 for gpu in job.gpus):
            return
        gpu = self.gpus.get(job.gpus[0])
        if gpu and (known := with_report(job, event, gpu.name)) is not job:
            self._put(known)
            if known.stage_times and not job.stage_times:
                self._inform_others(known, event.at)

    # -- time

    def _expire(self, now: float) -> None:
        for job in tuple(self._ledger.watched.values()):
            if job.state is not JobState.STOPPING and job.started_at is not None:
                self._note_untouched(job, now - job.started_at)
                self._limit(self.jobs[job.id], job.attained_s(now))
                self._end_profiling(self.jobs[job.id], now)

    def _limit(self, job: Job, elapsed: float) -> None:
        if job.spec.time_limit_s is None:
            return
        left = job.spec.time_limit_s - elapsed
        warn = job.spec.warn
        if left <= 0:
            self._stop(job, Cause.TIME_LIMIT)
        elif warn and not job.warned and left <= warn.before_s:
            warned = job.with_attempt(warned=True)
            self._put(warned)
            self._actions.append(Signal(warned, warn.signum))

    def _end_profiling(self, job: Job, now: float) -> None:
        """End a profiling run: the job stays, or is requeued if it was on a profiling GPU."""
        run = job.profiling
        if run is None or now < run.until or job.state is JobState.STOPPING:
            return
        # Long over: no daemon was running to end it, and its work since then should not be lost.
        late = now - run.until > self.settings.profiling.run_s
        evicted = run.evict and job.spec.requeue and job.profile is None and not late
        known = job.with_attempt(profiling=None)
        if evicted or self.knowledge.profiler.watched_s(job) > 0:
            known = self.knowledge.profiled(known)
        self._put(self.knowledge.predicted(known, now))
        self._inform_others(known, now)
        if evicted:
            self._stop(self.jobs[job.id], Cause.PROFILED)

    def _inform_others(self, job: Job, now: float) -> None:
        """Give queued runs of the same job its profile and stage times."""
        profiled = job.profiled and job.profile is not None and job.profile.of is None
        if not (profiled or job.stage_times):
            return
        self.history.learn(job)
        for waiting in self._ledger.alike(job.group):
            if (profiled and waiting.profile is None) or (
                job.stage_times and not waiting.stage_times
            ):
                self._put(self.knowledge.with_history(waiting, now))

    def _note_untouched(self, job: Job, elapsed: float) -> None:
        """TTFK timeout: the job gets a note, and its GPUs take other jobs again."""
        patience = self.settings.monitor.first_kernel_timeout_s
        if elapsed < patience:
            return
        seen = {gpu for gpu, _ in job.kernels}
        for gpu in job.gpus:
            if gpu not in seen:
                where = f"GPU {self.gpus[gpu].index}" if gpu in self.gpus else gpu
                self._note(job.id, f"ran no kernel on {where} in its first {patience:g} s")

    def _note(self, id: JobId, note: str) -> None:
        job = self.jobs.get(id)
        if job and note not in job.notes:
            self._put(replace(job, notes=(*job.notes, note)))

    # -- endings

    def _stop(self, job: Job, cause: Cause) -> None:
        self._actions.append(Stop(self._stopping(job, cause)))

    def _stopping(self, job: Job, cause: Cause) -> Job:
        """The job, stopping for this cause; it replaces the cause of one to be requeued."""
        attempts = job.attempts_with(stop=cause)
        if job.state is JobState.STOPPING:
            stopping = replace(job, attempts=attempts)
        else:
            stopping = advance(job, JobState.STOPPING, attempts=attempts)
        self._put(stopping)
        return stopping

    def _end(self, job: Job, state: JobState, exit: Exit, now: float) -> None:
        """End the job; cancel jobs whose dependency on it can no longer be met, transitively."""
        job = self.knowledge.seen_to_end(self._fleet.with_usage(job), state)
        attempts = _closed(job, exit, now) if job.holds_gpus else job.attempts
        self._put(advance(job, state, attempts=attempts, exit=exit, ended_at=now))
        self._inform_others(job, now)
        ends = [(job.id, state)]
        for id, how in ends:  # it grows while iterating: recursion could exhaust the stack
            for waiting in self._ledger.waiting_for(id):
                if why := in_vain(waiting, {id: how}):
                    self._put(advance(waiting, JobState.CANCELLED, exit=why, ended_at=now))
                    ends.append((waiting.id, JobState.CANCELLED))

    # -- bookkeeping

    def _new_placer(self, last_placed: GpuId | None = None) -> Placer:
        return Placer(
            self.settings,
            self._deciders,
            self._ledger,
            self._fleet,
            self.history,
            self.knowledge.models,
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
        self._placer.news()
        self._asked.forget()
        self._actions: list[Action] = []
        self._drained = False

    def _put(self, job: Job) -> None:
        self._ledger.put(job)
        if job.ended:
            self._placer.decisions.pop(job.id, None)
            if run := past(job):
                self.history.remember(run)


def _closed(job: Job, exit: Exit, at: float) -> tuple[Attempt, ...]:
    """The job's attempts, with the current one ended."""
    return job.attempts_with(exit=exit, ended_at=at, profiling=None)
