"""GPUs that are held for a waiting job, and what may use them until then (EASY backfilling)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from carmad.plugin import Demand, GpuId, GpuView, Job, JobId, NodeView, Reason, View
from policies.memory import need_mib

if TYPE_CHECKING:
    from policies.ranked import Ranked

OVERRUN = 0.25  # of its run time is assumed to be left of a job that has outlived its prediction
LEAST_S = 1.0  # that is left of any job


class Held(NamedTuple):
    """GPUs promised to a job that waits, and when they are expected to be empty."""

    job: JobId
    gpus: tuple[GpuId, ...]
    at: float


def hold(rules: Ranked, job: Job, view: View, left_s: Callable[[Job], float]) -> Held | None:
    """The GPUs that will be empty first, of those that would do then; None if there are too few.

    `left_s`: how long a running job will take, in seconds.
    """
    uid = view.demand(job).mps_uid

    def in_use(gpu: GpuView) -> tuple[GpuView, ...]:
        """What must be empty before: another user's MPS server may be the whole node's."""
        if uid is None or gpu.mps_user is None or gpu.mps_user[0] == uid:
            return (gpu,)
        return view.nodes[view.node_of[gpu.id]].gpus

    def empty_s(gpu: GpuView) -> float:
        there = (each for used in in_use(view.gpu(gpu.id)) for each in used.residents)
        return max(map(left_s, there), default=0.0)

    gpus = rules.by(empty_s).place(job, vacated(view, lambda _: True)).gpus
    if not gpus:
        return None
    needed = [view.gpu(gpu) for gpu in gpus]
    held = dict.fromkeys(each.id for gpu in needed for each in in_use(gpu))
    return Held(job.id, tuple(held), view.now + max(map(empty_s, needed)))


def keeping(rules: Ranked, held: Held, now: float) -> Ranked:
    """The same, off the GPUs that are held."""
    reason = Reason("held_for", held.at - now, unit="s", detail=f"job {held.job}")

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        return reason if gpu.id in held.gpus else None

    return replace(rules, filters=(*rules.filters, refuse))


def remaining_s(job: Job, now: float, unknown_s: float) -> float:
    """As predicted, running alone. Its past run time counts in full, as its progress beside others
    is not known."""
    if job.stop is not None:
        return LEAST_S
    if job.expected_s is None:
        return unknown_s
    attained_s = job.attained_s(now)
    return max(LEAST_S, job.expected_s - attained_s, OVERRUN * attained_s)


def settled(view: View) -> View:
    """As it will look when every GPU has settled: in a minute, mostly."""
    nodes = (
        replace(node, gpus=tuple(replace(gpu, settling=None) for gpu in node.gpus))
        for node in view.nodes
    )
    return replace(view, nodes=tuple(nodes))


def vacated(view: View, leaves: Callable[[Job], bool]) -> View:
    """As it will look without these jobs."""
    return replace(view, nodes=tuple(_vacated(node, leaves) for node in view.nodes))


def _vacated(node: NodeView, leaves: Callable[[Job], bool]) -> NodeView:
    gpus = tuple(_without(gpu, leaves) for gpu in node.gpus)
    if not any(gpu.residents for gpu in gpus):  # then a user's MPS server is gone, too
        gpus = tuple(replace(gpu, mps_user=None, mps_leaving=None) for gpu in gpus)
    return replace(node, gpus=gpus)


def _without(gpu: GpuView, leaves: Callable[[Job], bool]) -> GpuView:
    gone = [job for job in gpu.residents if leaves(job)]
    if not gone:
        return gpu
    residents = tuple(job for job in gpu.residents if not leaves(job))
    free_mib = gpu.gpu.memory_mib - gpu.external_mib
    if residents:
        free_mib = gpu.free_mib + sum(map(need_mib, gone))
    return replace(gpu, residents=residents, settling=None, free_mib=free_mib)
