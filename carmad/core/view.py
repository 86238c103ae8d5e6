"""The picture of the server that policies decide on: all they may know, and all they need."""

from __future__ import annotations

from dataclasses import dataclass, replace

from carmad.config import Settings
from carmad.core.admission import refusals
from carmad.core.decision import Verdict
from carmad.core.gpuview import GpuView
from carmad.core.types import GpuId, Job, JobId


@dataclass(frozen=True, slots=True)
class View:
    now: float
    gpus: tuple[GpuView, ...]
    queue: tuple[Job, ...]  # those that may start now, in line order
    running: tuple[Job, ...]  # those that hold GPUs
    settings: Settings
    last_placed: GpuId | None = None  # the GPU given out last (round-robin's place)

    def judge(self, job: Job) -> tuple[tuple[GpuView, ...], tuple[Verdict, ...]]:
        """The GPUs that no hard rule keeps `job` off, and the verdict on each of the others."""
        admissible: list[GpuView] = []
        refused: list[Verdict] = []
        for gpu in self.gpus:
            if reasons := refusals(job, gpu, self.now, self.settings):
                refused.append(Verdict(gpu.id, reasons))
            else:
                admissible.append(gpu)
        return tuple(admissible), tuple(refused)

    def with_placement(self, job: Job, gpus: tuple[GpuId, ...]) -> View:
        """The view after `job` was given `gpus`."""
        placed = replace(job, gpus=gpus, started_at=self.now)
        return replace(
            self,
            gpus=tuple(g.with_resident(placed) if g.id in gpus else g for g in self.gpus),
            queue=_without(self.queue, job.id),
            running=(*self.running, placed),
            last_placed=gpus[-1],
        )

    def gpu(self, gpu: GpuId) -> GpuView:
        return next(g for g in self.gpus if g.id == gpu)

    def queued(self, job: JobId) -> Job | None:
        return next((j for j in self.queue if j.id == job), None)


def _without(queue: tuple[Job, ...], job: JobId) -> tuple[Job, ...]:
    """Cut, not filtered: queues are long, and those placed mostly stand in front."""
    at = next((n for n, each in enumerate(queue) if each.id == job), len(queue))
    return queue[:at] + queue[at + 1 :]
