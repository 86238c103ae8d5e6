"""The interface of interference models, their common base, and the model without any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
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
