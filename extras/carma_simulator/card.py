"""One modelled GPU or MIG instance: its jobs, its load, and what a monitor would read; and one
attempt of a job on such GPUs.

Load changes only at discrete instants and is constant in between.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from carma_simulator.experiment import GpuTotals, Load
from carma_simulator.interference import Interference, speeds_by_mode
from carmad.config import Monitor, Risk
from carmad.core.gpus.gpu import Gpu, GpuSample, ProcessUse, Score, Window
from carmad.core.jobs.attempt import JobId, Mode
from carmad.core.jobs.job import Job
from carmad.gpu.kinds import GpuKind
from carmad.gpu.source import utilization


class Gauges:
    """Totals over all GPUs, updated by each, for the timeline."""

    __slots__ = ("busy_gpus", "dram_active", "memory_mib", "power_w", "sm_active", "sm_occupancy")

    def __init__(self) -> None:
        self.busy_gpus = 0
        self.memory_mib = 0
        self.sm_active = 0.0  # this and those below are sums
        self.sm_occupancy = 0.0
        self.dram_active = 0.0
        self.power_w = 0.0


class Card:
    """`speeds` are the jobs' speeds under this GPU's contention, `paces` their actual ones.

    Both are relative to running alone here. A multi-GPU job runs at the pace of its slowest GPU.
    """

    __slots__ = (
        "_elapsed_to",
        "_gauges",
        "_totals",
        "changed_at",
        "dram_active",
        "energy_j",
        "gpu",
        "guests",
        "history",
        "kind",
        "loads",
        "paces",
        "power_w",
        "processes",
        "settles_at",
        "share_j",
        "sm_active",
        "sm_occupancy",
        "sm_work",
        "speeds",
        "used_mib",
        "utilization",
    )

    def __init__(self, gpu: Gpu, kind: GpuKind, gauges: Gauges) -> None:
        self.gpu = gpu
        self.kind = kind
        self.guests = 0  # attempts placed on this GPU, whether they run yet or not
        self.processes: dict[JobId, ProcessUse] = {}  # those that hold memory
        self.loads: dict[JobId, Load] = {}  # those that train
        self.speeds: dict[JobId, float] = {}
        self.paces: dict[JobId, float] = {}
        self.used_mib = 0
        self.sm_active = self.sm_occupancy = self.dram_active = 0.0  # the level since changed_at
        self.utilization = 0.0  # NVML's
        self.sm_work = 0.0  # that the jobs do; more than `sm_active` if a model makes work up
        self.power_w = kind.power_w(0.0, 0.0)
        self.changed_at = 0.0
        self.settles_at = -math.inf  # until then the core places no job here, whatever the readings
        self.history: deque[GpuSample] = deque()  # the readings in the window, and one before it
        self.energy_j = 0.0
        self.share_j = 0.0  # energy per guest, for one that was here all the time
        self._elapsed_to = 0.0
        self._totals = [0.0] * 6  # busy, memory, SMACT, SMOCC, DRAMA, SM work
        self._gauges = gauges
        gauges.power_w += self.power_w

    # -- jobs on it

    def admit(self, now: float) -> None:
        self._elapse(now)
        if not self.guests:
            self._gauges.busy_gpus += 1
        self.guests += 1

    def fits(self, job: JobId, mib: int, fragmentation_mib: int) -> bool:
        """Whether the job can have so much here, with what it has already."""
        own = self.processes.get(job)
        lost = fragmentation_mib * (len(self.processes) - (own is not None))
        held = own.memory_mib or 0 if own else 0
        return self.used_mib - held + mib + lost <= self.gpu.memory_mib

    def hold(self, now: float, job: JobId, process: ProcessUse) -> None:
        """The job's process has so much memory from now on."""
        self._elapse(now)
        own = self.processes.get(job)
        self.processes[job] = process
        self._use((process.memory_mib or 0) - (own.memory_mib or 0 if own else 0))

    def pause(self, now: float, job: JobId) -> None:
        """The job trains no more, and keeps its memory."""
        self._elapse(now)
        if self.loads.pop(job, None):
            del self.speeds[job], self.paces[job]

    def dismiss(self, now: float, job: JobId) -> bool:
        """Remove the job. True if it had a process here."""
        self._elapse(now)
        self.settles_at = -math.inf
        self.guests -= 1
        if not self.guests:
            self._gauges.busy_gpus -= 1
        process = self.processes.pop(job, None)
        if process is None:
            return False
        self._use(-(process.memory_mib or 0))
        self.pause(now, job)
        return True

    def contend(self, interference: Interference, modes: Sequence[Mode]) -> None:
        """Recompute how fast the jobs here train while sharing; `modes` are those of `loads`."""
        if len(self.loads) > 1:
            speeds = speeds_by_mode(interference, tuple(self.loads.values()), modes)
            self.speeds = dict(zip(self.loads, speeds, strict=True))
        else:
            self.speeds = dict.fromkeys(self.loads, 1.0)

    # -- readings

    def read(self, now: float) -> GpuSample:
        """The monitor's reading: averages since the last one, and the current processes."""
        _, memory_utilization = utilization(self.sm_active, self.dram_active)
        energy_j = self.energy_j + self.power_w * max(0.0, now - self._elapsed_to)
        return GpuSample(
            self.gpu.id,
            now,
            self.used_mib,
            self.gpu.memory_mib - self.used_mib,
            self.sm_active,
            self.sm_occupancy,
            self.dram_active,
            self.utilization,
            power_w=self.power_w,
            energy_mj=round(energy_j * 1000),
            processes=tuple(self.processes.values()),
            memory_utilization=memory_utilization,
        )

    def sample(self, now: float, window_s: float) -> GpuSample:
        """A reading for the core."""
        reading = self.read(now)
        history = self.history
        history.append(reading)
        while len(history) > 1 and history[1].at <= now - window_s:
            history.popleft()
        return reading

    def relevel(self, now: float) -> None:
        """Update the load to that of the present jobs; a slowed job causes less load."""
        self._elapse(now)
        sm_active = sm_occupancy = dram_active = 0.0
        for job, load in self.loads.items():
            pace = self.paces[job]
            sm_active += load.sm_active * pace
            sm_occupancy += load.sm_occupancy * pace
            dram_active += load.dram_active * pace
        before = (self.sm_active, self.sm_occupancy, self.dram_active, self.power_w)
        self.sm_active, self.sm_work = min(1.0, sm_active), sm_active
        self.sm_occupancy = min(1.0, sm_occupancy)
        self.dram_active = min(1.0, dram_active)
        # Jobs slow each other because some kernel always runs: that adds up as if they did not.
        alone = (utilization(load.sm_active, 0.0)[0] for load in self.loads.values())
        self.utilization = min(1.0, math.fsum(alone))
        self.power_w = self.kind.power_w(self.sm_active, self.dram_active)
        gauges = self._gauges
        gauges.sm_active += self.sm_active - before[0]
        gauges.sm_occupancy += self.sm_occupancy - before[1]
        gauges.dram_active += self.dram_active - before[2]
        gauges.power_w += self.power_w - before[3]
        self.changed_at = now

    def totals(self, now: float) -> GpuTotals:
        self._elapse(now)
        return GpuTotals(self.gpu.id, self.gpu.node, self.kind.name, self.energy_j, *self._totals)

    def _use(self, mib: int) -> None:
        self.used_mib += mib
        self._gauges.memory_mib += mib

    def _elapse(self, now: float) -> None:
        """Add up the time since the last change."""
        seconds = now - self._elapsed_to
        if seconds <= 0:
            return
        self._elapsed_to = now
        joules = self.power_w * seconds
        self.energy_j += joules
        totals = self._totals
        if self.guests:
            self.share_j += joules / self.guests
            totals[0] += seconds
            totals[1] += self.used_mib * seconds
            totals[2] += self.sm_active * seconds
            totals[3] += self.sm_occupancy * seconds
            totals[4] += self.dram_active * seconds
            totals[5] += self.sm_work * seconds


def relief(card: Card, now: float, monitor: Monitor, limits: Risk) -> float | None:
    """The first instant after `now` at which the GPU is no longer too busy, to a tenth of the
    monitor's period. No other event happens then, so it is computed in advance, to plan in time.

    None if it is not so now, or stays so while its load does not change.
    """
    highest = Score(
        max(sample.sm_active or 0.0 for sample in card.history),
        max(sample.sm_occupancy or 0.0 for sample in card.history),
        max(sample.dram_active or 0.0 for sample in card.history),
        utilization=max(sample.utilization or 0.0 for sample in card.history),
    )
    lasting = Score(
        card.sm_active, card.sm_occupancy, card.dram_active, utilization=card.utilization
    )
    if not _is_full(highest, limits) or _is_full(lasting, limits):
        return None
    risky_at, relieved_at = now, card.changed_at + monitor.window_s
    if not _risky(card, risky_at, monitor, limits):
        return None
    while relieved_at - risky_at > monitor.period_s / 10:
        middle = (risky_at + relieved_at) / 2
        if _risky(card, middle, monitor, limits):
            risky_at = middle
        else:
            relieved_at = middle
    return relieved_at


def _risky(card: Card, at: float, monitor: Monitor, limits: Risk) -> bool:
    """The core's own test, on the readings of that instant."""
    window = Window(monitor, limits)
    for sample in card.history:
        window.add(sample)
    window.add(card.read(at))
    return _is_full(window.recent.score, limits)


def _is_full(score: Score, limits: Risk) -> bool:
    """Whether some job may not join, for its load."""
    return score.risky(limits) or score.is_busy(limits)


class Execution:
    """Work is measured in seconds of training alone on the kind of GPU the task was measured on.

    `full` has, for each of `cards`, the work done there per second when alone.
    """

    __slots__ = (
        "_since",
        "attempt",
        "cards",
        "ending",
        "full",
        "grown_s",
        "job",
        "left",
        "limit_mib",
        "load",
        "mode",
        "rate",
        "shares_j",
        "version",
    )

    def __init__(
        self, job: Job, load: Load, cards: tuple[Card, ...], full: tuple[float, ...], left: float
    ) -> None:
        assert job.mode is not None
        self.job: JobId = job.id
        self.attempt = job.attempt
        self.mode = job.mode
        self.load = load
        self.limit_mib = job.limit_mib
        self.move(cards, full)
        self.left = left  # work, as of `_since`
        self.rate = 0.0  # work per second; 0 until its first kernel, and while it is suspended
        self.grown_s = 0.0  # for how long its memory has grown
        self.ending = False  # being stopped, or crashing: further work is lost
        self.version = 0  # scheduled calls for an older version are void
        self._since = 0.0

    def move(self, cards: tuple[Card, ...], full: tuple[float, ...]) -> None:
        """It is on these GPUs from now on; none: it is suspended."""
        self.cards = cards
        self.full = full
        self.shares_j = tuple(card.share_j for card in cards)

    @property
    def energy_j(self) -> float:
        """Its share of its GPUs' energy since it moved there, split evenly among the jobs that hold
        them."""
        pairs = zip(self.cards, self.shares_j, strict=True)
        return sum(card.share_j - before for card, before in pairs)

    def progress(self, now: float) -> None:
        """Subtract the work done since the last change of pace."""
        if self.rate and not self.ending:
            self.left = max(0.0, self.left - (now - self._since) * self.rate)
        self._since = now

    def pace(self, now: float) -> bool:
        """Adopt the pace of the slowest of its GPUs. False if that is no change."""
        job, cards, full = self.job, self.cards, self.full
        if len(cards) == 1:
            rate = cards[0].speeds[job] * full[0]
        else:
            pairs = zip(cards, full, strict=True)
            rate = min(card.speeds[job] * alone for card, alone in pairs)
        if rate == self.rate:
            return False
        self.progress(now)
        self.rate = rate
        for card, alone in zip(cards, full, strict=True):
            card.paces[job] = rate / alone
        return True
