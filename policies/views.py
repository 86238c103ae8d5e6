"""What policies read from a view: how much memory and time a job needs, which GPUs are in service,
and how the view will look when jobs have ended."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from carmad.plugin import (
    MINUTE_S,
    GpuId,
    GpuView,
    Job,
    JobId,
    NodeView,
    Preconditions,
    Reason,
    Retry,
    Settings,
    View,
    idle,
)


def need_mib(job: Job, passes: int = 1) -> int:
    """The larger of its estimated and its measured memory, in `passes` per batch; 0 if both are
    unknown.

    A measured peak does not show how much is due to the batch; only an estimate may say what more
    passes save.
    """
    measured = job.profile.peak_mib if job.profile else 0
    if job.estimate is None:
        return measured
    whole = job.estimate.safe_mib
    return max(whole, measured) - (whole - job.estimate.accumulating(passes).safe_mib)


def activity(job: Job) -> float | None:
    """How busy it keeps each of its GPUs, as measured while it was alone."""
    return job.profile.activity if job.profile else None


def peak_mib(job: Job, passes: int) -> int:
    """The measured memory of a run in one pass per batch, less what more passes save."""
    measured = job.profile.peak_mib if job.profile else 0
    if passes == 1:
        return measured
    return max(1, measured - need_mib(job) + need_mib(job, passes))


def margin_mib(retry: Retry | None, conditions: Preconditions) -> int:
    """The larger of the configured margin and the job's own after a crash."""
    return max(conditions.margin_mib, retry.margin_mib if retry else 0)


def memory_shortage(need: int, job: Job, gpu: GpuView, conditions: Preconditions) -> Reason | None:
    """Why `need` MiB, plus the margins, do not fit on the GPU; None if they do."""
    need += margin_mib(job.retry, conditions)
    return Reason("memory", need, gpu.free_mib, "MiB") if need > gpu.free_mib else None


def too_large(job: Job, need: float, view: View) -> bool:
    """Whether it fits nowhere, by memory alone."""
    firm = job.estimate is not None and job.estimate.firm
    room = (need <= gpu.free_mib or not (firm or gpu.residents) for gpu in view.gpus)
    return sum(room) < job.spec.gpus


class Totals(NamedTuple):
    usable: int  # GPUs that are neither drained nor faulty
    idle: int  # the unused ones among them
    size: int  # GPUs of the largest server (island)


def totals(view: View) -> Totals:
    settings = view.settings
    counted = [node.memo.recall(_count, _count, node, settings) for node in view.nodes]
    usable, idle, sizes = zip(Totals(0, 0, 0), *counted, strict=True)
    return Totals(sum(usable), sum(idle), max(sizes))


def _count(node: NodeView, settings: Settings) -> Totals:
    usable = [
        gpu for gpu in node.gpus if gpu.drained is None and not (gpu.sample and gpu.sample.fault)
    ]
    islands = [gpu.gpu.island for gpu in node.gpus]
    free = sum(idle(gpu, settings) is None for gpu in usable)
    return Totals(len(usable), free, max(map(islands.count, islands)))


class Promise(NamedTuple):
    """GPUs promised to a job that waits, and when it is expected to get them."""

    job: JobId
    gpus: tuple[GpuId, ...]
    at: float
    leaving: frozenset[JobId] = frozenset()  # those that must end before
    unknown: JobId | None = None  # one of them of which nobody knows when it ends


def available_s(gpu: GpuView, job: Job, view: View, from_s: float) -> float:
    """When the job can have the GPU, if it is empty in `from_s` seconds."""
    at_most_s = job.at_most_s(view.now)
    lasts_s = view.settings.limits.reservation_notice_s if at_most_s == inf else at_most_s
    for slot in gpu.reserved:
        if not slot.of.admits(job.spec.owner) and from_s + lasts_s > slot.in_s:
            from_s = max(from_s, slot.ends_at - view.now)
    return from_s


def empty_view(view: View) -> View:
    """As it will look when all jobs and reservations of now have ended."""
    return _change(view, GpuView.vacated)


def without_settling(view: View) -> View:
    """As it will look in a minute: GPUs have settled by then, except those that have waited for a
    first kernel for longer."""
    return _change(view, once_settled)


def once_settled(gpu: GpuView) -> GpuView:
    why = gpu.settling
    is_late = why is None or (why.code == "first_kernel" and why.have > MINUTE_S)
    return gpu if is_late else replace(gpu, settling=None)


def _change(view: View, change: Callable[[GpuView], GpuView]) -> View:
    """Each node is changed once, however many jobs are judged by it."""
    nodes = (node.memo.recall(change, _change_node, node, change) for node in view.nodes)
    return replace(view, nodes=tuple(nodes))


def _change_node(node: NodeView, change: Callable[[GpuView], GpuView]) -> NodeView:
    return replace(node, gpus=tuple(map(change, node.gpus)))


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


def fewest(jobs: list[Job], enough: Callable[[Sequence[Job]], bool]) -> list[Job] | None:
    """The first of `jobs` that together are enough, without those that are not needed."""
    if not enough(jobs):
        return None
    number = bisect_left(range(len(jobs)), True, key=lambda n: enough(jobs[:n]))
    chosen = jobs[:number]
    for job in reversed(chosen):
        others = [other for other in chosen if other is not job]
        if enough(others):
            chosen = others
    return chosen


def yields(job: Job, head: Job, view: View) -> bool:
    """Whether `job` may be preempted, and would be behind `head` then if its number is higher."""
    return (
        job.id in view.preemptible
        and job.spec.nice >= head.spec.nice
        and (job.retry is None or head.retry is not None)
    )
