"""The journal: the core's inputs and decisions, which can be replayed.

It is for analysis, not recovery: nothing is restored from it, and what cannot be written is lost. A
segment is a file of gzip members with JSON lines: a `Begin`, then a `Turn` for each committed step.
Jobs' environments and scripts are left out, as they may contain secrets; the core has none either.
"""

from __future__ import annotations

import gzip
import logging
import math
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from carmad.config import Settings
from carmad.core.gpus.gpu import Drain, Gpu
from carmad.core.jobs.attempt import GpuId
from carmad.core.jobs.history import Past, Submission
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.tasks import Outcome
from carmad.core.messages import Event, RequeueRequested, Sampled, Step, Submitted
from carmad.core.placing.decision import Decision, Failure
from carmad.core.rules.limits import Limit, Reservation
from carmad.core.rules.share import Account, Ranks
from carmad.core.scheduler import HANDLERS, Scheduler
from carmad.edge import Follower
from carmad.errors import CarmaError
from carmad.installed import VERSION
from carmad.learning.models import Model

T = TypeVar("T")

log = logging.getLogger(__name__)

SEGMENTS = 8  # each takes at most this fraction of the cap, and is deleted as a whole
MOST_PENDING = 5000  # steps: a hanging disk must not exhaust memory
MOST_PENDING_LETTERS = 16 << 20  # characters of submitted commands
MEMBER_BYTES = 1 << 20  # of text per gzip member
COMPLAIN_EVERY_S = 60.0
DIGITS = 8  # of a segment's number
_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in HANDLERS}


@dataclass(frozen=True, slots=True)
class Begin:
    """The core's complete state. When the daemon has just started, `gpus` and the fields after it
    are empty."""

    carma: str  # its version
    settings: Settings
    jobs: tuple[Job, ...]  # with their usage so far
    ended: tuple[Outcome, ...]
    drains: tuple[Drain, ...]
    runs: tuple[Past, ...] = ()  # the latest ones
    submissions: tuple[Submission, ...] = ()  # of the last days
    gpus: tuple[Gpu, ...] = ()
    samples: tuple[Sampled, ...] = ()  # enough recent ones to refill the windows
    decisions: tuple[Decision, ...] = ()  # the latest one on each job
    last_placed: GpuId | None = None  # round-robin's position
    models: tuple[tuple[str, Model], ...] = ()
    unread: str = ""  # why the GPUs are not known yet
    accounts: tuple[Account, ...] = ()
    ranks: Ranks = Ranks()  # noqa: RUF009 - it is frozen
    limits: tuple[Limit, ...] = ()
    reservations: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of the core: its events, its decisions, and the failures of plugins."""

    events: tuple[Event, ...]
    decisions: tuple[Decision, ...]
    failures: tuple[Failure, ...] = ()


_adapter = cache(TypeAdapter[Any])  # not made by a daemon, which only writes


class Journal(Follower):
    """Notified of every step in the core's thread; writes in the thread that calls `flush`.

    It also sees events before they are committed: the core keeps their samples in its windows even
    if the commit fails. After anything that breaks the chain of steps (a failed commit, a failed
    write, a full segment), a new segment begins with the core's state. The oldest segments are
    removed once all take more than `cap_bytes`; 0: nothing is recorded, and existing ones go.
    """

    def __init__(self, directory: Path, core: Scheduler, cap_bytes: int) -> None:
        self._directory = directory
        self._core = core
        self._cap_bytes = cap_bytes
        self._recent: deque[Sampled] = deque()
        self._now = 0.0  # the core's time
        self._lock = threading.Lock()  # for the next four
        self._pending: list[Begin | Turn] = []
        self._letters = 0  # in `_pending`
        self._begun: int | None = None  # index in `_pending` of the last `Begin`, if any
        self._full = False  # the segment or the disk is full: begin another segment
        self._segment: Path | None = None  # None: everything up to the next `Begin` is dropped
        self._complain_at = 0.0  # monotonic

    def hear(self, events: Sequence[Event]) -> None:
        if self._cap_bytes:
            self._remember(events)

    def on_reset(self, jobs: Iterable[Job]) -> None:
        """Begin a new segment."""
        if self._cap_bytes:
            self._forget_unseen()
            with self._lock:
                self._begin()

    def on_commit(self, step: Step) -> None:
        if not self._cap_bytes:
            return
        bare = Turn(tuple(map(_bare, step.events)), step.decisions, step.failures)
        with self._lock:
            self._pending.append(bare)
            self._letters += _letters(step)
            if len(self._pending) > MOST_PENDING or self._letters > MOST_PENDING_LETTERS:
                self._pending.clear()
                self._letters = 0
                self._begun, self._full = None, True
            if self._full:
                self._begin()

    def flush(self) -> None:
        """Write what was recorded since the last call. Does not raise if the disk is full.

        If it raises, a new segment begins, since steps are missing.
        """
        with self._lock:
            pending, self._pending, self._begun = self._pending, [], None
            self._letters = 0
        try:
            self._write(pending)
        except Exception as error:
            self._segment = None
            self._begin_another()
            if not isinstance(error, (OSError, ValueError)):  # ValueError: invalid Unicode
                raise
            self._complain(error)

    # -- in the core's thread

    def _remember(self, events: Sequence[Event]) -> None:
        """Keep samples for two windows, so that a replayed window is full and without a gap."""
        monitor = self._core.settings.monitor
        self._now = events[-1].at
        self._recent.extend(event for event in events if isinstance(event, Sampled))
        oldest = self._now - 2 * monitor.window_s - monitor.stale_s
        while self._recent and self._recent[0].at < oldest:
            self._recent.popleft()

    def _forget_unseen(self) -> None:
        """Drop samples that the core has not seen: those after the culprit in a failed batch."""
        gpus = self._core.view(self._now).gpus
        seen = max((gpu.sample.at for gpu in gpus if gpu.sample), default=-math.inf)
        while self._recent and self._recent[-1].at > seen:
            self._recent.pop()

    def _begin(self) -> None:
        """Add a `Begin`. Only the latest since the last flush is kept: commits may fail many times
        a second."""
        if self._begun is not None:
            del self._pending[self._begun :]
        self._begun, self._full = len(self._pending), False
        self._pending.append(self._state())

    def _state(self) -> Begin:
        core, scene = self._core, self._core.snapshot(self._now)
        return Begin(
            VERSION,
            core.settings,
            tuple(
                replace(job, usage=scene.usage[id]) if id in scene.usage else job
                for id, job in scene.live.rows.items()
            ),
            tuple(core.outcomes.rows.values()),
            tuple(scene.drains.values()),
            tuple(core.state.history.runs),
            core.state.history.submissions,
            tuple(scene.gpus.values()),
            tuple(self._recent),
            tuple(scene.decisions.values()),
            scene.view.last_placed,
            tuple(scene.view.models.items()),
            scene.unread,
            tuple(scene.shares.accounts.values()),
            scene.shares.ranks,
            tuple(scene.limits.values()),
            scene.reservations,
        )

    # -- in the other thread

    def _write(self, pending: Sequence[Begin | Turn]) -> None:
        pieces: list[bytes] = []
        size = 0
        for entry in pending:
            if isinstance(entry, Begin):
                self._append(pieces)
                self._segment, pieces, size = self._new(), [], 0
            for piece in _encode(entry) if self._segment is not None else ():
                pieces.append(piece)
                size += len(piece)
                if size > MEMBER_BYTES:
                    self._append(pieces)
                    pieces, size = [], 0
        self._append(pieces)
        self._trim()

    def _new(self) -> Path:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        there = segments(self._directory)
        number = int(there[-1].name[:DIGITS]) + 1 if there else 1
        name = f"{number:0{DIGITS}}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl.gz"
        path = self._directory / name
        path.touch(mode=0o600)  # it has everyone's commands
        return path

    def _append(self, pieces: Sequence[bytes]) -> None:
        if not pieces:
            return
        assert self._segment is not None
        member = gzip.compress(b"".join(pieces), compresslevel=6)
        with self._segment.open("r+b") as file:  # "ab" would recreate one that was removed
            file.seek(0, os.SEEK_END)
            file.write(member)
            if file.tell() >= self._cap_bytes // SEGMENTS:
                self._begin_another()

    def _begin_another(self) -> None:
        with self._lock:
            self._full = True

    def _trim(self) -> None:
        """Delete the oldest segments, but never the current one."""
        sizes = {path: path.stat().st_size for path in segments(self._directory)}
        excess = sum(sizes.values()) - self._cap_bytes
        for path, size in sizes.items():
            if excess <= 0 or path == self._segment:
                break
            path.unlink()
            excess -= size

    def _complain(self, error: Exception) -> None:
        if time.monotonic() >= self._complain_at:
            self._complain_at = time.monotonic() + COMPLAIN_EVERY_S
            log.error("cannot write the journal in %s: %.500s", self._directory, error)


def segments(directory: Path) -> list[Path]:
    """All segments, oldest first."""
    # By number, since the clock may be set back.
    return sorted(directory.glob("[0-9]" * DIGITS + "-*.jsonl.gz"))


def read(path: Path) -> tuple[Begin, Iterator[Turn]]:
    """Read a segment. Its end may be missing if the daemon was killed or is still writing it.

    Raises CarmaError, also from the iterator, if it is not a segment.
    """
    lines = enumerate(_lines(path), 1)
    begin = next(lines, None)
    if begin is None:
        raise CarmaError(f"{path} is empty")
    first = _decode(path, begin, _begin)
    return first, (_decode(path, line, _turn) for line in lines)


def _begin(told: Any) -> Begin:
    if told["carma"] != VERSION:
        raise CarmaError(
            f"the journal was recorded by carmad {told['carma']}, and this is {VERSION}",
            "Replay it with the version that recorded it.",
        )
    begin: Begin = _adapter(Begin).validate_python(told)
    return begin


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except EOFError:
        return
    except (OSError, zlib.error) as error:
        raise CarmaError(f"cannot read {path}: {error}") from error


def _encode(entry: Begin | Turn) -> Iterator[bytes]:
    """Its line, in pieces: all commands of a queue may not fit into memory at once, and a single
    call would make the core's thread wait."""
    # pydantic_core.to_json, as in `codec`: it preserves infinite ranks.
    if isinstance(entry, Begin):
        yield from _spread(entry, jobs=entry.jobs, runs=entry.runs)
    else:
        yield b'{"events":'
        for number, event in enumerate(entry.events):
            yield b'%b["%b",' % (b"," if number else b"[", type(event).__name__.encode())
            if isinstance(event, Submitted):
                yield from _spread(event, specs=event.specs)
            else:
                yield to_json(event)
            yield b"]"
        yield b'],"decisions":' + to_json(entry.decisions)
        if entry.failures:
            yield b',"failures":' + to_json(entry.failures)
        yield b"}"
    yield b"\n"


def _spread(value: Begin | Submitted, **fields: Iterable[object]) -> Iterator[bytes]:
    """The value as JSON, with the given fields, in their order, one member at a time."""
    rest = to_json(replace(value, **dict.fromkeys(fields, ())))  # type: ignore[arg-type]
    for name, members in fields.items():
        head, empty, rest = rest.partition(b'"%b":[]' % name.encode())
        yield head + empty[:-1]
        for number, member in enumerate(members):
            yield (b"," if number else b"") + to_json(member)
        yield b"]"
    yield rest


def _letters(step: Step) -> int:
    """Characters of the commands that a step brought; the tasks of an array share theirs."""
    specs = [spec for event in step.events for spec in _specs_of(event)]
    return sum(len(word) for spec in specs for word in spec.argv)


def _specs_of(event: Event) -> Sequence[JobSpec]:
    if isinstance(event, RequeueRequested):
        return (event.job.spec,)
    return event.specs[:1] if isinstance(event, Submitted) else ()


def _bare(event: Event) -> Event:
    if isinstance(event, RequeueRequested):
        return replace(event, secrets=())
    return replace(event, env=(), script="") if isinstance(event, Submitted) else event


def _decode(path: Path, line: tuple[int, bytes], decode: Callable[[Any], T]) -> T:
    number, text = line
    try:
        return decode(from_json(text))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CarmaError(f"line {number} of {path} is invalid: {error!s:.500}") from error


def _event(kind: str, body: Any) -> Event:
    event: Event = _adapter(_EVENTS[kind]).validate_python(body)
    return event


def _turn(entry: Any) -> Turn:
    events = tuple(_event(kind, body) for kind, body in entry["events"])
    if not events:
        raise ValueError("a step has events")
    decisions = _adapter(tuple[Decision, ...]).validate_python(entry["decisions"])
    failures = _adapter(tuple[Failure, ...]).validate_python(entry.get("failures", ()))
    return Turn(events, decisions, failures)
