"""What is known about jobs: measurements, reports, earlier runs, and predictions from these. New
knowledge about a job is returned as a new version of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter

from carmad.config import Settings
from carmad.core.asking import PREDICT, Asked
from carmad.core.fleet import Fleet
from carmad.core.history import History
from carmad.core.messages import Stepped
from carmad.core.ports import Predictor
from carmad.core.profiling import UsageProfiler
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
        self, settings: Settings, fleet: Fleet, predictor: Predictor | None, asked: Asked
    ) -> None:
        self.predictor = predictor
        self.history = History()
        self.models: dict[str, Model] = {}  # trained models, by name
        self.profiler = UsageProfiler()
        self._settings = settings
        self._fleet = fleet
        self._asked = asked

    def with_history(self, job: Job, now: float) -> Job:
        """The job, joining the queue, with what earlier runs showed and a predicted duration."""
        history = self.history
        known = replace(
            job,
            profile=job.profile if job.profiled else history.profile(job.group) or job.profile,
            steps=job.steps or history.steps(job.group),
            stage_times=job.spec.stage_times or job.stage_times or history.stage_times(job.group),
        )
        return self.predicted(known, now)

    def predicted(self, job: Job, now: float) -> Job:
        """The job with a prediction; without one, the declared duration applies. If the predictor
        fails, a note says so. Of jobs without GPUs it is not asked."""
        predictor = self.predictor
        if predictor is None or not job.spec.gpus:
            return replace(job, prediction=None)
        notes = tuple(note for note in job.notes if not note.startswith(UNPREDICTED))
        try:
            prediction = self._asked.ask(
                PREDICT, lambda: predictor.predict(job, self.history, self.models, now)
            )
        except Exception:  # noqa: BLE001 - foreign code
            note = f"{UNPREDICTED}: the predictor {predictor.name} failed"
            return replace(job, prediction=None, notes=(*notes, note))
        return replace(job, prediction=prediction, notes=notes)

    def watched_enough(self, job: Job) -> bool:
        return self.profiler.watched_s(job) >= self._settings.profiling.run_s

    def profiled(self, job: Job) -> Job:
        if job.profiled:
            return job
        peak_mib = self._fleet.with_usage(job).usage.peak_mib
        profile = self.profiler.profile(job, peak_mib)
        there = next((self._fleet.gpus[gpu] for gpu in job.gpus if gpu in self._fleet.gpus), None)
        return replace(job, profile=replace(profile, gpu=there.name) if there else profile)

    def seen_to_end(self, job: Job, state: JobState) -> Job:
        """The ended job with the peak of the whole run, and with a profile even if it ended before
        `profiling.run_s`."""
        enough = self._settings.profiling.run_s
        if state is JobState.SUCCEEDED:
            enough = min(enough, self._settings.monitor.window_s)
        if self.profiler.watched_s(job) >= enough:
            job = self.profiled(job)
        profile, peak_mib = job.profile, job.usage.peak_mib
        if profile is None or job.accumulation > 1 or peak_mib <= profile.peak_mib:
            return job
        return replace(job, profile=replace(profile, peak_mib=peak_mib, of=None))


def with_report(job: Job, event: Stepped, kind: str) -> Job:
    """The job with the step times reported for this kind of GPU; the same object if unchanged."""
    step = StepTime(job.accumulation, event.seconds, kind)
    known = {each.gpu: each for each in job.steps if each.parts == step.parts}
    if kind not in known or not _as_long(step, known[kind]):
        outdated = known.get(kind), known.get("")  # "": of an unknown kind, so perhaps of this one
        steps = (*(each for each in job.steps if each not in outdated), step)
        job = replace(job, steps=tuple(sorted(steps, key=attrgetter("parts", "gpu"))))
    if event.stages and not job.spec.stage_times and job.accumulation == 1:
        new = replace(event.stages, gpu=kind)
        if not any(_alike(new, each) for each in job.stage_times):
            job = replace(job, stage_times=_with(new, job.stage_times))
    return job


def _as_long(new: StepTime, known: StepTime) -> bool:
    return abs(new.seconds - known.seconds) <= NEWS * known.seconds


def _alike(new: StageTimes, known: StageTimes) -> bool:
    """Whether both are for the same kind of GPU and nearly equal."""
    if (new.gpu, new.sync) != (known.gpu, known.sync):
        return False
    parts = (
        (new.load_s, known.load_s),
        (new.forward_s, known.forward_s),
        (new.backward_s, known.backward_s),
        (new.communication_s, known.communication_s),
    )
    return all(abs(after - before) <= NEWS * before for after, before in parts)


def _with(new: StageTimes, known: tuple[StageTimes, ...]) -> tuple[StageTimes, ...]:
    """`known`, with `new` in place of the one for its kind of GPU."""
    return (*(each for each in known if each.gpu != new.gpu), new)


def sharing_profiles(jobs: Iterable[Job]) -> Iterator[Job]:
    """The jobs, with equal profiles made the same object: policies may compare them by identity."""
    known: dict[Profile, Profile] = {}
    for job in jobs:
        shared = known.setdefault(job.profile, job.profile) if job.profile else None
        yield job if shared is job.profile else replace(job, profile=shared)
