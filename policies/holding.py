"""GPUs that are held for a waiting job, and what may use them until then (EASY backfilling); and
those that a reservation holds for its users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from carmad.plugin import Demand, GpuId, GpuView, Job, JobId, NodeView, Placement, Reason, View
from policies.memory import need_mib

if TYPE_CHECKING:
    from policies.ranked import Ranked

OVERRUN = 0.25  # of its run time is assumed to be left of a job that has outlived its prediction
LEAST_S = 1.0  # that is left of any job
NOT_RESERVED = Reason("reservation")  # told to nobody: the job has its turn in the line


class Held(NamedTuple):
    """GPUs promised to a job that waits, and when they are expected to be empty."""

    job: JobId
    gpus: tuple[GpuId, ...]
    at: float


def hold(rules: Ranked, job: Job, view: View, left_s: Callable[[Job], float]) -> Held | None:
    """The GPUs that will be empty first, of those that would do then; None if there are too few.

    `left_s`: how long a running job will take, in seconds. GPUs that are reserved for others are
    empty when the reservation is over, if the job does not end before it begins.
    """
    uid = view.demand(job).mps_uid

    def in_use(gpu: GpuView) -> tuple[GpuView, ...]:
        """What must be empty before: another user's MPS server may be the whole node's."""
        if uid is None or gpu.mps_user is None or gpu.mps_user[0] == uid:
            return (gpu,)
        return view.nodes[view.node_of[gpu.id]].gpus

    def empty_s(gpu: GpuView) -> float:
        used = in_use(view.gpu(gpu.id))
        empty = max((left_s(each) for one in used for each in one.residents), default=0.0)
        return _unreserved_s(view.gpu(gpu.id), job, view, empty)

    gpus = rules.by(empty_s).place(job, _unreserved(vacated(view, lambda _: True))).gpus
    if not gpus:
        return None
    needed = [view.gpu(gpu) for gpu in gpus]
    held = dict.fromkeys(each.id for gpu in needed for each in in_use(gpu))
    return Held(job.id, tuple(held), view.now + max(map(empty_s, needed)))


def _unreserved_s(gpu: GpuView, job: Job, view: View, from_s: float) -> float:
    """When the job can have the GPU, if it is empty in `from_s` seconds."""
    at_most_s = job.at_most_s(view.now)
    lasts_s = view.settings.limits.reservation_notice_s if at_most_s == inf else at_most_s
    for slot in gpu.reserved:
        if job.spec.user not in slot.of.users and from_s + lasts_s > slot.in_s:
            from_s = max(from_s, slot.ends_at - view.now)
    return from_s


def _unreserved(view: View) -> View:
    """As if nothing were reserved."""
    return _changed(view, lambda gpu: replace(gpu, reserved=()) if gpu.reserved else gpu)


def on_reserved(rules: Ranked, view: View) -> tuple[tuple[Placement, ...], View]:
    """The jobs of users for whom GPUs are reserved now start there before the line is looked at:
    whoever is first in it cannot use these GPUs. Also the view after that."""
    if not view.reserved:
        return (), view
    plan: list[Placement] = []
    now = (slot for gpu in view.gpus for slot in gpu.reserved if not slot.in_s)
    owners = {user for slot in now for user in slot.of.users}
    its_own = replace(rules, filters=(*rules.filters, _not_reserved_for_it))
    for job in view.queue:
        if job.spec.user in owners:
            placement = its_own.place(job, view)
            if placement.gpus:
                plan.append(placement)
                view = view.with_placement(job, placement.gpus)
    return tuple(plan), view


def _not_reserved_for_it(wanted: Demand, gpu: GpuView) -> Reason | None:
    if any(not slot.in_s and wanted.user in slot.of.users for slot in gpu.reserved):
        return None
    return NOT_RESERVED


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
    return _changed(view, lambda gpu: replace(gpu, settling=None))


def _changed(view: View, change: Callable[[GpuView], GpuView]) -> View:
    nodes = (replace(node, gpus=tuple(map(change, node.gpus))) for node in view.nodes)
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
