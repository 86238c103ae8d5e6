"""What is learned of jobs while they hold GPUs: from readings, from what they report, and as time
passes. New versions of them go to the ledger."""

from __future__ import annotations

import math
from dataclasses import replace

from carmad.core.gpus import idling
from carmad.core.gpus.gpu import GpuSample
from carmad.core.gpus.readings import has_run_kernel
from carmad.core.gpus.sharing import label
from carmad.core.gpus.slowdown import with_company
from carmad.core.jobs import knowledge, suspending
from carmad.core.jobs.attempt import Cause, GpuId
from carmad.core.jobs.control import never
from carmad.core.jobs.job import Job, running
from carmad.core.jobs.knowledge import inform_others, with_report
from carmad.core.jobs.ledger import is_conditional
from carmad.core.jobs.states import JobState
from carmad.core.messages import (
    Began,
    Closing,
    Discovered,
    Measured,
    Noticed,
    Postponed,
    ReadLog,
    Sampled,
    Signal,
    Silent,
    Stepped,
    Stumbled,
)
from carmad.core.rules.promises import USES_MORE
from carmad.core.state import State
from carmad.options import MAX_METRICS
from carmad.readable import duration

USAGE_SAVED_EVERY_S = 60.0
NEARING = 0.8  # of the time limit
CATCHES_AFTER_S = 30.0  # a program that catches signals has said so by then
PEAK_SAVED_AT = 1.25  # times the saved peak: then it is saved at once


# -- the GPUs and their readings


def on_discovered(state: State, event: Discovered) -> None:
    state.fleet.discover(state.settings, event.gpus, event.unread)
    for job in state.ledger.line():
        if job.retry and job.retry.avoid:
            retry = job.retry.placeable(job.spec.gpus, state.fleet.usable(job.spec))
            if retry is not job.retry:
                state.ledger.put(replace(job, retry=retry))


def on_silent(state: State, event: Silent) -> None:
    state.fleet.note_silent(event.gpus)


def on_sampled(state: State, event: Sampled) -> None:
    gap_s = state.settings.monitor.stale_s
    seen = [(sample, state.ledger.residents(sample.gpu)) for sample in event.samples]
    state.idleness.add(event.at, seen, gap_s, event.signs)
    for sample in event.samples:
        residents = state.ledger.residents(sample.gpu)
        before = state.fleet.add(sample, residents, gap_s)
        state.profiler.add(residents, before, sample, gap_s)
        for job in residents:
            _take_sample(state, job, sample, len(residents) == 1, event.at)
    if event.at - state.usage_saved_at >= USAGE_SAVED_EVERY_S:
        state.usage_saved_at = event.at
        _save_usage(state)
    _curb_idle_jobs(state, event.at)
    if event.signs:
        _note_stalled_jobs(state, event.at)
        _recover_hung_jobs(state)


def on_closing(state: State, event: Closing) -> None:
    _save_usage(state)
    state.shares.save(event.at)


def _save_usage(state: State) -> None:
    for id in state.fleet.take_newly_metered():
        if holder := state.ledger.holders.get(id):
            state.ledger.put(state.fleet.with_usage(holder))


# -- what is told of a job that runs


def on_began(state: State, event: Began) -> None:
    job = state.ledger.holders.get(event.job)
    if job and job.attempt == event.attempt and job.state is JobState.STARTING:
        state.ledger.put(running(job))


def on_postponed(state: State, event: Postponed) -> None:
    """Neither its time limit nor the wait for its first kernel begins before the attempt."""
    job = state.ledger.holders.get(event.job)
    if job and job.attempt == event.attempt and job.state is not JobState.STOPPING:
        state.ledger.put(job.with_attempt(started_at=event.at if event.over else None))


def on_noticed(state: State, event: Noticed) -> None:
    state.ledger.note(event.job, event.note)


def on_measured(state: State, event: Measured) -> None:
    """Of a name that it reported before, the new value counts."""
    job = state.ledger.jobs.get(event.job)
    if job and (metrics := tuple((dict(job.metrics) | dict(event.metrics)).items())):
        state.ledger.put(replace(job, metrics=metrics[:MAX_METRICS]))


def on_stepped(state: State, event: Stepped) -> None:
    """A job that shares all its GPUs with one other reports how much that slows it. Reports in
    other company are ignored, and so are changes of less than 1 %."""
    job = state.ledger.holders.get(event.job)
    gpu = state.fleet.gpus.get(job.gpus[0]) if job and job.gpus else None
    if job is None or gpu is None:
        return
    if any(len(state.ledger.residents(id)) > 1 for id in job.gpus):
        neighbour = _only_neighbour(state, job)
        if neighbour and (new := with_company(job, event.seconds, neighbour, gpu)) is not job:
            state.ledger.put(new)
        return
    if (new := with_report(job, event, gpu.name)) is not job:
        state.ledger.put(new)
        if new.stage_times and not job.stage_times:
            inform_others(state, new, event.at)


def _only_neighbour(state: State, job: Job) -> Job | None:
    """The job that it shares each of its GPUs with; None if there are several, or it has a GPU
    to itself: then its slowest GPU decides, and one pair's ratio cannot be found."""
    found = [{each.id: each for each in state.ledger.residents(gpu)} for gpu in job.gpus]
    first = found[0]
    if len(first) != 2 or any(each.keys() != first.keys() for each in found):
        return None
    return next(each for each in first.values() if each.id != job.id)


def _take_sample(state: State, job: Job, sample: GpuSample, alone: bool, now: float) -> None:
    """Of one of the job's GPUs."""
    new = _with_kernel(state, job, sample.gpu, alone, now)
    new = _with_overrun(state, new)
    profiled = _with_profile(state, new)
    new = _with_peak(state, profiled)
    if new is not job:
        state.ledger.put(new)
        if profiled.profile is not job.profile:
            inform_others(state, profiled, now)


def _with_kernel(state: State, job: Job, gpu: GpuId, alone: bool, now: float) -> Job:
    """TTFK bookkeeping, step 2 of the CARMA paper's Table 2."""
    if job.state is JobState.STOPPING or gpu in dict(job.kernels):
        return job
    readings = state.fleet.readings(gpu)
    if not readings or not has_run_kernel(job, readings, alone, state.settings):
        return job
    job = job.with_attempt(kernels=(*job.kernels, (gpu, now)))
    return running(job) if job.state is JobState.STARTING else job


def _with_overrun(state: State, job: Job) -> Job:
    """The job with a note and its usage, when it first exceeds its declared memory."""
    if job.estimate is None or not job.estimate.firm:
        return job
    promised_mib, metered = job.estimate.safe_mib, state.fleet.with_usage(job)
    if not job.usage.peak_mib <= promised_mib < metered.usage.peak_mib:
        return job
    used_mib = metered.usage.peak_mib
    return metered.with_note(
        f"{USES_MORE}{used_mib} MiB, more than the {promised_mib} MiB of its --gpu-mem"
    )


def _with_profile(state: State, job: Job) -> Job:
    """Profile a job that has run alone long enough, even without a profiling run."""
    missing = not job.profiled and job.profiling is None and job.state is JobState.RUNNING
    due = missing and state.profiler.seconds(job) >= state.settings.profiling.run_s
    return knowledge.with_profile(state, job) if due else job


def _with_peak(state: State, job: Job) -> Job:
    """The job with its usage, if its peak has grown much: it cannot be measured again."""
    usage = state.fleet.usage.get(job.id, job.usage)
    grown = usage.peak_mib > job.usage.peak_mib * PEAK_SAVED_AT
    return replace(job, usage=usage) if grown else job


# -- batch jobs that do not use their GPUs


def _curb_idle_jobs(state: State, now: float) -> None:
    for each in tuple(state.ledger.holders.values()):
        if each.current.idle and _due(state, each, _rungs(state, each), now) is None:
            state.ledger.put(each.with_attempt(idle=False))
    for id in state.idleness.lasting(idling.first_s(state.settings.idle)):
        job = state.ledger.holders.get(id)
        if job is None or job.started_at is None or idling.is_spared(job):
            continue
        own = tuple(each for each in _rungs(state, job) if _can(state, job, each))
        if rung := _due(state, job, own, now):
            _curb(state, job, rung, idling.following(own, rung), now)


def _rungs(state: State, job: Job) -> tuple[idling.Rung, ...]:
    kept_mib = idling.footprint_mib(job, state.fleet.memory_of(job))
    return idling.rungs_of(job, state.settings.idle, kept_mib)


def _due(state: State, job: Job, rungs: tuple[idling.Rung, ...], now: float) -> idling.Rung | None:
    held_s = 0.0 if job.started_at is None else now - job.started_at  # launches may be postponed
    idle_s = min(state.idleness.of(job.id), held_s)
    return idling.due(rungs, idle_s, state.idleness.stalled_for(job))


def _can(state: State, job: Job, rung: idling.Rung) -> bool:
    """Whether this may ever be done to the job."""
    if rung.what == "requeue":
        return job.spec.requeue
    return rung.what != "suspend" or not never(job, state.settings)


def _curb(state: State, job: Job, rung: idling.Rung, then: idling.Rung | None, now: float) -> None:
    why = idling.farewell(rung)
    match rung.what:
        case "warn":
            if not job.current.idle and (rung.setting != "hung" or _is_awaited(state)):
                warned = job.with_attempt(idle=True)
                state.ledger.put(warned.with_note(idling.warning(job, rung, then)))
        case "suspend":
            if not suspending.refusal(state, job, now):  # else: not now
                new = job.with_note(f"was suspended: {why}; `carma resume` continues it")
                suspending.suspend(state, new, why, now, held=True)
        case "requeue":
            state.stop(job.with_note(f"was requeued: {why}"), Cause.PREEMPTED)
        case "end":
            state.stop(job.with_note(f"was ended: {why}"), Cause.IDLE)


def _is_awaited(state: State) -> bool:
    """Whether any job waits for nothing but GPUs."""
    return any(not is_conditional(job) for job in state.ledger.line())


# -- jobs that hang, also after an out-of-memory error (CARMA paper, 3.5)


def _note_stalled_jobs(state: State, now: float) -> None:
    for job in tuple(state.ledger.holders.values()):
        stalled_s = state.idleness.stalled_for(job)
        is_stalled = stalled_s >= idling.SAID_AFTER_S and not idling.is_spared(job)
        if is_stalled is (job.current.stalled_since is None):
            since = now - stalled_s if is_stalled else None
            state.ledger.put(job.with_attempt(stalled_since=since))


def _recover_hung_jobs(state: State) -> None:
    """End those that are stalled after such an error, as if it had ended them. Where some of their
    processes are at work, nobody can tell whether these only wait for one that is gone."""
    hung_s = state.settings.recovery.hung_s
    for job in tuple(state.ledger.holders.values()):
        error = state.idleness.error_of(job)
        if error is None or idling.is_spared(job) or not hung_s:
            continue
        if state.idleness.stalled_for(job) >= hung_s:
            note = (
                f"was ended: it had shown no sign of life for {duration(hung_s)} ([recovery]"
                f" hung_s) after an out-of-memory error: {error.evidence}"
            )
            state.stop(job.with_note(note), Cause.GPU_OOM)
        else:
            note = (
                f"has printed nothing since an out-of-memory error, {error.evidence}; whether what"
                f" is left of it works or waits, only its owner can tell: carma logs {label(job)}"
            )
            state.ledger.note(job.id, note)
    for id, begins in state.idleness.ask_logs(hung_s or math.inf):
        asked = state.ledger.holders.get(id)
        if asked and not idling.is_spared(asked):
            state.actions.append(ReadLog(asked, begins))


def on_stumbled(state: State, event: Stumbled) -> None:
    state.idleness.note_error(event.job, event.attempt, event.exit)


# -- time


def expire(state: State, now: float) -> None:
    """Time limits and their warnings, ends of profiling runs, and GPUs that are not used."""
    suspending.expire_suspended(state, now)
    for job in tuple(state.ledger.watched.values()):
        if job.state is not JobState.STOPPING and job.started_at is not None:
            _expire(state, job, now, now - job.started_at)


def _expire(state: State, job: Job, now: float, run_s: float) -> None:
    """Apply what is due for one job."""
    spec, elapsed_s = job.spec, job.attained_s(now)
    new = _with_untouched(state, job, run_s)
    left_s = math.inf if spec.time_limit_s is None else spec.time_limit_s - elapsed_s
    if left_s <= 0 and not spec.allocation:  # those have been given more time, or are ended
        state.stop(new, Cause.TIME_LIMIT)
        return
    new = _with_nearing(new, elapsed_s)
    # A signal that comes before the program can catch it would end the job.
    catches = run_s >= min(CATCHES_AFTER_S, left_s)
    if spec.warn and not job.current.warned and left_s <= spec.warn.before_s and catches:
        new = new.with_attempt(warned=True)
        state.actions.append(Signal(new, spec.warn.signum))
    cause: Cause | None = None
    run_over = new.profiling is not None and now >= new.profiling.until
    if run_over:
        new, cause = _after_profiling(state, new, now)
    if spec.interactive and cause is None:
        suspends = not never(job, state.settings)
        idle, note = state.idleness.judge(new, state.settings.interactive.idle_s, suspends)
        if not (idle and suspends):
            new, cause = new.with_note(note) if note else new, Cause.IDLE if idle else None
        elif not suspending.refusal(state, job, now):  # else: not now
            suspending.suspend(state, new.with_note(note), "it was idle", now, held=True)
            return
    if cause is not None:
        state.stop(new, cause)
    elif new is not job:
        state.ledger.put(new)
    if run_over:
        inform_others(state, new, now)


def _with_untouched(state: State, job: Job, run_s: float) -> Job:
    """TTFK timeout: the job gets a note, and its GPUs take other jobs again."""
    patience_s = state.settings.monitor.first_kernel_timeout_s
    if run_s < patience_s or job.spec.interactive:
        return job
    seen, gpus = dict(job.kernels), state.fleet.gpus
    for gpu in job.gpus:
        if gpu not in seen:
            where = f"GPU {gpus[gpu].index}" if gpu in gpus else gpu
            job = job.with_note(f"showed no kernel on {where} in its first {patience_s:g} s")
    return job


def _after_profiling(state: State, job: Job, now: float) -> tuple[Job, Cause | None]:
    """The job after its profiling run: it stays, or is stopped for the cause returned, to be
    requeued, if it was on a profiling GPU."""
    run = job.profiling
    assert run is not None
    # Long over: no daemon was running to end it, and its work since then should not be lost.
    late = now - run.until > state.settings.profiling.run_s
    evicted = run.evict and job.spec.requeue and job.profile is None and not late
    new = job.with_attempt(profiling=None)
    if evicted or state.profiler.seconds(job) > 0:
        new = knowledge.with_profile(state, new)
    return knowledge.with_prediction(state, new, now), Cause.PROFILED if evicted else None


def _with_nearing(job: Job, elapsed_s: float) -> Job:
    """Marked once 80 % of its time limit have passed, if its owner wants to be notified."""
    limit_s = job.spec.time_limit_s
    if limit_s is None or job.current.nearing or not job.spec.tells("limit80"):
        return job
    nearly_s = NEARING * limit_s
    near = job.served_s < nearly_s <= elapsed_s  # else: an earlier attempt may have been marked
    return job.with_attempt(nearing=True) if near else job
