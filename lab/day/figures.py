"""What a day came to: waits, completions, crashes, fairness, and the time in which room stood
beside a job that fitted. Of played and of simulated days alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.harness import percentile
from carma_simulator.experiment import Outcome
from carmad.core.jobs.attempt import Cause
from lab.day.workload import DAY_S, MEMORY_MIB, SETS_UP_S, Submission

GPUS = 8
LEAST_S = 1.0  # of a time in which room is unused: deciding takes some


@dataclass(frozen=True, slots=True)
class Span:
    """An attempt, in seconds of the day."""

    start: float
    end: float
    gpus: tuple[str, ...]
    has_crashed: bool = False  # for want of GPU memory


@dataclass(frozen=True, slots=True)
class Played:
    """One job (a task of an array is one), as it went."""

    job: Submission
    label: str
    submitted: float
    attempts: tuple[Span, ...]
    ended: float
    has_succeeded: bool

    @property
    def wait_s(self) -> float:
        """Until its first start."""
        return (self.attempts[0].start if self.attempts else self.ended) - self.submitted

    @property
    def completion_s(self) -> float:
        return self.ended - self.submitted


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run; times in seconds."""

    wait_s: float
    wait_p95_s: float
    completion_s: float
    makespan_s: float
    crashes: int
    unused_room_s: float
    jain: float
    wide_wait_s: float  # the longest of jobs of four GPUs
    jobs_per_gpu: float
    lost: int  # counted jobs that did not succeed


def of_day(played: Sequence[Played]) -> Figures:
    counted = [each for each in played if each.job.is_counted]
    waits = [each.wait_s for each in counted]
    done = [each for each in counted if each.has_succeeded]
    stretches = [
        sum(each.completion_s for each in its) / sum(each.job.run_s + SETS_UP_S for each in its)
        for its in _by_user(done)
    ]
    spans = [span for each in played for span in each.attempts]
    first = min(each.submitted for each in played)
    held = sum(
        max(0.0, min(span.end, DAY_S) - min(span.start, DAY_S)) * len(span.gpus) for span in spans
    )
    return Figures(
        wait_s=statistics.mean(waits),
        wait_p95_s=percentile(waits, 0.95),
        completion_s=statistics.mean(each.completion_s for each in done),
        makespan_s=max(each.ended for each in played) - first,
        crashes=sum(span.has_crashed for span in spans),
        unused_room_s=sum(end - begin for begin, end in unused_room(played)),
        jain=sum(stretches) ** 2 / len(stretches) / sum(value**2 for value in stretches),
        wide_wait_s=max((each.wait_s for each in counted if each.job.gpus == 4), default=0.0),
        jobs_per_gpu=held / GPUS / DAY_S,
        lost=len(counted) - len(done),
    )


def unused_room(played: Sequence[Played]) -> list[tuple[float, float]]:
    """The times in which enough GPUs had room for a job that waited, by what jobs really need, and
    nobody started, each for longer than `LEAST_S`."""
    spans = [(each, span) for each in played for span in each.attempts]
    moments = sorted(
        {each.submitted for each in played}
        | {each.ended for each in played}
        | {moment for _, span in spans for moment in (span.start, span.end)}
    )
    starts = {span.start for _, span in spans}
    gpus = sorted({gpu for _, span in spans for gpu in span.gpus})
    gpus += [f"never used {n}" for n in range(GPUS - len(gpus))]
    found: list[tuple[float, float]] = []
    begin: float | None = None
    for now, then in pairwise(moments):
        has_room = _has_room(played, gpus, (now + then) / 2)
        if begin is not None and (now in starts or not has_room):
            found.append((begin, now))
            begin = None
        if has_room and begin is None:
            begin = now
    return [(start, end) for start, end in found if end - start > LEAST_S]


def _has_room(played: Sequence[Played], gpus: Sequence[str], at: float) -> bool:
    load: dict[str, float] = dict.fromkeys(gpus, 0.0)
    memory = dict.fromkeys(gpus, 0)
    waiting: list[Submission] = []
    for each in played:
        span = next((span for span in each.attempts if span.start <= at < span.end), None)
        if span:
            for gpu in span.gpus:
                load[gpu] += each.job.load
                memory[gpu] += each.job.needs_mib
        elif each.submitted <= at < each.ended:
            waiting.append(each.job)

    def takes(gpu: str, job: Submission) -> bool:
        return load[gpu] + job.load <= 1.0 and memory[gpu] + job.needs_mib <= MEMORY_MIB

    return any(sum(takes(gpu, job) for gpu in gpus) >= job.gpus for job in waiting)


def _by_user(played: Iterable[Played]) -> list[list[Played]]:
    users: dict[str, list[Played]] = {}
    for each in played:
        users.setdefault(each.job.user, []).append(each)
    return list(users.values())


def simulated(day: Sequence[Submission], outcome: Outcome) -> list[Played]:
    """What the simulator made of it (`workload.as_trace`)."""
    jobs = [job for job in day if job.kind != "cancelled" for _ in range(job.copies or 1)]
    return [
        Played(
            job,
            str(each.id),
            each.task.submit_s,
            tuple(
                Span(a.launched_at, a.ended_at, tuple(map(str, a.gpus)), a.cause is Cause.GPU_OOM)
                for a in each.attempts
            ),
            each.ended_at,
            each.state.value == "succeeded",
        )
        for job, each in zip(jobs, outcome.jobs, strict=True)
    ]


ROWS: tuple[tuple[str, Callable[[Figures], float], str], ...] = (
    ("wait, mean s", lambda its: its.wait_s, ".0f"),
    ("wait, p95 s", lambda its: its.wait_p95_s, ".0f"),
    ("completion, mean s", lambda its: its.completion_s, ".0f"),
    ("makespan s", lambda its: its.makespan_s, ".0f"),
    ("out-of-memory crashes", lambda its: its.crashes, ".1f"),
    ("counted jobs that did not succeed", lambda its: its.lost, ".1f"),
    ("room, but nobody started, s", lambda its: its.unused_room_s, ".0f"),
    ("Jain's index of users' stretch", lambda its: its.jain, ".2f"),
    ("4-GPU jobs, longest wait s", lambda its: its.wide_wait_s, ".0f"),
    ("jobs per GPU in the day's 480 s", lambda its: its.jobs_per_gpu, ".2f"),
)
