"""`least_jobs`: a job goes to the GPU with the fewest jobs that has room for it."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.plugin import GpuView, Job, Placement, Reason, Settings, Verdict, View, Wording


@dataclass(frozen=True, slots=True)
class LeastJobsSettings:
    """`[policies.least_jobs]` in the settings file."""

    most_jobs: int = 4  # on one GPU


REASONS = {
    "crowded": Wording(
        "Crowded", lambda r: f"has {r.have:.0f} jobs, and least_jobs allows {r.need:.0f}"
    ),
}


@dataclass(frozen=True, slots=True)
class LeastJobs:
    """Jobs in line order; the first one that must wait holds the line."""

    min_free_mib: int
    most_jobs: int
    name: str = "least_jobs"

    def order(self, job: Job) -> float:
        return 0.0  # by arrival

    def plan(self, view: View) -> tuple[Placement, ...]:
        plan: list[Placement] = []
        for job in view.queue:
            placement = self._place(job, view)
            plan.append(placement)
            if not placement.gpus:
                break
            view = view.with_placement(job, placement.gpus)  # the next job sees this one there
        return tuple(plan)

    def _place(self, job: Job, view: View) -> Placement:
        # CARMA's hard rules first: a plan that breaks them would be refused.
        admissible, refused = view.judge(job)
        verdicts = [self._verdict(job, gpu) for gpu in admissible]
        ranked = sorted((v.rank, v.gpu) for v in verdicts if v.rank is not None)
        enough = len(ranked) >= job.spec.gpus
        chosen = tuple(gpu for _, gpu in ranked[: job.spec.gpus]) if enough else ()
        return Placement(job.id, chosen, (*refused, *verdicts))  # `carma why` shows the verdicts

    def _verdict(self, job: Job, gpu: GpuView) -> Verdict:
        need_mib = job.estimate.safe_mib if job.estimate else self.min_free_mib
        if gpu.free_mib < need_mib:
            return Verdict(gpu.id, (Reason("memory", need_mib, gpu.free_mib, "MiB"),))
        if len(gpu.residents) >= self.most_jobs:
            return Verdict(gpu.id, (Reason("crowded", self.most_jobs, len(gpu.residents), "jobs"),))
        return Verdict(gpu.id, rank=len(gpu.residents))


def least_jobs(settings: Settings, own: LeastJobsSettings) -> LeastJobs:
    """The entry point: CARMA calls it with the server's settings and the policy's own."""
    return LeastJobs(settings.preconditions_for("least_jobs").min_free_mib, own.most_jobs)
