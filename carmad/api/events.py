"""The latest happenings, and the streams of those who watch them.

A stream has no buffer of its own, only a place among the latest happenings: a client that reads
too slowly misses some, and is told so. The server drops a client that does not read at all.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import NotRequired

from typing_extensions import TypedDict

from carmad.api.reasons import GpuRefOut, gpu_ref
from carmad.api.rows import row_label
from carmad.api.wire import as_json, pick, stamp, state_code
from carmad.core.gpus.gpu import Gpu, GpuSample
from carmad.core.happenings import Happening, Kind, happenings, words
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.tasks import among
from carmad.core.messages import Discovered, Sampled, Step
from carmad.edge import Follower
from carmad.guards import log_failures_of
from carmad.readable import gib

KEPT = 4096
STREAMS_PER_USER = 16
EXTERNAL_S = 30.0  # a process that ends sooner is no event
QUIET_S = 3600.0  # a condition of a GPU that was absent for so long is news


class EventJobOut(TypedDict):
    """The job of an event, as it was then. Its name is "-" for those who may not see it."""

    id: int
    label: str
    user: str
    name: str
    state: str
    code: str
    attempt: int
    gpus: list[str]


class EventOut(TypedDict):
    """Something that happened. `event` is one of `carmad.core.happenings.Kind`; or `watching`, the
    first of every answer; `missed`: some that happened before are not known any more; `over`, the
    last: all the selected jobs have ended."""

    id: str  # to go on after it
    at: str
    event: str
    text: str  # for people
    job: NotRequired[EventJobOut]
    gpu: NotRequired[GpuRefOut]
    count: NotRequired[int]  # of jobs, if they are several: the tasks of an array
    cause: NotRequired[str]


def event_out(
    happening: Happening, id: str, gpus: Mapping[GpuId, Gpu], sees: bool = True
) -> EventOut:
    """`sees`: the reader may see all of the job, and not only that it is there."""
    out: EventOut = {"id": id, "at": stamp(happening.at), "event": happening.kind.value, "text": ""}
    job, gpu = happening.job, happening.gpu
    if gpu is not None:
        out["gpu"] = gpu_ref(gpu, gpus)
    if job is not None:
        told = {"label": row_label([job]), "name": job.spec.name if sees else "-"}
        out["job"] = pick(EventJobOut, job, user=job.spec.user, code=state_code(job), **told)
        if happening.count > 1:
            out["count"] = happening.count
        if sees and happening.cause is not None:
            out["cause"] = happening.cause.value
    out["text"] = words(happening, gpus, sees)
    return out


def sse(event: EventOut) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (event["id"].encode(), as_json(event))


class Events(Follower):
    """`epoch` tells the happenings of this daemon from those of an earlier one."""

    def __init__(self, epoch: str, external_mib: int) -> None:
        self._epoch = epoch
        self._external_mib = external_mib
        self._latest: deque[Happening] = deque(maxlen=KEPT)
        self._count = 0  # of all so far
        self._lock = threading.Lock()
        self.gpus: dict[GpuId, Gpu] = {}
        self._faults: dict[GpuId, str] = {}
        self._conditions: dict[tuple[GpuId, str], float] = {}  # when each kind was last seen
        self._external: dict[GpuId, dict[int, float]] = {}
        self._news: set[asyncio.Event] = set()
        self._awaited: dict[JobId, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: Counter[int] = Counter()
        self._texts: dict[tuple[int, bool], bytes] = {}
        self.listeners: list[Follower] = []

    def on_commit(self, step: Step) -> None:
        """In the core's thread."""
        new = [*(happenings(step) if step.jobs or step.drains is not None else ())]
        for event in step.events:
            if isinstance(event, Sampled | Discovered):
                new += self._of_gpus(event)
        if not new:
            return
        with self._lock:
            self._latest.extend(new)
            self._count += len(new)
        for follower in self.listeners:
            with log_failures_of(follower):
                follower.on_happenings(new, self.gpus)
        self._call(lambda: self._tell(new))

    def wake(self) -> None:
        """Let everyone who waits look again; from any thread."""
        self._call(lambda: self._set(self._news, *self._awaited.values()))

    def _call(self, tell: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(tell)

    def _tell(self, new: Sequence[Happening]) -> None:
        jobs = (each.job for each in new if each.job is not None)
        ids = (id for job in jobs for id in among(job.ids, self._awaited))
        self._set(self._news, *map(self._awaited.__getitem__, ids))

    def _set(self, *waiting: Iterable[asyncio.Event]) -> None:
        for news in chain.from_iterable(waiting):
            news.set()

    def _of_gpus(self, event: Sampled | Discovered) -> Iterator[Happening]:
        if isinstance(event, Discovered):
            self.gpus = {gpu.id: gpu for gpu in event.gpus}
            return
        for sample in event.samples:
            yield from self._fault(sample)
            yield from self._warnings(sample)
            yield from self._externals(sample)

    def _fault(self, sample: GpuSample) -> Iterator[Happening]:
        """Whether the GPU has become faulty, or is no longer."""
        known = self._faults.get(sample.gpu)
        if sample.fault is not None:
            self._faults[sample.gpu] = sample.fault
            if known is None:
                yield Happening(sample.at, Kind.GPU_LOST, gpu=sample.gpu, detail=sample.fault)
        elif known is not None:
            del self._faults[sample.gpu]
            yield Happening(sample.at, Kind.GPU_BACK, gpu=sample.gpu)

    def _warnings(self, sample: GpuSample) -> Iterator[Happening]:
        """Conditions that were not there lately: one that comes and goes is told once."""
        for each in sample.conditions:
            last = self._conditions.get((sample.gpu, each.kind))
            self._conditions[sample.gpu, each.kind] = sample.at
            if last is None or sample.at - last > QUIET_S:
                yield Happening(sample.at, Kind.WARNED, gpu=sample.gpu, detail=each.message)

    def _externals(self, sample: GpuSample) -> Iterator[Happening]:
        """Processes of no job that have held memory for a while."""
        known = self._external.pop(sample.gpu, {})
        found: dict[int, float] = {}  # since when, by pid; infinite: it has been told
        for process in sample.processes:
            held = process.memory_mib or 0
            if process.job is not None or held < self._external_mib:
                continue
            since = known.get(process.pid, sample.at)
            if sample.at - since >= EXTERNAL_S:
                since = math.inf
                who = f"process {process.pid} of {process.user or '?'} holds {gib(held)}"
                yield Happening(sample.at, Kind.EXTERNAL, gpu=sample.gpu, detail=who)
            found[process.pid] = since
        if found:
            self._external[sample.gpu] = found

    # -- for streams, in the loop's thread

    def is_room(self, uid: int) -> bool:
        """Whether this user may open another stream."""
        return self._streams[uid] < STREAMS_PER_USER

    @contextmanager
    def stream(self, uid: int) -> Iterator[asyncio.Event]:
        """Yields the event that is set when there is something new."""
        self._loop, news = asyncio.get_running_loop(), asyncio.Event()
        self._streams[uid] += 1
        self._news.add(news)
        try:
            yield news
        finally:
            self._news.discard(news)
            self._streams[uid] -= 1
            if not self._streams[uid]:
                del self._streams[uid]

    def text(self, place: int, happening: Happening, sees: bool) -> bytes:
        """What streams send of the happening before that place: hundreds of them the same. Called
        in the event loop's thread."""
        if (text := self._texts.get((place, sees))) is None:
            if len(self._texts) >= KEPT:
                self._texts.clear()
            text = sse(event_out(happening, self.name(place), self.gpus, sees))
            self._texts[place, sees] = text
        return text

    @contextmanager
    def of_job(self, job: JobId) -> Iterator[asyncio.Event]:
        """Yields the event that is set when something happens to a job. The core is asked about the
        job after this has been entered: it may have happened before."""
        self._loop, news = asyncio.get_running_loop(), asyncio.Event()
        self._awaited.setdefault(job, set()).add(news)
        try:
            yield news
        finally:
            self._awaited[job].discard(news)
            if not self._awaited[job]:
                del self._awaited[job]

    @property
    def place(self) -> int:
        """After all happenings so far."""
        return self._count

    def name(self, place: int) -> str:
        return f"{self._epoch}-{place}"

    def after(self, name: str) -> int | None:
        """The place of this name; None if it is not one of this daemon's."""
        epoch, _, number = name.rpartition("-")
        known = epoch == self._epoch and number.isdecimal() and len(number) < 16
        return min(int(number), self._count) if known else None

    def since(self, at: float) -> int:
        """The place before the first kept happening at or after `at`."""
        with self._lock:
            kept = list(self._latest)
            first = self._count - len(kept)
        older = (n for n, each in enumerate(kept) if each.at >= at)
        return first + next(older, len(kept))

    def read(self, place: int, most: int) -> tuple[int, list[Happening]]:
        """Up to `most` happenings after `place`, and the place before the first of them: later than
        `place` if some are not kept any more."""
        with self._lock:
            first = self._count - len(self._latest)
            begin = max(place, first)
            return begin, list(islice(self._latest, begin - first, begin - first + most))
