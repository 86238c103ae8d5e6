"""Watches the GPU of a visit: peaks of process trees, means over a window."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from threading import Event, Thread
from types import TracebackType

import psutil
import pynvml

from benchmarks.hardware.visit import Visit
from carmad.core.types import Gpu, GpuId, GpuSample, ProcessUse
from carmad.errors import CarmaError
from carmad.gpu.choose import choose
from carmad.gpu.driver import MIB, connect, disconnect
from carmad.gpu.source import Capabilities, Health, TelemetrySource

PERIOD_S, REHEARSED_S = 0.05, 0.2
SETTLED_S = 0.2  # after the begin of a window: a sample's activity is that of up to 0.1 s before
FIGURES = ("sm_active", "sm_occupancy", "dram_active", "utilization", "power_w")


@dataclass(frozen=True, slots=True)
class Here:
    """The GPU of a visit."""

    gpu: Gpu
    driver: str

    @property
    def folder(self) -> str:
        """Its name as a folder's."""
        return "-".join(self.gpu.name.lower().split())


def here(visit_gpu: str, rehearse: bool) -> Here:
    """The GPU with this UUID or index, or the first. Raises CarmaError if there is none."""
    source = _source(rehearse)
    try:
        gpu = _chosen(source.discover(), visit_gpu)
        return Here(gpu, "none" if rehearse else _driver())
    finally:
        source.close()


def _chosen(gpus: Iterable[Gpu], wanted: str) -> Gpu:
    for gpu in gpus:
        if wanted in ("", gpu.id, str(gpu.index)):
            return gpu
    raise CarmaError(f"there is no GPU {wanted}", "name one by its index or UUID: nvidia-smi -L")


def _driver() -> str:
    connect()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        disconnect()


def _source(rehearse: bool) -> TelemetrySource:
    return Host() if rehearse else choose("auto", PERIOD_S)


class Watch:
    """Samples the GPU of a visit in a thread, for as long as its `with` lasts."""

    def __init__(self, visit: Visit) -> None:
        self._source = _source(visit.rehearse)
        self._period_s = REHEARSED_S if visit.rehearse else PERIOD_S
        self._wanted = visit.gpu
        self._samples: list[GpuSample] = []
        self._now: dict[int, int] = {}  # MiB, by the pid that is the tree's root
        self._peaks: dict[int, int] = {}  # the same
        self._roots: dict[int, int] = {}  # by pid
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self.gpu = _chosen(self._source.discover(), self._wanted)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._source.close()

    def peak_mib(self, root: int) -> int | None:
        """Of `root` and all that it started; None if the driver never listed them: in a container
        it may list the pids of the host."""
        return self._peaks.get(root)

    def mib(self, root: int) -> int | None:
        """As `peak_mib`, but now; None also if it has left."""
        self.seen()
        return self._now.get(root)

    def used_mib(self, since: float) -> int:
        """The most that the whole GPU had in use."""
        return max(sample.memory_used_mib or 0 for sample in self._since(since))

    def used_now(self) -> int:
        self.seen()
        return self._samples[-1].memory_used_mib or 0

    def means(self, began: float, ended: float) -> dict[str, float | None]:
        """FIGURES over a window; None: this source does not tell."""
        samples = [s for s in self._samples if began + SETTLED_S <= s.at <= ended]
        found: dict[str, float | None] = {}
        for name in FIGURES:
            values = [v for sample in samples if (v := getattr(sample, name)) is not None]
            found[name] = round(fmean(values), 4) if values else None
        return found

    def seen(self, count: int = 2, within_s: float = 2.0) -> None:
        """Wait until the GPU was looked at so often, as it is now."""
        wanted = len(self._samples) + count
        deadline = time.monotonic() + within_s
        while len(self._samples) < wanted and time.monotonic() < deadline:
            time.sleep(self._period_s / 2)

    def _since(self, at: float) -> list[GpuSample]:
        return [sample for sample in self._samples if sample.at >= at]

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            at = time.monotonic()
            sample = next(s for s in self._source.sample(at) if s.gpu == self.gpu.id)
            self._note(sample.processes)
            self._samples.append(sample)

    def _note(self, processes: Iterable[ProcessUse]) -> None:
        now: dict[int, int] = {}
        for process in processes:
            root = self._root(process.pid)
            now[root] = now.get(root, 0) + (process.memory_mib or 0)
        self._now = now
        for root, mib in now.items():
            self._peaks[root] = max(mib, self._peaks.get(root, 0))

    def _root(self, pid: int) -> int:
        """The child of this process from which `pid` descends; itself if it is somebody else's."""
        if pid not in self._roots:
            try:
                line = [pid, *(parent.pid for parent in psutil.Process(pid).parents())]
            except psutil.Error:
                line = [pid]
            me = os.getpid()
            self._roots[pid] = line[line.index(me) - 1] if me in line[1:] else pid
        return self._roots[pid]


class Host:
    """In a rehearsal, the host is the GPU: a process has its resident memory there, and what it
    takes of the processors is the activity. A `TelemetrySource`."""

    name = "host"

    def __init__(self) -> None:
        self._busy = (time.monotonic(), 0.0)

    def discover(self) -> tuple[Gpu, ...]:
        memory = psutil.virtual_memory().total // MIB
        return (Gpu(GpuId("GPU-rehearsal"), 0, "rehearsal", memory),)

    def sample(self, at: float) -> tuple[GpuSample, ...]:
        uses, busy_s = [], 0.0
        for child in psutil.Process().children(recursive=True):
            try:
                times = child.cpu_times()
                busy_s += times.user + times.system
                uses.append(ProcessUse(child.pid, child.memory_info().rss // MIB))
            except psutil.Error:
                continue
        (before, before_s), self._busy = self._busy, (at, busy_s)
        active = min(1.0, max(0.0, busy_s - before_s) / max(at - before, 1e-6))
        return (
            GpuSample(
                GpuId("GPU-rehearsal"),
                at,
                memory_used_mib=sum(use.memory_mib or 0 for use in uses),
                sm_active=active,
                sm_occupancy=active / 2,
                dram_active=active / 2,
                processes=tuple(uses),
            ),
        )

    def pids(self, gpu: GpuId) -> frozenset[int]:
        return frozenset(child.pid for child in psutil.Process().children(recursive=True))

    def health(self) -> tuple[Health, ...]:
        return ()

    def capabilities(self) -> Capabilities:
        return Capabilities(self.name, ("memory", "sm_active"))

    def close(self) -> None:
        pass
