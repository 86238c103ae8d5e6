"""What is known about each attempt: its processes, and the last readings of its GPUs that showed
them. Kept for a while after the attempt's end, so that the end can be explained.

The shepherd and the monitor update it. Nothing here queries a GPU, so no caller waits for one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import psutil

from carmad.attempt.environment import ATTEMPT_VARIABLE
from carmad.core.types import GpuId, GpuSample, Job, JobId

KEPT_S = 20.0  # of readings: child processes may outlive the main process by some seconds
KNOWN_S = 60.0  # of an ended attempt: the driver may still list its processes for a while
FULL = 0.03  # a GPU is full if a smaller share of its memory is free

T = TypeVar("T")
Key = tuple[JobId, int]  # a job and the number of its attempt


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    full: bool  # whether one of the GPUs that showed the attempt's processes was full


@dataclass(slots=True)
class _Attempt:
    processes: dict[int, psutil.Process] = field(default_factory=dict)  # that used a GPU, by pid
    readings: deque[_Reading] = field(default_factory=deque)  # that showed its processes
    waited_since: float | None = None  # monotonic; for the driver to free its memory
    ended_at: float | None = None  # monotonic


class Evidence:
    """Covers attempts whose supervisor is known, until a minute after their end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[Key, _Attempt] = {}
        self._supervisors: dict[int, Key] = {}
        self._marked: dict[tuple[int, str], Key] = {}
        self._owners: dict[int, Key] = {}  # of processes that used a GPU, by pid
        self._looks: dict[GpuId, tuple[float, frozenset[int]]] = {}  # when begun; pids on the GPU
        self._asked: set[GpuId] = set()
        self._questions: queue.SimpleQueue[GpuId | None] = queue.SimpleQueue()

    # -- for the shepherd

    def supervised(self, attempt: Key, *pids: int, marked: tuple[int, str] | None = None) -> None:
        """These processes supervise or run the attempt: their descendants belong to it. So do
        those that are `marked`: processes of this uid, with this ATTEMPT_VARIABLE."""
        with self._lock:
            self._supervisors.update(dict.fromkeys(pids, attempt))
            self._attempts.setdefault(attempt, _Attempt())
            if marked:
                self._marked[marked] = attempt

    def unsupervised(self, pid: int) -> None:
        """That supervisor has ended, and its attempt with it."""
        with self._lock:
            attempt = self._supervisors[pid]
            self._supervisors = _without(self._supervisors, attempt)
            self._marked = _without(self._marked, attempt)
            self._attempts[attempt].ended_at = time.monotonic()

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
                if (owner := owners[process.pid]) or psutil.pid_exists(process.pid)
            )
            if processes != sample.processes:
                sample = replace(sample, processes=processes)
            named.append(sample)
            for key in dict.fromkeys(filter(None, owners.values())):
                own.setdefault(key, []).append(sample)
        with self._lock:
            for key, readings in own.items():
                if attempt := self._attempts.get(key):
                    full = any(map(_is_full, readings))
                    _keep(attempt.readings, _Reading(readings[0].at, full))
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

    def attempt_of(self, pid: int) -> Key | None:
        """The attempt that a process belongs or belonged to: that of the supervisor among its
        ancestors, or the one that it is marked with."""
        with self._lock:
            known = self._owners.get(pid)
            was = self._attempts[known].processes.get(pid) if known else None
            supervisors, marked = dict(self._supervisors), dict(self._marked)
        try:
            process = psutil.Process(pid)
            if process == was:
                return known
            ancestor: psutil.Process | None = process
            while ancestor is not None and ancestor.pid not in supervisors:
                ancestor = ancestor.parent()
            owner = supervisors[ancestor.pid] if ancestor else _by_mark(process, marked)
        except psutil.Error:  # it is gone
            return known
        if owner is None:
            return None
        with self._lock:
            if attempt := self._attempts.get(owner):
                self._owners[pid] = owner
                attempt.processes[pid] = process
        return owner

    def running(self, attempt: Key) -> frozenset[int]:
        """The pids of its live processes that use a GPU."""
        with self._lock:
            known = self._attempts.get(attempt)
            processes = list(known.processes.values()) if known else []
        return frozenset(process.pid for process in processes if process.is_running())

    def was_full(self, attempt: Key, until: float) -> bool:
        """Whether one of its GPUs was full in the last reading that showed its processes and was
        taken before `until` (Unix seconds), when its main process ended."""
        with self._lock:
            known = self._attempts.get(attempt)
            readings = list(known.readings) if known else []
        in_time = [reading for reading in readings if reading.at <= until] or readings[:1]
        return bool(in_time) and in_time[-1].full


def _without(found: dict[T, Key], attempt: Key) -> dict[T, Key]:
    return {key: its for key, its in found.items() if its != attempt}


def _by_mark(process: psutil.Process, marked: Mapping[tuple[int, str], Key]) -> Key | None:
    """The attempt with which a process is marked, whatever became of its parents."""
    uid = process.uids().real if marked else None
    if not any(uid == owner for owner, _ in marked):
        return None
    try:
        return marked.get((process.uids().real, process.environ().get(ATTEMPT_VARIABLE, "")))
    except psutil.AccessDenied:
        return None


def _is_full(sample: GpuSample) -> bool:
    free, used = sample.memory_free_mib, sample.memory_used_mib
    return free is not None and used is not None and free < FULL * (free + used)


def _keep(readings: deque[_Reading], reading: _Reading) -> None:
    readings.append(reading)
    while readings[0].at < reading.at - KEPT_S:
        readings.popleft()
