"""What is known about each attempt: its processes, and the last readings of its GPUs that showed
them. Kept for a while after the attempt's end, so that the end can be explained.

The shepherd and the monitor update it. Nothing here queries a GPU, so no caller waits for one.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from carmad.attempt.cgroup import cgroup_of
from carmad.attempt.environment import ATTEMPT_VARIABLE
from carmad.attempt.marks import Marks
from carmad.attempt.proc import process_stat, running, uids
from carmad.attempt.signs import read_signs
from carmad.core.gpus.gpu import GpuSample
from carmad.core.jobs.attempt import GpuId, JobId, MemoryLimits, Signs
from carmad.core.jobs.job import Job
from carmad.threads import Threads

KEPT_S = 20.0  # of readings: child processes may outlive the main process by some seconds
KNOWN_S = 60.0  # of an ended attempt: the driver may still list its processes for a while
LATE_S = 60.0  # for the thread that asks
ASK_WITHIN_S = 1.0  # which attempt a process is marked with
FULL = 0.03  # a GPU is full if a smaller share of its memory is free

T = TypeVar("T")
Key = tuple[JobId, int]  # a job and the number of its attempt


@dataclass(frozen=True, slots=True)
class FullGpu:
    """`share` of its memory was used; or of the attempt's own limit there, if one is given."""

    gpu: GpuId
    share: float
    limit_mib: int | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    used: Mapping[GpuId, float]  # of the memory of GPUs that showed the attempt's processes, 0–1
    held_mib: Mapping[GpuId, int]  # by these processes


@dataclass(slots=True)
class _Attempt:
    processes: dict[int, int] = field(default_factory=dict)  # that used a GPU: pid and start time
    readings: deque[_Reading] = field(default_factory=deque)  # that showed its processes
    waited_since: float | None = None  # monotonic; for the driver to free its memory
    ended_at: float | None = None  # monotonic


class Evidence:
    """Covers attempts whose supervisor is known, until a minute after their end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[Key, _Attempt] = {}
        self._supervisors: dict[int, Key] = {}
        self._cgroups: dict[str, Key] = {}
        self._marked: dict[tuple[int, bytes], Key] = {}
        self._marks = Marks(os.fsencode(ATTEMPT_VARIABLE))
        self._asking: Threads | None = None
        self._patience_s = ASK_WITHIN_S  # none for the others, once one has not answered
        self._owners: dict[int, Key] = {}  # of processes that used a GPU, by pid
        self._looks: dict[GpuId, tuple[float, frozenset[int]]] = {}  # when begun; pids on the GPU
        self._asked: set[GpuId] = set()
        self._questions: queue.SimpleQueue[GpuId | None] = queue.SimpleQueue()

    # -- for the shepherd

    def add_supervisor(
        self,
        attempt: Key,
        *pids: int,
        cgroup: str | None = None,
        marked: tuple[int, bytes] | None = None,
    ) -> None:
        """These processes supervise or run the attempt: their descendants belong to it. So does all
        that is in `cgroup`, and what is `marked`: processes of this uid, with this value of
        ATTEMPT_VARIABLE."""
        with self._lock:
            self._supervisors.update(dict.fromkeys(pids, attempt))
            self._attempts.setdefault(attempt, _Attempt())
            if cgroup:
                self._cgroups[cgroup] = attempt
            if marked:
                self._marked[marked] = attempt

    def cgroups(self) -> dict[JobId, str]:
        """Those of jobs that have one."""
        with self._lock:
            return {job: cgroup for cgroup, (job, _) in self._cgroups.items()}

    def remove_supervisor(self, attempt: Key) -> None:
        """Its supervisor has ended, and so has the attempt."""
        with self._lock:
            self._supervisors = _without(self._supervisors, attempt)
            self._cgroups = _without(self._cgroups, attempt)
            self._marked = _without(self._marked, attempt)
            if known := self._attempts.get(attempt):
                known.ended_at = time.monotonic()

    def memory_gone(self, job: Job) -> bool:
        """Whether no process of the job's current attempt, which has ended, holds GPU memory.

        Does not block: False until a reading begun after the first call shows it.
        """
        with self._lock:
            attempt = self._attempts.get((job.id, job.attempt))
            if attempt is None or not attempt.processes:
                return True
            if attempt.waited_since is None:
                attempt.waited_since = time.monotonic()
            held = [gpu for gpu in job.gpus if self._may_hold(attempt, gpu)]
            for gpu in held:
                if gpu not in self._asked:
                    self._asked.add(gpu)
                    self._questions.put(gpu)
            return not held

    def _may_hold(self, attempt: _Attempt, gpu: GpuId) -> bool:
        assert attempt.waited_since is not None
        began, pids = self._looks.get(gpu, (0.0, frozenset()))
        return began < attempt.waited_since or not pids.isdisjoint(attempt.processes)

    # -- for the monitor

    def question(self, within_s: float) -> GpuId | None:
        """A GPU whose processes someone wants to know; None: nobody has asked in that time."""
        try:
            return self._questions.get(timeout=within_s)
        except queue.Empty:
            return None

    def answer(self, gpu: GpuId, began: float, pids: frozenset[int] | None) -> None:
        """The pids that hold memory there, read from `began` on (monotonic); None: unknown."""
        with self._lock:
            self._asked.discard(gpu)
            self._looks[gpu] = began, pids or frozenset()

    def interrupt(self) -> None:
        """Make `question` return at once."""
        self._questions.put(None)

    def add(self, samples: Iterable[GpuSample]) -> tuple[GpuSample, ...]:
        """Add a reading. Returns it with the job of each process, and without unknown processes
        that are gone by now, whose owner can no longer be found."""
        named, own = [], dict[Key, list[GpuSample]]()
        for sample in samples:
            owners = {process.pid: self.attempt_of(process.pid) for process in sample.processes}
            processes = tuple(
                replace(process, job=owner[0], attempt=owner[1]) if owner else process
                for process in sample.processes
                if (owner := owners[process.pid]) or process_stat(process.pid)
            )
            if processes != sample.processes:
                sample = replace(sample, processes=processes)
            named.append(sample)
            for key in dict.fromkeys(filter(None, owners.values())):
                own.setdefault(key, []).append(sample)
        with self._lock:
            for key, readings in own.items():
                if attempt := self._attempts.get(key):
                    used = {each.gpu: _used(each) for each in readings}
                    held_mib = {each.gpu: _held_mib(key, each) for each in readings}
                    _keep(attempt.readings, _Reading(readings[0].at, used, held_mib))
            self._forget_ended()
        return tuple(named)

    def _forget_ended(self) -> None:
        long_ago = time.monotonic() - KNOWN_S
        for key, attempt in list(self._attempts.items()):
            if attempt.ended_at is not None and attempt.ended_at < long_ago:
                del self._attempts[key]
                for pid in attempt.processes:
                    if self._owners.get(pid) == key:
                        del self._owners[pid]

    # -- queries

    def signs(self) -> tuple[Signs, ...]:
        """Of all attempts that run."""
        with self._lock:
            groups = {key: path for path, key in self._cgroups.items()}
            # Of several processes of an attempt, the first is its supervisor.
            supervisors = {key: pid for pid, key in reversed(self._supervisors.items())}
        return read_signs({key: (pid, groups.get(key)) for key, pid in supervisors.items()})

    def attempt_of(self, pid: int) -> Key | None:
        """The attempt that a process belongs or belonged to: that of its cgroup, or of the
        supervisor among its ancestors, or the one that it is marked with."""
        with self._lock:
            known = self._owners.get(pid)
            was = self._attempts[known].processes.get(pid) if known else None
            cgroups, supervisors = dict(self._cgroups), dict(self._supervisors)
        stat = process_stat(pid)
        if stat is None or stat[1] == was:
            return known
        start = stat[1]
        owner = _by_cgroup(pid, cgroups) or _by_ancestors(pid, supervisors)
        owner = owner or self._by_mark(pid, start)
        if owner is None:
            return None
        with self._lock:
            if attempt := self._attempts.get(owner):
                self._owners[pid] = owner
                attempt.processes[pid] = start
        return owner

    def _by_mark(self, pid: int, start: int) -> Key | None:
        """The attempt with which a process is marked, whatever became of its parents. Reading that
        may take long, so another thread does it; meanwhile, the process counts as external."""
        with self._lock:
            marked = dict(self._marked)
        uid, *others = uids(pid) or {-1}
        if others or not any(uid == its for its, _ in marked):
            return None
        if self._marks.value(pid, start) is None:
            with contextlib.suppress(RuntimeError, TimeoutError):  # no thread can be started now
                self._asking = self._asking or Threads(1, "marks", LATE_S)
                asked = self._asking.submit(self._marks.ask, {pid: start})
                asked.result(self._patience_s)
            self._patience_s = 0.0 if self._marks.value(pid, start) is None else ASK_WITHIN_S
        return marked.get((uid, self._marks.value(pid, start) or b""))

    def running(self, attempt: Key) -> frozenset[int]:
        """The pids of its live processes that use a GPU."""
        with self._lock:
            known = self._attempts.get(attempt)
            processes = dict(known.processes) if known else {}
        return frozenset(pid for pid, start in processes.items() if running(pid, start))

    def full_gpu(
        self, attempt: Key, until: float, limits: Iterable[MemoryLimits] = ()
    ) -> FullGpu | None:
        """The GPU of the attempt that was full, or where its own limit was reached, in the last
        reading that showed its processes and was taken before `until` (Unix seconds), when its main
        process ended."""
        with self._lock:
            known = self._attempts.get(attempt)
            readings = list(known.readings) if known else []
        in_time = [reading for reading in readings if reading.at <= until] or readings[:1]
        if not in_time:
            return None
        last = in_time[-1]
        found = [FullGpu(gpu, share) for gpu, share in last.used.items()]
        found += [
            FullGpu(its.gpu, last.held_mib.get(its.gpu, 0) / its.most_mib, its.most_mib)
            for its in limits
            if its.most_mib
        ]
        fullest = max(found, key=lambda its: its.share, default=None)
        return fullest if fullest and fullest.share > 1 - FULL else None


def _without(found: dict[T, Key], attempt: Key) -> dict[T, Key]:
    return {key: its for key, its in found.items() if its != attempt}


def _by_cgroup(pid: int, cgroups: dict[str, Key]) -> Key | None:
    path = cgroup_of(pid) if cgroups else None
    while path and path != "/":
        if key := cgroups.get(path):
            return key
        path = os.path.dirname(path)  # noqa: PTH120 - not a file's
    return None


def _by_ancestors(pid: int, supervisors: dict[int, Key]) -> Key | None:
    while pid > 1:
        if key := supervisors.get(pid):
            return key
        stat = process_stat(pid)
        pid = stat[0] if stat else 0
    return None


def _used(sample: GpuSample) -> float:
    free, used = sample.memory_free_mib, sample.memory_used_mib
    return used / (free + used) if free is not None and used else 0.0


def _held_mib(attempt: Key, sample: GpuSample) -> int:
    own = (use for use in sample.processes if (use.job, use.attempt) == attempt)
    return sum(use.memory_mib or 0 for use in own)


def _keep(readings: deque[_Reading], reading: _Reading) -> None:
    readings.append(reading)
    while readings[0].at < reading.at - KEPT_S:
        readings.popleft()
