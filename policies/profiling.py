"""GPUs that are for profiling alone, and which jobs go there to be known (Lucid paper, 3.2; Castor
paper, section 7).

With `profiling.gpus` at 0 there are none: jobs have their turn as ever, and stay where they were
profiled. Else the last so many GPUs that are fit for use are the profiler's (C_prof), one less than
all of them at most, and from these jobs go back in line after T_prof, to start from their
beginning. N_prof is `profiling.largest`, or what the profiler has on one node if that is less;
larger jobs are known once they have run alone for long enough.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from carmad.plugin import GpuId, GpuView, Job, Placement, ProfilingRun, Reason, View
from policies.reasons import expected


class ProfilingPool(NamedTuple):
    """The GPUs that jobs are profiled on, if there are any for that alone."""

    own: frozenset[GpuId]
    lent: frozenset[GpuId]
    largest: int  # N_prof
    run_s: float  # T_prof
    memory_mib: int  # of the smallest of its GPUs

    @property
    def gpus(self) -> frozenset[GpuId]:
        return self.own | self.lent

    def takes(self, job: Job) -> bool:
        """One that must not be started twice is profiled where it stays; so is one that would keep
        these GPUs from others for long before there is anything to see."""
        spec, promised = job.spec, job.estimate if job.estimate and job.estimate.firm else None
        fits = spec.gpus <= self.largest and spec.requeue and spec.cold_start_s <= self.run_s
        too_large = promised is not None and promised.safe_mib > self.memory_mib
        return job.profile is None and job.retry is None and fits and not too_large


def profiled(placement: Placement, job: Job, view: View, run_s: float, evict: bool) -> Placement:
    """As a run to profile the job for so long, told why; with `evict` it goes back in line then."""
    run_s += job.spec.cold_start_s
    explanation = (*expected(job), Reason("profiled_there", run_s, unit="s"))
    run = ProfilingRun(view.now + run_s, evict)
    return replace(placement, profiling=run, explanation=explanation)


def set_aside(view: View) -> ProfilingPool:
    """As the settings have it."""
    knobs, own = view.settings.profiling, _own(view)
    least_mib = min((view.gpu(gpu).gpu.memory_mib for gpu in own), default=0)
    largest = min(knobs.largest, widest(own, view))
    return ProfilingPool(own, frozenset(), largest, knobs.run_s, least_mib)


def widest(gpus: frozenset[GpuId], view: View) -> int:
    """The most that are on one node."""
    return max(Counter(view.node_of[gpu] for gpu in gpus).values(), default=0)


def _own(view: View) -> frozenset[GpuId]:
    count = min(view.settings.profiling.gpus, len(view.node_of) - 1)
    if count <= 0:
        return _one_set(())
    last_first = (gpu for node in reversed(view.nodes) for gpu in reversed(node.gpus))
    usable = (gpu.id for gpu in last_first if _usable(gpu, view))
    return _one_set(tuple(islice(usable, count)))


@lru_cache(maxsize=64)
def _one_set(gpus: tuple[GpuId, ...]) -> frozenset[GpuId]:
    """The same one each time: what nodes know is found again by it."""
    return frozenset(gpus)


def _usable(gpu: GpuView, view: View) -> bool:
    """Not one that is out of order, or that somebody else uses; nor a MIG instance, of which NVML
    tells no utilisation."""
    broken = gpu.drained or gpu.stale or (gpu.sample and gpu.sample.fault)
    others = gpu.external_mib > view.settings.monitor.external_mib
    return not broken and not others and not gpu.gpu.is_mig
