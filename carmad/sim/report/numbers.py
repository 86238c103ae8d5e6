"""Formats numbers for people: unit, digits, and change relative to another."""

from __future__ import annotations

from dataclasses import dataclass

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class TimeUnit:
    name: str
    seconds: float


_TIME_UNITS = (  # with the number of seconds up to which each is used
    (90.0, TimeUnit("s", 1.0)),
    (5400.0, TimeUnit("min", 60.0)),
    (129_600.0, TimeUnit("h", 3600.0)),
)
_DAYS = TimeUnit("days", 86_400.0)


def time_unit(seconds: float) -> TimeUnit:
    """The most readable unit for this many seconds."""
    return next((unit for limit, unit in _TIME_UNITS if seconds < limit), _DAYS)


def number(value: float) -> str:
    """Three digits, or the whole integer part: 12,345, 678, 9.01, 0.0234."""
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    size = float(f"{abs(value):.3g}")
    for decimals, limit in ((0, 100), (1, 10), (2, 1), (3, 0.1)):
        if size >= limit:
            return f"{value:,.{decimals}f}"
    return f"{value:.3g}"


def change(value: float, before: float) -> str:
    """Relative to `before`: -35%, +4.6%, or ×12 from tenfold on; "" if that is meaningless."""
    if before == 0:
        return ""
    share = (value - before) / abs(before)
    if share >= 9:
        return f"×{value / before:,.0f}"
    return f"{share:+.1%}" if abs(share) < 0.0995 else f"{share:+.0%}"
