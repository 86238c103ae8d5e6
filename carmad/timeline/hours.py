"""The timeline of one GPU: fine bins for the last hour or two, minutes before."""

from __future__ import annotations

from dataclasses import dataclass, field

from carmad.core.types import Gpu, GpuId
from carmad.timeline.bins import Bins
from carmad.timeline.marks import Marks

HOUR_S = 3600
KEPT_S = 24 * HOUR_S
FINE_S = 10, 30, 60  # the first that is no shorter than the time between two readings
COARSE_S = 60


@dataclass(slots=True)
class Hour:
    """What was recorded in an hour of a GPU."""

    bins: Bins
    marks: Marks = field(default_factory=Marks)

    @property
    def start(self) -> int:
        """Unix seconds."""
        return self.bins.start

    def copy(self) -> Hour:
        """One that does not change when something is added."""
        return Hour(self.bins.copy(), self.marks.copy())


@dataclass(frozen=True, slots=True)
class Saved:
    """An hour as the store keeps it."""

    gpu: GpuId
    start: int
    body: bytes  # see `carmad.timeline.saving`


@dataclass(frozen=True, slots=True)
class Track:
    """What is known of a GPU over some time. Its hours do not change any more."""

    id: GpuId
    gpu: Gpu | None
    present: bool  # it is there now
    hours: tuple[Hour, ...]
