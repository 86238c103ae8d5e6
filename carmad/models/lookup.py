"""How long runs of the same job take, looked up by the job's group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Lookup:
    """A group is all runs of one user's job: see `carmad.core.recurrence`."""

    about: str  # what it predicts, from what, in which units
    source: str  # what it was trained on, and that data's licence
    seconds: Mapping[str, float]  # by group
    rows: int
    trained_at: float  # Unix s; 0 for a model that CARMA ships
    errors: tuple[tuple[str, float], ...] = ()  # held-out measures by name
    kind: Literal["lookup"] = "lookup"

    def predict(self, group: str) -> float:
        """0 for a group not seen in training."""
        return self.seconds.get(group, 0.0)

    def importance(self) -> tuple[tuple[str, float], ...]:
        """The group is the only feature."""
        return (("group", 1.0),) if self.seconds else ()
