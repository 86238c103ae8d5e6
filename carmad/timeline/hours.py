"""An hour of one GPU: its bins, what happened on it, and both as bytes for the store."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self

from pydantic_core import from_json, to_json

from carmad.core.happenings import Happening
from carmad.core.happenings import Kind as Happened
from carmad.core.types import Cause, Gpu, GpuId, JobId, JobState
from carmad.timeline.bins import Bins

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
    DRAINED = "drained"
    RESUMED = "resumed"
    GPU_LOST = "gpu_lost"
    GPU_BACK = "gpu_back"
    EXTERNAL = "external"


_KINDS = tuple(Kind)
_OF_GPUS = {
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
