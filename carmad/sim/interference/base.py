"""What every interference model is, what all of them share, and the one that slows nobody."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from carmad.core.types import Mode
from carmad.sim.task import Load


class Interference(Protocol):
    """Pure: the same loads in the same mode have the same speeds, in whatever order they came."""

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        """Each one's speed relative to being alone on the GPU, in (0, 1]; alone it is 1."""
        ...


class Unslowed:
    """Nobody slows anybody: the bound that no real GPU reaches."""

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        return (1.0,) * len(loads)


class Sharing(ABC):
    """A model of loads that share. Alone, exclusive and on MIG instances the speed is 1.

    Answers are kept: traces repeat few loads, and the same neighbours meet again and again.
    """

    def __init__(self) -> None:
        self._kept = lru_cache(maxsize=1 << 17)(self.shared)

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        if len(loads) < 2 or mode is Mode.EXCLUSIVE or mode is Mode.MIG:
            return (1.0,) * len(loads)
        return self._kept(tuple(loads), mode)

    @abstractmethod
    def shared(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        """As `speeds`, of two or more loads under MPS or on streams."""
