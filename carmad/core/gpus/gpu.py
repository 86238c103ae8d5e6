"""A GPU, its readings and the window of them, and which GPUs a job accepts."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Self

from carmad.config import Monitor, Risk
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.spec import JobSpec

Level = tuple[float, float]  # a value, and for how many seconds it held
MIB_PER_GB = 10**9 / 2**20
SHORT = 0.97  # of what a card is sold as, at least this is there: 11,441 MiB of a K80's 12 GB
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(?:g|gb|gib)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG instance (then `parent` is its GPU). `memory_mib` is what jobs may use."""

    id: GpuId
    index: int  # in PCI bus order
    name: str
    memory_mib: int
    parent: GpuId | None = None
    node: str = "local"
    island: str = ""  # a node's GPUs with the same value are close: by NVLink, or on one socket
    cpus: tuple[int, ...] = ()  # on its NUMA node; none: all are, or it is not known
    guarantees: bool = False  # its driver can limit a job's memory there, and guarantee it
    cuda_index: int | None = None  # with CUDA_DEVICE_ORDER=PCI_BUS_ID; None: not known for certain

    @property
    def is_mig(self) -> bool:
        return self.parent is not None


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one GPU. None: the source does not report it."""

    pid: int
    memory_mib: int | None
    sm_util: float | None = None  # 0–1; 0 means no kernel ran in the last period
    job: JobId | None = None  # filled in by the daemon's monitor
    user: str = ""
    command: str = ""
    attempt: int | None = None  # of that job; the driver may list an earlier one's for a while
    mps_uid: int | None = None  # its user, if it is the client of an MPS server


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is wrong with a GPU, although it works."""

    kind: str  # a word, the same as long as it lasts
    message: str  # for people; may change
    drains: bool = False  # the GPU should take no further job until an admin resumes it


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU. Fractions are 0–1; None means not available, never zero."""

    gpu: GpuId
    at: float
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None
    sm_active: float | None = None  # SMACT
    sm_occupancy: float | None = None  # SMOCC
    dram_active: float | None = None  # DRAMA
    utilization: float | None = None  # NVML's: time with any kernel at all
    power_w: float | None = None
    energy_mj: int | None = None  # millijoules since the driver was loaded
    temperature_c: int | None = None
    processes: tuple[ProcessUse, ...] = ()
    fault: str | None = None  # lost, driver gone, …: the GPU takes no job
    memory_utilization: float | None = None  # NVML's: time in which memory was read or written
    more: tuple[tuple[str, float], ...] = ()  # further metrics of this source, by name
    conditions: tuple[Condition, ...] = ()

    @property
    def activity(self) -> float | None:
        """SMACT, or else NVML's utilisation."""
        return self.utilization if self.sm_active is None else self.sm_active

    def indicators(self) -> tuple[tuple[str, float], ...]:
        """The metrics that profile a job, as far as they are available."""
        named = (
            ("gpu_utilization", self.utilization),
            ("memory_utilization", self.memory_utilization),
            ("sm_active", self.sm_active),
            ("sm_occupancy", self.sm_occupancy),
            ("dram_active", self.dram_active),
        )
        return (*((name, value) for name, value in named if value is not None), *self.more)


def held_mib(job: JobId, sample: GpuSample) -> int:
    """MiB that the job's processes hold on a GPU, by its reading."""
    return sum(process.memory_mib or 0 for process in sample.processes if process.job == job)


def uses_gpu(job: JobId, sample: GpuSample) -> bool:
    """Whether one of its processes computed, as far as the source can tell."""
    own = [each for each in sample.processes if each.job == job]
    if all(each.sm_util is not None for each in own):
        return any(each.sm_util for each in own)
    return sample.activity is None or sample.activity > 0


@dataclass(frozen=True, slots=True)
class Drain:
    """A GPU that takes no new jobs, and why."""

    gpu: GpuId
    reason: str
    by: str
    at: float


@dataclass(frozen=True, slots=True)
class Score:
    """Risk per metric, 0–1; None where the GPU does not report it."""

    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    sm_source: str | None = None  # "sm_active", or "utilization" standing in for it
    sm_mean: float = 0.0  # for "least utilised" (LUG)
    samples: int = 0
    utilization: float | None = None  # NVML's

    def risky(self, limits: Risk) -> bool:
        """The paper's test (3.3). If neither SMOCC nor DRAMA is available, SMACT alone decides."""
        if self.sm_active is None or self.sm_active < limits.sm_active:
            return False
        if self.sm_occupancy is None and self.dram_active is None:
            return True
        return (self.sm_occupancy or 0.0) >= limits.sm_occupancy or (
            self.dram_active or 0.0
        ) >= limits.dram_active

    def is_busy(self, limits: Risk) -> bool:
        """Whether kernels run there all the time, so that another such job would take turns."""
        return 0.0 < limits.utilization <= (self.utilization or 0.0)


class Recent:
    """A snapshot of a window's samples. Their score is computed on demand: in a simulation, most
    are never needed."""

    __slots__ = ("_monitor", "_samples", "_score", "_weights")

    def __init__(
        self, samples: Iterable[tuple[GpuSample, float]], monitor: Monitor, weights: Risk
    ) -> None:
        self._samples = tuple(samples)  # each with the seconds that it covers
        self._monitor = monitor
        self._weights = weights
        self._score: Score | None = None

    @classmethod
    def with_score(cls, score: Score) -> Self:
        """Samples with this score, for tests."""
        recent = cls((), Monitor(), Risk())
        recent._score = score
        return recent

    def without_samples(self) -> Recent:
        """Without any samples."""
        return Recent((), self._monitor, self._weights)

    @property
    def score(self) -> Score:
        if self._score is None:
            self._score = self._compute_score()
        return self._score

    def activity(self, begin: float) -> float | None:
        """The mean activity from then on; None if nothing is known of it."""
        levels = self._levels("sm_active", begin) or self._levels("utilization", begin)
        return mean(levels) if levels else None

    def _compute_score(self) -> Score:
        levels, sm_source = self._levels("sm_active"), "sm_active"
        utilization = self._levels("utilization")
        if not levels:
            levels, sm_source = utilization, "utilization"
        sm = self._risk(levels)
        return Score(
            sm_active=sm,
            sm_occupancy=self._risk(self._levels("sm_occupancy")),
            dram_active=self._risk(self._levels("dram_active")),
            sm_source=None if sm is None else sm_source,
            sm_mean=mean(levels) if levels else 0.0,
            samples=len(self._samples),
            utilization=self._risk(utilization),
        )

    def _levels(self, metric: str, begin: float = -inf) -> list[Level]:
        """Values with their durations; the oldest is cut off where the window begins, or at
        `begin`."""
        if not self._samples:
            return []
        begin = max(begin, self._samples[-1][0].at - self._monitor.window_s)
        return [
            (value, min(seconds, sample.at - begin))
            for sample, seconds in self._samples
            if sample.at > begin and (value := getattr(sample, metric)) is not None
        ]

    def _risk(self, levels: list[Level]) -> float | None:
        return risk(levels, self._monitor, self._weights) if levels else None


class Window:
    """The last `window_s` seconds of one GPU. Samples are added in time order.

    A sample describes the time since the previous one and is weighted by it: a monitor's samples
    count equally, a simulator's, which come only when something changes, by how long they stood.
    """

    def __init__(self, monitor: Monitor, weights: Risk) -> None:
        self.monitor = monitor
        self.weights = weights
        self._samples: deque[tuple[GpuSample, float]] = deque()
        self.since: float | None = None  # start of the readings without a gap

    @property
    def last(self) -> GpuSample | None:
        return self._samples[-1][0] if self._samples else None

    @property
    def readings(self) -> tuple[tuple[GpuSample, float], ...]:
        """The samples, in order, each with the seconds that it covers."""
        return tuple(self._samples)

    @property
    def recent(self) -> Recent:
        """A snapshot of the samples."""
        return Recent(self._samples, self.monitor, self.weights)

    def add(self, sample: GpuSample) -> None:
        last, seconds = self.last, self.monitor.period_s
        if last is None or sample.at - last.at > self.monitor.stale_s:
            self.since = sample.at
        else:
            seconds = sample.at - last.at
        self._samples.append((sample, seconds))
        while self._samples[0][0].at <= sample.at - self.monitor.window_s:
            self._samples.popleft()


def risk(levels: Sequence[Level], monitor: Monitor, weights: Risk) -> float:
    """The weighted sum of mean, median, 95th percentile and EMA (CARMA paper, 3.3).

    `levels` are in time order, at least one.
    """
    first = levels[0][0]
    if all(value == first for value, _ in levels):
        return first * (weights.mean + weights.median + weights.p95 + weights.ema)
    ordered = sorted(levels, key=itemgetter(0))
    return (
        weights.mean * mean(levels)
        + weights.median * percentile(ordered, 0.50, monitor.period_s)
        + weights.p95 * percentile(ordered, 0.95, monitor.period_s)
        + weights.ema * ema(levels, monitor)
    )


def mean(levels: Sequence[Level]) -> float:
    total = weighted = 0.0
    for value, seconds in levels:
        total += seconds
        weighted += value * seconds
    return weighted / total if total else levels[-1][0]  # all at one time: the last


def percentile(ordered: Sequence[Level], q: float, period_s: float) -> float:
    """The value below which a GPU was for a share `q` (0–1) of the time.

    For samples of one period each, it is the linear interpolation between the two nearest; longer
    samples count as that many. `ordered` is sorted by value.
    """
    total = sum([seconds for _, seconds in ordered])
    at = q * max(0.0, total - period_s) + min(period_s, total) / 2
    before, value_before = 0.0, ordered[0][0]
    begin = 0.0
    for value, seconds in ordered:
        half = (period_s if period_s < seconds else seconds) / 2
        if at < begin + half:
            share = (at - before) / (begin + half - before)
            return value_before + share * (value - value_before)
        begin += seconds
        before, value_before = begin - half, value
        if at <= before:
            return value
    return value_before


def ema(levels: Sequence[Level], monitor: Monitor) -> float:
    """Exponential moving average, starting at the first value: α = 2 / (n + 1) per period, where n
    is the number of periods in the window."""
    alpha = 2 / (max(1, round(monitor.window_s / monitor.period_s)) + 1)
    average = levels[0][0]
    for value, seconds in islice(levels, 1, None):
        if value != average:
            average += (1 - (1 - alpha) ** (seconds / monitor.period_s)) * (value - average)
    return average


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """What a GPU must be. Empty fields accept any."""

    kinds: tuple[tuple[str, ...], ...] = ()  # alternatives, each of words that all hold
    on: frozenset[int] = frozenset()  # numbers of GPUs
    not_on: frozenset[int] = frozenset()

    def accepts(self, gpu: Gpu) -> bool:
        if gpu.index in self.not_on or (self.on and gpu.index not in self.on):
            return False
        return not self.kinds or any(
            all(_holds(word, gpu.name, gpu.memory_mib) for word in words) for words in self.kinds
        )

    def __str__(self) -> str:
        """As in "the job wants GPUs with …"."""
        parts = [" or ".join(" and ".join(words) for words in self.kinds)] if self.kinds else []
        for name, numbers in (("number", self.on), ("any number but", self.not_on)):
            if numbers:
                parts.append(f"{name} {' or '.join(map(str, sorted(numbers)))}")
        return ", ".join(parts)


def choice(spec: JobSpec) -> GpuChoice | None:
    """None: any GPU."""
    return parse_choice(spec.constraint, spec.on, spec.not_on)


@lru_cache(maxsize=1024)
def parse_choice(constraint: str | None, on: str | None, not_on: str | None) -> GpuChoice | None:
    """constraint: words joined by & (all hold) and | (alternatives): a100, rtx3090, a100-40gb, 80g
    (at least that size). on, not_on: numbers joined by commas."""
    alternatives = (constraint or "").lower().split("|")
    kinds = (tuple(re.findall(r"[a-z0-9.]+", one)) for one in alternatives)
    found = GpuChoice(tuple(filter(None, kinds)), _numbers(on), _numbers(not_on))
    return None if found == GpuChoice() else found


def filter_gpus(gpus: Iterable[Gpu], chosen: GpuChoice | None) -> list[Gpu]:
    return [gpu for gpu in gpus if chosen is None or chosen.accepts(gpu)]


def _numbers(text: str | None) -> frozenset[int]:
    return frozenset(int(number) for number in (text or "").split(",") if number)


@lru_cache(maxsize=1024)
def _holds(word: str, name: str, memory_mib: int) -> bool:
    """A size is a lower limit. Other words are one or more successive words of the name, so that a
    V100 is not taken for a V10: "rtx3090" holds for "NVIDIA GeForce RTX 3090"."""
    if size := _SIZE.fullmatch(word):
        return memory_mib >= float(size[1]) * MIB_PER_GB * SHORT
    words = re.findall(r"[a-z0-9]+", name.lower())
    runs = (
        "".join(words[first:end])
        for first in range(len(words))
        for end in range(first + 1, len(words) + 1)
    )
    return word in runs
