"""What is known about jobs: estimates, measurements, reports, earlier runs, and predictions from
these; and how a job ends, from which the jobs that wait learn.

New knowledge about a job is a new version of it: functions called `with_…` return one."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.control import unmet_dependency
from carmad.core.jobs.findings import Estimate, Prediction, Profile, StageTimes, StepTime
from carmad.core.jobs.history import past
from carmad.core.jobs.job import Job, advance, over
from carmad.core.jobs.states import EndState, JobState, Waiting
from carmad.core.messages import UNESTIMATED, Estimated, EstimateMemory, Stepped, Trained
from carmad.core.placing.decision import PREDICT
from carmad.core.rules import promises
from carmad.core.state import State

UNPREDICTED = "its duration could not be predicted"
NEWS = 0.01  # a relative change of a step time that is worth saving
# The same for what waiting jobs know from earlier runs, of which any end changes a little. There
# may be thousands of such jobs, so that these bound what one end writes.
DURATION_NEWS, MEMORY_NEWS = 0.25, 0.05
MOST_KINDS = 64  # of waiting jobs that an end is looked at for
MOST_RENEWED = 256  # jobs per end, the first in line: the others' turn comes with the next ends
_NUMBER = re.compile(r"\d+")


def with_history(state: State, job: Job, now: float) -> Job:
    """The job, which waits, with what earlier runs showed and a predicted duration."""
    history = state.history
    own = job.profiled and job.profile is not None and job.profile.of is None
    job = replace(
        job,
        profile=job.profile if own else history.profile(job.group) or job.profile,
        steps=job.steps or history.steps(job.group),
        stage_times=job.spec.stage_times or job.stage_times or history.stage_times(job.group),
    )
    return with_prediction(state, job, now)


def with_prediction(state: State, job: Job, now: float) -> Job:
    """The job with a prediction, if it wants GPUs; without one, the declared duration applies.
    If the predictor fails, a note says so."""
    predictor = state.predictor
    if predictor is None or not job.spec.gpus:
        return replace(job, prediction=None)
    notes = tuple(note for note in job.notes if not note.startswith(UNPREDICTED))
    try:
        prediction = state.calls.make(
            PREDICT, lambda: predictor.predict(job, state.history, state.models, now)
        )
    except Exception:  # noqa: BLE001 - foreign code
        note = f"{UNPREDICTED}: the predictor {predictor.name} failed"
        return replace(job, prediction=None, notes=(*notes, note))
    return replace(job, prediction=prediction, notes=notes)


def renew(state: State, waiting: Iterable[Job], group: str, now: float) -> Iterator[Job]:
    """The first of the waiting jobs for which the history has news, with what it says now. A
    run of `group` has taught it. Jobs that know the same are asked about once."""
    return islice(_renew(state, waiting, group, now), MOST_RENEWED)


def _renew(state: State, waiting: Iterable[Job], group: str, now: float) -> Iterator[Job]:
    has_news: dict[Hashable, bool] = {}
    for job in waiting:
        own = job.group == group
        known = job.prediction, id(job.profile), bool(job.steps), bool(job.stage_times)
        kind = own, job.spec.gpus, known
        if kind not in has_news:
            if len(has_news) >= MOST_KINDS and not own:
                continue
            has_news[kind] = _has_news(job, _with_news(state, job, now))
        if has_news[kind]:
            yield _with_news(state, job, now)


def _with_news(state: State, job: Job, now: float) -> Job:
    """As `with_history`; a prediction stays if there is no new one."""
    new = with_history(state, job, now)
    if new.prediction is None and job.prediction is not None:
        return replace(new, prediction=job.prediction, notes=job.notes)
    return new


def with_profile(state: State, job: Job) -> Job:
    if job.profiled:
        return job
    peak_mib = state.fleet.with_usage(job).usage.peak_mib
    profile = state.profiler.profile(job, peak_mib)
    there = next((state.fleet.gpus[gpu] for gpu in job.gpus if gpu in state.fleet.gpus), None)
    return replace(job, profile=replace(profile, gpu=there.name) if there else profile)


def with_final_profile(state: State, job: Job, how: JobState) -> Job:
    """The job, which ends, with its usage, the peak of the whole run, and a profile even if it
    ended before `profiling.run_s`."""
    job = state.fleet.with_usage(job)
    enough = state.settings.profiling.run_s
    if how is JobState.SUCCEEDED:
        enough = min(enough, state.settings.monitor.known_s)
    if state.profiler.seconds(job) >= enough:
        job = with_profile(state, job)
    profile, peak_mib = job.profile, job.usage.peak_mib
    if profile is None or job.accumulation > 1 or peak_mib <= profile.peak_mib:
        return job
    return replace(job, profile=replace(profile, peak_mib=peak_mib, of=None))


def inform_others(state: State, job: Job, now: float) -> None:
    """Renew what waiting jobs know from earlier runs: of runs of the same job, its profile and
    stage times; once it has ended, of all its owner's jobs, also how long they take."""
    profiled = job.profiled and job.profile is not None and job.profile.of is None
    if profiled or job.stage_times:
        state.history.learn(job)
    elif not past(job):
        return
    owner, waiting = job.spec.owner, state.ledger.alike(job.group)
    if past(job):
        waiting = tuple(each for each in state.ledger.line() if each.spec.owner == owner)
    for renewed in renew(state, waiting, job.group, now):
        state.ledger.put(renewed)


# -- ends


def end(state: State, job: Job, how: EndState, exit: Exit, now: float) -> None:
    """End the job; cancel jobs whose dependency on it can no longer be met, transitively."""
    job = with_final_profile(state, job, how)
    ended = over(job, how, exit, now)
    _record(state, _with_advice(state, ended) if job.lives else ended)
    inform_others(state, ended, now)
    ends: list[tuple[range, JobState]] = [(job.ids, how)]
    for ids, ended_as in ends:  # it grows while iterating: recursion could exhaust the stack
        for id, waiting in state.ledger.dependents(ids):
            if why := dependency_exit(waiting, {id: ended_as}):
                _record(state, over(waiting, JobState.CANCELLED, why, now))
                ends.append((waiting.ids, JobState.CANCELLED))


def _with_advice(state: State, job: Job) -> Job:
    """The job, which has ended, with what it should ask for next time."""
    gpus = (state.fleet.gpus[gpu].memory_mib for gpu in job.gpus if gpu in state.fleet.gpus)
    advice = promises.advise(job, min(gpus, default=None))
    if not advice:
        return job
    others = (note for note in job.notes if not note.startswith(promises.USES_MORE))
    return replace(job, notes=(*others, advice))


def _record(state: State, job: Job) -> None:
    state.ledger.put(job)
    if run := past(job):
        state.history.remember(run)


def dependency_exit(job: Job, ended: Mapping[JobId, JobState]) -> Exit | None:
    """The exit of a job whose dependency can no longer be met; None if it still can."""
    culprit = unmet_dependency(job, ended)
    if culprit is None or job.lives:
        return None
    return Exit(Cause.DEPENDENCY, evidence=f"{culprit} ended as {ended[culprit.job]}")


# -- estimates


def on_estimated(state: State, event: Estimated) -> None:
    """A job that waits may get several answers: its script took long, or its options were
    changed. One that runs gets the answer that it did not wait for; a verdict on its script
    does not stop it."""
    if event.again:
        _share_estimate(state, event)
        return
    job = state.ledger.jobs.rows.get(event.job)
    if not job or not (job.waits or job.awaits_estimate):  # else: cancelled meanwhile
        return
    if job.state is JobState.PENDING:
        job = advance(job, Waiting(JobState.QUEUED))
    elif job.estimate and not event.estimate:
        return
    job = _with_estimate(state, job, event)
    estimate = job.estimate
    if job.waits and not job.prediction:  # nobody could say
        job = with_history(state, job, event.at)
    state.ledger.put(job)
    if event.note and not estimate:
        state.ledger.note(event.job, event.note)


def on_trained(state: State, event: Trained) -> None:
    state.models.update(event.models)


def _with_estimate(state: State, job: Job, event: Estimated) -> Job:
    return replace(
        job,
        estimate=_estimate_of(state, job, event),
        estimate_late=event.late,
        crash=event.crash,
        notes=tuple(note for note in job.notes if not note.startswith(UNESTIMATED)),
    )


def _estimate_of(state: State, job: Job, event: Estimated) -> Estimate | None:
    estimate = event.estimate
    return state.fleet.with_room(estimate) if estimate and estimate.firm else estimate


def _share_estimate(state: State, event: Estimated) -> None:
    """What earlier runs of a job used is news to its runs that wait for the same."""
    asked = state.ledger.jobs.get(event.job)
    if asked is None:
        return
    alike = (
        job
        for job in state.ledger.alike(asked.group)
        if job.spec.memory_mib == asked.spec.memory_mib
        and takes_measurements(job)
        and (new := _estimate_of(state, job, event))
        and is_new_estimate(job.estimate, new)
    )
    for job in islice(alike, MOST_RENEWED):
        state.ledger.put(_with_estimate(state, job, event))


def ask_again(runs: Iterable[Job]) -> list[EstimateMemory]:
    """One question for all waiting runs of a job whose estimates may come from earlier runs."""
    asked = {job.spec.memory_mib: job for job in runs if takes_measurements(job)}
    return [EstimateMemory(job, again=True) for job in asked.values()]


def takes_measurements(job: Job) -> bool:
    """Whether a new measurement of earlier runs replaces the estimate of this waiting job: not
    what its owner declared or what its script showed."""
    open_still = job.awaits_estimate or job.lives or not job.spec.gpus
    return not open_still and (job.estimate is None or job.estimate.source == promises.MEASURED)


def is_new_estimate(old: Estimate | None, new: Estimate) -> bool:
    """Whether an estimate is worth saving in place of the old one."""
    return old is None or _differ(old.safe_mib, new.safe_mib, MEMORY_NEWS)


def _has_news(old: Job, new: Job) -> bool:
    """Whether what earlier runs have taught is worth saving."""
    profile, before = new.profile, old.profile
    return (
        (bool(new.steps), bool(new.stage_times)) != (bool(old.steps), bool(old.stage_times))
        or _is_new_prediction(old.prediction, new.prediction)
        or (profile is not before and profile is not None and _is_new_profile(before, profile))
    )


def _is_new_profile(old: Profile | None, new: Profile) -> bool:
    return old is None or not old.seconds or _differ(old.peak_mib, new.peak_mib, MEMORY_NEWS)


def _is_new_prediction(old: Prediction | None, new: Prediction | None) -> bool:
    """Only its grounds are compared, not the numbers in their words."""
    if old is None or new is None:
        return old is not new
    if (old.source, old.is_guess, _words(old)) != (new.source, new.is_guess, _words(new)):
        return True
    most, new_most = old.at_most_s or 0.0, new.at_most_s or 0.0
    is_longer = _differ(old.seconds, new.seconds, DURATION_NEWS)
    return is_longer or _differ(most, new_most, DURATION_NEWS)


def _words(prediction: Prediction) -> tuple[str, ...]:
    return tuple(_NUMBER.sub("", note) for note in prediction.notes)


def _differ(old: float, new: float, part: float) -> bool:
    return abs(new - old) > part * min(old, new)


def with_report(job: Job, event: Stepped, kind: str) -> Job:
    """The job with the step times reported for this kind of GPU; the same object if unchanged."""
    step = StepTime(job.accumulation, event.seconds, kind)
    before = {each.gpu: each for each in job.steps if each.parts == step.parts}
    if kind not in before or _differ(before[kind].seconds, step.seconds, NEWS):
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


def _are_alike(new: StageTimes, old: StageTimes) -> bool:
    """Whether both are for the same kind of GPU and nearly equal."""
    if (new.gpu, new.sync) != (old.gpu, old.sync):
        return False
    parts = ("load_s", "forward_s", "backward_s", "communication_s")
    return not any(_differ(getattr(old, part), getattr(new, part), NEWS) for part in parts)


def with_shared_profiles(jobs: Iterable[Job]) -> Iterator[Job]:
    """The jobs, with equal profiles made the same object: policies may compare them by identity."""
    profiles: dict[Profile, Profile] = {}
    for job in jobs:
        shared = profiles.setdefault(job.profile, job.profile) if job.profile else None
        yield job if shared is job.profile else replace(job, profile=shared)
