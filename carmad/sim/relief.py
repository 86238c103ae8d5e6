"""When a GPU whose load has dropped stops counting as risky. Nothing else happens then, so the
simulator must know it beforehand to look again in time."""

from __future__ import annotations

from carmad.config import Monitor, Risk
from carmad.core.window import Window
from carmad.sim.card import Card

PRECISION_S = 0.001


def relief(card: Card, now: float, monitor: Monitor, limits: Risk) -> float | None:
    """The first instant after `now`, to `PRECISION_S`, at which the GPU is no longer risky.

    None: it is not risky now, or stays so for as long as its load does not change.
    """
    if max(sample.sm_active or 0.0 for sample in card.history) < limits.sm_active:
        return None
    risky_at, relieved_at = now, card.changed_at + monitor.window_s
    if _risky(card, relieved_at, monitor, limits) or not _risky(card, risky_at, monitor, limits):
        return None
    while relieved_at - risky_at > PRECISION_S:
        middle = (risky_at + relieved_at) / 2
        if _risky(card, middle, monitor, limits):
            risky_at = middle
        else:
            relieved_at = middle
    return relieved_at


def _risky(card: Card, at: float, monitor: Monitor, limits: Risk) -> bool:
    """The core's own test, on what it would be told at that instant."""
    window = Window(monitor, limits)
    for sample in card.history:
        window.add(sample)
    window.add(card.read(at))
    return window.score.risky(limits)
