"""What is learned of jobs while they hold GPUs: from readings, from what they report, and as time
passes. New versions of them go to the ledger."""

from __future__ import annotations

import math
from dataclasses import replace

from carmad.config import Settings
from carmad.core.gpus import idling
from carmad.core.gpus.fleet import Fleet
from carmad.core.gpus.gpu import GpuSample
from carmad.core.gpus.readings import Idleness, has_run_kernel
from carmad.core.gpus.slowdown import with_company
from carmad.core.jobs.attempt import Cause, GpuId
from carmad.core.jobs.history import past
from carmad.core.jobs.job import Job, running
from carmad.core.jobs.knowledge import Knowledge, with_report
from carmad.core.jobs.ledger import Ledger
from carmad.core.jobs.line import is_conditional
from carmad.core.jobs.states import JobState
from carmad.core.jobs.suspending import Suspensions, never
from carmad.core.messages import Action, Began, Postponed, Sampled, Signal, Stepped
from carmad.core.rules.promises import USES_MORE

USAGE_SAVED_EVERY_S = 60.0
NEARING = 0.8  # of the time limit
CATCHES_AFTER_S = 30.0  # a program that catches signals has said so by then
PEAK_SAVED_AT = 1.25  # times the saved peak: then it is saved at once


class Watch:
    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        fleet: Fleet,
        knowledge: Knowledge,
        suspensions: Suspensions,
    ) -> None:
        self._settings = settings
        self.ledger = ledger
        self.suspensions = suspensions
        self._fleet = fleet
        self._knowledge = knowledge
        self._idleness = Idleness()
        self._usage_saved_at = 0.0

    # -- readings and reports

    def take_samples(self, event: Sampled) -> list[Action]:
        gap_s = self._settings.monitor.stale_s
        seen = [(sample, self.ledger.residents(sample.gpu)) for sample in event.samples]
        self._idleness.add(event.at, seen, gap_s)
        for sample in event.samples:
            residents = self.ledger.residents(sample.gpu)
            before = self._fleet.add(sample, residents)
            self._knowledge.profiler.add(residents, before, sample, gap_s)
            for job in residents:
                self._take_sample(job, sample, len(residents) == 1, event.at)
        if event.at - self._usage_saved_at >= USAGE_SAVED_EVERY_S:
            self._usage_saved_at = event.at
            self.save_usage()
        return self._curb_idle_jobs(event.at)

    def save_usage(self) -> None:
        for id in self._fleet.take_newly_metered():
            if holder := self.ledger.holders.get(id):
                self.ledger.put(self._fleet.with_usage(holder))

    def begin(self, event: Began) -> None:
        job = self.ledger.holders.get(event.job)
        if job and job.attempt == event.attempt and job.state is JobState.STARTING:
            self.ledger.put(running(job))

    def postpone(self, event: Postponed) -> None:
        """Neither its time limit nor the wait for its first kernel begins before the attempt."""
        job = self.ledger.holders.get(event.job)
        if job and job.attempt == event.attempt and job.state is not JobState.STOPPING:
            self.ledger.put(job.with_attempt(started_at=event.at if event.over else None))

    def take_report(self, event: Stepped) -> None:
        """A job that shares all its GPUs with one other reports how much that slows it. Reports in
        other company are ignored, and so are changes of less than 1 %."""
        job = self.ledger.holders.get(event.job)
        gpu = self._fleet.gpus.get(job.gpus[0]) if job and job.gpus else None
        if job is None or gpu is None:
            return
        if any(len(self.ledger.residents(id)) > 1 for id in job.gpus):
            neighbour = self._only_neighbour(job)
            if neighbour and (new := with_company(job, event.seconds, neighbour, gpu)) is not job:
                self.ledger.put(new)
            return
        if (new := with_report(job, event, gpu.name)) is not job:
            self.ledger.put(new)
            if new.stage_times and not job.stage_times:
                self.inform_others(new, event.at)

    def _only_neighbour(self, job: Job) -> Job | None:
        """The job that it shares each of its GPUs with; None if there are several, or it has a GPU
        to itself: then its slowest GPU decides, and one pair's ratio cannot be found."""
        found = [{each.id: each for each in self.ledger.residents(gpu)} for gpu in job.gpus]
        first = found[0]
        if len(first) != 2 or any(each.keys() != first.keys() for each in found):
            return None
        return next(each for each in first.values() if each.id != job.id)

    def _take_sample(self, job: Job, sample: GpuSample, alone: bool, now: float) -> None:
        """Of one of the job's GPUs."""
        new = self._with_kernel(job, sample.gpu, alone, now)
        new = self._with_overrun(new)
        profiled = self._with_profile(new)
        new = self._with_peak(profiled)
        if new is not job:
            self.ledger.put(new)
            if profiled.profile is not job.profile:
                self.inform_others(profiled, now)

    def _with_kernel(self, job: Job, gpu: GpuId, alone: bool, now: float) -> Job:
        """TTFK bookkeeping, step 2 of the CARMA paper's Table 2."""
        if job.state is JobState.STOPPING or gpu in dict(job.kernels):
            return job
        readings = self._fleet.readings(gpu)
        if not readings or not has_run_kernel(job, readings, alone, self._settings):
            return job
        job = job.with_attempt(kernels=(*job.kernels, (gpu, now)))
        return running(job) if job.state is JobState.STARTING else job

    def _with_overrun(self, job: Job) -> Job:
        """The job with a note and its usage, when it first exceeds its declared memory."""
        if job.estimate is None or not job.estimate.firm:
            return job
        promised_mib, metered = job.estimate.safe_mib, self._fleet.with_usage(job)
        if not job.usage.peak_mib <= promised_mib < metered.usage.peak_mib:
            return job
        used_mib = metered.usage.peak_mib
        return metered.with_note(
            f"{USES_MORE}{used_mib} MiB, more than the {promised_mib} MiB of its --gpu-mem"
        )

    def _with_profile(self, job: Job) -> Job:
        """Profile a job that has run alone long enough, even without a profiling run."""
        missing = not job.profiled and job.profiling is None and job.state is JobState.RUNNING
        due = missing and self._knowledge.is_profile_due(job)
        return self._knowledge.with_profile(job) if due else job

    def _with_peak(self, job: Job) -> Job:
        """The job with its usage, if its peak has grown much: it cannot be measured again."""
        usage = self._fleet.usage.get(job.id, job.usage)
        grown = usage.peak_mib > job.usage.peak_mib * PEAK_SAVED_AT
        return replace(job, usage=usage) if grown else job

    def inform_others(self, job: Job, now: float) -> None:
        """Renew what waiting jobs know from earlier runs: of runs of the same job, its profile and
        stage times; once it has ended, of all its owner's jobs, also how long they take."""
        profiled = job.profiled and job.profile is not None and job.profile.of is None
        if profiled or job.stage_times:
            self._knowledge.history.learn(job)
        elif not past(job):
            return
        owner, waiting = job.spec.owner, self.ledger.alike(job.group)
        if past(job):
            waiting = tuple(each for each in self.ledger.line() if each.spec.owner == owner)
        for renewed in self._knowledge.renew(waiting, job.group, now):
            self.ledger.put(renewed)

    # -- batch jobs that do not use their GPUs

    def _curb_idle_jobs(self, now: float) -> list[Action]:
        rules = self.suspensions.settings.idle  # these follow a reload
        for each in tuple(self.ledger.holders.values()):
            if each.idle and self._idleness.of(each.id) < self._first_s(each):
                self.ledger.put(each.with_attempt(idle=False))
        actions: list[Action] = []
        for id in self._idleness.lasting(idling.first_s(rules)):
            job = self.ledger.holders.get(id)
            if job is None or job.started_at is None or idling.is_spared(job):
                continue
            idle_s = min(self._idleness.of(id), now - job.started_at)  # launches may be postponed
            own = tuple(each for each in self._rungs(job) if self._can(job, each))
            if rung := idling.due(own, idle_s):
                actions += self._curb(job, rung, idling.following(own, rung), now)
        return actions

    def _rungs(self, job: Job) -> tuple[idling.Rung, ...]:
        kept_mib = idling.footprint_mib(job, self._fleet.memory_of(job))
        return idling.rungs_of(job, self.suspensions.settings.idle, kept_mib)

    def _first_s(self, job: Job) -> float:
        return next((rung.after_s for rung in self._rungs(job)), math.inf)

    def _can(self, job: Job, rung: idling.Rung) -> bool:
        """Whether this may ever be done to the job."""
        if rung.what == "requeue":
            return job.spec.requeue
        return rung.what != "suspend" or not never(job, self.suspensions.settings)

    def _curb(
        self, job: Job, rung: idling.Rung, then: idling.Rung | None, now: float
    ) -> list[Action]:
        why = idling.farewell(rung)
        match rung.what:
            case "warn":
                if not job.idle and (rung.setting != "hung" or self._is_awaited()):
                    warned = job.with_attempt(idle=True)
                    self.ledger.put(warned.with_note(idling.warning(job, rung, then)))
            case "suspend":
                if not self.suspensions.refusal(job, now):  # else: not now
                    new = job.with_note(f"was suspended: {why}; `carma resume` continues it")
                    return [self.suspensions.suspend(new, why, now, held=True)]
            case "requeue":
                return [self.ledger.stop(job.with_note(f"was requeued: {why}"), Cause.PREEMPTED)]
            case "end":
                return [self.ledger.stop(job.with_note(f"was ended: {why}"), Cause.IDLE)]
        return []

    def _is_awaited(self) -> bool:
        """Whether any job waits for nothing but GPUs."""
        return any(not is_conditional(job) for job in self.ledger.line())

    # -- time

    def expire(self, now: float) -> list[Action]:
        """Time limits and their warnings, ends of profiling runs, and GPUs that are not used."""
        actions = self.suspensions.expire(now)
        for job in tuple(self.ledger.watched.values()):
            if job.state is not JobState.STOPPING and job.started_at is not None:
                actions += self._expire(job, now, now - job.started_at)
        return actions

    def _expire(self, job: Job, now: float, run_s: float) -> list[Action]:
        """Apply what is due for one job."""
        spec, its, elapsed_s = job.spec, job.current, job.attained_s(now)
        new = self._with_untouched(job, run_s)
        left_s = math.inf if spec.time_limit_s is None else spec.time_limit_s - elapsed_s
        if left_s <= 0 and not spec.allocation:  # those have been given more time, or are ended
            return [self.ledger.stop(new, Cause.TIME_LIMIT)]
        actions: list[Action] = []
        new = _with_nearing(new, elapsed_s)
        # A signal that comes before the program can catch it would end the job.
        catches = run_s >= min(CATCHES_AFTER_S, left_s)
        if spec.warn and its and not its.warned and left_s <= spec.warn.before_s and catches:
            new = new.with_attempt(warned=True)
            actions.append(Signal(new, spec.warn.signum))
        cause: Cause | None = None
        run_over = new.profiling is not None and now >= new.profiling.until
        if run_over:
            new, cause = self._after_profiling(new, now)
        if spec.interactive and cause is None:
            suspends = not never(job, self.suspensions.settings)
            idle, note = self._idleness.judge(new, self._settings.interactive.idle_s, suspends)
            if idle and suspends:
                if self.suspensions.refusal(job, now):  # for now
                    return actions
                new = new.with_note(note)
                return [*actions, self.suspensions.suspend(new, "it was idle", now, held=True)]
            new, cause = new.with_note(note) if note else new, Cause.IDLE if idle else None
        if cause is not None:
            actions.append(self.ledger.stop(new, cause))
        elif new is not job:
            self.ledger.put(new)
        if run_over:
            self.inform_others(new, now)
        return actions

    def _with_untouched(self, job: Job, run_s: float) -> Job:
        """TTFK timeout: the job gets a note, and its GPUs take other jobs again."""
        patience_s = self._settings.monitor.first_kernel_timeout_s
        if run_s < patience_s or job.spec.interactive:
            return job
        seen, gpus = dict(job.kernels), self._fleet.gpus
        for gpu in job.gpus:
            if gpu not in seen:
                where = f"GPU {gpus[gpu].index}" if gpu in gpus else gpu
                job = job.with_note(f"showed no kernel on {where} in its first {patience_s:g} s")
        return job

    def _after_profiling(self, job: Job, now: float) -> tuple[Job, Cause | None]:
        """The job after its profiling run: it stays, or is stopped for the cause returned, to be
        requeued, if it was on a profiling GPU."""
        run = job.profiling
        assert run is not None
        # Long over: no daemon was running to end it, and its work since then should not be lost.
        late = now - run.until > self._settings.profiling.run_s
        evicted = run.evict and job.spec.requeue and job.profile is None and not late
        new = job.with_attempt(profiling=None)
        if evicted or self._knowledge.profiler.seconds(job) > 0:
            new = self._knowledge.with_profile(new)
        return self._knowledge.with_prediction(new, now), Cause.PROFILED if evicted else None


def _with_nearing(job: Job, elapsed_s: float) -> Job:
    """Marked once 80 % of its time limit have passed, if its owner wants to be notified."""
    limit_s, its = job.spec.time_limit_s, job.current
    if limit_s is None or its is None or its.nearing or not job.spec.tells("limit80"):
        return job
    nearly_s = NEARING * limit_s
    near = job.served_s < nearly_s <= elapsed_s  # else: an earlier attempt may have been marked
    return job.with_attempt(nearing=True) if near else job
