"""What an iteration of a job takes on each kind of GPU (Cuckoo paper, 3.1's profiler)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

from carmad.plugin import Job, Profile, StageTimes

FORWARD = 1 / 3  # of what computing takes; the backward pass is two matrix products for its one
SHORTEST_S = 1e-6  # an iteration: whoever says less is mistaken
FASTER = 100.0  # times: kinds that are said to differ by more do not tell of others
ASSUMED_S = 1.0  # of a step, where nobody knows: between two such jobs only ratios matter


def known(job: Job, measured_on: str) -> tuple[StageTimes, ...]:
    """What is known of it, by kind; nothing for a job that was neither told nor profiled, or whose
    iterations are said to take next to no time.

    A profile does not say where it was taken: `measured_on` stands for that.
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
    """From the share of time in which a kernel ran. While none did, it is taken to have loaded:
    utilisation does not tell a wait for data from one for the network, which NCCL's kernels would
    fill anyway, and on one server data is the likelier."""
    busy = profile.mean("gpu_utilization")
    if busy is None:
        return None
    busy = min(1.0, max(0.0, busy))
    computing_s = busy * step_s
    forward_s = FORWARD * computing_s
    return StageTimes(step_s - computing_s, forward_s, computing_s - forward_s)


@dataclass(frozen=True, slots=True)
class Speeds:
    """How much longer the passes take on one kind of GPU than on another: the median over the jobs
    that were told on both, as one owner's slip must not move all others' plans. Kinds that no job
    connects are taken to be as fast as each other."""

    ratios: Mapping[tuple[str, str], float]  # from a kind to another

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
        """As told of the kind, or of any; else of the first kind told, its passes scaled: neither
        disk nor network is another one for another GPU."""
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
