"""Watches the GPU of a visit: peaks of process trees, means over a window."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from threading import Event, Thread
from types import TracebackType

import psutil
import pynvml

from carmad.core.gpus.gpu import Gpu, GpuSample, ProcessUse
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu.driver import MIB, connect, disconnect
from carmad.gpu.nvml import choose
from carmad.gpu.source import Capabilities, Health, TelemetrySource
from lab.hardware.visit import Visit

PERIOD_S, REHEARSED_S = 0.05, 0.2
SETTLED_S = 0.2  # after the begin of a window: a sample's activity is that of up to 0.1 s before
FIGURES = ("sm_active", "sm_occupancy", "dram_active", "utilization", "memory_utilization")
LAGS_S = 1.0  # NVML averages power and utilisation over up to so much
LAGGING = ("utilization", "memory_utilization", "power_w")
COUNTED_S = 0.3  # the energy counter advances in steps of about 0.1 s
IDLE_MIB = 1024  # of an idle GPU, the driver itself takes less


@dataclass(frozen=True, slots=True)
class Here:
    """The GPU of a visit."""

    gpu: Gpu
    driver: str
    in_use: str = ""  # by whom, or with how much; "": it is idle

    @property
    def folder(self) -> str:
        """Its name as a folder's."""
        return "-".join(self.gpu.name.lower().split())


def here(visit_gpu: str, rehearse: bool) -> Here:
    """The GPU with this UUID or index, or the first. Raises CarmaError if there is none."""
    source = _source(rehearse)
    try:
        gpu = _chosen(source.discover(), visit_gpu)
        if rehearse:
            return Here(gpu, "none")
        return Here(gpu, _driver(), _in_use(_sample_of(source, gpu)))
    finally:
        source.close()


def _chosen(gpus: Iterable[Gpu], wanted: str) -> Gpu:
    for gpu in gpus:
        if wanted in ("", gpu.id, str(gpu.index)):
            return gpu
    raise CarmaError(f"there is no GPU {wanted}", "name one by its index or UUID: nvidia-smi -L")


def _sample_of(source: TelemetrySource, gpu: Gpu) -> GpuSample:
    return next(each for each in source.sample(time.monotonic()) if each.gpu == gpu.id)


def _in_use(sample: GpuSample) -> str:
    """In a container, the processes of others may be hidden, but not what they hold."""
    if pids := ", ".join(str(process.pid) for process in sample.processes):
        return f"processes {pids}"
    used = sample.memory_used_mib or 0
    return f"{used} MiB of its memory are taken" if used > IDLE_MIB else ""


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

    def __init__(self, visit: Visit, source: str = "auto") -> None:
        """`source`: as in the settings; an emulated card is not the visit's GPU."""
        self._period_s = REHEARSED_S if visit.rehearse else PERIOD_S
        emulated = source != "auto"
        self._source = choose(source, PERIOD_S) if emulated else _source(visit.rehearse)
        self._wanted = "" if emulated else visit.gpu
        self._samples: list[GpuSample] = []
        self._now: dict[int, int] = {}  # MiB, by the pid that is the tree's root
        self._peaks: dict[int, int] = {}  # the same
        self._roots: dict[int, int] = {}  # by pid
        self._error: Exception | None = None  # that ended the thread
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
        self._check()
        return self._peaks.get(root)

    def mib(self, root: int) -> int | None:
        """As `peak_mib`, but now; None also if it has left."""
        self.seen()
        return self._now.get(root)

    def used_mib(self, since: float) -> int:
        """The most that the whole GPU had in use."""
        self._check()
        return max((s.memory_used_mib or 0 for s in self._samples if s.at >= since), default=0)

    def used_now(self) -> int:
        self.seen()
        return self._samples[-1].memory_used_mib or 0

    def means(self, began: float, ended: float) -> dict[str, float | None]:
        """FIGURES and `power_w` over a window; None: this source does not tell, or the window is
        too short for what lags."""
        self._check()
        samples = [s for s in self._samples if began + SETTLED_S <= s.at <= ended]
        settled = [s for s in samples if s.at >= began + LAGS_S]
        found = {name: _mean(settled if name in LAGGING else samples, name) for name in FIGURES}
        counted = counted_w(samples)
        return found | {"power_w": _mean(settled, "power_w") if counted is None else counted}

    def seen(self, count: int = 2, within_s: float = 2.0) -> None:
        """Wait until the GPU was looked at so often, as it is now."""
        wanted = len(self._samples) + count
        deadline = time.monotonic() + within_s
        self._check()
        while len(self._samples) < wanted and time.monotonic() < deadline:
            time.sleep(self._period_s / 2)
            self._check()

    def _check(self) -> None:
        """Raises RuntimeError if nobody watches any more."""
        if self._error is not None:
            raise RuntimeError(f"the GPU is no longer watched: {self._error!r}") from self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._period_s):
                sample = _sample_of(self._source, self.gpu)
                self._note(sample.processes)
                self._samples.append(sample)
        except Exception as error:  # noqa: BLE001 - a thread's top: those who ask are told
            self._error = error

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


def _mean(samples: Iterable[GpuSample], name: str) -> float | None:
    values = [value for sample in samples if (value := getattr(sample, name)) is not None]
    return round(fmean(values), 4) if values else None


def counted_w(samples: Iterable[GpuSample]) -> float | None:
    """The mean power by the energy counter; None if there is none, or the time is too short."""
    counts = [(each.at, each.energy_mj) for each in samples if each.energy_mj is not None]
    if not counts or counts[-1][0] - counts[0][0] < COUNTED_S:
        return None
    (began, first), (ended, last) = counts[0], counts[-1]
    return round((last - first) / 1000 / (ended - began), 4) if last > first else None


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

    def silent(self) -> Mapping[GpuId, str]:
        return {}

    def health(self) -> tuple[Health, ...]:
        return ()

    def capabilities(self) -> Capabilities:
        return Capabilities(self.name, ("memory", "sm_active"))

    def close(self) -> None:
        pass
