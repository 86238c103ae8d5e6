"""A job's stage times on each kind of GPU (the profiler of the Cuckoo paper, 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

from carmad.plugin import Job, Links, Profile, StageTimes

FORWARD = 1 / 3  # of the computing time: the backward pass has two matrix products per forward one
SHORTEST_S = 1e-6  # shortest credible iteration
FASTER = 100.0  # largest credible ratio of the speeds of two kinds
ASSUMED_S = 1.0  # step time if unknown: between two such jobs only ratios matter


def find_stage_times(job: Job, measured_on: str, links: Links) -> tuple[StageTimes, ...]:
    """Known stage times, by kind; empty if the job has neither stage times nor a profile, or if its
    iterations are implausibly short.

    `measured_on`: the kind assumed for profiles of releases that did not record it.
    """
    if job.stage_times:
        return job.stage_times if min(map(_total_s, job.stage_times)) >= SHORTEST_S else ()
    if job.profile is None:
        return ()
    kind = job.profile.gpu or measured_on
    steps = {step.gpu: step.seconds for step in job.steps if step.parts == 1}
    step_s = steps.get(kind) or min(steps.values(), default=ASSUMED_S) or ASSUMED_S
    derived = _derive(job.profile, step_s, links if job.spec.gpus > 1 else None)
    return (replace(derived, gpu=kind),) if derived else ()


def _total_s(stages: StageTimes) -> float:
    return stages.load_s + stages.forward_s + stages.backward_s + stages.communication_s


@lru_cache(maxsize=4096)
def _derive(profile: Profile, step_s: float, links: Links | None) -> StageTimes | None:
    """Stage times from the share of time in which a kernel ran, and, if `links` are given, what the
    GPUs sent. The rest counts as loading: utilisation cannot distinguish waiting for data from
    waiting for the network, but NCCL's kernels run during the latter.

    What overlaps the backward pass takes no time of its own; if more is sent than fits there, the
    passes are shorter by the excess.
    """
    busy = profile.mean("gpu_utilization")
    if busy is None:
        return None
    computing_s = min(1.0, max(0.0, busy)) * step_s
    sending_s = min(computing_s, _sending(profile, links) * step_s) if links else 0.0
    forward_s = min(FORWARD * computing_s, computing_s - sending_s)
    backward_s = forward_s / FORWARD - forward_s
    return StageTimes(step_s - computing_s, forward_s, backward_s, sending_s)


def _sending(profile: Profile, links: Links) -> float:
    """The share of time that the GPU's links need for what it sent, by NVLink's and PCIe's
    counters. What it received over PCIe is mostly data, so only the other direction counts."""
    nvlink, pcie = (profile.mean(f"{link}_tx_mib_s") or 0.0 for link in ("nvlink", "pcie"))
    return nvlink / links.within_mib_s + pcie / links.between_mib_s


@dataclass(frozen=True, slots=True)
class Speeds:
    """How much longer passes take on one kind of GPU than on another: the median over jobs with
    stage times on both, so that one owner's mistake does not affect everyone's plans. Kinds that no
    job connects count as equally fast."""

    ratios: Mapping[tuple[str, str], float]  # from one kind to another

    @classmethod
    def compare(cls, jobs: Iterable[Job]) -> Speeds:
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
