"""The policies of the CARMA paper (3.4 and 4.2), one line each.

Every factory takes the settings, for the preconditions that the admin set for that policy.
"""

from __future__ import annotations

from carmad.plugin import GpuView, Job, Settings, View
from policies.filters import preconditions, unoccupied
from policies.ranked import Ranked


def exclusive(settings: Settings) -> Ranked:
    """As many unoccupied GPUs as the job asks for, and nobody else on them."""
    return Ranked("exclusive", (unoccupied(settings),), in_order)


def rr(settings: Settings) -> Ranked:
    """Round-robin: the next GPU in a fixed cycle."""
    return Ranked("rr", preconditions("rr", settings), after_the_last)


def magm(settings: Settings) -> Ranked:
    """Most available GPU memory."""
    return Ranked("magm", preconditions("magm", settings), most_free_memory)


def lug(settings: Settings) -> Ranked:
    """Least utilised GPU, by SMACT over the window."""
    return Ranked("lug", preconditions("lug", settings), least_utilised)


def first_fit(settings: Settings) -> Ranked:
    return Ranked("first_fit", preconditions("first_fit", settings), in_order)


def best_fit(settings: Settings) -> Ranked:
    """The GPU with the least memory left, to pack tightly."""
    return Ranked("best_fit", preconditions("best_fit", settings), least_free_memory)


def in_order(job: Job, gpu: GpuView, view: View) -> float:
    return 0.0


def after_the_last(job: Job, gpu: GpuView, view: View) -> float:
    order = [g.id for g in view.gpus]
    last = order.index(view.last_placed) if view.last_placed in order else -1
    return (order.index(gpu.id) - last - 1) % len(order)


def most_free_memory(job: Job, gpu: GpuView, view: View) -> float:
    return -gpu.free_mib


def least_free_memory(job: Job, gpu: GpuView, view: View) -> float:
    return gpu.free_mib


def least_utilised(job: Job, gpu: GpuView, view: View) -> float:
    return gpu.score.sm_mean
