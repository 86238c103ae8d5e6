"""What is known about jobs: measurements, reports, earlier runs, and predictions from these. New
knowledge about a job is returned as a new version of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter

from carmad.config import Settings
from carmad.core.deciders import PREDICT, Calls
from carmad.core.fleet import Fleet
from carmad.core.history import History
from carmad.core.messages import Stepped
from carmad.core.ports import Predictor
from carmad.core.readings import UsageProfiler
from carmad.core.types import (
    Job,
    JobState,
    Profile,
    StageTimes,
    StepTime,
)
from carmad.models import Model

UNPREDICTED = "its duration could not be predicted"
NEWS = 0.01  # a relative change of a step time that is worth saving


class Knowledge:
    def __init__(
        self, settings: Settings, fleet: Fleet, predictor: Predictor | None, calls: Calls
    ) -> None:
        self.predictor = predictor
        self.history = History()
        self.models: dict[str, Model] = {}  # trained models, by name
        self.profiler = UsageProfiler()
        self._settings = settings
        self._fleet = fleet
        self._calls = calls

    def with_history(self, job: Job, now: float) -> Job:
        """The job, joining the queue, with what earlier runs showed and a predicted duration."""
        history = self.history
        job = replace(
            job,
            profile=job.profile if job.profiled else history.profile(job.group) or job.profile,
            steps=job.steps or history.steps(job.group),
            stage_times=job.spec.stage_times or job.stage_times or history.stage_times(job.group),
        )
        return self.with_prediction(job, now)

    def with_prediction(self, job: Job, now: float) -> Job:
        """The job with a prediction, if it wants GPUs; without one, the declared duration applies.
        If the predictor fails, a note says so."""
        predictor = self.predictor
        if predictor is None or not job.spec.gpus:
            return replace(job, prediction=None)
        notes = tuple(note for note in job.notes if not note.startswith(UNPREDICTED))
        try:
            prediction = self._calls.make(
                PREDICT, lambda: predictor.predict(job, self.history, self.models, now)
            )
        except Exception:  # noqa: BLE001 - foreign code
            note = f"{UNPREDICTED}: the predictor {predictor.name} failed"
            return replace(job, prediction=None, notes=(*notes, note))
        return replace(job, prediction=prediction, notes=notes)

    def is_profile_due(self, job: Job) -> bool:
        return self.profiler.seconds(job) >= self._settings.profiling.run_s

    def with_profile(self, job: Job) -> Job:
        if job.profiled:
            return job
        peak_mib = self._fleet.with_usage(job).usage.peak_mib
        profile = self.profiler.profile(job, peak_mib)
        there = next((self._fleet.gpus[gpu] for gpu in job.gpus if gpu in self._fleet.gpus), None)
        return replace(job, profile=replace(profile, gpu=there.name) if there else profile)

    def with_final_profile(self, job: Job, state: JobState) -> Job:
        """The job, which ends, with its usage, the peak of the whole run, and a profile even if it
        ended before `profiling.run_s`."""
        job = self._fleet.with_usage(job)
        enough = self._settings.profiling.run_s
        if state is JobState.SUCCEEDED:
            enough = min(enough, self._settings.monitor.window_s)
        if self.profiler.seconds(job) >= enough:
            job = self.with_profile(job)
        profile, peak_mib = job.profile, job.usage.peak_mib
        if profile is None or job.accumulation > 1 or peak_mib <= profile.peak_mib:
            return job
        return replace(job, profile=replace(profile, peak_mib=peak_mib, of=None))


def with_report(job: Job, event: Stepped, kind: str) -> Job:
    """The job with the step times reported for this kind of GPU; the same object if unchanged."""
    step = StepTime(job.accumulation, event.seconds, kind)
    before = {each.gpu: each for each in job.steps if each.parts == step.parts}
    if kind not in before or not _is_as_long(step, before[kind]):
        outdated = (
            before.get(kind),
            before.get(""),
        )  # "": of an unknown kind, so perhaps of this one
        steps = (*(each for each in job.steps if each not in outdated), step)
        job = replace(job, steps=tuple(sorted(steps, key=attrgetter("parts", "gpu"))))
    if event.stages and not job.spec.stage_times and job.accumulation == 1:
        new = replace(event.stages, gpu=kind)
        if not any(_are_alike(new, each) for each in job.stage_times):
            others = (each for each in job.stage_times if each.gpu != kind)
            job = replace(job, stage_times=(*others, new))
    return job


def _is_as_long(new: StepTime, old: StepTime) -> bool:
    return abs(new.seconds - old.seconds) <= NEWS * old.seconds


def _are_alike(new: StageTimes, old: StageTimes) -> bool:
    """Whether both are for the same kind of GPU and nearly equal."""
    if (new.gpu, new.sync) != (old.gpu, old.sync):
        return False
    parts = (
        (new.load_s, old.load_s),
        (new.forward_s, old.forward_s),
        (new.backward_s, old.backward_s),
        (new.communication_s, old.communication_s),
    )
    return all(abs(after - before) <= NEWS * before for after, before in parts)


def with_shared_profiles(jobs: Iterable[Job]) -> Iterator[Job]:
    """The jobs, with equal profiles made the same object: policies may compare them by identity."""
    profiles: dict[Profile, Profile] = {}
    for job in jobs:
        shared = profiles.setdefault(job.profile, job.profile) if job.profile else None
        yield job if shared is job.profile else replace(job, profile=shared)
