"""Samples the GPUs once a period, names the jobs behind the processes, and tells the core."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from carmad.config import Monitor as Settings
from carmad.core.messages import Discovered, DrainRequested, Sampled
from carmad.core.types import Gpu, GpuId, GpuSample, Job, JobId, ProcessUse
from carmad.daemon.inbox import Inbox
from carmad.errors import CarmaError
from carmad.gpu.source import Capabilities, TelemetrySource

log = logging.getLogger(__name__)

FULL = 0.03  # of a GPU's memory: less than this free is none
REDISCOVER_S = 60.0  # MIG instances come and go behind our back


class Monitor:
    """Owns the telemetry source: whoever else asks it does so through here.

    `owner(pid)` names the job a process belongs to; `recorded` is given every reading.
    """

    def __init__(
        self,
        source: TelemetrySource,
        settings: Settings,
        inbox: Inbox,
        owner: Callable[[int], JobId | None],
        recorded: Callable[[tuple[GpuSample, ...]], None],
    ) -> None:
        self._source = source
        self._settings = settings
        self._inbox = inbox
        self._owner = owner
        self._recorded = recorded
        self._lock = threading.Lock()
        self._gpus: tuple[Gpu, ...] = ()
        self._capabilities = source.capabilities()
        self._pids: dict[JobId, set[int]] = {}  # every process that a job was seen to use
        self._on_full: frozenset[JobId] = frozenset()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def start(self) -> None:
        """Look once before the first placement, then every period. Raises CarmaError."""
        self._discover()
        self._look()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        with self._lock:
            self._source.close()

    def capabilities(self) -> Capabilities:
        """As of the last reading: whoever asks does not wait for a driver that hangs."""
        return self._capabilities

    def memory_gone(self, job: Job) -> bool:
        """Has the driver let go of all that `job`'s processes held?"""
        mine = self._pids.get(job.id, set())
        with self._lock:
            for gpu in job.gpus:
                if mine & (self._source.pids(gpu) or frozenset()):
                    return False
        self._pids.pop(job.id, None)
        return True

    def forget(self, job: JobId) -> None:
        """It has ended, whether its memory has come back or not."""
        self._pids.pop(job, None)

    def was_full(self, job: JobId) -> bool:
        """Had a GPU of `job` next to nothing free at the last reading?"""
        return job in self._on_full

    def _run(self) -> None:
        due = self._inbox.clock()
        discover_at = due + REDISCOVER_S
        while not self._stopped.wait(max(0.0, due - self._inbox.clock())):
            due = max(due + self._settings.period_s, self._inbox.clock())
            try:
                if self._inbox.clock() >= discover_at:
                    discover_at += REDISCOVER_S
                    self._discover()
                self._look()
            except CarmaError as error:
                log.error("%s; %s", error, error.hint)
            except Exception:
                log.exception("a reading of the GPUs failed")

    def _discover(self) -> None:
        with self._lock:
            gpus = self._source.discover()
        if gpus != self._gpus:
            self._gpus = gpus
            self._inbox.post(Discovered(self._inbox.clock(), gpus))

    def _look(self) -> None:
        now = self._inbox.clock()
        with self._lock:
            readings = self._source.sample(now)
            news = self._source.health()
            self._capabilities = self._source.capabilities()
        samples = tuple(self._named(reading) for reading in readings)
        self._on_full = frozenset(
            process.job
            for sample in samples
            if _is_full(sample)
            for process in sample.processes
            if process.job
        )
        self._recorded(samples)
        self._inbox.post(Sampled(now, samples))
        for item in news:
            log.warning("GPU %s: %s", item.gpu, item.message)
            if item.drain:
                self._inbox.post(DrainRequested(now, item.gpu, item.message, "carmad"))

    def _named(self, reading: GpuSample) -> GpuSample:
        if not reading.processes:
            return reading
        named = tuple(self._with_owner(process, reading.gpu) for process in reading.processes)
        return replace(reading, processes=named)

    def _with_owner(self, process: ProcessUse, gpu: GpuId) -> ProcessUse:
        job = self._owner(process.pid)
        if job is None:
            return process
        self._pids.setdefault(job, set()).add(process.pid)
        return replace(process, job=job)


def _is_full(sample: GpuSample) -> bool:
    free, used = sample.memory_free_mib, sample.memory_used_mib
    return free is not None and used is not None and free < FULL * (free + used)
