"""Estimates what jobs that shared GPUs would have been like alone, from when and where each ran.

Measurements are per GPU, not per job, and durations are those while sharing. So both the activity
and the duration alone are modelled; both are exact for jobs that did not share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from carma_simulator.experiment import Attempt, Load
from carma_simulator.interference import Interference, speeds_by_mode
from carmad.core.jobs.attempt import Cause, GpuId

_SWEEPS = 50
_LEAVES, _COMES, _TRAINS = range(3)  # the order of simultaneous events

Stay = tuple[int, int]  # index of the job, and of its attempt


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that held GPUs; times in seconds since an instant common to all jobs."""

    attempts: tuple[Attempt, ...]
    sm_active: float | None  # of its GPUs while it was there, whatever job caused it; None: unknown


@dataclass(frozen=True, slots=True)
class Stretch:
    """A period during which the same jobs were on a GPU."""

    begin: float
    end: float
    present: tuple[Stay, ...]
    training: tuple[Stay, ...]  # those that had reached their first kernel


def stretches(jobs: Sequence[Ran]) -> dict[GpuId, list[Stretch]]:
    """The stretches of every GPU, in order of time, without those in which it was idle."""
    marks: dict[GpuId, list[tuple[float, int, Stay]]] = defaultdict(list)
    for number, job in enumerate(jobs):
        for which, attempt in enumerate(job.attempts):
            stay, end = (number, which), attempt.ended_at
            if attempt.launched_at >= end:
                continue
            for gpu in attempt.gpus:
                marks[gpu] += [(attempt.launched_at, _COMES, stay), (end, _LEAVES, stay)]
                if attempt.ready_at is not None and attempt.ready_at < end:
                    marks[gpu].append((attempt.ready_at, _TRAINS, stay))
    return {gpu: list(_between(sorted(found))) for gpu, found in marks.items()}


def _between(marks: Sequence[tuple[float, int, Stay]]) -> Iterator[Stretch]:
    present: dict[Stay, None] = {}
    training: dict[Stay, None] = {}
    for (at, what, stay), (until, _, _) in pairwise(marks):
        if what == _COMES:
            present[stay] = None
        elif what == _TRAINS:
            training[stay] = None
        else:
            del present[stay]
            training.pop(stay, None)
        if until > at and present:
            yield Stretch(at, until, tuple(present), tuple(training))


def sharers(on_gpu: Mapping[GpuId, Sequence[Stretch]]) -> set[int]:
    """The indices of the jobs that were on a GPU at the same time as another."""
    met = (s.present for found in on_gpu.values() for s in found if len(s.present) > 1)
    return {number for present in met for number, _ in present}


def activity(jobs: Sequence[Ran], on_gpu: Mapping[GpuId, Sequence[Stretch]]) -> list[float | None]:
    """Each job's own SM activity, 0–1; None if nothing was measured.

    The activity of a job's GPUs while it was there is the sum of the activities of all jobs that
    trained there then. That is one equation per job, solved by Gauss–Seidel, starting from even
    shares: jobs that were together all the time cannot be distinguished and keep equal shares.
    """
    stay = [0.0] * len(jobs)
    own = [0.0] * len(jobs)
    even = [0.0] * len(jobs)
    beside: list[dict[int, float]] = [{} for _ in jobs]
    for stretch in (stretch for found in on_gpu.values() for stretch in found):
        seconds, count = stretch.end - stretch.begin, len(stretch.training)
        for one, _ in stretch.training:
            own[one] += seconds
            even[one] += seconds / count
        for one, _ in stretch.present:
            stay[one] += seconds
            for other, _ in stretch.training:
                if other != one:
                    beside[one][other] = beside[one].get(other, 0.0) + seconds
    known = [n for n, job in enumerate(jobs) if job.sm_active is not None and own[n] > 0]
    measured = {n: (jobs[n].sm_active or 0.0) * stay[n] for n in known}
    found = {n: min(1.0, measured[n] / own[n] * even[n] / own[n]) for n in known}
    for _ in range(_SWEEPS):
        for n in known:
            others = sum(seconds * found.get(m, 0.0) for m, seconds in beside[n].items())
            found[n] = min(1.0, max(0.0, (measured[n] - others) / own[n]))
    return [found.get(n) for n in range(len(jobs))]


def alone_s(
    jobs: Sequence[Ran],
    on_gpu: Mapping[GpuId, Sequence[Stretch]],
    loads: Sequence[Load],
    interference: Interference,
) -> list[float]:
    """How long each job would have trained alone: time at a lower speed counts that much less.
    Work lost with an attempt does not count, that of a preempted one does.
    """
    paces: dict[Stay, list[list[tuple[float, float, float]]]] = defaultdict(list)
    for found in on_gpu.values():
        here: dict[Stay, list[tuple[float, float, float]]] = defaultdict(list)
        for stretch in found:
            together = [loads[number] for number, _ in stretch.training]
            modes = [jobs[number].attempts[which].mode for number, which in stretch.training]
            speeds = speeds_by_mode(interference, together, modes)
            for (number, which), speed in zip(stretch.training, speeds, strict=True):
                here[number, which].append((stretch.begin, stretch.end, speed))
        for stay, pieces in here.items():
            paces[stay].append(pieces)
    return [
        sum(
            _work(paces[number, which])
            for which, attempt in enumerate(job.attempts)
            if attempt is job.attempts[-1] or attempt.cause is Cause.PREEMPTED
        )
        for number, job in enumerate(jobs)
    ]


def _work(gpus: Sequence[Sequence[tuple[float, float, float]]]) -> float:
    """Seconds alone, where the slowest of a job's GPUs sets the pace at each moment.

    Every GPU's pieces (begin, end, speed) cover the same time.
    """
    cuts = sorted({cut for pieces in gpus for begin, end, _ in pieces for cut in (begin, end)})
    at = [0] * len(gpus)
    work = 0.0
    for begin, end in pairwise(cuts):
        for n, pieces in enumerate(gpus):
            if pieces[at[n]][1] <= begin:
                at[n] += 1
        work += (end - begin) * min(pieces[at[n]][2] for n, pieces in enumerate(gpus))
    return work
