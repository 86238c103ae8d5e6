"""A job's stage times on each kind of GPU (the profiler of the Cuckoo paper, 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

from carmad.plugin import Job, Profile, StageTimes

FORWARD = 1 / 3  # of the computing time: the backward pass has two matrix products per forward one
SHORTEST_S = 1e-6  # shortest credible iteration
FASTER = 100.0  # largest credible ratio of the speeds of two kinds
ASSUMED_S = 1.0  # step time if unknown: between two such jobs only ratios matter


def known(job: Job, measured_on: str) -> tuple[StageTimes, ...]:
    """Known stage times, by kind; empty if the job has neither stage times nor a profile, or if its
    iterations are implausibly short.

    A profile does not say on which kind it was taken: `measured_on` is assumed.
    """
    if job.stage_times:
        return job.stage_times if min(map(_total_s, job.stage_times)) >= SHORTEST_S else ()
    step_s = min((step.seconds for step in job.steps if step.parts == 1), default=ASSUMED_S)
    derived = _derived(job.profile, step_s or ASSUMED_S) if job.profile else None
    return (replace(derived, gpu=measured_on),) if derived else ()


def _total_s(stages: StageTimes) -> float:
    return stages.load_s + stages.forward_s + stages.backward_s + stages.communication_s


@lru_cache(maxsize=4096)
def _derived(profile: Profile, step_s: float) -> StageTimes | None:
    """Stage times from the share of time in which a kernel ran. The rest counts as loading:
    utilisation cannot distinguish waiting for data from waiting for the network, but NCCL's kernels
    run during the latter, and on one server data is more likely."""
    busy = profile.mean("gpu_utilization")
    if busy is None:
        return None
    busy = min(1.0, max(0.0, busy))
    computing_s = busy * step_s
    forward_s = FORWARD * computing_s
    return StageTimes(step_s - computing_s, forward_s, computing_s - forward_s)


@dataclass(frozen=True, slots=True)
class Speeds:
    """How much longer passes take on one kind of GPU than on another: the median over jobs with
    stage times on both, so that one owner's mistake does not affect everyone's plans. Kinds that no
    job connects count as equally fast."""

    ratios: Mapping[tuple[str, str], float]  # from one kind to another

    @classmethod
    def told(cls, jobs: Iterable[Job]) -> Speeds:
        seen: dict[tuple[str, str], list[float]] = {}
        for stages in {job.stage_times for job in jobs if len(job.stage_times) > 1}:
            computing = [(each.gpu, each.forward_s + each.backward_s) for each in stages]
            for one, there_s in computing:
                for other, here_s in computing:
                    if one != other and 0 < there_s <= FASTER * here_s <= FASTER**2 * there_s:
                        seen.setdefault((one, other), []).append(here_s / there_s)
        return cls({kinds: median(ratios) for kinds, ratios in seen.items()})

    def on(self, stages: tuple[StageTimes, ...], kind: str) -> StageTimes:
        """The stage times given for this kind, or for any kind; otherwise those of the first kind
        given, with passes scaled: disk and network do not depend on the GPU."""
        by_kind = {each.gpu: each for each in stages}
        there = by_kind.get(kind) or by_kind.get("")
        if there is not None:
            return there
        first = stages[0]
        ratio = self.ratios.get((first.gpu, kind), 1.0)
        return StageTimes(
            first.load_s,
            first.forward_s * ratio,
            first.backward_s * ratio,
            first.communication_s,
            first.sync,
            kind,
        )
