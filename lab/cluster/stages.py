"""A cluster in two stages: a first one that sends each job to a node by sums of what jobs asked
for, as Slurm does, and on every node a core of its own, which places it on GPUs by measurement.

The first stage is one queue, first come, first served, without backfill. Jobs that it has sent to a
node stay there, retries included; what a job asked for is given back when it has ended for good.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

from carma_simulator import interference
from carma_simulator.experiment import Experiment, Outcome, Timeline
from carma_simulator.hardware import Cluster, Node
from carma_simulator.interference import Interference
from carma_simulator.run import (
    Recorder,
    catch_up,
    core,
    for_simulation,
    job_outcome,
    without_collection,
)
from carma_simulator.workload import Clock, Order, Workload, submit_in_time
from carma_simulator.world import World
from carmad.config import Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step
from carmad.loop import turn

# Among the nodes where a job's sum fits: `least`, the one whose jobs asked for the fewest GPUs
# (Slurm's CR_LLN, with CPUs in proportion to GPUs); `packed`, the first; `measured`, the one that
# is least busy by its own core's word.
Choice = Literal["least", "packed", "measured"]


@dataclass(frozen=True, slots=True)
class First:
    """The first stage."""

    choice: Choice = "least"
    unit_mib: int = 1024  # memory is counted in whole units; 0: GPUs are counted instead
    late: bool = False  # a node where a job waits is sent no other: jobs wait in the first stage


@dataclass(frozen=True, slots=True)
class Staged:
    outcome: Outcome  # without a timeline
    first_wait_s: float  # per job: in the first stage
    node_wait_s: float  # per job: queued at its node
    wait_beside_idle: float  # share of the waits at nodes during which any GPU of all was idle


class _Record(Recorder):
    """What the first stage needs to know of a node's jobs, too."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[JobId, int] = {}  # sent there and without GPUs: how many they want
        self.over: list[JobId] = []  # since the first stage last looked

    def commit(self, step: Step) -> None:
        super().commit(step)
        for job in step.jobs:
            if job.state is JobState.QUEUED:
                self.waiting[job.id] = job.spec.gpus
            elif job.holds_gpus or job.ended:
                self.waiting.pop(job.id, None)
            if job.ended:
                self.over.append(job.id)


class _NodeClock(Clock):
    """A node's access to the clock of all: whenever something happens there, it is noted."""

    def __init__(self, clock: Clock, note: Callable[[], None]) -> None:
        self._clock = clock
        self._note = note

    @property
    def now(self) -> float:  # type: ignore[override]
        return self._clock.now

    def call_at(self, at: float, order: Order, act: Callable[..., None], *subject: Any) -> None:
        self._clock.call_at(at, order, self._act, act, subject)

    def _act(self, act: Callable[..., None], subject: tuple[Any, ...]) -> None:
        self._note()
        act(*subject)


class _Site:
    """A node with its core."""

    def __init__(
        self,
        number: int,
        node: Node,
        experiment: Experiment,
        settings: Settings,
        workload: Workload,
        model: Interference,
        clock: Clock,
        unit_mib: int,
        active: dict[int, _Site],
    ) -> None:
        self.number = number
        self.gpus = node.gpus
        self._active = active
        self.core = core(settings)
        self.record = _Record()
        alone = replace(experiment, cluster=Cluster((node,)))
        self.world = World(alone, settings, workload, model, _NodeClock(clock, self.note))
        memory_mib = node.gpus * node.kind.memory_mib
        self.free = memory_mib // unit_mib if unit_mib else node.gpus
        self.whole = self.free
        self.asked_gpus = 0  # by the jobs sent here
        self.known = 0, 0  # GPUs with a job, and jobs that wait, as the cluster has counted them
        turn(self.core, self.record, self.world, *self.world.opening())

    def note(self) -> None:
        self._active[self.number] = self

    def busyness(self, gpus: int) -> tuple[int, float]:
        """How many GPUs are short for one more job to be alone on `gpus`, and the present load."""
        gauges, waiting = self.world.gauges, sum(self.record.waiting.values())
        return max(0, waiting + gauges.busy_gpus + gpus - self.gpus), waiting + gauges.sm_active


class _Cluster:
    def __init__(self, experiment: Experiment, first: First) -> None:
        settings, model = (
            for_simulation(experiment.settings),
            interference.make(experiment.interference),
        )
        self.first = first
        self.clock = Clock()
        self.workload = Workload(experiment)
        self.active: dict[int, _Site] = {}  # where something happens at this instant
        given = experiment, settings, self.workload, model, self.clock, first.unit_mib, self.active
        self.sites = [_Site(n, node, *given) for n, node in enumerate(experiment.cluster.nodes)]
        self.queue: deque[JobId] = deque()
        self.sent: dict[JobId, tuple[_Site, int, float]] = {}  # where, what it asked for, when
        self.gpus = sum(site.gpus for site in self.sites)
        self.busy = self.waiting = 0  # GPUs with a job, and jobs that wait at nodes
        self.waited_s = self.beside_idle_s = 0.0
        submit_in_time(self.workload.tasks, self.clock, self._arrive)

    def run(self) -> None:
        clock = self.clock
        before = -math.inf
        while clock.advance():
            if self.waiting:
                waited_s = self.waiting * (clock.now - before)
                self.waited_s += waited_s
                self.beside_idle_s += waited_s * (self.busy < self.gpus)
            before = clock.now
            self._dispatch()
            while self.active:
                for number in sorted(self.active):
                    self._catch_up(self.active.pop(number))
                self._dispatch()

    def _arrive(self, first: JobId, after: JobId) -> None:
        self.queue.extend(map(JobId, range(first, after)))

    def _dispatch(self) -> None:
        while self.queue:
            id = self.queue[0]
            gpus, need = self.workload.task(id).gpus, self._need(id)
            site = self._choice(gpus, need)
            if site is None:
                return
            self.queue.popleft()
            need = min(need, site.whole)
            site.free -= need
            site.asked_gpus += gpus
            site.record.waiting[id] = gpus
            self.sent[id] = site, need, self.clock.now
            site.world.submit(id, JobId(id + 1))
            site.note()

    def _need(self, id: JobId) -> int:
        gpus, unit_mib = self.workload.task(id).gpus, self.first.unit_mib
        estimate = self.workload.estimate(id)
        if not unit_mib or estimate is None:
            return gpus
        return gpus * math.ceil(estimate.safe_mib / unit_mib)

    def _choice(self, gpus: int, need: int) -> _Site | None:
        """An estimate above all of a node's memory asks for all of it."""
        late = self.first.late
        fit = (
            site
            for site in self.sites
            if site.free >= min(need, site.whole)
            and site.gpus >= gpus
            and not (late and site.record.waiting)
        )
        match self.first.choice:
            case "packed":
                return next(fit, None)
            case "least":
                return min(fit, key=lambda site: site.asked_gpus, default=None)
            case "measured":
                return min(fit, key=lambda site: site.busyness(gpus), default=None)

    def _catch_up(self, site: _Site) -> None:
        record = site.record
        catch_up(site.core, record, site.world)
        now = site.world.gauges.busy_gpus, len(record.waiting)
        self.busy += now[0] - site.known[0]
        self.waiting += now[1] - site.known[1]
        site.known = now
        for id in record.over:
            _, need, _ = self.sent[id]
            site.free += need
            site.asked_gpus -= self.workload.task(id).gpus
        record.over.clear()


def simulate_staged(experiment: Experiment, first: First) -> Staged:
    """Run the whole trace in two stages.

    A job for more GPUs than any node has waits for ever, and so do those behind it.
    """
    began = perf_counter()
    cluster = _Cluster(experiment, first)
    with without_collection():
        cluster.run()
    jobs = []
    for number in range(1, len(cluster.workload.tasks) + 1):
        id = JobId(number)
        # One that was never sent has no attempts, on whichever node.
        site = cluster.sent[id][0] if id in cluster.sent else cluster.sites[0]
        jobs.append(job_outcome(id, experiment, cluster.workload, site.world, site.record))
    records = [site.record for site in cluster.sites]
    end = max(record.last_end for record in records)
    outcome = Outcome(
        trace=experiment.trace.name,
        policy=cluster.sites[0].core.policy.name,
        estimator=experiment.estimator,
        interference=experiment.interference,
        seed=experiment.seed,
        cluster=experiment.cluster,
        jobs=tuple(jobs),
        gpus=tuple(c.totals(end) for site in cluster.sites for c in site.world.cards.values()),
        timeline=Timeline(*(array("d") for _ in Timeline.__dataclass_fields__)),
        makespan_s=end,
        events=sum(record.events for record in records),
        decisions=sum(record.decisions for record in records),
        wall_s=perf_counter() - began,
    )
    tasks = cluster.workload.tasks
    held_s = sum(at - tasks[id - 1].submit_s for id, (_, _, at) in cluster.sent.items())
    sent = max(1, len(cluster.sent))
    beside_idle = cluster.beside_idle_s / cluster.waited_s if cluster.waited_s else 0.0
    return Staged(outcome, held_s / sent, cluster.waited_s / sent, beside_idle)
