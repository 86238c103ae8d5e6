"""What a job takes of each of its GPUs' memory, by estimate and by measurement."""

from __future__ import annotations

from carmad.plugin import GpuView, Job, Preconditions, Reason, Retry


def need_mib(job: Job, passes: int = 1) -> int:
    """The larger of what was estimated and what was measured; 0 if it was neither.

    Of a measured peak it is not known what the batch takes: parts save what the estimate says that
    they do, if it says so.
    """
    measured = job.profile.peak_mib if job.profile else 0
    if job.estimate is None:
        return measured
    whole = job.estimate.safe_mib
    return max(whole, measured) - (whole - job.estimate.accumulating(passes).safe_mib)


def margin_mib(retry: Retry | None, conditions: Preconditions) -> int:
    """What an admin wants to be left, or what a job recovers with if that is more."""
    return max(conditions.margin_mib, retry.margin_mib if retry else 0)


def lacking(need: int, job: Job, gpu: GpuView, conditions: Preconditions) -> Reason | None:
    """Whether `need` MiB, and the margin wanted free on top, are not left on the GPU."""
    need += margin_mib(job.retry, conditions)
    return Reason("memory", need, gpu.free_mib, "MiB") if need > gpu.free_mib else None
