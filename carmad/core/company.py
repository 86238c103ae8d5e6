"""How much a job is slowed by another on its GPUs: the interference ratio xi (Castor paper, 3.1),
measured from step times that jobs report, and the features it is predicted from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from carmad.core.types import Company, Gpu, Job, Loaded, Mode

KEPT = 16  # of one job: the latest


def loaded(job: Job, memory_mib: int) -> Loaded | None:
    """What the job does to its GPUs, by its profile; None without one."""
    profile = job.profile
    if profile is None or not profile.seconds or not profile.peak_mib:
        return None
    return Loaded(profile.indicators, profile.peak_mib / memory_mib)


def beside(own: Loaded, other: Loaded, mps: bool) -> dict[str, float]:
    """The features of a prediction of the slowdown of `own`: the mean and the variance of every
    indicator of both profiles, memory as a share of the GPU's, and whether they share by MPS.
    Values are 0 to 1: `own.sm_active.mean`, `other.gpu_utilization.variance`, `own.memory.share`.
    """
    return dict((*_features("own", own), *_features("other", other), ("mode.mps", float(mps))))


def with_company(job: Job, seconds: float, neighbour: Job, gpu: Gpu) -> Job:
    """The job with the ratio of a step time beside `neighbour` to that reported alone on the same
    kind of GPU; the same object if one of the two is not known well enough.

    A job that reports again beside the same one replaces its earlier ratio.
    """
    alone = (job.accumulation, gpu.name)
    alone_s = next((each.seconds for each in job.steps if (each.parts, each.gpu) == alone), 0.0)
    own, other = loaded(job, gpu.memory_mib), loaded(neighbour, gpu.memory_mib)
    whole = job.accumulation == neighbour.accumulation == 1  # profiles are of whole batches
    if not alone_s or own is None or other is None or not whole:
        return job
    mps = job.mode is neighbour.mode is Mode.MPS
    new = Company(neighbour.id, seconds / alone_s, own, other, mps)
    before = next((each for each in job.company if each.neighbour == new.neighbour), None)
    if before and abs(before.ratio - new.ratio) < 0.01 * before.ratio:
        return job
    others = [each for each in job.company if each is not before]
    return replace(job, company=(*others, new)[-KEPT:])


def _features(whose: str, load: Loaded) -> Iterator[tuple[str, float]]:
    for indicator in load.indicators:
        yield f"{whose}.{indicator.name}.mean", indicator.mean
        yield f"{whose}.{indicator.name}.variance", indicator.variance
    yield f"{whose}.memory.share", load.memory_share
