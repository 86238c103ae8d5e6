"""The Non-intrusive Job Profiler: which jobs run where to be known (Lucid paper, 3.2).

With `profiling.gpus` at 0 there are no GPUs for that alone: jobs have their turn as ever, and stay
where they were profiled. Else the last so many GPUs that are fit for use are the profiler's
(C_prof), one less than all of them at most, and from these jobs go back in line after T_prof, to
start from their beginning. N_prof is `profiling.largest`, or what the profiler has on one node if
that is less; larger jobs are known once they have run alone for long enough.

**Space-aware** (algorithm 1): least GPUs first; the first job that does not fit ends the turn.

**Time-aware**, as in the artifact (simulation/profiler/lgf.py): when more than ten jobs wait to be
profiled, a node of the main ones is lent, or, on a single server, as many GPUs again, until fewer
than five wait and the forecast has fallen. Only idle GPUs are lent, so that nobody has to leave.
The artifact returns the node when less than five times N_prof are asked for; here it is what the
profiler can take in without the loan. T_prof is halved meanwhile: the paper says that it is
reduced, not to what. N_prof follows from what is lent. Nothing of that is remembered: a loan shows
in the view, by the jobs that are being profiled on GPUs which are not the profiler's own.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from carmad.models.traffic import INTERVAL_S
from carmad.plugin import GpuId, GpuView, Job, View
from policies.lucid.mode import throughput
from policies.lucid.room import idle_of

MANY, FEW = 10, 5  # jobs that wait to be profiled


class Profiler(NamedTuple):
    """The GPUs that jobs are profiled on, if there are any for that alone."""

    own: frozenset[GpuId]
    lent: frozenset[GpuId]
    largest: int  # N_prof
    run_s: float  # T_prof

    @property
    def gpus(self) -> frozenset[GpuId]:
        return self.own | self.lent

    def takes(self, job: Job) -> bool:
        """One that must not be started twice is profiled where it stays."""
        return job.profile is None and job.spec.gpus <= self.largest and job.spec.requeue


def profiler(view: View, time_aware: bool) -> Profiler:
    knobs = view.settings.profiling
    own = _own(view)
    largest = min(knobs.largest, _widest(own, view))
    alone = Profiler(own, frozenset(), largest, knobs.run_s)
    if not own or not time_aware or not _burst(alone, view):
        return alone
    lent = _lent(own, view)
    largest = min(knobs.largest, _widest(own | lent, view))
    return Profiler(own, lent, largest, knobs.run_s / 2)


def _own(view: View) -> frozenset[GpuId]:
    count = min(view.settings.profiling.gpus, len(view.node_of) - 1)
    if count <= 0:
        return _one_set(())
    last_first = (gpu for node in reversed(view.nodes) for gpu in reversed(node.gpus))
    return _one_set(tuple(gpu.id for gpu in islice(filter(_usable, last_first), count)))


@lru_cache(maxsize=64)
def _one_set(gpus: tuple[GpuId, ...]) -> frozenset[GpuId]:
    """The same one each time: what nodes know is found again by it."""
    return frozenset(gpus)


def _usable(gpu: GpuView) -> bool:
    return not gpu.drained and not (gpu.sample and gpu.sample.fault)


def _widest(gpus: frozenset[GpuId], view: View) -> int:
    """The most that are on one node."""
    return max(Counter(view.node_of[gpu] for gpu in gpus).values(), default=0)


def _burst(alone: Profiler, view: View) -> bool:
    # At least so many: where GPUs are idle jobs go at once.
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
