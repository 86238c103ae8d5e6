"""Watches the GPUs: reads them once per period, notices processes outside of the queue, and checks
MPS. Readings go to `Evidence` and to the core."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import psutil

from carmad import beats
from carmad.attempt.evidence import Evidence, Key
from carmad.config import Monitor as Settings
from carmad.core.gpus.gpu import Gpu, GpuSample, ProcessUse
from carmad.core.jobs.attempt import GpuId, Mode
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import CARMAD, Discovered, DrainRequested, Noticed, Sampled, Silent
from carmad.core.scheduler import Scheduler
from carmad.daemon.hostuse import HostUse
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.gpu.mps import Mps, ServerState
from carmad.gpu.source import Capabilities, Health, TelemetrySource
from carmad.store.values import External

log = logging.getLogger(__name__)

REDISCOVER_S = 60.0  # MIG instances come and go behind our back
LOOK_AGAIN_S = 2.0  # for GPUs that cannot be read yet
LATE_S = 10.0
STOP_WITHIN_S = 5.0
PATIENCE_S = 10.0  # a hanging driver must not keep the queue from being served
SIGNS_EVERY = 15  # readings: then the jobs' signs of life are read, too


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
        self._host = HostUse()
        self._found: Discovered | None = None  # as the core was told last
        self._capabilities = source.capabilities()
        self._faulty: frozenset[GpuId] = frozenset()
        self._conditions: dict[GpuId, frozenset[str]] = {}  # their kinds, in the last reading
        self._silent: tuple[tuple[GpuId, str], ...] = ()  # as the core was told last
        self._readings = 0
        self._telling = threading.Lock()
        self._looked = threading.Event()
        self._stopped = threading.Event()
        self._thread = beats.thread("monitor", LATE_S, self._run)

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

    def cuda_indices(self) -> dict[GpuId, int]:
        """The indices by which CUDA knows the GPUs. Empty unless all are certain: one that fails
        may be missing in CUDA, and then the others' indices are lower."""
        working = self.working()
        found = {gpu.id: gpu.cuda_index for gpu in working if gpu.cuda_index is not None}
        every = self._found is not None and len(found) == len(self._found.gpus)
        return found if every and not self._silent else {}

    def _run(self) -> None:
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
        samples = self._host.add(samples, self._evidence.cgroups())
        news = self._source.health()
        self._capabilities = self._source.capabilities()
        self._faulty = frozenset(sample.gpu for sample in samples if sample.fault)
        for record in self._recorders:
            record(samples)
        now = self._inbox.clock()  # a reading may have taken long
        for item in (*news, *self._new_conditions(samples)):
            log.warning("GPU %s: %s", item.gpu, item.message)
            if item.drain:  # before the reading: no job is to be placed there in between
                self._inbox.post(DrainRequested(now, item.gpu, item.message, CARMAD))
        self._readings += 1
        signs = () if self._readings % SIGNS_EVERY else self._evidence.signs()
        self._inbox.post(Sampled(now, samples, signs))
        self._tell_silent(tuple(self._source.silent().items()))

    def _new_conditions(self, samples: Iterable[GpuSample]) -> Iterator[Health]:
        """An administrator may undrain a GPU whose condition lasts: it is drained once."""
        for sample in samples:
            if sample.fault:  # its condition is unknown
                continue
            before = self._conditions.get(sample.gpu, frozenset())
            self._conditions[sample.gpu] = frozenset(each.kind for each in sample.conditions)
            for each in sample.conditions:
                if each.kind not in before:
                    yield Health(sample.gpu, sample.at, each.message, each.drains)


# -- processes that use GPUs outside of the queue, for the record of them

MOST_LETTERS = 256  # of a command
MOST_EXTERNALS = 1000  # that are kept while nothing can be written


class Externals:
    """Filled by the monitor's thread, emptied by housekeeping's. Small ones, such as a desktop's,
    are left out: those that never held more than `least_mib` on a GPU."""

    def __init__(self, least_mib: int) -> None:
        self._least_mib = least_mib
        self._lock = threading.Lock()
        self._present: dict[tuple[GpuId, int], External] = {}
        self._gone: deque[External] = deque(maxlen=MOST_EXTERNALS)

    def add(self, samples: Iterable[GpuSample]) -> None:
        """A reading of all GPUs."""
        present: dict[tuple[GpuId, int], External] = {}
        for sample in samples:
            for use in sample.processes:
                if use.job is None:
                    key = sample.gpu, use.pid
                    known = self._present.get(key) or _external(sample, use)
                    present[key] = replace(
                        known, seen_to=sample.at, peak_mib=_larger(known.peak_mib, use.memory_mib)
                    )
        with self._lock:
            self._gone += [one for key, one in self._present.items() if key not in present]
            self._present = present

    def take(self) -> list[External]:
        """Those seen since the last call; what is still there will come again."""
        with self._lock:
            found = [*self._gone, *self._present.values()]
            self._gone.clear()
        return [one for one in found if one.peak_mib is None or one.peak_mib > self._least_mib]


def _external(sample: GpuSample, use: ProcessUse) -> External:
    try:
        started_at = psutil.Process(use.pid).create_time()
    except psutil.Error:  # already gone, or out of our sight
        started_at = sample.at
    command = use.command[:MOST_LETTERS]
    return External(
        sample.gpu, use.pid, started_at, use.user, command, sample.at, sample.at, use.memory_mib
    )


def _larger(one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return max(known, default=None)


# -- MPS while jobs run: daemons that are gone, servers with faults, jobs outside their server

MPS_EVERY_S = 30
MPS_LATE_S = 60.0  # for one job: each question to its daemon has a deadline


class MpsWatch:
    def __init__(self, mps: Mps, inbox: Inbox, evidence: Evidence) -> None:
        self._mps = mps
        self._inbox = inbox
        self._evidence = evidence
        self._outside: set[Key] = set()  # the attempts without a client at the last round

    def look(self) -> None:
        """Check all jobs under MPS, and their servers."""
        outside = set()
        for job in self._inbox.ask(_running_under_mps).result():
            beats.at(f"the MPS server of job {job.id}", MPS_LATE_S)
            gpu = job.gpus[0]  # all its GPUs have the same server
            if not self._mps.daemon(gpu).healthy():
                self._notice(job, "its MPS daemon does not answer")
                continue
            if self._runs_outside(job):
                outside.add((job.id, job.attempt))
            if (state := self._mps.daemon(gpu).state()) is ServerState.FAULT:
                self._notice(job, f"its MPS server is in state {state}: one of its clients crashed")
        self._outside = outside

    def _runs_outside(self, job: Job) -> bool:
        """Whether its processes use the GPU, but none of them is a client. Reported the second
        time, since a process that has just started may be about to connect."""
        attempt = (job.id, job.attempt)
        clients = self._mps.daemon(job.gpus[0]).clients()
        running = self._evidence.running(attempt)  # last: an ended process is not a client
        if not running or running & clients:
            return False
        if attempt in self._outside:
            self._notice(job, "runs outside MPS: it is time-sliced with its neighbours")
        return True

    def _notice(self, job: Job, note: str) -> None:
        self._inbox.post(Noticed(self._inbox.clock(), job.id, note))


def _running_under_mps(core: Scheduler) -> list[Job]:
    """Jobs that were launched under MPS and have run a kernel, so should be clients by now."""
    return [
        job
        for job in core.jobs.rows.values()
        if job.mode is Mode.MPS and job.kernels and job.state is JobState.RUNNING
    ]
