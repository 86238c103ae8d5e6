"""How much jobs that share a GPU slow each other down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from carmad.core.types import Mode
from carmad.sim.task import Load


class Interference(Protocol):
    """Pure: the same loads in the same mode have the same speeds, in whatever order they came."""

    @property
    def name(self) -> str: ...

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        """Each one's speed relative to being alone on the GPU, in (0, 1]; alone it is 1."""
        ...
