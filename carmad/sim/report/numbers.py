"""How a number is written for people: its unit, its digits, and its change against another."""

from __future__ import annotations

from dataclasses import dataclass

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class TimeUnit:
    name: str
    seconds: float


_TIME_UNITS = (  # up to how many seconds each is used
    (90.0, TimeUnit("s", 1.0)),
    (5400.0, TimeUnit("min", 60.0)),
    (129_600.0, TimeUnit("h", 3600.0)),
)
_DAYS = TimeUnit("days", 86_400.0)


def time_unit(seconds: float) -> TimeUnit:
    """The unit in which so many seconds read best."""
    return next((unit for limit, unit in _TIME_UNITS if seconds < limit), _DAYS)


def number(value: float) -> str:
    """Counts in full, else three digits or the whole part: 12,345, 678, 9.01, 0.0234."""
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    size = float(f"{abs(value):.3g}")
    for decimals, limit in ((0, 100), (1, 10), (2, 1), (3, 0.1)):
        if size >= limit:
            return f"{value:,.{decimals}f}"
    return f"{value:.3g}"


def change(value: float, before: float) -> str:
    """Relative to `before`: -35%, +4.6%, or ×12 from tenfold on; "" where that means nothing."""
    if before == 0:
        return ""
    share = (value - before) / abs(before)
    if share >= 9:
        return f"×{value / before:,.0f}"
    return f"{share:+.1%}" if abs(share) < 0.0995 else f"{share:+.0%}"
