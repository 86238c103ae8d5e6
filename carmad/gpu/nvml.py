"""Reads NVIDIA GPUs and MIG instances through NVML (driver R510 or newer), and chooses the
telemetry source.

Profiling metrics come from an `ActivityReader`, the driver's events from an `EventWatcher`.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pynvml

from carmad.core.gpus.gpu import Condition, Gpu, GpuSample, ProcessUse
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu import gpm
from carmad.gpu.dcgm import DcgmProfiler
from carmad.gpu.dcgm_health import DcgmHealth
from carmad.gpu.driver import (
    FAULTS,
    MIB,
    NEVER,
    Board,
    Lanes,
    connect,
    count_boards,
    disconnect,
    in_words,
    islands,
    open_board,
    read_memory,
    units_of,
)
from carmad.gpu.events import EventWatcher
from carmad.gpu.gpm import GpmProfiler
from carmad.gpu.health import Checkup
from carmad.gpu.source import (
    PROFILED,
    Activity,
    ActivityReader,
    Capabilities,
    Health,
    TelemetrySource,
    Unit,
    Unprofiled,
)

_T = TypeVar("_T")

_RECONNECT_S = 5.0
_DRIVER, _PROFILER = "driver", "profiler"  # lanes beside those of the GPUs
_READINGS = (
    "memory",
    "processes",
    "process_sm_util",
    "utilization",
    "power",
    "energy",
    "temperature",
    "health",
)

_CHECK_DRIVER = "does nvidia-smi answer? See dmesg; if it does not, reboot the machine"
MPS_SERVER = "nvidia-cuda-mps-server"[:15]  # as the kernel shortens it


class NvmlSource:
    """A `TelemetrySource`. Holds every GPU open from `discover` to `close`."""

    def __init__(
        self,
        profiler: ActivityReader,
        dcgm: DcgmHealth | None = None,
        choose_profiler: Callable[[Sequence[Unit]], ActivityReader] | None = None,
    ) -> None:
        """`dcgm`: if DCGM is to be asked for the health of the GPUs. `choose_profiler`: replaces
        the first one in each session with the driver."""
        self._profiler = profiler
        self._choose_profiler = choose_profiler
        self._dcgm = dcgm
        self._lanes = Lanes()
        self._boards: list[Board] = []
        self._units: tuple[Unit, ...] = ()  # of the boards
        self._islands: dict[GpuId, str] = {}  # also of these; queried again when units change
        self._notes: tuple[str, ...] = ()
        self._news: queue.SimpleQueue[Health] = queue.SimpleQueue()
        self._people: dict[int, tuple[str, str, int | None]] = {}
        self._watcher: EventWatcher | None = None  # None: not connected
        self._faults: dict[GpuId, str] = {}  # while not connected
        self._retry_after: float | None = None  # the `at` of the failure; None: do not retry
        self._utilization_seen_us: dict[GpuId, int] = {}
        # Of one session with the driver:
        self._handles: dict[GpuId, Any] = {}
        self._never: dict[tuple[GpuId, str], str] = {}
        self._checkups: dict[GpuId, Checkup] = {}  # of physical GPUs

    @property
    def name(self) -> str:
        return f"nvml+{self._profiler.name}" if self._profiler.name else "nvml"

    @property
    def units(self) -> tuple[Unit, ...]:
        """What was discovered last, with the driver's ids, by index."""
        return self._units

    def discover(self) -> tuple[Gpu, ...]:
        """Cheap if nothing has changed: the daemon calls it repeatedly."""
        look = partial(_count, connected=self._watcher is not None)
        count = self._lanes.ask("look", {_DRIVER: look}).get(_DRIVER)
        if count is None:
            raise CarmaError(
                f"the driver does not answer {self._lanes.hangs(_DRIVER)}", _CHECK_DRIVER
            )
        boards, unopened = self._open(count)
        if unopened:
            # A known GPU that cannot be opened is faulty, not gone.
            here = {board.id for board in boards}
            boards += [board for board in self._boards if board.id not in here]
        self._boards = sorted(boards, key=lambda board: board.bus)
        self._notes = (
            *unopened,
            *(f"{board.id} takes no job: {board.why_none}" for board in boards if not board.units),
        )
        units = self._on_islands(units_of(self._boards))
        if self._watcher is None or units != self._units:
            self._finish()
            self._units = units
            self._begin()
        if unopened and not boards:  # they are there: jobs are not to be refused, but to wait
            raise CarmaError(unopened[0], _CHECK_DRIVER)
        return tuple(unit.gpu for unit in units)

    def _open(self, count: int) -> tuple[list[Board], list[str]]:
        """The physical GPUs in NVML's order, and notes on those that cannot be opened."""
        calls = {str(index): partial(open_board, index) for index in range(count)}
        found = self._lanes.ask("open", calls)
        boards, notes = [], []
        for lane in calls:
            board = found.get(lane) or f"the driver does not answer {self._lanes.hangs(lane)}"
            if isinstance(board, str):
                notes.append(f"GPU {lane} cannot be opened: {board}")
            else:
                boards.append(board)
        return boards, notes

    def _on_islands(self, units: Iterable[Unit]) -> tuple[Unit, ...]:
        """An instance is on the island of its GPU."""
        boards = [board.id for board in self._boards]
        if boards != list(self._islands):
            self._islands = islands(boards)
        return tuple(
            replace(
                unit, gpu=replace(unit.gpu, island=self._islands[unit.gpu.parent or unit.gpu.id])
            )
            for unit in units
        )

    def sample(self, at: float) -> tuple[GpuSample, ...]:
        if self._watcher is None and not self._reconnect(at):
            return tuple(
                GpuSample(unit.gpu.id, at, fault=self._faults[unit.gpu.id]) for unit in self._units
            )
        read = self._profiler.read
        activities = self._lanes.ask("profile", {_PROFILER: read}).get(_PROFILER, {})
        found = self._lanes.ask(
            "sample",
            {
                str(board.index): partial(self._read_all, its, at, activities)
                for board in self._boards
                if (its := [unit for unit in self._units if unit.physical == board.id])
            },
        )
        by_gpu = {sample.gpu: sample for samples in found.values() for sample in samples}
        samples = tuple(by_gpu[unit.gpu.id] for unit in self._units if unit.gpu.id in by_gpu)
        listed = {process.pid for sample in samples for process in sample.processes}
        self._people = {pid: who for pid, who in self._people.items() if pid in listed}
        if samples and all(sample.fault for sample in samples) and not self._lanes.any_hangs:
            # The driver is gone, or was restarted and every handle is stale.
            self._end({sample.gpu: sample.fault or "" for sample in samples})
            self._retry_after = at
        return samples

    def pids(self, gpu: GpuId) -> frozenset[int] | None:
        if self._watcher is None:
            return None
        if gpu not in {unit.gpu.id for unit in self._units}:
            return None
        lane = self._lane(gpu)
        return self._lanes.ask(f"pids of {gpu}", {lane: partial(self._pids, gpu)}).get(lane)

    def _lane(self, gpu: GpuId) -> str:
        its = next(unit.physical for unit in self._units if unit.gpu.id == gpu)
        return next(str(board.index) for board in self._boards if board.id == its)

    def _pids(self, gpu: GpuId) -> frozenset[int] | None:
        try:
            listed = self._list(gpu)
        except pynvml.NVMLError:
            return None
        return None if listed is None else frozenset(listed[0])

    def silent(self) -> Mapping[GpuId, str]:
        calls = {unit.gpu.id: self._lanes.hangs(self._lane(unit.gpu.id)) for unit in self._units}
        return {gpu: f"the driver does not answer {call}" for gpu, call in calls.items() if call}

    def health(self) -> tuple[Health, ...]:
        news = []
        with contextlib.suppress(queue.Empty):
            while True:
                news.append(self._news.get_nowait())
        return tuple(news)

    def capabilities(self) -> Capabilities:
        """Complete after the first `sample`, which queries everything."""
        missing = list(self._profiler.missing())
        for reading in _READINGS:
            whys = [f"{gpu}: {why}" for (gpu, what), why in self._never.items() if what == reading]
            if reading == "health" and self._watcher is not None and self._watcher.why_not:
                whys = [self._watcher.why_not]
            if whys:
                missing.append((reading, "; ".join(whys)))
        lacking = {what for what, _ in missing}
        provides = tuple(what for what in (*_READINGS, *PROFILED) if what not in lacking)
        return Capabilities(self.name, provides, tuple(missing), self._notes)

    def close(self) -> None:
        """A driver that hangs is left alone: to end the session might hang, too."""
        if self._watcher is not None and not self._lanes.any_hangs:
            self._end({unit.gpu.id: "released: CARMA has closed it" for unit in self._units})
        self._lanes.close()
        self._retry_after = None

    # --- one session with the driver ---

    def _begin(self) -> None:
        self._watcher = EventWatcher(self._units, self._news)
        if self._choose_profiler:
            self._profiler = self._choose_profiler(self._units)
        self._profiler.open(self._units)
        if self._dcgm:
            self._dcgm.open()

    def _finish(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
            self._profiler.close()
            if self._dcgm:
                self._dcgm.close()

    def _end(self, faults: dict[GpuId, str]) -> None:
        self._finish()
        disconnect()
        self._handles.clear()
        self._never.clear()
        self._checkups.clear()
        self._faults = faults

    def _reconnect(self, at: float) -> bool:
        # Setting the clock back must not delay the next try.
        if self._retry_after is None or 0 <= at - self._retry_after < _RECONNECT_S:
            return False
        self._retry_after = at
        try:
            if not self._lanes.ask("connect", {_DRIVER: _connect}):
                return False
        except CarmaError as error:
            self._faults = dict.fromkeys(self._faults, error.message)
            return False
        self._begin()
        return True

    # --- one GPU ---

    def _read_all(
        self, units: Sequence[Unit], at: float, activities: Mapping[GpuId, Activity]
    ) -> list[GpuSample]:
        found = [
            self._read(unit.gpu, at, activities.get(unit.gpu.id, Activity())) for unit in units
        ]
        if not found or all(sample.fault for sample in found):
            return found
        conditions = self._conditions(next(unit.physical for unit in units), at)
        return [replace(sample, conditions=conditions) for sample in found]

    def _conditions(self, board: GpuId, at: float) -> tuple[Condition, ...]:
        """What is wrong with a physical GPU, and so with each of its instances."""
        checkup = self._checkups.get(board) or Checkup(board)
        self._checkups[board] = checkup
        return (*checkup.conditions(at), *(self._dcgm.conditions(board) if self._dcgm else ()))

    def _read(self, gpu: Gpu, at: float, activity: Activity) -> GpuSample:
        try:
            handle = self._handle(gpu.id)
            memory = self._ask(
                gpu.id,
                "memory",
                lambda: read_memory(handle),
                vital=True,
            )
            processes = self._processes(gpu)
            utilization = self._ask(
                gpu.id, "utilization", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle)
            )
            power = self._ask(gpu.id, "power", lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
            energy = self._ask(
                gpu.id, "energy", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            )
            temperature = self._ask(
                gpu.id,
                "temperature",
                lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            )
        except pynvml.NVMLError as error:
            self._handles.pop(gpu.id, None)
            return GpuSample(gpu.id, at, fault=in_words(error))
        return GpuSample(
            gpu.id,
            at,
            memory_used_mib=None if memory is None else memory.used // MIB,
            memory_free_mib=None if memory is None else memory.free // MIB,
            sm_active=activity.sm_active,
            sm_occupancy=activity.sm_occupancy,
            dram_active=activity.dram_active,
            utilization=None if utilization is None else utilization.gpu / 100,
            memory_utilization=None if utilization is None else utilization.memory / 100,
            more=activity.more,
            power_w=None if power is None else power / 1000,
            energy_mj=energy,
            temperature_c=temperature,
            processes=processes,
        )

    def _handle(self, gpu: GpuId) -> Any:
        handle = self._handles.get(gpu)
        # After a MIG layout change, an old handle may refer to another instance (nvml.h).
        stale = (
            handle is not None
            and gpu.startswith("MIG-")
            and pynvml.nvmlDeviceGetUUID(handle) != gpu
        )
        if handle is None or stale:
            handle = self._handles[gpu] = pynvml.nvmlDeviceGetHandleByUUID(gpu)
        return handle

    def _ask(
        self, gpu: GpuId, reading: str, read: Callable[[], _T], vital: bool = False
    ) -> _T | None:
        """None if the reading is not available, now or ever. Raises NVMLError for a fault."""
        if (gpu, reading) in self._never:
            return None
        try:
            return read()
        except pynvml.NVMLError as error:
            stale_handle = vital and error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT
            if error.value in NEVER and not stale_handle:
                self._never[gpu, reading] = str(error)
            elif vital or error.value in FAULTS:
                raise
            return None

    def _processes(self, gpu: Gpu) -> tuple[ProcessUse, ...]:
        memory, mps_clients = self._list(gpu.id) or ({}, frozenset())
        busy = self._ask(gpu.id, "process_sm_util", lambda: self._busy_by_pid(gpu.id))
        uses = []
        for pid, mib in memory.items():
            user, command, uid = self._who(pid)
            # The driver may not sample each MPS client: one may be busy without a sample.
            idle = None if pid in mps_clients else 0.0
            sm_util = None if busy is None else busy.get(pid, idle)
            # More than the GPU has: the binding and early R535 drivers disagree on a struct.
            believed = None if mib is None or mib > gpu.memory_mib else mib
            # A server stays when its user's last client has left; it keeps nobody waiting.
            client = uid if pid in mps_clients and command != MPS_SERVER else None
            uses.append(
                ProcessUse(pid, believed, sm_util, user=user, command=command, mps_uid=client)
            )
        return tuple(uses)

    def _list(self, gpu: GpuId) -> tuple[dict[int, int | None], frozenset[int]] | None:
        """MiB by pid, None if the driver does not say, and the pids of MPS clients. The MPS server
        is among the pids."""
        handle = self._handle(gpu)
        compute = self._ask(
            gpu,
            "processes",
            lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
            vital=True,
        )
        clients = self._ask(
            gpu,
            "mps_processes",
            lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle),
        )
        if compute is None and clients is None:
            return None
        memory: dict[int, int | None] = {}
        # An MPS client may be in either list or in both: a union, never a sum.
        for process in [*(compute or ()), *(clients or ())]:
            used = process.usedGpuMemory
            mib = None if used is None else used // MIB
            memory[process.pid] = max(
                (known for known in (mib, memory.get(process.pid)) if known is not None),
                default=None,
            )
        return memory, frozenset(client.pid for client in clients or ())

    def _busy_by_pid(self, gpu: GpuId) -> dict[int, float]:
        """SM utilisation since the last call, 0–1. A pid without a sample ran no kernel."""
        now_us = int(time.time() * 1e6)
        # Not the driver's whole buffer the first time. Must survive the clock being set back.
        since_us = min(self._utilization_seen_us.get(gpu, now_us - 1_000_000), now_us)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handles[gpu], since_us)
        except pynvml.NVMLError as error:
            # No samples: NotFound, or in the binding an error with the value of success.
            if error.value not in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS):
                raise
            samples = []
        busy: dict[int, float] = {}
        newest_us = since_us
        for sample in samples:
            # Drivers are known to return pid 0, percentages in the billions, and old samples.
            if sample.pid == 0 or sample.smUtil > 100 or sample.timeStamp <= since_us:
                continue
            newest_us = max(newest_us, sample.timeStamp)
            busy[sample.pid] = max(busy.get(sample.pid, 0.0), sample.smUtil / 100)
        self._utilization_seen_us[gpu] = newest_us
        return busy

    def _who(self, pid: int) -> tuple[str, str, int | None]:
        """User, command and uid; empty if the process is gone or in another pid namespace."""
        if pid not in self._people:
            try:
                # Not psutil's name(): it may read the arguments, which a process can make hang.
                command = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
                process = psutil.Process(pid)
                self._people[pid] = process.username(), command, process.uids().real
            except (OSError, psutil.Error):
                self._people[pid] = "", "", None
        return self._people[pid]


def _count(connected: bool) -> int:
    """How many physical GPUs there are; the session stays open. Raises CarmaError."""
    if not connected:
        connect()
    try:
        return count_boards()
    except CarmaError:
        if not connected:
            disconnect()
        raise


def _connect() -> bool:
    """Raises CarmaError."""
    connect()
    return True


# -- the choice: the source named in the settings, or the best one for this machine

_DCGMI = "dcgmi"
_REMEDY = "needs DCGM or a Hopper GPU; install datacenter-gpu-manager and start nvidia-dcgm"


def choose(name: str, period_s: float) -> TelemetrySource:
    """The source `name`: auto, nvml, gpm, dcgm or emulated:DIR, to be sampled every `period_s`.

    Does not need the driver yet, which may be loaded later. Raises CarmaError for other names."""
    kind, _, argument = name.partition(":")
    if kind == "emulated" and argument:
        from carmad.gpu.emulated import EmulatedSource

        return EmulatedSource(Path(argument))
    dcgm = DcgmHealth(_DCGMI) if shutil.which(_DCGMI) else None
    match name:
        case "auto":
            return NvmlSource(
                Unprofiled("no GPU is open yet"), dcgm, partial(_best, period_s=period_s)
            )
        case "nvml":
            return NvmlSource(Unprofiled("the plain nvml source was asked for"))
        case "gpm":
            return NvmlSource(GpmProfiler())
        case "dcgm":
            return NvmlSource(DcgmProfiler(period_s), dcgm)
    raise CarmaError(
        f"no telemetry source is called {name!r}", "use auto, nvml, gpm, dcgm or emulated:DIR"
    )


def _best(units: Sequence[Unit], period_s: float) -> ActivityReader:
    """GPM if every GPU has it, otherwise DCGM if it is installed: it may start later."""
    without_gpm = gpm.find_unsupported(units)
    if not without_gpm:
        return GpmProfiler()
    if shutil.which(_DCGMI):
        return DcgmProfiler(period_s, _DCGMI)
    why = next(iter(without_gpm.values()))
    return Unprofiled(f"{_REMEDY} ({why}; {_DCGMI} is not installed)")
