"""When a GPU whose load has dropped stops being risky. No other event happens then, so the
simulator must compute it in advance to plan again in time."""

from __future__ import annotations

from carmad.config import Monitor, Risk
from carmad.core.window import Score, Window
from carmad.sim.card import Card


def relief(card: Card, now: float, monitor: Monitor, limits: Risk) -> float | None:
    """The first instant after `now` at which the GPU is no longer risky, to within a tenth of the
    monitor's period.

    None if it is not risky now, or stays risky while its load does not change.
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
    """The core's own test, on the readings of that instant."""
    window = Window(monitor, limits)
    for sample in card.history:
        window.add(sample)
    window.add(card.read(at))
    return window.score.risky(limits)
