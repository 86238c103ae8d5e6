"""What is learned of jobs while they hold GPUs: from readings, from what they report, and as time
passes. New versions of them go to the ledger."""

from __future__ import annotations

from dataclasses import replace

from carmad.config import Settings
from carmad.core import first_kernel
from carmad.core.company import with_company
from carmad.core.fleet import Fleet
from carmad.core.idleness import Idleness
from carmad.core.knowledge import Knowledge, with_report
from carmad.core.ledger import Ledger
from carmad.core.messages import Action, Began, Postponed, Sampled, Signal, Stepped, Stop
from carmad.core.reservations import Reservation
from carmad.core.states import advance, stopping
from carmad.core.types import Cause, GpuId, Job, JobState

USAGE_SAVED_EVERY_S = 60.0
NEARING = 0.8  # of the time limit
PEAK_SAVED_AT = 1.25  # times the saved peak: then it is saved at once


class Watch:
    def __init__(
        self, settings: Settings, ledger: Ledger, fleet: Fleet, knowledge: Knowledge
    ) -> None:
        self._settings = settings
        self.ledger = ledger
        self._fleet = fleet
        self._knowledge = knowledge
        self._idleness = Idleness()
        self._usage_saved_at = 0.0

    # -- readings and reports

    def sampled(self, event: Sampled) -> None:
        seen = [(sample, self.ledger.residents(sample.gpu)) for sample in event.samples]
        self._idleness.add(event.at, seen, self._settings.monitor.stale_s)
        for sample in event.samples:
            residents = self.ledger.residents(sample.gpu)
            before = self._fleet.add(sample, residents)
            profiler, gap_s = self._knowledge.profiler, self._settings.monitor.stale_s
            profiler.add(residents, before, sample, gap_s)
            for job in residents:
                self._note_kernel(job, sample.gpu, len(residents) == 1, event.at)
                self._note_overrun(self.ledger.jobs[job.id])
                self._note_profile(self.ledger.jobs[job.id], event.at)
                self._note_peak(self.ledger.jobs[job.id])
        if event.at - self._usage_saved_at >= USAGE_SAVED_EVERY_S:
            self._usage_saved_at = event.at
            self.save_usage()

    def save_usage(self) -> None:
        for id in self._fleet.newly_metered():
            if holder := self.ledger.holders.get(id):
                self.ledger.put(self._fleet.with_usage(holder))

    def began(self, event: Began) -> None:
        job = self.ledger.holders.get(event.job)
        if job and job.attempt == event.attempt and job.state is JobState.STARTING:
            self.ledger.put(advance(job, JobState.RUNNING))

    def postponed(self, event: Postponed) -> None:
        """Neither its time limit nor the wait for its first kernel begins before the attempt."""
        job = self.ledger.holders.get(event.job)
        if job and job.attempt == event.attempt and job.state is not JobState.STOPPING:
            self.ledger.put(job.with_attempt(started_at=event.at if event.over else None))

    def stepped(self, event: Stepped) -> None:
        """From a job that shares all its GPUs with one other, a report tells how much that slows
        it. Ignores reports in other company, and changes of less than 1 %."""
        job = self.ledger.holders.get(event.job)
        gpu = self._fleet.gpus.get(job.gpus[0]) if job and job.gpus else None
        if job is None or gpu is None:
            return
        if any(len(self.ledger.residents(id)) > 1 for id in job.gpus):
            neighbour = self._only_neighbour(job)
            if neighbour:
                known = with_company(job, event.seconds, neighbour, gpu)
                if known is not job:
                    self.ledger.put(known)
            return
        if (known := with_report(job, event, gpu.name)) is not job:
            self.ledger.put(known)
            if known.stage_times and not job.stage_times:
                self.inform_others(known, event.at)

    def _only_neighbour(self, job: Job) -> Job | None:
        """The job that it shares each of its GPUs with; None if there are several, or it has a GPU
        to itself: then its slowest GPU decides, and one pair's ratio cannot be told."""
        found = [{each.id: each for each in self.ledger.residents(gpu)} for gpu in job.gpus]
        first = found[0]
        if len(first) != 2 or any(each.keys() != first.keys() for each in found):
            return None
        return next(each for each in first.values() if each.id != job.id)

    def _note_kernel(self, job: Job, gpu: GpuId, alone: bool, now: float) -> None:
        """TTFK bookkeeping, step 2 of the CARMA paper's Table 2."""
        if job.state is JobState.STOPPING or gpu in dict(job.kernels):
            return
        readings = self._fleet.readings(gpu)
        if readings and first_kernel.ran(job, readings, alone, self._settings):
            seen = job.with_attempt(kernels=(*job.kernels, (gpu, now)))
            starting = job.state is JobState.STARTING
            self.ledger.put(advance(seen, JobState.RUNNING) if starting else seen)

    def _note_overrun(self, job: Job) -> None:
        """Note, once, that the job exceeds its declared memory; the usage is stored with it."""
        if job.estimate is None or not job.estimate.firm:
            return
        promised, metered = job.estimate.mib, self._fleet.with_usage(job)
        if job.usage.peak_mib <= promised < metered.usage.peak_mib:
            self.ledger.put(metered)
            used = metered.usage.peak_mib
            self.ledger.note(
                job.id, f"uses {used} MiB, more than the {promised} MiB of its --gpu-mem"
            )

    def _note_peak(self, job: Job) -> None:
        """Save a peak at once if it has grown much: it cannot be measured again."""
        usage = self._fleet.usage.get(job.id, job.usage)
        if usage.peak_mib > job.usage.peak_mib * PEAK_SAVED_AT:
            self.ledger.put(replace(job, usage=usage))

    def _note_profile(self, job: Job, now: float) -> None:
        """Profile a job that has run alone long enough, even without a profiling run."""
        unknown = not job.profiled and job.profiling is None and job.state is JobState.RUNNING
        if unknown and self._knowledge.watched_enough(job):
            profiled = self._knowledge.profiled(job)
            self.ledger.put(profiled)
            self.inform_others(profiled, now)

    def inform_others(self, job: Job, now: float) -> None:
        """Give queued runs of the same job its profile and stage times."""
        profiled = job.profiled and job.profile is not None and job.profile.of is None
        if not (profiled or job.stage_times):
            return
        self._knowledge.history.learn(job)
        for waiting in self.ledger.alike(job.group):
            if (profiled and waiting.profile is None) or (
                job.stage_times and not waiting.stage_times
            ):
                self.ledger.put(self._knowledge.with_history(waiting, now))

    # -- time

    def expire(self, now: float) -> list[Action]:
        """Time limits and their warnings, ends of profiling runs, GPUs that are not used, and jobs
        that outstay the start of a reservation."""
        actions: list[Action] = []
        for reservation in self._fleet.reservations.values():
            start = reservation.next_start(now)
            if start is not None and start <= now:
                self._note_reserved(reservation)
        for job in tuple(self.ledger.watched.values()):
            if job.state is not JobState.STOPPING and job.started_at is not None:
                self._note_untouched(job, now - job.started_at)
                actions += self._limit(self.ledger.jobs[job.id], job.attained_s(now))
                actions += self._end_profiling(self.ledger.jobs[job.id], now)
                actions += self._end_idle(self.ledger.jobs[job.id])
        return actions

    def _end_idle(self, job: Job) -> list[Action]:
        """Warn and then end a job at a terminal that does not use its GPUs."""
        if not job.spec.interactive or job.state is JobState.STOPPING:
            return []
        over, note = self._idleness.judge(job, self._settings.interactive.idle_s)
        if note:
            self.ledger.note(job.id, note)
        return [self._stop(self.ledger.jobs[job.id], Cause.IDLE)] if over else []

    def _note_reserved(self, reservation: Reservation) -> None:
        for gpu in reservation.gpus:
            for job in self.ledger.residents(gpu):
                if job.spec.user not in reservation.users and gpu in self._fleet.gpus:
                    where = f"GPU {self._fleet.gpus[gpu].index}"
                    self.ledger.note(
                        job.id,
                        f"is still on {where}, which is now reserved ({reservation.whose});"
                        " it is not stopped for that",
                    )

    def _note_untouched(self, job: Job, elapsed: float) -> None:
        """TTFK timeout: the job gets a note, and its GPUs take other jobs again."""
        patience = self._settings.monitor.first_kernel_timeout_s
        if elapsed < patience or job.spec.interactive:
            return
        seen, gpus = dict(job.kernels), self._fleet.gpus
        for gpu in job.gpus:
            if gpu not in seen:
                where = f"GPU {gpus[gpu].index}" if gpu in gpus else gpu
                self.ledger.note(job.id, f"showed no kernel on {where} in its first {patience:g} s")

    def _limit(self, job: Job, elapsed: float) -> list[Action]:
        if job.spec.time_limit_s is None:
            return []
        left = job.spec.time_limit_s - elapsed
        warn = job.spec.warn
        if left <= 0 and not job.spec.slurm_job:  # Slurm ends those, or has given them more time
            return [self._stop(job, Cause.TIME_LIMIT)]
        if job.spec.tells("limit80") and not job.nearing:
            nearly = NEARING * job.spec.time_limit_s
            if job.served_s < nearly <= elapsed:  # an earlier attempt may have told it
                job = job.with_attempt(nearing=True)
                self.ledger.put(job)
        if warn and not job.warned and left <= warn.before_s:
            warned = job.with_attempt(warned=True)
            self.ledger.put(warned)
            return [Signal(warned, warn.signum)]
        return []

    def _end_profiling(self, job: Job, now: float) -> list[Action]:
        """End a profiling run: the job stays, or is requeued if it was on a profiling GPU."""
        run = job.profiling
        if run is None or now < run.until or job.state is JobState.STOPPING:
            return []
        # Long over: no daemon was running to end it, and its work since then should not be lost.
        late = now - run.until > self._settings.profiling.run_s
        evicted = run.evict and job.spec.requeue and job.profile is None and not late
        known = job.with_attempt(profiling=None)
        if evicted or self._knowledge.profiler.watched_s(job) > 0:
            known = self._knowledge.profiled(known)
        predicted = self._knowledge.predicted(known, now)
        self.ledger.put(predicted)
        self.inform_others(known, now)
        return [self._stop(predicted, Cause.PROFILED)] if evicted else []

    def _stop(self, job: Job, cause: Cause) -> Action:
        stopped = stopping(job, cause)
        self.ledger.put(stopped)
        return Stop(stopped)
