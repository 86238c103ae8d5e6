"""The GPUs: their readings, the usage of jobs, drains and reservations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from itertools import chain

from carmad.config import Monitor, Settings
from carmad.core.gpus.gpu import Drain, Gpu, GpuSample, Window, choice, filter_gpus, held_mib
from carmad.core.gpus.gpuview import (
    GpuView,
    NodeView,
    by_node,
    free_memory,
    settling,
    stale,
    with_server,
)
from carmad.core.gpus.readings import (
    failed_gpu,
    memory_of,
    meter,
)
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.findings import Estimate, Usage
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.rules.limits import Reservation, slots

Residents = Callable[[GpuId], tuple[Job, ...]]  # the jobs that hold a GPU


class Fleet:
    """Caches a view of each GPU while it is valid, so that a step costs only what it changes."""

    def __init__(self) -> None:
        self._windows: dict[GpuId, Window] = {}
        self.gpus: dict[GpuId, Gpu] = {}
        self.unread = ""  # why the GPUs are not known yet
        self.guarantees = False  # whether any of them can guarantee memory
        self.drains: dict[GpuId, Drain] = {}
        self.reservations: dict[int, Reservation] = {}
        self.usage: dict[JobId, Usage] = {}  # newer than `Job.usage`
        self.node_of: dict[GpuId, int] = {}
        self._nodes: tuple[NodeView, ...] = ()
        self._outdated: set[GpuId] = set()  # changed since their view was made
        self._faulty: set[GpuId] = set()  # by their last reading
        self._silent: dict[GpuId, str] = {}  # why there are no readings
        self._stands_until: dict[GpuId, float] = {}  # when a view expires by time alone
        self._metered: dict[JobId, None] = {}  # jobs whose usage changed since it was saved
        self._left: dict[GpuId, dict[JobId, float]] = {}  # since the last reading, and when
        self._beside: dict[JobId, dict[GpuId, GpuSample]] = {}  # see `beside`

    def discover(self, settings: Settings, gpus: Iterable[Gpu], unread: str = "") -> None:
        """Set the GPUs; those that remain keep their windows."""
        self.unread = unread
        self.gpus.clear()
        self.gpus.update((gpu.id, gpu) for gpu in gpus)
        self.guarantees = any(gpu.guarantees for gpu in self.gpus.values())
        self._windows = {
            gpu: self._windows.get(gpu) or Window(settings.monitor, settings.risk)
            for gpu in self.gpus
        }
        self._faulty &= self.gpus.keys()
        self._stands_until.clear()
        views = (self._view(settings.monitor, gpu, (), 0.0) for gpu in self.gpus)
        self._nodes, self.node_of = by_node(views)
        self.look_again()

    def note_silent(self, gpus: Iterable[tuple[GpuId, str]]) -> None:
        """These, and no others, have no readings now, for the reasons given."""
        self._outdated.update(self._silent)
        self._silent = dict(gpus)
        self._outdated.update(self._silent)

    def look_again(self) -> None:
        """Invalidate all views."""
        self._outdated.update(self.gpus)

    def drain(self, gpu: GpuId, drain: Drain | None) -> None:
        """Drain this GPU, or (None) resume it."""
        if drain is None:
            self.drains.pop(gpu, None)
        else:
            self.drains[gpu] = drain
        self._outdated.add(gpu)

    def reserve(self, new: Reservation) -> bool:
        """Make a reservation. False: it cannot be made."""
        if new.id in self.reservations or any(map(new.meets, self.reservations.values())):
            return False
        self.reservations[new.id] = new
        return True

    def unreserve(self, id: int) -> bool:
        """Cancel a reservation. False: there is none."""
        gone = self.reservations.pop(id, None)
        self._outdated.update(gone.gpus if gone else ())
        return gone is not None

    def renew_reservations(self, now: float, residents: Residents) -> bool:
        """Note which bookings are in use, and cancel those that are not, and reservations that
        will not recur. False: nothing has changed."""
        changed = False
        for id, each in self.reservations.items():
            if each.charged:
                there = chain.from_iterable(map(residents, each.gpus))
                owners = {job.spec.owner for job in there}
                self.reservations[id] = noted = each.note_use(owners, now)
                changed |= noted is not each
        for id in [id for id, each in self.reservations.items() if each.is_over(now)]:
            changed |= self.unreserve(id)
        return changed

    def add(self, sample: GpuSample, residents: tuple[Job, ...], gap_s: float) -> GpuSample | None:
        """Add a reading of a GPU with these `residents`; returns the previous one. Nothing is
        metered across a longer gap than `gap_s`.

        A reading of an unknown GPU is ignored, and so is one older than the last: after a failed
        commit, the core may be given the same reading again.
        """
        window = self._windows.get(sample.gpu)
        if window is None or (window.last and sample.at < window.last.at):
            return None
        before = window.last
        usage = meter(self.usage, residents, before, sample, gap_s)
        self.usage.update(usage)
        self._metered.update(dict.fromkeys(usage))
        window.add(sample)
        if sample.fault:
            self._faulty.add(sample.gpu)
        else:
            self._faulty.discard(sample.gpu)
        seen = {(process.job, process.attempt) for process in sample.processes}
        for job in residents:
            readings = self._beside.setdefault(job.id, {})
            if not seen.isdisjoint(((job.id, job.attempt), (job.id, None))):
                readings[sample.gpu] = sample
            elif before and _precedes(before, job):
                readings.setdefault(sample.gpu, before)
        self._outdated.add(sample.gpu)
        return before

    def take_newly_metered(self) -> list[JobId]:
        """The jobs whose usage has changed since the last call."""
        jobs, self._metered = list(self._metered), {}
        return jobs

    def with_usage(self, job: Job) -> Job:
        """The job with its measured usage so far."""
        usage = self.usage.get(job.id)
        return job if usage is None or usage == job.usage else replace(job, usage=usage)

    def readings(self, gpu: GpuId) -> tuple[tuple[GpuSample, float], ...]:
        """The readings in a GPU's window, in order, each with the seconds that it covers."""
        window = self._windows.get(gpu)
        return window.readings if window else ()

    def beside(self, job: Job) -> tuple[GpuSample, ...]:
        """For each of its GPUs, the last reading that shows the job's own processes, or else the
        last one before it was placed there: what a later one shows may be the job's leftovers."""
        readings = self._beside.get(job.id, {})
        windows = {gpu: self._windows[gpu] for gpu in job.gpus if gpu in self._windows}
        found = []
        for gpu, window in windows.items():
            if gpu in readings:
                found.append(readings[gpu])
            elif window.last and _precedes(window.last, job):
                found.append(window.last)
        return tuple(found)

    def failure(self, job: Job) -> str:
        """Which of the job's GPUs does not work, by its last reading, and why; "" if all do."""
        return failed_gpu(job, self.gpus, lambda gpu: self._windows[gpu].last)

    def growth(self, gpu: GpuId, monitor: Monitor) -> dict[JobId, float]:
        """By how many MiB a second each job's memory grows there, by the last two readings that
        are about a period apart; empty if there are none."""
        readings = self.readings(gpu)
        if len(readings) < 2:
            return {}
        last = readings[-1][0]
        earlier = (sample for sample, _ in reversed(readings[:-1]))
        before = next((each for each in earlier if last.at - each.at >= monitor.period_s / 2), None)
        if before is None or last.at - before.at > monitor.stale_s:
            return {}
        jobs = {process.job for process in last.processes if process.job is not None}
        return {
            job: (held_mib(job, last) - held_mib(job, before)) / (last.at - before.at)
            for job in jobs
        }

    def external_mib(self, gpu: GpuId, residents: tuple[Job, ...]) -> int:
        """MiB that external processes have held throughout the window."""
        readings, its = self.readings(gpu), self.gpus[gpu]
        held = (free_memory(its, sample, residents, settled=True)[1] for sample, _ in readings)
        return min(held, default=0)

    def memory_of(self, job: Job) -> dict[GpuId, int]:
        """MiB that the job holds on each of its GPUs, without those that cannot be read."""
        windows = (self._windows[gpu] for gpu in job.gpus if gpu in self._windows)
        return memory_of(job, (window.last for window in windows))

    def forget(self, job: JobId) -> None:
        """Drop a job's measurements. Call it once the end of the attempt is on disk."""
        self.usage.pop(job, None)
        self._beside.pop(job, None)

    def usable(self, spec: JobSpec) -> set[GpuId]:
        """The GPUs that are neither drained nor faulty, and that the job accepts."""
        fitting = {gpu.id for gpu in filter_gpus(self.gpus.values(), choice(spec))}
        return fitting - self.drains.keys() - self._faulty

    def with_room(self, estimate: Estimate) -> Estimate:
        """The estimate with a margin that leaves a GPU on which there is room for it."""
        most_mib = max((gpu.memory_mib for gpu in self.gpus.values()), default=estimate.safe_mib)
        if estimate.safe_mib <= max(estimate.mib, most_mib):
            return estimate
        return replace(estimate, high=max(estimate.mib, most_mib))

    def nodes(
        self, settings: Settings, now: float, touched: Set[GpuId], residents: Residents
    ) -> tuple[NodeView, ...]:
        """Every node's current view. A node without changes is the same object as before.
        `touched`: the GPUs on whose residents anything has changed since the last call."""
        outdated = self._outdated | touched
        outdated.update(gpu for gpu, until in self._stands_until.items() if now > until)
        for each in self.reservations.values():  # how soon it is matters to each job differently
            outdated.update(each.gpus)
        self._outdated = set()
        outdated &= self.gpus.keys()
        if outdated:
            nodes = list(self._nodes)
            for at in {self.node_of[gpu] for gpu in outdated}:
                gpus = [
                    self._renew(settings.monitor, old, residents(old.id), now)
                    if old.id in outdated
                    else old
                    for old in nodes[at].gpus
                ]
                nodes[at] = NodeView(nodes[at].name, with_server(gpus, settings))
            self._nodes = tuple(nodes)
        return self._nodes

    def _renew(
        self, monitor: Monitor, old: GpuView, residents: tuple[Job, ...], now: float
    ) -> GpuView:
        here, last = {job.id for job in residents}, self._windows[old.id].last
        gone = dict.fromkeys((job.id for job in old.residents), now) | self._left.get(old.id, {})
        left = {job: at for job, at in gone.items() if job not in here and last and last.at <= at}
        self._left[old.id] = left
        return replace(self._view(monitor, old.id, residents, now), left=frozenset(left))

    def _view(
        self, monitor: Monitor, gpu: GpuId, residents: tuple[Job, ...], now: float
    ) -> GpuView:
        window = self._windows[gpu]
        early, fresh = (
            settling(gpu, residents, window.since, now, monitor, window_s)
            for window_s in (monitor.known_s, monitor.window_s)
        )
        if fresh:
            # Renewed at every call: the view says how long it has been settling. Decisions include
            # that, and must not depend on when the view was last made.
            self._stands_until[gpu] = -math.inf
        elif window.last is None or monitor.stale_s == math.inf:
            self._stands_until.pop(gpu, None)
        else:
            self._stands_until[gpu] = window.last.at + monitor.stale_s
        free, external = free_memory(self.gpus[gpu], window.last, residents, settled=fresh is None)
        drain = self.drains.get(gpu)
        return GpuView(
            self.gpus[gpu],
            window.last,
            window.recent,
            residents,
            free,
            external,
            fresh,
            stale(window.last, now, monitor, self._silent.get(gpu, "")),
            drain.reason if drain else None,
            reserved=slots(self.reservations.values(), gpu, now),
            early=early,
        )


def _precedes(reading: GpuSample, job: Job) -> bool:
    """Whether the reading was taken before the job was placed."""
    return job.started_at is None or reading.at <= job.started_at
