"""The interface of interference models, their common base, and the model without any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from math import fsum
from typing import Protocol

from carmad.core.types import Mode
from carmad.sim.task import Load


class Interference(Protocol):
    """Pure: speeds depend only on the loads and the mode, not on their order."""

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        """Each load's speed relative to running alone, in (0, 1]; alone it is 1."""
        ...


class Unslowed:
    """No slowdown: an upper bound that no real GPU reaches."""

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        return (1.0,) * len(loads)


class Sharing(ABC):
    """A model of shared loads. Alone, in exclusive mode and on MIG instances the speed is 1.

    Results are cached: traces repeat few loads, and the same combinations recur.
    """

    def __init__(self) -> None:
        self._kept = lru_cache(maxsize=1 << 17)(self.shared)

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        if len(loads) < 2 or mode is Mode.EXCLUSIVE or mode is Mode.MIG:
            return (1.0,) * len(loads)
        return self._kept(tuple(loads), mode)

    @abstractmethod
    def shared(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        """Like `speeds`, for two or more loads under MPS or on streams."""


def speeds_by_mode(
    model: Interference, loads: Sequence[Load], modes: Sequence[Mode]
) -> tuple[float, ...]:
    """The speed of each load on one GPU, `loads[n]` being in mode `modes[n]`.

    Clients of the GPU's MPS server run together, and the server takes turns with the processes
    outside it: for these, it is one load.
    """
    if len(set(modes)) == 1:
        return model.speeds(loads, modes[0])
    clients = tuple(load for load, mode in zip(loads, modes, strict=True) if mode is Mode.MPS)
    outside = tuple(load for load, mode in zip(loads, modes, strict=True) if mode is not Mode.MPS)
    if not clients:
        return model.speeds(loads, Mode.STREAMS)
    within = model.speeds(clients, Mode.MPS)
    server, *others = model.speeds((_server(clients, within), *outside), Mode.STREAMS)
    speeds = iter([speed * server for speed in within]), iter(others)
    return tuple(next(speeds[mode is not Mode.MPS]) for mode in modes)


def _server(clients: tuple[Load, ...], speeds: tuple[float, ...]) -> Load:
    """The load of an MPS server whose clients run at these speeds."""
    if len(clients) == 1:
        return clients[0]

    def total(metric: str) -> float:
        pairs = zip(clients, speeds, strict=True)
        return min(1.0, fsum(getattr(load, metric) * speed for load, speed in pairs))

    return Load(
        sm_active=total("sm_active"),
        sm_occupancy=total("sm_occupancy"),
        dram_active=total("dram_active"),
    )
