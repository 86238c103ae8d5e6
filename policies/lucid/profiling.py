"""The Non-intrusive Job Profiler: which jobs are profiled on which GPUs (Lucid paper, 3.2).

**Space-aware** (algorithm 1): fewest GPUs first; the first job that does not fit ends the turn.

**Time-aware**, as in the artifact (simulation/profiler/lgf.py): when more than ten jobs wait to be
profiled, the profiler borrows one of the main nodes or, on a single server, as many GPUs as it has,
until fewer than five jobs wait and the forecast has fallen. Only idle GPUs are lent, so no job has
to leave. The artifact returns the node when fewer than five times N_prof GPUs are requested; here
the limit is what the profiler can hold without the loan. T_prof is halved meanwhile: the paper says
that it is reduced, but not by how much. N_prof follows from the loan. No state is kept: a loan is
visible in the view, as jobs that are being profiled on GPUs which are not the profiler's own.
"""

from __future__ import annotations

from carmad.models.features import INTERVAL_S
from carmad.plugin import GpuId, Job, View
from policies.lucid.mode import throughput
from policies.lucid.room import idle_of
from policies.profiling import ProfilingPool, set_aside, widest

MANY, FEW = 10, 5  # jobs waiting to be profiled


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
