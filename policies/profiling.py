"""GPUs reserved for profiling, and which jobs are profiled there (Lucid paper, 3.2; Castor paper,
section 7).

With `profiling.gpus` at 0 there are none: jobs wait their turn as usual, and stay where they were
profiled. Otherwise the last that many usable GPUs are the profiler's (C_prof), but never all, and
jobs there are requeued after T_prof, to start from their beginning. N_prof is `profiling.largest`,
or what the profiler has on one node if that is less; larger jobs are profiled when they have run
alone for long enough.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from carmad.plugin import GpuId, GpuView, Job, Placement, ProfilingRun, Reason, View
from policies.reasons import expectation


class ProfilingPool(NamedTuple):
    """The GPUs reserved for profiling, if any."""

    own: frozenset[GpuId]
    lent: frozenset[GpuId]
    largest: int  # N_prof
    run_s: float  # T_prof
    memory_mib: int  # of the smallest of its GPUs

    @property
    def gpus(self) -> frozenset[GpuId]:
        return self.own | self.lent

    def takes(self, job: Job) -> bool:
        """Whether the job is profiled on these GPUs. A job that must not be restarted is profiled
        where it stays, and so is one whose setup would occupy these GPUs for long."""
        spec, promised = job.spec, job.estimate if job.estimate and job.estimate.firm else None
        fits = spec.gpus <= self.largest and spec.requeue and spec.cold_start_s <= self.run_s
        too_large = promised is not None and promised.safe_mib > self.memory_mib
        return job.profile is None and job.retry is None and fits and not too_large


def profiling_run(
    placement: Placement, job: Job, view: View, run_s: float, evict: bool
) -> Placement:
    """The placement as a profiling run of `run_s`, with a reason; with `evict`, the job is requeued
    then."""
    run_s += job.spec.cold_start_s
    explanation = (*expectation(job), Reason("profiled_there", run_s, unit="s"))
    run = ProfilingRun(view.now + run_s, evict)
    return replace(placement, profiling=run, explanation=explanation)


def set_aside(view: View) -> ProfilingPool:
    """The profiling pool according to the settings."""
    knobs, own = view.settings.profiling, _own(view)
    least_mib = min((view.gpu(gpu).gpu.memory_mib for gpu in own), default=0)
    largest = min(knobs.largest, widest(own, view))
    return ProfilingPool(own, frozenset(), largest, knobs.run_s, least_mib)


def widest(gpus: frozenset[GpuId], view: View) -> int:
    """The largest number of these GPUs on one node."""
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
    """The same object for equal GPUs, since it is a key in the nodes' `memo`."""
    return frozenset(gpus)


def _usable(gpu: GpuView, view: View) -> bool:
    """Excludes faulty and drained GPUs, those that external processes use, and MIG instances, for
    which NVML reports no utilisation."""
    broken = gpu.drained or gpu.stale or (gpu.sample and gpu.sample.fault)
    others = gpu.external_mib > view.settings.monitor.external_mib
    return not broken and not others and not gpu.gpu.is_mig
