"""The table of ended jobs that models are trained on, and that `carma history --table` writes."""

from __future__ import annotations

from collections.abc import Mapping

from carmad.core.history import past
from carmad.core.types import Job

Cell = str | float | int | bool | None


def row(job: Job) -> Mapping[str, Cell]:
    """One ended job. Times are in Unix s, durations in s, memory in MiB per GPU; None: unknown.

    `duration_s` is how long it held its GPUs, in attempts that were not lost; None: it never
    ran. Each indicator of its profile, which may be from an earlier run, has the columns NAME, the
    mean, and NAME_variance; fractions are 0–1. Which indicators there are depends on the GPUs.
    """
    spec, run = job.spec, past(job)
    cells: dict[str, Cell] = {
        "job": job.id,
        "user": spec.user,
        "group": job.group,  # the same for runs of the same job
        "name": spec.name,
        "gpus": spec.gpus,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at if run else None,  # the last attempt
        "ended_at": job.ended_at,
        "duration_s": run.duration_s if run else None,
        "state": job.state.value,
        "cause": job.exit.cause.value if job.exit else None,
        "attempts": job.attempt,
        "batch_size": spec.batch_size,
        "amp": spec.amp,
        "peak_mib": job.usage.peak_mib or None,
        "estimate_mib": job.estimate.mib if job.estimate else None,
        "predicted_s": job.prediction.seconds if job.prediction else None,
        "profiled_s": job.profile.seconds if job.profile else None,
        "profile_of": job.profile.of if job.profile else None,  # the earlier run measured, if any
        "profile_peak_mib": job.profile.peak_mib if job.profile else None,
    }
    for indicator in job.profile.indicators if job.profile else ():
        cells[indicator.name] = indicator.mean
        cells[f"{indicator.name}_variance"] = indicator.variance
    return cells
