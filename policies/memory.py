"""How much memory a job needs on each of its GPUs, by estimate and by measurement."""

from __future__ import annotations

from carmad.plugin import GpuView, Job, Preconditions, Reason, Retry


def need_mib(job: Job, passes: int = 1) -> int:
    """The larger of its estimated and its measured memory, in `passes` per batch; 0 if both are
    unknown.

    A measured peak does not show how much is due to the batch; only an estimate may say what more
    passes save.
    """
    measured = job.profile.peak_mib if job.profile else 0
    if job.estimate is None:
        return measured
    whole = job.estimate.safe_mib
    return max(whole, measured) - (whole - job.estimate.accumulating(passes).safe_mib)


def peak_mib(job: Job, passes: int) -> int:
    """The measured memory of a run in one pass per batch, less what more passes save."""
    measured = job.profile.peak_mib if job.profile else 0
    if passes == 1:
        return measured
    return max(1, measured - need_mib(job) + need_mib(job, passes))


def margin_mib(retry: Retry | None, conditions: Preconditions) -> int:
    """The larger of the configured margin and the job's own after a crash."""
    return max(conditions.margin_mib, retry.margin_mib if retry else 0)


def lacking(need: int, job: Job, gpu: GpuView, conditions: Preconditions) -> Reason | None:
    """Why `need` MiB, plus the margins, do not fit on the GPU; None if they do."""
    need += margin_mib(job.retry, conditions)
    return Reason("memory", need, gpu.free_mib, "MiB") if need > gpu.free_mib else None
