"""An hour of one GPU: its bins, what happened on it, and both as bytes for the store.

A bin is a span of time with the means and maxima of what was read in it. A day of a GPU, an hour of
it and an answer to a request are the same thing with other spans, so finer bins are added to
coarser ones as readings are added to the finest.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self

from pydantic_core import from_json, to_json

from carmad.core.gpus.gpu import Gpu
from carmad.core.happenings import Happening
from carmad.core.happenings import Kind as Happened
from carmad.core.jobs.attempt import Cause, GpuId, JobId
from carmad.core.jobs.states import JobState

UNKNOWN = math.nan
CELLS = 16  # jobs of which a bin tells; the others are added up as `OTHERS`
OTHERS = JobId(0)

MEANS = ("used_mib", "external_mib", "sm_active", "power_w")
MAXIMA = ("used_max_mib", "sm_active_max")
_CELLS = {"bin": "H", "job": "H", "used": "f", "most": "f", "promised": "f"}


class Cell(NamedTuple):
    """A job on a GPU, in MiB."""

    job: JobId
    used: float  # the mean over the whole bin, also if it was there for a part of it
    most: float
    promised: float  # the most, at any time in the bin


class Row(NamedTuple):
    """A reading. NaN: not known."""

    means: tuple[float, ...]  # as `MEANS`
    maxima: tuple[float, ...]  # as `MAXIMA`
    cells: tuple[Cell, ...] = ()


class Bins:
    """`count` bins of `step_s` seconds from `start`, in Unix seconds, filled in order of time."""

    __slots__ = ("_cells", "_numbers", "columns", "jobs", "last", "start", "step_s", "weights")

    def __init__(self, start: int, step_s: int, count: int) -> None:
        self.start = start
        self.step_s = step_s
        self.weights = array("f", bytes(4 * count))  # readings; 0: a gap
        self.columns = {name: array("f", [UNKNOWN]) * count for name in (*MEANS, *MAXIMA)}
        self.jobs = array("q")  # those that cells tell of, by their number
        self._cells: dict[str, array[Any]] = {name: array(kind) for name, kind in _CELLS.items()}
        self._numbers: dict[int, int] = {}  # the inverse of `jobs`, while it is filled
        self.last = -1  # the bin filled last

    def __len__(self) -> int:
        return len(self.weights)

    def add(self, at: float, row: Row) -> None:
        """Add a reading. One that is older than the last bin is ignored."""
        bin = int((at - self.start) // self.step_s)
        if max(0, self.last) <= bin < len(self):
            values = [(value,) for value in (*row.means, *row.maxima)]
            self._merge([bin], [1.0], values, [row.cells])

    def take(self, other: Bins) -> None:
        """Add the bins of `other`, which are later. Wider ones stand for all that they cover."""
        wide = max(1, other.step_s // self.step_s)
        bins: list[int] = []
        sources: list[int] = []
        for source, weight in enumerate(other.weights):
            if weight:
                first = (other.start + source * other.step_s - self.start) // self.step_s
                for bin in range(max(first, 0), min(first + wide, len(self))):
                    bins.append(bin)
                    sources.append(source)
        weights = [other.weights[source] / wide for source in sources]
        values = [[column[source] for source in sources] for column in other.columns.values()]
        cells = other.cells()
        self._merge(bins, weights, values, [cells.get(source, ()) for source in sources])

    def _merge(
        self,
        bins: Sequence[int],
        weights: Sequence[float],
        values: Sequence[Sequence[float]],
        cells: Sequence[Sequence[Cell]],
    ) -> None:
        """Add to each of `bins`, which are in order: that many readings, a value per column and
        cells."""
        shares = []  # of the added in what the bin then has
        for bin, weight in zip(bins, weights, strict=True):
            self.weights[bin] += weight
            shares.append(weight / self.weights[bin])
        for name, its in zip(MEANS, values, strict=False):
            column = self.columns[name]
            for bin, share, value in zip(bins, shares, its, strict=True):
                if value == value:  # known
                    old = column[bin]
                    column[bin] = old + (value - old) * share if old == old else value
        for name, its in zip(MAXIMA, values[len(MEANS) :], strict=True):
            column = self.columns[name]
            for bin, value in zip(bins, its, strict=True):
                if value == value and not column[bin] >= value:
                    column[bin] = value
        for bin, share, here in zip(bins, shares, cells, strict=True):
            self._add_cells(bin, share, here)
        self.last = max([self.last, *bins[-1:]])

    def _add_cells(self, bin: int, share: float, cells: Sequence[Cell]) -> None:
        """What the bin has stands for the rest of it."""
        bins, jobs, used, most, promised = self._cells.values()
        here: dict[int, int] = {}
        at = len(bins) - 1
        while at >= 0 and bins[at] == bin:
            used[at] *= 1 - share
            here[jobs[at]] = at
            at -= 1
        now: dict[int, float] = {}  # promised: several jobs may be added up
        for id, its_used, its_most, its_promised in cells:
            job = self._number(id)
            if job not in here and len(here) >= CELLS:
                job = self._number(OTHERS)
            now[job] = now.get(job, 0.0) + its_promised
            known = here.get(job)
            if known is None:
                here[job] = len(bins)
                bins.append(bin)
                jobs.append(job)
                used.append(its_used * share)
                most.append(its_most)
                promised.append(its_promised)
            else:
                used[known] += its_used * share
                promised[known] = max(promised[known], now[job])
                if its_most == its_most and not most[known] >= its_most:
                    most[known] = its_most

    def _number(self, job: JobId) -> int:
        if len(self._numbers) != len(self.jobs):
            self._numbers = {job: number for number, job in enumerate(self.jobs)}
        number = self._numbers.setdefault(job, len(self.jobs))
        if number == len(self.jobs):
            self.jobs.append(job)
        return number

    def cells(self) -> dict[int, list[Cell]]:
        """By bin, in order."""
        found: dict[int, list[Cell]] = {}
        jobs = self.jobs
        for bin, job, used, most, promised in zip(*self._cells.values(), strict=True):
            found.setdefault(bin, []).append(Cell(JobId(jobs[job]), used, most, promised))
        return found

    def coarser(self, step_s: int) -> Bins:
        """The same time in bins of `step_s`."""
        made = Bins(self.start, step_s, len(self) * self.step_s // step_s)
        made.take(self)
        made._numbers = {}  # nothing will be added
        return made

    def copy(self) -> Bins:
        """A copy that does not change when something is added."""
        made = Bins(self.start, self.step_s, 0)
        made.weights, made.jobs, made.last = self.weights[:], self.jobs[:], self.last
        made.columns = {name: column[:] for name, column in self.columns.items()}
        made._cells = {name: column[:] for name, column in self._cells.items()}
        return made

    def dump(self) -> dict[str, Any]:
        """For JSON; see `load`."""
        named: dict[str, array[Any]] = {"weights": self.weights, "jobs": self.jobs, **self.columns}
        named |= {f"cell_{name}": column for name, column in self._cells.items()}
        return {"start": self.start, "step_s": self.step_s} | {
            name: column.tolist() for name, column in named.items()
        }

    @classmethod
    def load(cls, dumped: dict[str, Any]) -> Self:
        """Raises LookupError, TypeError, ValueError or OverflowError for anything else."""
        start, step_s = int(dumped["start"]), int(dumped["step_s"])
        if step_s < 1:
            raise ValueError("its bins have no length")
        made = cls(start, step_s, len(dumped["weights"]))
        made.weights[:] = array("f", dumped["weights"])
        made.jobs.extend(dumped["jobs"])
        for name, column in made.columns.items():
            column[:] = array("f", _floats(dumped[name]))
        for name, cells in made._cells.items():
            cells.extend(_floats(dumped[f"cell_{name}"]))
        lengths = {len(column) for column in made.columns.values()}
        of_cells = {len(column) for column in made._cells.values()}
        if lengths != {len(made)} or len(of_cells) != 1:
            raise ValueError("its columns differ in length")
        for number, count in (("bin", len(made)), ("job", len(made.jobs))):
            if max(made._cells[number], default=-1) >= count:
                raise ValueError("its cells are of no bin or job")
        filled = [bin for bin, weight in enumerate(made.weights) if weight]
        made.last = filled[-1] if filled else -1
        return made


def _floats(values: list[float | None]) -> list[float]:
    return [UNKNOWN if each is None else each for each in values]


HOUR_S = 3600
KEPT_S = 24 * HOUR_S
FINE_S = 10, 30, 60  # the first that is no shorter than the time between two readings
COARSE_S = 60
MOST = 1000  # marks of an hour; what comes then is left out
MOST_LETTERS = 200  # of a mark's text
_MOST_BYTES = 16 << 20  # of JSON
_ITS = ("index", "name", "memory_mib", "parent")


class Kind(StrEnum):
    STARTED = "started"  # a job was placed there
    RUNNING = "running"  # its first kernel was seen
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OOM = "oom"  # it ran out of GPU memory: for good, or to be retried
    RETRIED = "retried"  # it failed in another way, and is in the queue again
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    SLOWED = "slowed"  # it reported longer steps beside another job
    RISKY = "risky"  # the GPU was refused to it for its load; at most once a minute
    WARNED = "warned"
    DRAINED = "drained"
    RESUMED = "resumed"
    GPU_LOST = "gpu_lost"
    GPU_BACK = "gpu_back"
    EXTERNAL = "external"


_KINDS = tuple(Kind)
_OF_GPUS = {
    Happened.WARNED: Kind.WARNED,
    Happened.DRAINED: Kind.DRAINED,
    Happened.RESUMED: Kind.RESUMED,
    Happened.GPU_LOST: Kind.GPU_LOST,
    Happened.GPU_BACK: Kind.GPU_BACK,
    Happened.EXTERNAL: Kind.EXTERNAL,
}
_ENDS = {
    JobState.SUCCEEDED: Kind.SUCCEEDED,
    JobState.FAILED: Kind.FAILED,
    JobState.CANCELLED: Kind.CANCELLED,
    JobState.TIMED_OUT: Kind.TIMED_OUT,
    JobState.OUT_OF_MEMORY: Kind.OOM,
}


class Mark(NamedTuple):
    at: float
    kind: Kind
    job: JobId | None = None
    text: str = ""


def marks(happening: Happening) -> Iterator[tuple[GpuId, Mark]]:
    """On the GPUs that it concerns."""
    at, job = happening.at, happening.job
    if job is None:
        if happening.gpu is not None and (kind := _OF_GPUS.get(happening.kind)):
            yield happening.gpu, Mark(at, kind, None, happening.detail)
        return
    its = _kind(happening)
    if its is not None and job.attempts:
        for gpu in job.gpus or (job.attempts[-1].gpus if not job.ended else ()):
            yield gpu, Mark(at, its, job.id)


def _kind(happening: Happening) -> Kind | None:
    """Of what happened to a job, if that is shown."""
    job, cause = happening.job, happening.cause
    assert job is not None
    match happening.kind:
        case Happened.STARTED:
            return Kind.STARTED
        case Happened.RUNNING:
            return Kind.RUNNING
        case Happened.ENDED:
            return _ENDS[job.state]
        case Happened.RETRIED:
            return Kind.OOM if cause is Cause.GPU_OOM else Kind.RETRIED
        case Happened.REQUEUED if cause is not None:  # else it had ended before
            return Kind.PREEMPTED if cause is Cause.PREEMPTED else Kind.REQUEUED
        case _:
            return None


class Marks:
    """Those of an hour of a GPU, in order, in little memory."""

    __slots__ = ("_at", "_job", "_kind", "_texts")

    def __init__(self) -> None:
        self._at = array("d")
        self._kind = array("B")
        self._job = array("q")  # 0: none
        self._texts: dict[int, str] = {}  # few have one

    def __iter__(self) -> Iterator[Mark]:
        columns = zip(self._at, self._kind, self._job, strict=True)
        for number, (at, kind, job) in enumerate(columns):
            text = self._texts.get(number, "")
            yield Mark(at, _KINDS[kind], JobId(job) if job else None, text)

    def add(self, mark: Mark) -> None:
        if len(self._at) >= MOST:
            return
        if mark.text:
            self._texts[len(self._at)] = mark.text[:MOST_LETTERS]
        self._at.append(mark.at)
        self._kind.append(_KINDS.index(mark.kind))
        self._job.append(mark.job or 0)

    def copy(self) -> Marks:
        """Those so far."""
        made = Marks()
        made._at, made._kind, made._job = self._at[:], self._kind[:], self._job[:]
        made._texts = self._texts.copy()
        return made

    def dump(self) -> list[Mark]:
        """For JSON; see `load`."""
        return list(self)

    @classmethod
    def load(cls, dumped: list[Any]) -> Self:
        """Raises TypeError or ValueError for anything else."""
        made = cls()
        for at, kind, job, text in dumped:
            made.add(Mark(at, Kind(kind), job, text))
        return made


@dataclass(slots=True)
class Hour:
    """What was recorded in an hour of a GPU."""

    bins: Bins
    marks: Marks = field(default_factory=Marks)

    @property
    def start(self) -> int:
        """Unix seconds."""
        return self.bins.start

    def copy(self) -> Hour:
        """A copy that does not change when something is added."""
        return Hour(self.bins.copy(), self.marks.copy())


@dataclass(frozen=True, slots=True)
class Saved:
    """An hour as the store keeps it."""

    gpu: GpuId
    start: int
    body: bytes  # see `encode`


@dataclass(frozen=True, slots=True)
class Track:
    """What is known of a GPU over some time. Its hours do not change any more."""

    id: GpuId
    gpu: Gpu | None
    present: bool  # it is there now
    hours: tuple[Hour, ...]


def encode(hour: Hour, gpu: Gpu | None) -> bytes:
    its = {name: getattr(gpu, name) for name in _ITS} if gpu else None
    body = {"gpu": its, "bins": hour.bins.dump(), "marks": hour.marks.dump()}
    return zlib.compress(to_json(body, inf_nan_mode="null"))


def decode(id: GpuId, body: bytes) -> tuple[Hour, Gpu | None]:
    """Raises ValueError for anything else."""
    try:
        told = from_json(zlib.decompressobj().decompress(body, _MOST_BYTES))
        its = told["gpu"]
        gpu = Gpu(id, **{name: its[name] for name in _ITS}) if its else None
        return Hour(Bins.load(told["bins"]), Marks.load(told["marks"])), gpu
    except (zlib.error, LookupError, TypeError, OverflowError) as error:
        raise ValueError(f"it cannot be read: {error!r}") from error
