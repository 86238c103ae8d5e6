"""How much jobs that share a GPU slow each other down: the protocol, and the models by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from carmad.errors import CarmaError
from carmad.sim.interference.additive import Additive
from carmad.sim.interference.base import Interference, Unslowed, speeds_by_mode
from carmad.sim.interference.learned import Learned
from carmad.sim.interference.measured import Measured

__all__ = [
    "Additive",
    "Interference",
    "Learned",
    "Measured",
    "Unslowed",
    "make",
    "speeds_by_mode",
]

MODELS: dict[str, Callable[[], Interference]] = {
    "none": Unslowed,
    "additive": Additive,
    "learned": Learned,
}


def make(name: str) -> Interference:
    """The model `name`: none, additive, learned or measured:FILE.

    Raises CarmaError for other names, and for a file without measured pairs."""
    kind, _, argument = name.partition(":")
    if kind == "measured" and argument:
        return Measured(Path(argument), Learned())
    if name not in MODELS:
        raise CarmaError(
            f"no interference model is called {name!r}",
            f"use {', '.join(MODELS)} or measured:FILE, a CSV of measured pairs",
        )
    return MODELS[name]()
