"""Filter, rank, take the best: the shape of every policy that looks at one job at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from carmad.plugin import GpuView, Job, Placement, Reason, Verdict, View

Filter = Callable[[Job, GpuView], Reason | None]
Rank = Callable[[Job, GpuView, View], float]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Jobs in line order; each takes its best-ranked GPUs, and ties go to the lower index.

    The first job that must wait holds the line, as in the CARMA paper. With backfill set to k,
    the k jobs behind it may start before it, until it has been overtaken k times.
    """

    name: str
    filters: tuple[Filter, ...]
    rank: Rank

    def plan(self, view: View) -> tuple[Placement, ...]:
        plan: list[Placement] = []
        steps_past_the_head: int | None = None
        for job in view.queue:
            placement = self._place(job, view)
            plan.append(placement)
            if placement.gpus:
                view = view.with_placement(job, placement.gpus)
            elif steps_past_the_head is None:
                steps_past_the_head = view.settings.limits.backfill - job.overtaken
            if steps_past_the_head is not None:
                if steps_past_the_head <= 0:
                    break
                steps_past_the_head -= 1
        return tuple(plan)

    def _place(self, job: Job, view: View) -> Placement:
        admissible, refused = view.judge(job)
        verdicts = [self._verdict(job, gpu, view) for gpu in admissible]
        index = {gpu.id: gpu.gpu.index for gpu in admissible}
        fit = sorted((v.rank, index[v.gpu], v.gpu) for v in verdicts if v.rank is not None)
        enough = len(fit) >= job.spec.gpus
        chosen = tuple(gpu for _, _, gpu in fit[: job.spec.gpus]) if enough else ()
        return Placement(job.id, chosen, (*refused, *verdicts))

    def _verdict(self, job: Job, gpu: GpuView, view: View) -> Verdict:
        reasons = tuple(reason for refuse in self.filters if (reason := refuse(job, gpu)))
        return Verdict(gpu.id, reasons, None if reasons else self.rank(job, gpu, view))
