"""The policies of the CARMA paper (3.4 and 4.2), one line each.

Every factory takes the settings, for the preconditions configured for that policy.
"""

from __future__ import annotations

from carmad.plugin import GpuView, Settings
from policies.filters import only_idle, preconditions
from policies.ranked import Ranked, RoundRobin
from policies.rules import Rank


def exclusive(settings: Settings) -> Ranked:
    """As many idle GPUs as the job asks for, all to itself."""
    return Ranked("exclusive", (only_idle(settings),), in_order)


def rr(settings: Settings) -> RoundRobin:
    """Round-robin: the next GPU in a fixed cycle."""
    return RoundRobin("rr", preconditions("rr", settings), in_order, idle_first=True)


def magm(settings: Settings) -> Ranked:
    """Most available GPU memory."""
    return _sharing("magm", settings, most_free_memory)


def lug(settings: Settings) -> Ranked:
    """Least utilised GPU, by SMACT over the window."""
    return _sharing("lug", settings, least_utilised)


def first_fit(settings: Settings) -> Ranked:
    return _sharing("first_fit", settings, in_order)


def best_fit(settings: Settings) -> Ranked:
    """The GPU with the least memory left, to pack tightly."""
    return _sharing("best_fit", settings, least_free_memory)


def _sharing(name: str, settings: Settings, rank: Rank) -> Ranked:
    """As in the paper's artifact, idle GPUs are filled before any is shared."""
    return Ranked(name, preconditions(name, settings), rank, idle_first=True)


def in_order(gpu: GpuView) -> float:
    return 0.0


def most_free_memory(gpu: GpuView) -> float:
    return -gpu.free_mib


def least_free_memory(gpu: GpuView) -> float:
    return gpu.free_mib


def least_utilised(gpu: GpuView) -> float:
    return gpu.score.sm_mean
