"""Reads SMACT, SMOCC, DRAMA and more from a running DCGM through a long-lived `dcgmi dmon`."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from carmad import beats
from carmad.children import hear
from carmad.core.jobs.attempt import GpuId
from carmad.gpu.source import PROFILED, TRAFFIC, Activity, Unit, activity_of

# The columns come in this order. GPUs before Hopper cannot count all of these at once; DCGM
# multiplexes them, or refuses: then it is asked for the first three only.
_FIELDS = {
    "sm_active": 1002,
    "sm_occupancy": 1003,
    "dram_active": 1005,
    "graphics_active": 1001,
    "tensor_active": 1004,
    "fp32_active": 1007,
    "fp16_active": 1008,
    "pcie_tx_mib_s": 1009,
    "pcie_rx_mib_s": 1010,
    "nvlink_tx_mib_s": 1011,
    "nvlink_rx_mib_s": 1012,
}
BLANK = 2**47
MIB = 1 << 20
_FRESH_PERIODS = 3
_BACK_OFF_S = (1.0, 60.0)  # first and longest wait before dmon is restarted
_ANSWER_S = 20.0
LATE_S = 4 * _ANSWER_S  # at most three questions follow each other


class Entity(NamedTuple):
    """How dmon names a row: GPU, GPU-I (a GPU instance) or GPU-CI (a compute instance)."""

    kind: str
    number: int

    @property
    def argument(self) -> str:
        """In the form that `dcgmi dmon -i` takes."""
        prefix = {"GPU": "", "GPU-I": "i:", "GPU-CI": "ci:"}[self.kind]
        return f"{prefix}{self.number}"


class Place(NamedTuple):
    """A GPU, or an instance on it, by the driver's ids."""

    gpu: GpuId
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Dcgmi:
    """The command. After `close`, no process of it is left, and none is started."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, *words: str) -> str:
        """What it printed, or that DCGM does not answer. Raises OSError if it cannot be run."""
        process = self.start(*words)
        if process is None:
            return ""
        try:
            return hear(process, _ANSWER_S).decode(errors="replace")
        except subprocess.TimeoutExpired:
            return "the DCGM host engine does not answer\n"

    def start(self, *words: str) -> subprocess.Popen[bytes] | None:
        """None after `close`, which must know every process that was started. Raises OSError."""
        with self._lock:
            if self._closed:
                return None
            # If CARMA is killed, dmon ends at its next write to the closed pipe.
            self._process = subprocess.Popen(
                [self._command, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            return self._process

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()  # it has no state that a kill could damage


class DcgmProfiler:
    """Runs `dmon` in a subprocess and reads it in a thread, from `open` to `close`."""

    name = "dcgm"

    def __init__(self, period_s: float, command: str = "dcgmi") -> None:
        self._period_s = period_s
        self._command = command
        self._dcgmi = Dcgmi(command)
        self._units: tuple[Unit, ...] = ()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._fields = tuple(_FIELDS)  # to request from dmon next
        # Shared between the threads:
        self._lock = threading.Lock()
        self._entities: dict[Place, Entity] = {}
        self._rows: dict[Entity, tuple[float, Activity]] = {}  # monotonic arrival
        self._trouble = "dcgmi has not answered yet"

    def open(self, units: tuple[Unit, ...]) -> None:
        self._units = units
        self._dcgmi = Dcgmi(self._command)
        self._stopping.clear()
        self._thread = beats.thread("dcgm-dmon", LATE_S, self._keep_watching)
        self._thread.start()

    def read(self) -> Mapping[GpuId, Activity]:
        oldest = time.monotonic() - _FRESH_PERIODS * self._period_s
        with self._lock:
            fresh = {e: activity for e, (at, activity) in self._rows.items() if at >= oldest}
            found = {unit.gpu.id: _combine(unit, self._entities, fresh) for unit in self._units}
        return {gpu: activity for gpu, activity in found.items() if activity is not None}

    def missing(self) -> tuple[tuple[str, str], ...]:
        with self._lock:
            return tuple((what, f"dcgmi: {self._trouble}") for what in PROFILED if self._trouble)

    def close(self) -> None:
        if self._thread is None:
            return
        self._stopping.set()
        self._dcgmi.close()
        self._thread.join()
        self._thread = None
        self._rows.clear()

    # --- in the thread ---

    def _keep_watching(self) -> None:
        wait_s, longest_s = _BACK_OFF_S
        while not self._stopping.is_set():
            started = time.monotonic()
            beats.at("DCGM")
            try:
                trouble = self._watch()
            except OSError as error:
                trouble = str(error)
            with self._lock:
                self._trouble = trouble
            beats.idle()
            if time.monotonic() - started > longest_s:
                wait_s = _BACK_OFF_S[0]  # it had worked for a while
            self._stopping.wait(wait_s)
            wait_s = min(2 * wait_s, longest_s)

    def _watch(self) -> str:
        """Read one dmon until it ends. Returns why it ended."""
        # DCGM's ids are valid until the host engine restarts, so query them each time.
        listing = self._dcgmi.ask("discovery", "-l")
        if any(unit.gpu.is_mig for unit in self._units):
            listing += self._dcgmi.ask("discovery", "-c")
        with self._lock:
            self._entities = parse_discovery(listing)
        wanted = [e.argument for e in _entities(self._units, self._entities)]
        if not wanted:
            return _last_words(listing) or "discovery shows none of these GPUs"
        period_ms = str(max(1, round(self._period_s * 1000)))
        fields = ",".join(str(_FIELDS[name]) for name in self._fields)
        dmon = self._dcgmi.start("dmon", "-e", fields, "-d", period_ms, "-i", ",".join(wanted))
        last, rows = "dmon ended", 0
        if dmon is not None and dmon.stdout is not None:
            with dmon:
                beats.idle()  # DCGM may have nothing to say: its rows then go stale
                for line in dmon.stdout:
                    told = self._take(line.decode(errors="replace"))
                    rows += told is None
                    last = told or last
        if not rows:
            self._fields = PROFILED if len(self._fields) > len(PROFILED) else tuple(_FIELDS)
        return last

    def _take(self, line: str) -> str | None:
        """Store a row. Any other text may be the reason why dmon ends: return it."""
        row = parse_row(line)
        if row is None:
            return "" if _is_header(line) else line.strip()
        entity, activity = row
        with self._lock:
            self._rows[entity] = time.monotonic(), activity
            known = any(value is not None for value in (activity.sm_active, activity.dram_active))
            self._trouble = (
                "" if known else "N/A: this GPU or the host engine's user cannot profile"
            )
        return None


# --- parsing dcgmi's output ---

_ROW = re.compile(r"\s*(GPU|GPU-I|GPU-CI)\s+(\d+)\s+(.*)\n")
_LIST_ID = re.compile(r"\|\s*(\d+)\s*\|")
_LIST_UUID = re.compile(r"Device UUID:\s*(GPU-\S+)")
_TREE_GPU = re.compile(r"\|\s*GPU \d+\s*\|\s*GPU\s+(GPU-\S+)\s+\(EntityID:\s*(\d+)\)")
_TREE_INSTANCE = re.compile(r"\|\s*->\s+I \d+/(\d+)\s*\|.*\(EntityID:\s*(\d+)\)")
_TREE_COMPUTE = re.compile(r"\|\s*->\s+CI \d+/(\d+)/(\d+)\s*\|.*\(EntityID:\s*(\d+)\)")


def parse_row(line: str) -> tuple[Entity, Activity] | None:
    """One line of dmon; None for any other text, or for a truncated line."""
    match = _ROW.fullmatch(line)
    if match is None:
        return None
    values = match[3].split()
    if len(values) not in (len(PROFILED), len(_FIELDS)):
        return None
    figures = {name: _value(name, text) for name, text in zip(_FIELDS, values, strict=False)}
    return Entity(match[1], int(match[2])), activity_of(figures)


def parse_discovery(text: str) -> dict[Place, Entity]:
    """DCGM's entities by place, from the output of `discovery -l` followed by that of `-c`."""
    places: dict[Place, Entity] = {}
    number = 0
    gpu = GpuId("")
    for line in text.splitlines():
        if match := _TREE_GPU.match(line):
            gpu = GpuId(match[1])
            places[Place(gpu)] = Entity("GPU", int(match[2]))
        elif match := _TREE_INSTANCE.match(line):
            places[Place(gpu, int(match[1]))] = Entity("GPU-I", int(match[2]))
        elif match := _TREE_COMPUTE.match(line):
            place = Place(gpu, int(match[1]), int(match[2]))
            places[place] = Entity("GPU-CI", int(match[3]))
        else:
            if match := _LIST_ID.match(line):
                number = int(match[1])
            if match := _LIST_UUID.search(line):
                places[Place(GpuId(match[1]))] = Entity("GPU", number)
    return places


def _entities(units: Iterable[Unit], entities: Mapping[Place, Entity]) -> list[Entity]:
    places = [place for unit in units for place in _places(unit)]
    return [entities[place] for place in dict.fromkeys(places) if place in entities]


def _places(unit: Unit) -> tuple[Place, ...]:
    """The places that report on a unit, the most specific first."""
    if not unit.gpu.is_mig:
        return (Place(unit.gpu.id),)
    instance = Place(unit.physical, unit.gpu_instance)
    return (instance._replace(compute_instance=unit.compute_instance), instance)


def _combine(
    unit: Unit, entities: Mapping[Place, Entity], fresh: Mapping[Entity, Activity]
) -> Activity | None:
    """On MIG, SM figures come from the compute instance, DRAM's from the GPU instance; for the
    others, the compute instance is preferred."""
    rows = [fresh.get(entities[place]) for place in _places(unit) if place in entities]
    known = [row for row in rows if row is not None]
    if not known:
        return None
    return Activity(
        sm_active=_first(row.sm_active for row in known),
        sm_occupancy=_first(row.sm_occupancy for row in known),
        dram_active=_first(row.dram_active for row in reversed(known)),
        more=tuple({name: value for row in reversed(known) for name, value in row.more}.items()),
    )


def _first(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def _value(name: str, text: str) -> float | None:
    """None for `N/A`, DCGM's blank values (2^47 and up) and values too long for their column."""
    with contextlib.suppress(ValueError):
        value = float(text)
        if name in TRAFFIC and 0 <= value < BLANK:
            return value / MIB  # reported in bytes
        if 0 <= value < 2:
            return min(value, 1.0)  # rounding may exceed 1
    return None


def _is_header(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith(("#", "ID", "Id"))


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line and line[0] not in "+|"), "")
