"""A server in memory, to see a plugin at work: CARMA's scheduler on GPUs and jobs moved by hand."""

from __future__ import annotations

from carmad import registry
from carmad.config import Settings
from carmad.core.messages import Discovered, Event, Step, Submitted
from carmad.core.ports import Policy, Predictor, Recovery
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.core.types import Exit, Job, JobId
from carmad.loop import turn
from carmad.testing.builders import a_gpu, a_spec
from carmad.testing.fake_world import FakeWorld


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
        self.tell(self.sampled())

    def pass_time(self, seconds: float, period: float = 1.0) -> None:
        for _ in range(round(seconds / period)):
            self.sample(period)

    def exit(self, id: JobId, exit: Exit | None = None) -> None:
        """End the job, successfully unless `exit` is given."""
        self.tell(self.exited(id, exit))

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
