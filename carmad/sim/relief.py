"""When a GPU whose load has dropped stops counting as risky. Nothing else happens then, so the
simulator must know it beforehand to look again in time."""

from __future__ import annotations

from carmad.config import Monitor, Risk
from carmad.core.window import Score, Window
from carmad.sim.card import Card


def relief(card: Card, now: float, monitor: Monitor, limits: Risk) -> float | None:
    """The first instant after `now` at which the GPU is no longer risky, to a tenth of the period
    in which a monitor would see it.

    None: it is not risky now, or stays so for as long as its load does not change.
    """
    highest = Score(
        max(sample.sm_active or 0.0 for sample in card.history),
        max(sample.sm_occupancy or 0.0 for sample in card.history),
        max(sample.dram_active or 0.0 for sample in card.history),
    )
    lasting = Score(card.sm_active, card.sm_occupancy, card.dram_active)
    if not highest.risky(limits) or lasting.risky(limits):
        return None
    risky_at, relieved_at = now, card.changed_at + monitor.window_s
    if not _risky(card, risky_at, monitor, limits):
        return None
    while relieved_at - risky_at > monitor.period_s / 10:
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
