"""What Lucid does about how much is being submitted: how much sharing it allows, and whether its
profiler borrows GPUs.

**Sharing** (Lucid paper, 3.3, "Dynamic Strategy"). The paper forecasts how many jobs will be
submitted and how many GPUs requested; its artifact uses the jobs. Here it is the GPUs: ten one-GPU
jobs take less room than two eight-GPU jobs. The paper requires the throughput to be low now *and*
not about to rise, so the larger of the last hour's mean and the forecast counts.

**The Non-intrusive Job Profiler** (3.2): which jobs are profiled on which GPUs. Space-aware
(algorithm 1): fewest GPUs first; the first job that does not fit ends the turn. Time-aware, as in
the artifact (simulation/profiler/lgf.py): when more than ten jobs wait to be profiled, the profiler
borrows one of the main nodes or, on a single server, as many GPUs as it has, until fewer than five
jobs wait and the forecast has fallen. Only idle GPUs are lent, so no job has to leave. The artifact
returns the node when fewer than five times N_prof GPUs are requested; here the limit is what the
profiler can hold without the loan. T_prof is halved meanwhile: the paper says that it is reduced,
but not by how much. N_prof follows from the loan. No state is kept: a loan is visible in the view,
as jobs that are being profiled on GPUs which are not the profiler's own.
"""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from carmad.learning.features import HOUR, INTERVAL_S, traffic_features
from carmad.plugin import Additive, AskAgain, GpuId, Job, Reason, View
from policies.lucid import LucidSettings
from policies.lucid.room import idle_of
from policies.profiling import ProfilingPool, set_aside, widest

NAME = "throughput"  # of the trained model
APATHETIC = 1  # sharing capacity

MANY, FEW = 10, 5  # jobs waiting to be profiled


class Capacity(NamedTuple):
    """Limits on the sums over two jobs that share a GPU."""

    score: int  # GSS, of sharing scores
    utilization: float  # of the GPU, 0-1 each


def sharing_capacity(view: View, knobs: LucidSettings) -> Capacity | Reason:
    """The capacity now, or why sharing is off."""
    whole = Capacity(knobs.sharing_capacity, knobs.utilization_capacity)
    if not _is_dynamic(knobs):
        return whole
    gpus = throughput(view)
    if gpus < knobs.off_below:
        return Reason("sharing_off", knobs.off_below, gpus, "GPUs")
    if gpus < knobs.apathetic_below:
        return whole._replace(score=min(APATHETIC, whole.score))
    return whole


def next_change(view: View, knobs: LucidSettings) -> tuple[AskAgain, ...]:
    """Ask again when the capacity may change, even if nothing else happens until then."""
    if not _is_dynamic(knobs):
        return ()
    return (AskAgain((view.now // INTERVAL_S + 1) * INTERVAL_S),)


def _is_dynamic(knobs: LucidSettings) -> bool:
    return knobs.off_below > 0 or knobs.apathetic_below > 0


def throughput(view: View) -> float:
    """GPUs requested in ten minutes, recently or as forecast, whichever is more."""
    counts = view.history.traffic(view.now)
    lately = fmean([gpus for _, gpus in counts[-HOUR:]]) if counts else 0.0
    model = view.models.get(NAME)
    if not isinstance(model, Additive):
        return lately
    return max(lately, model.predict(traffic_features(counts, view.now)))


def profiler(view: View, time_aware: bool) -> ProfilingPool:
    alone = set_aside(view)
    if not alone.own or not time_aware or not _burst(alone, view):
        return alone
    lent = _lent(alone.own, view)
    largest = min(view.settings.profiling.largest, widest(alone.own | lent, view))
    return alone._replace(lent=lent, largest=largest, run_s=alone.run_s / 2)


def _burst(alone: ProfilingPool, view: View) -> bool:
    # A lower bound: where GPUs are idle, jobs start at once.
    waiting = sum(map(alone.takes, view.queue)) - idle_of(alone.own, view).free
    if waiting > MANY:
        return True
    if not any(_borrows(job, alone.own) for job in view.running):
        return False
    takes_in = len(alone.own) * INTERVAL_S / alone.run_s
    return waiting >= FEW or throughput(view) > takes_in


def _borrows(job: Job, own: frozenset[GpuId]) -> bool:
    return job.profiling is not None and job.profiling.evict and not own.issuperset(job.gpus)


def _lent(own: frozenset[GpuId], view: View) -> frozenset[GpuId]:
    main = [node for node in view.nodes if not any(gpu.id in own for gpu in node.gpus)]
    if main:
        return frozenset(gpu.id for gpu in main[-1].gpus)
    others = [gpu.id for gpu in view.gpus if gpu.id not in own]
    return frozenset(others[-len(own) :])
