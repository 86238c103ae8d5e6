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
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from carmad.plugin import GpuId, GpuView, Job, NodeView, Placement, ProfilingRun, Reason, View, idle
from policies.reasons import expectation
from policies.rules import Rules

TOLD = 16  # the first jobs that wait to be profiled, which get reasons


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


def profile_aside(
    aside: ProfilingPool, line: Sequence[Job], rules: Rules, view: View
) -> tuple[list[Placement], View]:
    """Profiling runs on the reserved GPUs: each job that fits there, in queue order, on one node.
    Also the view after that: its user may take the MPS server of a whole node."""
    plan: list[Placement] = []
    there = only(view, aside.own.__contains__)
    free = sum(idle(gpu, view.settings) is None for gpu in there.gpus)
    for n, job in enumerate(line):
        placement = rules.place(job, there)
        if len({view.node_of[gpu] for gpu in placement.gpus}) == 1:
            free -= job.spec.gpus
            placement = profiling_run(placement, job, view, aside.run_s, evict=True)
            taken = job, placement.gpus, placement.profiling
            view, there = view.with_placement(*taken), there.with_placement(*taken)
            plan.append(placement)
        elif n < TOLD:
            wait = Reason("profiling_gpus", job.spec.gpus, free, "GPUs")
            plan.append(replace(placement, gpus=(), reasons=(wait,)))
    return plan, view


def only(view: View, keep: Callable[[GpuId], bool]) -> View:
    """The view as if there were no other GPUs. Nodes that lose none stay the same objects."""
    nodes = []
    for node in view.nodes:
        kept = tuple(gpu for gpu in node.gpus if keep(gpu.id))
        nodes.append(node if len(kept) == len(node.gpus) else NodeView(node.name, kept))
    return replace(view, nodes=tuple(nodes))


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
    count = view.settings.profiling.pool_size(len(view.node_of))
    last_first = (gpu for node in reversed(view.nodes) for gpu in reversed(node.gpus))
    return frozenset(islice((gpu.id for gpu in last_first if usable(gpu, view)), count))


def usable(gpu: GpuView, view: View) -> bool:
    """Excludes faulty and drained GPUs, those that external processes use, and MIG instances, for
    which NVML reports no utilisation."""
    broken = gpu.drained or gpu.stale or (gpu.sample and gpu.sample.fault)
    others = gpu.external_mib > view.settings.monitor.external_mib
    return not broken and not others and not gpu.gpu.is_mig
