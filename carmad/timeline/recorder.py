"""Records the timelines of all GPUs: a row per GPU, job and minute in a database of its own."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from carmad.core.gpus.gpu import Gpu, GpuSample
from carmad.core.gpus.gpuview import free_memory
from carmad.core.happenings import Happening
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.messages import Discovered, Sampled, Step
from carmad.edge import Follower
from carmad.errors import CarmaError
from carmad.timeline.marks import Kind, Mark, marks

log = logging.getLogger(__name__)

MINUTE_S = 60
HOUR_S = 3600
KEPT_S = 24 * HOUR_S
MOST_JOBS = 16  # of which a minute of a GPU tells; the others are added up as `OTHERS`
MOST_MARKS = 1000  # of an hour of a GPU; what comes then is left out
MOST_LETTERS = 200  # of a mark's text
RISKY_S = 60.0
WAIT_S = 5.0  # for the database, which a reader may hold
ALL, OTHERS = JobId(0), JobId(-1)  # in place of a job: the whole GPU, and jobs added up

# Of a job, `used` is the mean over the whole minute, also if it was there for a part of it, and
# nothing is said from `external` on. NULL: not known.
VERSION = 1
SCHEMA = f"""
BEGIN;
CREATE TABLE minutes (
    gpu TEXT, minute INTEGER, job INTEGER, used REAL, most REAL, promised REAL,
    external REAL, sm REAL, sm_most REAL, power REAL, PRIMARY KEY (minute, gpu, job)
) WITHOUT ROWID;
CREATE TABLE marks (gpu TEXT, at REAL, kind TEXT, job INTEGER, text TEXT);
CREATE INDEX marks_at ON marks (at);
PRAGMA user_version = {VERSION};
COMMIT;
"""
BINS = """
SELECT gpu, job, bin, AVG(used) * COUNT(*) / MAX(CASE WHEN job = 0 THEN COUNT(*) END)
    OVER (PARTITION BY gpu, bin), MAX(most), MAX(promised),
    AVG(external), AVG(sm), MAX(sm_most), AVG(power)
FROM (SELECT *, (minute - :start) / :step AS bin FROM minutes
    WHERE minute >= :start AND minute < :end)
GROUP BY gpu, bin, job ORDER BY bin
"""


class Bin(NamedTuple):
    """Of a job, or of the whole GPU; in MiB, 0-1 and W. None: not known."""

    used: float | None
    most: float | None
    promised: float | None  # the most, at any time
    external: float | None = None
    sm: float | None = None
    sm_most: float | None = None
    power: float | None = None


@dataclass(slots=True)
class _Readings:
    """Of one thing in a minute; some may not be known."""

    count: int = 0
    known: int = 0
    total: float = 0.0
    most: float | None = None

    def add(self, value: float | None) -> None:
        self.count += 1
        if value is not None:
            self.known += 1
            self.total += value
            self.most = value if self.most is None else max(self.most, value)

    def mean(self, count: int) -> float | None:
        """Over so many readings: in those that are not in here, it was not there."""
        return self.total / self.known * self.count / count if self.known else None


@dataclass(slots=True)
class _Minute:
    """Of a GPU."""

    used: _Readings = field(default_factory=_Readings)
    external: _Readings = field(default_factory=_Readings)
    sm: _Readings = field(default_factory=_Readings)
    power: _Readings = field(default_factory=_Readings)
    promised_mib: float = 0.0
    jobs: dict[JobId, _Readings] = field(default_factory=dict)
    job_promised_mib: dict[JobId, float] = field(default_factory=dict)

    def add(self, gpu: Gpu, sample: GpuSample, residents: tuple[Job, ...]) -> None:
        """A reading of the GPU with these jobs on it."""
        self.used.add(sample.memory_used_mib)
        self.external.add(free_memory(gpu, sample, residents, settled=True)[1])
        self.sm.add(sample.activity)
        self.power.add(sample.power_w)
        held: dict[JobId, float | None] = {job.id: 0.0 for job in residents}
        for process in sample.processes:
            if process.job is not None:
                so_far, more = held.get(process.job, 0.0), process.memory_mib
                held[process.job] = None if so_far is None or more is None else so_far + more
        promised = {job.id: float(job.need.safe_mib) for job in residents if job.need}
        self.promised_mib = max(self.promised_mib, sum(promised.values()))
        for id, mib in held.items():
            job = id if id in self.jobs or len(self.jobs) < MOST_JOBS else OTHERS
            self.jobs.setdefault(job, _Readings()).add(mib)
            most = self.job_promised_mib.get(job, 0.0)
            self.job_promised_mib[job] = max(most, promised.get(id, 0.0))

    def rows(self) -> Iterator[tuple[float | None, ...]]:
        """As in the table, from `job` on."""
        count, used, sm = self.used.count, self.used, self.sm
        memory = used.mean(count), used.most, self.promised_mib, self.external.mean(count)
        yield ALL, *memory, sm.mean(count), sm.most, self.power.mean(count)
        for job, its in self.jobs.items():
            its_memory = its.mean(count), its.most, self.job_promised_mib[job]
            yield job, *its_memory, None, None, None, None


@dataclass(frozen=True, slots=True)
class Track:
    """What is known of a GPU over some time."""

    id: GpuId
    gpu: Gpu | None  # None: of one that vanished, and of which only an earlier daemon knew
    present: bool  # it is there now
    bins: Mapping[JobId, Mapping[int, Bin]]  # by job, also `ALL` and `OTHERS`, and number
    marks: Sequence[Mark]


class Timeline(Follower):
    """Filled by the core's thread with every committed step, written and read by others. What the
    database cannot take is a gap."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()  # for the next five
        self._minutes: dict[tuple[GpuId, int], _Minute] = {}  # those that are not written
        self._marks: list[tuple[GpuId, Mark]] = []  # likewise
        self._marked = Counter[tuple[GpuId, int]]()  # by hour
        self._gpus: dict[GpuId, Gpu] = {}  # with those that have vanished
        self._present: frozenset[GpuId] = frozenset()
        self._residents: dict[JobId, Job] = {}
        self._risky_at: dict[GpuId, float] = {}
        self._database_lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._has_failed = False

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
        on: defaultdict[GpuId, list[Job]] = defaultdict(list)
        for job in self._residents.values():
            for id in job.gpus:
                on[id].append(job)
        for sample in samples:
            gpu = self._gpus.get(sample.gpu)
            if gpu is not None and sample.fault is None:
                key = gpu.id, int(sample.at // MINUTE_S) * MINUTE_S
                self._minutes.setdefault(key, _Minute()).add(gpu, sample, tuple(on[gpu.id]))

    def _mark(self, new: Iterable[tuple[GpuId, Mark]]) -> None:
        for gpu, mark in new:
            self._marked[gpu, int(mark.at // HOUR_S)] += 1
            if self._marked[gpu, int(mark.at // HOUR_S)] <= MOST_MARKS:
                self._marks.append((gpu, mark._replace(text=mark.text[:MOST_LETTERS])))

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

    def tracks(self, start: int, step_s: int, count: int, now: float) -> list[Track]:
        """What is recorded in these bins, by GPU: those that are there first, in their order.
        Raises CarmaError."""
        self.save(now)  # so that all of it is in the database
        end = start + step_s * count
        with self._lock:
            gpus, present = dict(self._gpus), self._present
        bins: dict[GpuId, dict[JobId, dict[int, Bin]]] = {id: {} for id in present}
        marked: defaultdict[GpuId, list[Mark]] = defaultdict(list)
        span = {"start": start, "step": step_s, "end": end}
        with self._using_database() as database:
            for gpu, job, bin, *values in database.execute(BINS, span):
                bins.setdefault(gpu, {}).setdefault(job, {})[bin] = Bin(*values)
            query = "SELECT * FROM marks WHERE at >= :start AND at < :end ORDER BY at, rowid"
            for gpu, at, kind, job, text in database.execute(query, span):
                bins.setdefault(gpu, {})
                marked[gpu].append(Mark(at, kind, job, text))
        found = [
            Track(id, gpus.get(id), id in present, its, marked[id]) for id, its in bins.items()
        ]
        return sorted(found, key=_place)

    def save(self, now: float) -> None:
        """Write what is new, and delete what is older than a day, or of the future: the clock was
        set back. A minute that goes on is written again."""
        began, keep_from = int(now // MINUTE_S) * MINUTE_S, now - KEPT_S - HOUR_S
        with self._lock:
            minutes, new = dict(self._minutes), self._marks
            rows = [(*key, *row) for (key, its) in minutes.items() for row in its.rows()]
            # What was read in a minute that is over may still be on its way.
            recent = began - MINUTE_S, began
            self._minutes = {key: its for key, its in minutes.items() if key[1] in recent}
            self._marks = []
            for key in [key for key in self._marked if key[1] < keep_from // HOUR_S]:
                del self._marked[key]
        try:
            with self._using_database() as database:
                database.executemany(f"REPLACE INTO minutes VALUES ({','.join('?' * 10)})", rows)
                its = [(gpu, *mark) for gpu, mark in new]
                database.executemany("INSERT INTO marks VALUES (?, ?, ?, ?, ?)", its)
                database.execute("DELETE FROM minutes WHERE minute < ?", (keep_from,))
                database.execute("DELETE FROM minutes WHERE minute > ?", (now,))
                database.execute("DELETE FROM marks WHERE at < ? OR at > ?", (keep_from, now + 1.0))
            self._has_failed = False
        except CarmaError as error:
            if not self._has_failed:
                log.error("the timeline has a gap: %s", error)
            self._has_failed = True

    @contextmanager
    def _using_database(self) -> Iterator[sqlite3.Connection]:
        """One that is broken, or of another version, is replaced: it has one day at most."""
        with self._database_lock:
            try:
                self._database = self._database or _open(self._file)
                with self._database:
                    yield self._database
            except (sqlite3.Error, OSError) as error:
                if type(error) is sqlite3.DatabaseError:  # not that the disk is full
                    self._database = None
                    with suppress(OSError):
                        for end in ("", "-wal", "-shm"):
                            Path(f"{self._file}{end}").unlink(missing_ok=True)
                raise CarmaError(
                    f"{self._file} cannot be used: {error}",
                    "Try again. If that does not help, see `df`, `dmesg` and the log of carmad.",
                ) from error


def _open(file: Path) -> sqlite3.Connection:
    file.touch(mode=0o600)
    database = sqlite3.connect(file, timeout=WAIT_S, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == 0:
        database.executescript(SCHEMA)
    elif version != VERSION:
        raise sqlite3.DatabaseError("it is of another version of CARMA")
    return database


def _place(track: Track) -> tuple[bool, int, GpuId]:
    return not track.present, track.gpu.index if track.gpu else 0, track.id
