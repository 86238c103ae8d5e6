"""Reads the GPUs once per period, and passes the readings on to `Evidence` and to the core."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from carmad import beats
from carmad.attempt.evidence import Evidence
from carmad.config import Monitor as Settings
from carmad.core.messages import Discovered, DrainRequested, Sampled, Silent
from carmad.core.types import Gpu, GpuId, GpuSample
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.gpu.source import Capabilities, TelemetrySource

log = logging.getLogger(__name__)

REDISCOVER_S = 60.0  # MIG instances come and go behind our back
LOOK_AGAIN_S = 2.0  # for GPUs that cannot be read yet
LATE_S = 10.0
STOP_WITHIN_S = 5.0
PATIENCE_S = 10.0  # a hanging driver must not keep the queue from being served


class Monitor:
    """Only its thread calls the telemetry source, which may hang; all others see the last readings.
    `recorders` get each reading.
    """

    def __init__(
        self,
        source: TelemetrySource,
        settings: Settings,
        inbox: Inbox,
        evidence: Evidence,
        *recorders: Callable[[tuple[GpuSample, ...]], None],
    ) -> None:
        self._source = source
        self._settings = settings
        self._inbox = inbox
        self._evidence = evidence
        self._recorders = recorders
        self._found: Discovered | None = None  # as the core was told last
        self._capabilities = source.capabilities()
        self._faulty: frozenset[GpuId] = frozenset()
        self._silent: tuple[tuple[GpuId, str], ...] = ()  # as the core was told last
        self._telling = threading.Lock()
        self._looked = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def start(self) -> None:
        """Read once before the first placement, then every period. If the GPUs cannot be read yet,
        because the driver is loaded late, it retries without blocking anyone."""
        self._thread.start()
        if not self._looked.wait(PATIENCE_S):
            with self._telling:
                if self._found is None:
                    self._tell((), "the driver has not answered yet")

    def stop(self) -> None:
        """Stop, and close the driver, unless a call to it hangs."""
        self._stopped.set()
        self._evidence.interrupt()
        self._thread.join(STOP_WITHIN_S)

    def hangs(self, late: beats.Late) -> None:
        """Called in another thread when this one is late: tell the core why there is nothing."""
        if late.thread == "monitor" and self._found:
            why = f"the thread monitor hangs in {late.call}"
            self._tell_silent(tuple((gpu.id, why) for gpu in self._found.gpus))

    def capabilities(self) -> Capabilities:
        """As of the last reading, so that no caller waits for a hanging driver."""
        return self._capabilities

    def working(self) -> tuple[Gpu, ...]:
        """The GPUs without a fault, as of the last reading."""
        known = self._found.gpus if self._found else ()
        return tuple(gpu for gpu in known if gpu.id not in self._faulty)

    def _run(self) -> None:
        with beats.beating("monitor", LATE_S):
            try:
                self._read_until_stopped()
            finally:
                self._source.close()

    def _read_until_stopped(self) -> None:
        due = discover_at = self._inbox.clock()
        while self._answer_until(due):
            due = max(due + self._settings.period_s, self._inbox.clock())
            beats.at("a reading of the GPUs")
            try:
                if self._inbox.clock() >= discover_at:
                    discover_at = self._inbox.clock() + LOOK_AGAIN_S
                    self._discover()
                    if not self._unknown:
                        discover_at = self._inbox.clock() + REDISCOVER_S
                self._read()
            except Exception as error:
                log.exception("a reading of the GPUs failed")
                if self._unknown:
                    with self._telling:
                        self._tell((), f"a reading of them failed: {type(error).__name__}")
            self._looked.set()

    def _answer_until(self, due: float) -> bool:
        """Until the next reading is due, list processes on GPUs that jobs left. False: stop."""
        until = time.monotonic() + due - self._inbox.clock()
        beats.idle()
        while gpu := self._evidence.question(max(0.0, until - time.monotonic())):
            beats.at(f"the processes on GPU {gpu}")
            began = time.monotonic()
            try:
                pids = self._source.pids(gpu)
            except Exception:
                log.exception("cannot tell which processes are on GPU %s", gpu)
                pids = None
            self._evidence.answer(gpu, began, pids)
            beats.idle()
        return not self._stopped.is_set()

    @property
    def _unknown(self) -> bool:
        """Whether the GPUs are not known yet."""
        return self._found is None or bool(self._found.unread)

    def _discover(self) -> None:
        try:
            gpus = self._source.discover()
        except CarmaError as error:
            if not self._unknown:  # known GPUs show their fault
                log.error("%s; %s", error, error.hint)
                return
            with self._telling:
                self._tell((), error.message, error.hint)
        else:
            with self._telling:
                self._tell(gpus)

    def _tell(self, gpus: tuple[Gpu, ...], unread: str = "", hint: str = "") -> None:
        """Tell the core, if it is news."""
        found = Discovered(self._inbox.clock(), gpus, unread)
        before, self._found = self._found, found
        if before is not None and (before.gpus, before.unread) == (gpus, unread):
            return
        self._inbox.post(found)
        if unread:
            log.warning("the GPUs cannot be read yet, and jobs wait: %s; %s", unread, hint)
        elif before is not None and before.unread:
            log.info("the GPUs can be read now: there are %d", len(gpus))

    def _tell_silent(self, gpus: tuple[tuple[GpuId, str], ...]) -> None:
        """Tell the core, if it is news."""
        with self._telling:
            before, self._silent = self._silent, gpus
            if gpus == before:
                return
            self._inbox.post(Silent(self._inbox.clock(), gpus))
        for gpu, why in gpus:
            log.warning("GPU %s cannot be read, and takes no jobs: %s", gpu, why)
        for gpu in sorted({gpu for gpu, _ in before} - {gpu for gpu, _ in gpus}):
            log.info("GPU %s can be read again", gpu)

    def _read(self) -> None:
        samples = self._evidence.add(self._source.sample(self._inbox.clock()))
        news = self._source.health()
        self._capabilities = self._source.capabilities()
        self._faulty = frozenset(sample.gpu for sample in samples if sample.fault)
        for record in self._recorders:
            record(samples)
        now = self._inbox.clock()  # a reading may have taken long
        self._inbox.post(Sampled(now, samples))
        self._tell_silent(tuple(self._source.silent().items()))
        for item in news:
            log.warning("GPU %s: %s", item.gpu, item.message)
            if item.drain:
                self._inbox.post(DrainRequested(now, item.gpu, item.message, "carmad"))
