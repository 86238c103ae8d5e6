"""Samples the GPUs once a period, names the jobs behind the processes, and tells the core."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from carmad.config import Monitor as Settings
from carmad.core.messages import Discovered, DrainRequested, Sampled
from carmad.core.types import Gpu, GpuId, GpuSample, Job, JobId, ProcessUse
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.gpu.source import Capabilities, TelemetrySource

log = logging.getLogger(__name__)

FULL = 0.03  # of a GPU's memory: less than this free is none
REDISCOVER_S = 60.0  # MIG instances come and go behind our back
LOOK_AGAIN_S = 2.0  # for GPUs that cannot be read yet
PATIENCE_S = 10.0  # a hanging driver must not keep the queue from being served
ASIDE_S = 0.2  # nor the ends of jobs from being reported


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
        self._found: Discovered | None = None  # as the core was told last
        self._capabilities = source.capabilities()
        self._pids: dict[JobId, set[int]] = {}  # every process that a job was seen to use
        self._on_full: frozenset[JobId] = frozenset()
        self._telling = threading.Lock()
        self._looked = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def start(self) -> None:
        """Look once before the first placement, then every period. GPUs that cannot be read yet,
        as their driver is loaded late, are waited for, and nobody has to wait for that."""
        self._thread.start()
        if not self._looked.wait(PATIENCE_S):
            with self._telling:
                if self._found is None:
                    self._tell((), "the driver has not answered yet")

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
        """Has the driver let go of all that `job`'s processes held? No, as long as it hangs."""
        mine = self._pids.get(job.id, set())
        if not self._lock.acquire(timeout=ASIDE_S):
            return False
        try:
            for gpu in job.gpus:
                if mine & (self._source.pids(gpu) or frozenset()):
                    return False
        finally:
            self._lock.release()
        self._pids.pop(job.id, None)
        return True

    def forget(self, job: JobId) -> None:
        """It has ended, whether its memory has come back or not."""
        self._pids.pop(job, None)

    def was_full(self, job: JobId) -> bool:
        """Had a GPU of `job` next to nothing free at the last reading?"""
        return job in self._on_full

    def _run(self) -> None:
        due = discover_at = self._inbox.clock()
        while not self._stopped.wait(max(0.0, due - self._inbox.clock())):
            due = max(due + self._settings.period_s, self._inbox.clock())
            try:
                if self._inbox.clock() >= discover_at:
                    discover_at = self._inbox.clock() + LOOK_AGAIN_S
                    self._discover()
                    if not self._unknown:
                        discover_at = self._inbox.clock() + REDISCOVER_S
                self._look()
            except Exception as error:
                log.exception("a reading of the GPUs failed")
                if self._unknown:
                    with self._telling:
                        self._tell((), f"a reading of them failed: {type(error).__name__}")
            self._looked.set()

    @property
    def _unknown(self) -> bool:
        """Is it not known yet which GPUs there are?"""
        return self._found is None or bool(self._found.unread)

    def _discover(self) -> None:
        try:
            with self._lock:
                gpus = self._source.discover()
        except CarmaError as error:
            if not self._unknown:  # those that are known show their fault
                log.error("%s; %s", error, error.hint)
                return
            with self._telling:
                self._tell((), error.message, error.hint)
        else:
            with self._telling:
                self._tell(gpus)

    def _tell(self, gpus: tuple[Gpu, ...], unread: str = "", hint: str = "") -> None:
        """To the core, if it has changed."""
        found = Discovered(self._inbox.clock(), gpus, unread)
        before, self._found = self._found, found
        if before is not None and (before.gpus, before.unread) == (gpus, unread):
            return
        self._inbox.post(found)
        if unread:
            log.warning("the GPUs cannot be read yet, and jobs wait: %s; %s", unread, hint)
        elif before is not None and before.unread:
            log.info("the GPUs can be read now: there are %d", len(gpus))

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
