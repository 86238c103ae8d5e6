"""The policies of the CARMA paper (3.4 and 4.2), one line each.

Every factory takes the settings, for the preconditions configured for that policy.
"""

from __future__ import annotations

from carmad.plugin import GpuView, Settings
from policies.filters import preconditions, unoccupied
from policies.ranked import Ranked, RoundRobin


def exclusive(settings: Settings) -> Ranked:
    """As many unoccupied GPUs as the job asks for, all to itself."""
    return Ranked("exclusive", (unoccupied(settings),), in_order)


def rr(settings: Settings) -> RoundRobin:
    """Round-robin: the next GPU in a fixed cycle."""
    return RoundRobin("rr", preconditions("rr", settings), in_order)


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


def in_order(gpu: GpuView) -> float:
    return 0.0


def most_free_memory(gpu: GpuView) -> float:
    return -gpu.free_mib


def least_free_memory(gpu: GpuView) -> float:
    return gpu.free_mib


def least_utilised(gpu: GpuView) -> float:
    return gpu.score.sm_mean
