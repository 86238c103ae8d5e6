"""How much a job is slowed by another on its GPUs: the interference ratio xi (Castor paper, 3.1),
measured from step times that jobs report, and the features it is predicted from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from carmad.core.types import Company, Gpu, Job, JobState, Loaded, Mode, Profile

KEPT = 4  # of one job, the latest: each takes a KiB of its row, which is written at every change


def loaded(profile: Profile | None, memory_mib: int) -> Loaded | None:
    """What a job with this profile does to its GPUs; None without one."""
    if profile is None or not profile.seconds or not profile.peak_mib:
        return None
    return Loaded(profile.indicators, profile.peak_mib / memory_mib)


def beside(own: Loaded, other: Loaded, mps: bool) -> dict[str, float]:
    """The features of a prediction of the slowdown of `own`: the mean and the variance of every
    indicator of both profiles, memory as a share of the GPU's, and whether they share by MPS.
    Values are 0 to 1: `own.sm_active.mean`, `other.gpu_utilization.variance`, `own.memory.share`.
    """
    return dict((*_features("own", own), *_features("other", other), ("mode.mps", float(mps))))


def untold(job: Job, neighbour: Job, gpu: Gpu) -> str:
    """Why a step time of `job` beside `neighbour` says nothing of how much that slows it; empty if
    it does."""
    if neighbour.state is not JobState.RUNNING:
        return f"job {neighbour.id}, beside it, has yet to begin, or is ending"
    if job.accumulation > 1 or neighbour.accumulation > 1:  # profiles are of whole batches
        return f"its batches, or those of job {neighbour.id}, are split"
    for each in (job, neighbour):
        if loaded(each.profile, gpu.memory_mib) is None:
            return f"job {each.id} has no profile"
    if not _alone_s(job, gpu):
        return f"no step time of it alone on {gpu.name} is known, to compare with"
    return ""


def with_company(job: Job, seconds: float, neighbour: Job, gpu: Gpu) -> Job:
    """The job with the ratio of a step time beside `neighbour` to that reported alone on the same
    kind of GPU; the same object if that is `untold`, or was known to 1 %.

    A job that reports again beside the same one replaces its earlier ratio.
    """
    own = loaded(job.profile, gpu.memory_mib)
    other = loaded(neighbour.profile, gpu.memory_mib)
    if untold(job, neighbour, gpu) or own is None or other is None:
        return job
    mps = job.mode is neighbour.mode is Mode.MPS
    new = Company(neighbour.id, seconds / _alone_s(job, gpu), own, other, mps)
    before = next((each for each in job.company if each.neighbour == new.neighbour), None)
    if before and abs(before.ratio - new.ratio) < 0.01 * before.ratio:
        return job
    others = [each for each in job.company if each is not before]
    return replace(job, company=(*others, new)[-KEPT:])


def _alone_s(job: Job, gpu: Gpu) -> float:
    """The time of a whole step alone on this kind of GPU; 0 if it is not known."""
    alone = (1, gpu.name)
    return next((each.seconds for each in job.steps if (each.parts, each.gpu) == alone), 0.0)


def _features(whose: str, load: Loaded) -> Iterator[tuple[str, float]]:
    for indicator in load.indicators:
        yield f"{whose}.{indicator.name}.mean", indicator.mean
        yield f"{whose}.{indicator.name}.variance", indicator.variance
    yield f"{whose}.memory.share", load.memory_share
