"""Records the timelines of all GPUs."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from carmad.core.gpus.gpu import Gpu, GpuSample
from carmad.core.gpus.gpuview import free_memory
from carmad.core.happenings import Happening
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.messages import Discovered, Sampled, Step
from carmad.edge import Follower
from carmad.timeline.hours import (
    COARSE_S,
    FINE_S,
    HOUR_S,
    KEPT_S,
    UNKNOWN,
    Bins,
    Cell,
    Hour,
    Kind,
    Mark,
    Row,
    Saved,
    Track,
    decode,
    encode,
    marks,
)

log = logging.getLogger(__name__)

FINE_HOURS = 2  # the present one, and the one before
RISKY_S = 60.0


class Timeline(Follower):
    """Filled by the core's thread with every committed step, read by others."""

    def __init__(self, period_s: float) -> None:
        """`period_s`: of the samples."""
        self._fine_s = next((step for step in FINE_S if step >= period_s), COARSE_S)
        self._lock = threading.Lock()  # for the next four
        self._hours: dict[GpuId, deque[Hour]] = {}  # of each, in order; the last one is filled
        self._gpus: dict[GpuId, Gpu] = {}  # with those that have vanished
        self._present: frozenset[GpuId] = frozenset()
        self._unsaved: set[tuple[GpuId, int]] = set()  # their hours, by start
        self._residents: dict[JobId, Job] = {}
        self._risky_at: dict[GpuId, float] = {}

    # -- in the core's thread

    def on_reset(self, jobs: Iterable[Job]) -> None:
        self._residents = {job.id: job for job in jobs if job.holds_gpus}

    def on_commit(self, step: Step) -> None:
        new = [*self._slowdowns(step), *self._risks(step)]
        for job in step.jobs:
            if job.holds_gpus:
                self._residents[job.id] = job
            else:
                self._residents.pop(job.id, None)
        with self._lock:
            for event in step.events:
                if isinstance(event, Sampled):
                    self._read(event.samples)
                elif isinstance(event, Discovered):
                    self._gpus |= {gpu.id: gpu for gpu in event.gpus}
                    self._present = frozenset(gpu.id for gpu in event.gpus)
            self._mark(new)

    def on_happenings(self, new: Sequence[Happening], gpus: Mapping[GpuId, Gpu]) -> None:
        with self._lock:
            self._mark(each for happening in new for each in marks(happening))

    def _read(self, samples: Iterable[GpuSample]) -> None:
        on: dict[GpuId, list[Job]] = {}
        for job in self._residents.values():
            for id in job.gpus:
                on.setdefault(id, []).append(job)
        for sample in samples:
            gpu = self._gpus.get(sample.gpu)
            if gpu is not None and sample.fault is None:
                row = row_of(gpu, sample, tuple(on.get(sample.gpu, ())))
                self._hour(sample.gpu, sample.at).bins.add(sample.at, row)

    def _mark(self, new: Iterable[tuple[GpuId, Mark]]) -> None:
        for gpu, mark in new:
            self._hour(gpu, mark.at).marks.add(mark)

    def _hour(self, gpu: GpuId, at: float) -> Hour:
        """The one that it belongs to, or the last one if that is later."""
        hours = self._hours.setdefault(gpu, deque())
        start = int(at // HOUR_S) * HOUR_S
        if not hours or hours[-1].start < start:
            hours.append(Hour(Bins(start, self._fine_s, HOUR_S // self._fine_s)))
        self._unsaved.add((gpu, hours[-1].start))
        return hours[-1]

    def _slowdowns(self, step: Step) -> Iterable[tuple[GpuId, Mark]]:
        at, before = step.events[-1].at, {job.id: job for job in step.before}
        for job in step.jobs:
            old = before.get(job.id)
            if old is not None and job.holds_gpus and job.company != old.company:
                last = job.company[-1]
                text = f"{last.ratio:.2f} times as long a step beside job {last.neighbour}"
                for gpu in job.gpus:
                    yield gpu, Mark(at, Kind.SLOWED, job.id, text)

    def _risks(self, step: Step) -> Iterable[tuple[GpuId, Mark]]:
        for decision in step.decisions:
            for verdict in decision.placement.verdicts:
                reason = next((each for each in verdict.refused if each.code == "risk"), None)
                last = self._risky_at.get(verdict.gpu, float("-inf"))
                if reason is not None and decision.at - last >= RISKY_S:
                    self._risky_at[verdict.gpu] = decision.at
                    text = f"{reason.have:.2f} of {reason.need:.2f} {reason.unit}"
                    yield verdict.gpu, Mark(decision.at, Kind.RISKY, decision.placement.job, text)

    # -- in others

    def tracks(self, since: float, until: float) -> list[Track]:
        """What is recorded of that time, by GPU: those that are there first, in their order."""
        with self._lock:
            found = [
                Track(
                    id,
                    self._gpus.get(id),
                    id in self._present,
                    tuple(
                        hour.copy() if hour is self._hours[id][-1] else hour
                        for hour in self._hours.get(id, ())
                        if hour.start < until and hour.start + HOUR_S > since
                    ),
                )
                for id in self._hours.keys() | self._present
            ]
        return sorted((each for each in found if each.present or each.hours), key=_place)

    def load(self, saved: Iterable[Saved], now: float) -> None:
        """Go on where an earlier daemon stopped; `saved` is in order of time. If the clock was set
        back since, what would be in the future is left out."""
        for each in saved:
            try:
                hour, gpu = decode(each.gpu, each.body)
            except ValueError as error:
                log.warning("left out an hour of the timeline of GPU %s: %s", each.gpu, error)
                continue
            if hour.start + hour.bins.last * hour.bins.step_s <= now:
                self._hours.setdefault(each.gpu, deque()).append(hour)
                if gpu is not None:
                    self._gpus[each.gpu] = gpu

    def save(self, write: Callable[[list[Saved], float], None], now: float) -> None:
        """Make old hours coarse and forget the oldest; then `write` what is new, with the time from
        which on hours are kept. If that raises, it is new the next time, too."""
        keep_from = now - KEPT_S - HOUR_S
        with self._lock:
            self._forget(keep_from)
            fine_from = now // HOUR_S * HOUR_S - (FINE_HOURS - 1) * HOUR_S
            of_all = [(id, hour) for id, hours in self._hours.items() for hour in hours]
        coarse = set()
        for id, hour in of_all:
            if hour.start < fine_from and hour.bins.step_s < COARSE_S:
                hour.bins = hour.bins.coarser(COARSE_S)  # nobody fills it any more
                coarse.add((id, hour.start))
        with self._lock:
            new, self._unsaved = self._unsaved | coarse, set()
            copies = [
                (id, self._gpus.get(id), hour.copy())
                for id, hour in of_all
                if (id, hour.start) in new
            ]
        try:
            write([Saved(id, hour.start, encode(hour, gpu)) for id, gpu, hour in copies], keep_from)
        except BaseException:
            with self._lock:
                self._unsaved |= new
            raise

    def _forget(self, before: float) -> None:
        for id, hours in list(self._hours.items()):
            while hours and hours[0].start < before:
                hours.popleft()
            if not hours and id not in self._present:
                del self._hours[id]
                self._gpus.pop(id, None)


def _place(track: Track) -> tuple[bool, int, GpuId]:
    return not track.present, track.gpu.index if track.gpu else 0, track.id


def row_of(gpu: Gpu, sample: GpuSample, residents: tuple[Job, ...]) -> Row:
    """A reading of a GPU with these jobs on it."""
    held: dict[JobId, float] = {job.id: 0.0 for job in residents}
    for process in sample.processes:
        if process.job is not None:
            mib = UNKNOWN if process.memory_mib is None else process.memory_mib
            held[process.job] = held.get(process.job, 0.0) + mib
    promised = {job.id: float(job.need.safe_mib) for job in residents if job.need}
    _, external = free_memory(gpu, sample, residents, settled=True)
    used, activity = _float(sample.memory_used_mib), _float(sample.activity)
    return Row(
        (used, float(external), activity, _float(sample.power_w)),
        (used, activity),
        tuple(Cell(job, mib, mib, promised.get(job, 0.0)) for job, mib in held.items()),
    )


def _float(value: float | None) -> float:
    return UNKNOWN if value is None else float(value)
