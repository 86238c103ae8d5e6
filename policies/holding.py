"""GPUs promised to a waiting job, and views as they will look by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple

from carmad.plugin import GpuId, GpuView, Job, JobId, NodeView, View
from policies.memory import need_mib

OVERRUN = 0.25  # of its run time is assumed to be left of a job that has outlived its prediction
LEAST_S = 1.0  # that is left of any job


class Promise(NamedTuple):
    """GPUs promised to a job that waits, and when they are expected to be empty."""

    job: JobId
    gpus: tuple[GpuId, ...]
    at: float


def remaining_s(job: Job, now: float, unknown_s: float) -> float:
    """As predicted, running alone. Its past run time counts in full, as its progress beside others
    is not known."""
    if job.stop is not None:
        return LEAST_S
    if job.expected_s is None:
        return unknown_s
    attained_s = job.attained_s(now)
    return max(LEAST_S, job.expected_s - attained_s, OVERRUN * attained_s)


def available_s(gpu: GpuView, job: Job, view: View, from_s: float) -> float:
    """When the job can have the GPU, if it is empty in `from_s` seconds."""
    at_most_s = job.at_most_s(view.now)
    lasts_s = view.settings.limits.reservation_notice_s if at_most_s == inf else at_most_s
    for slot in gpu.reserved:
        if job.spec.user not in slot.of.users and from_s + lasts_s > slot.in_s:
            from_s = max(from_s, slot.ends_at - view.now)
    return from_s


def without_reservations(view: View) -> View:
    return _change(view, lambda gpu: replace(gpu, reserved=()) if gpu.reserved else gpu)


def without_settling(view: View) -> View:
    """As it will look when every GPU has settled: in a minute, mostly."""
    return _change(view, lambda gpu: replace(gpu, settling=None))


def _change(view: View, change: Callable[[GpuView], GpuView]) -> View:
    nodes = (replace(node, gpus=tuple(map(change, node.gpus))) for node in view.nodes)
    return replace(view, nodes=tuple(nodes))


def without_jobs(view: View, leaves: Callable[[Job], bool]) -> View:
    """As it will look without these jobs."""
    return replace(view, nodes=tuple(_node_without(node, leaves) for node in view.nodes))


def _node_without(node: NodeView, leaves: Callable[[Job], bool]) -> NodeView:
    gpus = tuple(_gpu_without(gpu, leaves) for gpu in node.gpus)
    if not any(gpu.residents for gpu in gpus):  # then a user's MPS server is gone, too
        gpus = tuple(replace(gpu, mps_user=None, mps_leaving=None) for gpu in gpus)
    return replace(node, gpus=gpus)


def _gpu_without(gpu: GpuView, leaves: Callable[[Job], bool]) -> GpuView:
    gone = [job for job in gpu.residents if leaves(job)]
    if not gone:
        return gpu
    residents = tuple(job for job in gpu.residents if not leaves(job))
    free_mib = gpu.gpu.memory_mib - gpu.external_mib
    if residents:
        free_mib = gpu.free_mib + sum(map(need_mib, gone))
    return replace(gpu, residents=residents, settling=None, free_mib=free_mib)
