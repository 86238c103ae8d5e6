"""A hand-cranked world for the scheduler: what lives, what the GPUs show, what was asked."""

from carmad.config import Settings
from carmad.core.messages import (
    Discovered,
    Estimated,
    EstimateMemory,
    Exited,
    Launch,
    Sampled,
    Signal,
    Stop,
    Submitted,
)
from carmad.core.scheduler import Scheduler
from carmad.core.types import Cause, Estimate, Exit, GpuSample, JobId, ProcessUse
from carmad.store import environments
from carmad.testing import a_gpu, a_spec
from policies import builtin
from recovery import ladder

FAST = Settings()


class Server:
    def __init__(
        self,
        gpus=2,
        settings=FAST,
        policy=None,
        recovery=None,
        memory_mib=40_960,
        predictor=None,
        fallback=None,
    ):
        self.now = 0.0
        self.gpus = tuple(a_gpu(n, memory_mib) for n in range(gpus))
        self.used = {gpu.id: 0 for gpu in self.gpus}
        self.strangers = ()  # processes of no job, on every GPU; `used` has their memory
        self.fault = {}
        self.sm = {gpu.id: 0.0 for gpu in self.gpus}
        self.dram = {gpu.id: 0.0 for gpu in self.gpus}
        self.alive = {}  # (job, attempt) -> (gpus, MiB on each, has run a kernel)
        self.signals = []
        self.stopping = set()
        self.steps = []
        self.next_id = 1
        self.scheduler = Scheduler(
            settings,
            policy or builtin.magm(settings),
            recovery or ladder.exclusive(settings),
            predictor,
            fallback,
        )
        self.tell(Discovered(self.now, self.gpus))
        self.sample()

    def tell(self, *events):
        step = self.scheduler.handle(*events)
        self.steps.append(step)
        for action in step.actions:
            match action:
                case EstimateMemory(job):
                    mib = job.spec.memory_mib
                    estimate = Estimate(mib, "declared", firm=True) if mib else None
                    self.tell(Estimated(self.now, job.id, estimate))
                case Launch(job):
                    assert (job.id, job.attempt) not in self.alive, "started twice"
                    self.alive[job.id, job.attempt] = [job.gpus, 0, False]
                case Stop(job):
                    self.stopping.add((job.id, job.attempt))
                case Signal(job, signum):
                    self.signals.append((job.id, signum))
        return step

    def submit(self, **spec):
        id = JobId(self.next_id)
        self.next_id += 1
        whole = a_spec(**spec)
        bare = environments.without(whole)
        self.tell(Submitted(self.now, id, (bare,), env=whole.env))
        return id

    def kernel(self, id, mib=1000):
        """The job's first kernel runs, and it holds `mib` on each of its GPUs."""
        job = self.job(id)
        self.alive[id, job.attempt][1:] = [mib, True]

    def sample(self, seconds=0.0):
        self.now += seconds
        self.tell(Sampled(self.now, tuple(self.reading(gpu) for gpu in self.gpus)))

    def pass_time(self, seconds, period=1.0):
        for _ in range(round(seconds / period)):
            self.sample(period)

    def reading(self, gpu):
        processes = tuple(
            ProcessUse(1000 + id, mib, 0.5 if ran else 0.0, job=id)
            for (id, _), (gpus, mib, ran) in self.alive.items()
            if gpu.id in gpus and (mib or ran)
        )
        used = self.used[gpu.id] + sum(p.memory_mib for p in processes)
        processes += self.strangers
        if gpu.id in self.fault:
            return GpuSample(gpu.id, self.now, fault=self.fault[gpu.id])
        return GpuSample(
            gpu.id,
            self.now,
            used,
            gpu.memory_mib - used,
            self.sm[gpu.id],
            0.0,
            self.dram[gpu.id],
            energy_mj=round(self.now * 100_000),
            processes=processes,
        )

    def exit(self, id, exit=None):
        job = self.job(id)
        self.alive.pop((id, job.attempt))
        self.stopping.discard((id, job.attempt))
        self.tell(Exited(self.now, id, job.attempt, exit or Exit(Cause.SUCCESS, 0)))

    @property
    def scene(self):
        return self.scheduler.snapshot(self.now)

    def job(self, id):
        return self.scheduler.jobs[id]

    def last(self, id):
        """The newest version of a job, also when it has ended."""
        return next(j for step in reversed(self.steps) for j in reversed(step.jobs) if j.id == id)

    def why(self, id):
        """Reason codes of the job's last decision, by GPU index; and those about the job."""
        placement = self.scene.decisions[id].placement
        index = {gpu.id: gpu.index for gpu in self.gpus}
        by_gpu = {index[v.gpu]: [r.code for r in v.refused] for v in placement.verdicts}
        return by_gpu, [r.code for r in placement.reasons]
