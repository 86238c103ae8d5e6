"""The GPUs that a plan covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from carmad.plugin import GpuId, GpuView, Job, Settings, View, choice, idle

NOTHING: frozenset[GpuId] = frozenset()


class Site(NamedTuple):
    """The GPUs that a plan covers."""

    gpus: tuple[GpuView, ...]
    kinds: tuple[str, ...]  # in the order in which they first appear
    least_mib: tuple[int, ...]  # of the smallest GPU of each kind
    whole: bool  # none of them is a MIG instance
    strays: Mapping[GpuId, int]  # users of clients, of no job, that are left on GPUs' MPS servers
    idle: int  # GPUs without jobs
    single: frozenset[GpuId]  # GPUs with one job
    one_user: bool  # all clients on a node share an MPS server that serves one user at a time

    def server(self, job: Job) -> int | None:
        """The user whose clients alone may be on a node's server beside the job; None: anyone's."""
        return job.spec.uid if self.one_user and not job.exclusive else None

    def unusable_gpus(self, job: Job) -> frozenset[GpuId]:
        """The GPUs that the job cannot use even when they are empty: because of its declared memory
        (an estimate does not keep it off an empty GPU), after a failure there, because a process
        can use only one MIG instance, because it wants others, or because another user's is left on
        the MPS server."""
        need_mib = job.estimate.safe_mib if job.estimate and job.estimate.firm else 0
        avoid, several = job.retry.avoid if job.retry else (), job.spec.gpus > 1
        client = not job.exclusive and (self.one_user or not several)
        strays = self.strays if client else {}
        chosen = choice(job.spec)
        all_alike = need_mib <= min(self.least_mib, default=0) and (self.whole or not several)
        if all_alike and not (avoid or strays or chosen):
            return NOTHING
        return frozenset(
            gpu.id
            for gpu in self.gpus
            if gpu.id in avoid
            or (chosen and not chosen.accepts(gpu.gpu))
            or need_mib > memory_mib(gpu)
            or (several and gpu.gpu.is_mig)
            or strays.get(gpu.id, job.spec.uid) != job.spec.uid
        )

    def holds(self, job: Job) -> bool:
        """Whether it can ever start there."""
        return job.spec.gpus <= len(self.gpus) - len(self.unusable_gpus(job))

    def kind(self, gpu: GpuView) -> int:
        """The GPU's index in `kinds`. If there is only one kind, all GPUs count as that."""
        return self.kinds.index(gpu.gpu.name) if len(self.kinds) > 1 else 0


def site(view: View, aside: frozenset[GpuId], heterogeneous: bool) -> Site:
    """All GPUs that jobs may use at some time, except those reserved for profiling."""
    gpus = tuple(gpu for gpu in view.gpus if gpu.id not in aside and usable(gpu, view.settings))
    least_mib: dict[str, int] = {}  # by kind
    for gpu in gpus:
        kind = (gpu if heterogeneous else gpus[0]).gpu.name
        least_mib[kind] = min(least_mib.get(kind, memory_mib(gpu)), memory_mib(gpu))
    shared = view.settings.collocation
    return Site(
        gpus,
        tuple(least_mib),
        tuple(least_mib.values()),
        not any(gpu.gpu.is_mig for gpu in gpus),
        {gpu.id: gpu.mps_stray[0] for gpu in gpus if gpu.mps_stray and not gpu.gpu.is_mig},
        sum(not gpu.residents for gpu in gpus),
        frozenset(gpu.id for gpu in gpus if len(gpu.residents) == 1),
        shared.mps and shared.mps_scope == "node" and not shared.mps_multiuser,
    )


def memory_mib(gpu: GpuView) -> int:
    """The memory that jobs may use."""
    return gpu.gpu.memory_mib - gpu.external_mib


def usable(gpu: GpuView, settings: Settings) -> bool:
    """Whether it is neither out of service nor used by external processes."""
    broken = gpu.drained or gpu.stale or (gpu.sample and gpu.sample.fault)
    return not broken and (bool(gpu.residents) or idle(gpu, settings) is None)
