"""A server in memory: its GPUs and processes (`FakeWorld`), and these with CARMA's scheduler
(`FakeServer`), to see a plugin at work on GPUs and jobs moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from carma_testing.builders import a_gpu, a_spec
from carmad import registry
from carmad.config import Settings
from carmad.core.gpus.gpu import Gpu, GpuSample, ProcessUse
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId, Signs
from carmad.core.jobs.job import Job
from carmad.core.messages import (
    Action,
    Began,
    Discovered,
    Estimated,
    EstimateMemory,
    Event,
    Exited,
    Launch,
    Resume,
    Resumed,
    Sampled,
    Signal,
    Step,
    Stop,
    Submitted,
    Suspend,
    Suspended,
)
from carmad.core.placing.view import Policy
from carmad.core.ports import Predictor, Recovery
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.loop import turn

Key = tuple[JobId, int]  # a job's attempt

FIRST_PID = 1000
POWER_MW = 100_000


@dataclass(slots=True)
class FakeProcess:
    """A running attempt. It shows on its GPUs once it holds memory or runs kernels."""

    gpus: tuple[GpuId, ...]  # none while it is suspended
    memory_mib: int = 0  # on each of them
    ran_kernel: bool = False
    cpu_s: float = 0.0  # these two as in `Signs`
    printed: tuple[int, ...] = (0, 0)


class FakeWorld:
    """Carries out the core's actions. A job's estimate is what it declared; an attempt runs until
    the test ends it, even if it was told to stop. Events go to `post`.

    Suspending and resuming fails for the reason `driver_fails`, if that is set, and is `lost` then;
    with `driver_hangs`, a resume is said to have hung.

    What the GPUs show is set by hand: `used_mib` (apart from the jobs'), `sm_active`,
    `dram_active`, `fault`, and `strangers`, processes of no job, on every GPU.
    """

    def __init__(
        self, gpus: Sequence[Gpu], clock: Callable[[], float], post: Callable[..., object]
    ) -> None:
        self.gpus = tuple(gpus)
        self.used_mib = dict.fromkeys((gpu.id for gpu in gpus), 0)
        self.sm_active = dict.fromkeys(self.used_mib, 0.0)
        self.dram_active = dict.fromkeys(self.used_mib, 0.0)
        self.fault: dict[GpuId, str] = {}
        self.strangers: tuple[ProcessUse, ...] = ()
        self.driver_fails = ""
        self.driver_hangs = False
        self.lost = False
        self.alive: dict[Key, FakeProcess] = {}
        self.signals: list[tuple[JobId, int]] = []
        self.stops: list[tuple[JobId, int, Cause | None]] = []
        self._clock = clock
        self._post = post

    def perform(self, action: Action) -> None:
        match action:
            case EstimateMemory(again=True):
                pass
            case EstimateMemory(job):
                self._post(Estimated(self._clock(), job.id, job.spec.declared))
            case Launch(job):
                assert (job.id, job.attempt) not in self.alive, "started twice"
                self.alive[job.id, job.attempt] = FakeProcess(job.gpus)
                if not job.gpus:
                    self._post(Began(self._clock(), job.id, job.attempt))
            case Stop(job):
                self.stops.append((job.id, job.attempt, job.stop))
            case Signal(job, signum):
                self.signals.append((job.id, signum))
            case Suspend(job):
                self._move(job, (), Suspended)
            case Resume(job):
                self._move(job, job.gpus, partial(Resumed, hung=self.driver_hangs))

    def _move(
        self, job: Job, gpus: tuple[GpuId, ...], came: Callable[..., Suspended | Resumed]
    ) -> None:
        if not self.driver_fails:
            self.alive[job.id, job.attempt].gpus = gpus
        why, lost = self.driver_fails, self.lost
        self._post(came(self._clock(), job.id, job.attempt, why, lost))

    @property
    def stopping(self) -> set[Key]:
        """Running attempts that were told to stop."""
        return {(id, attempt) for id, attempt, _ in self.stops if (id, attempt) in self.alive}

    def attempt(self, id: JobId) -> Key:
        """The job's running attempt."""
        alive = [key for key in list(self.alive) if key[0] == id]
        assert alive, f"job {id} is not running"
        return alive[0]

    def run_kernel(self, id: JobId, memory_mib: int = 1000) -> None:
        """Let the job run kernels and hold `memory_mib` on each of its GPUs."""
        process = self.alive[self.attempt(id)]
        process.memory_mib, process.ran_kernel = memory_mib, True

    def end_attempt(self, id: JobId, exit: Exit | None = None) -> Exited:
        """End the job's attempt, successfully unless `exit` is given."""
        key = self.attempt(id)
        del self.alive[key]
        return Exited(self._clock(), *key, exit or Exit(Cause.SUCCESS, 0))

    def read_gpus(self) -> Sampled:
        """Sample every GPU."""
        at = self._clock()
        signs = (Signs(*key, its.cpu_s, its.printed) for key, its in list(self.alive.items()))
        return Sampled(at, tuple(self.reading(gpu, at) for gpu in self.gpus), tuple(signs))

    def reading(self, gpu: Gpu, at: float) -> GpuSample:
        if gpu.id in self.fault:
            return GpuSample(gpu.id, at, fault=self.fault[gpu.id])
        jobs = tuple(
            ProcessUse(
                FIRST_PID + id,
                its.memory_mib,
                0.5 if its.ran_kernel else 0.0,
                job=id,
                attempt=attempt,
            )
            for (id, attempt), its in list(self.alive.items())
            if gpu.id in its.gpus and (its.memory_mib or its.ran_kernel)
        )
        used_mib = self.used_mib[gpu.id] + sum(each.memory_mib or 0 for each in jobs)
        return GpuSample(
            gpu.id,
            at,
            used_mib,
            gpu.memory_mib - used_mib,
            self.sm_active[gpu.id],
            0.0,
            self.dram_active[gpu.id],
            energy_mj=round(at * POWER_MW),
            processes=jobs + self.strangers,
        )


class FakeServer(FakeWorld):
    """Nothing happens by itself: `pass_time` moves the clock, `run_kernel` and `exit` a job.

    Policy and recovery default to those that the settings name; durations are not predicted.
    """

    def __init__(
        self,
        gpus: int = 2,
        settings: Settings | None = None,
        policy: Policy | None = None,
        recovery: Recovery | None = None,
        predictor: Predictor | None = None,
        fallback: Policy | None = None,
        memory_mib: int = 40_960,
    ) -> None:
        cards = tuple(a_gpu(index, memory_mib) for index in range(gpus))
        super().__init__(cards, lambda: self.now, self.tell)
        settings = settings or Settings()
        self.now = 0.0
        self.steps: list[Step] = []
        self.next_id = 1
        self.scheduler = Scheduler(
            settings,
            policy or registry.bare_policy(settings),
            recovery or registry.bare_recovery(settings),
            predictor,
            fallback,
        )
        self.tell(Discovered(self.now, cards))
        self.sample()

    def tell(self, *events: Event) -> Step:
        """Give events to the core; returns its step. `steps` also has those that follow from it."""
        made = len(self.steps)
        turn(self.scheduler, self, self, *events)
        return self.steps[made]

    def commit(self, step: Step) -> None:
        self.steps.append(step)

    def submit(self, **spec: object) -> JobId:
        """Submit a job; takes what `a_spec` does, such as `gpus` and `memory_mib`."""
        id = JobId(self.next_id)
        self.next_id += 1
        self.tell(Submitted(self.now, id, (a_spec(**spec),)))
        return id

    def sample(self, seconds: float = 0.0) -> None:
        """Advance the clock and sample the GPUs."""
        self.now += seconds
        self.tell(self.read_gpus())

    def pass_time(self, seconds: float, period: float = 1.0) -> None:
        for _ in range(round(seconds / period)):
            self.sample(period)

    def exit(self, id: JobId, exit: Exit | None = None) -> None:
        """End the job, successfully unless `exit` is given."""
        self.tell(self.end_attempt(id, exit))

    @property
    def scene(self) -> Scene:
        return self.scheduler.snapshot(self.now)

    def job(self, id: JobId) -> Job:
        """A job that has not ended."""
        return self.scheduler.jobs[id]

    def last(self, id: JobId) -> Job:
        """The newest version of a job, also when it has ended."""
        return next(j for step in reversed(self.steps) for j in reversed(step.jobs) if j.id == id)

    def why(self, id: JobId) -> tuple[dict[int, list[str]], list[str]]:
        """Reason codes of the job's last decision, by GPU index; and those about the job."""
        placement = self.scene.decisions[id].placement
        index = {gpu.id: gpu.index for gpu in self.gpus}
        by_gpu = {index[v.gpu]: [r.code for r in v.refused] for v in placement.verdicts}
        return by_gpu, [r.code for r in placement.reasons]
