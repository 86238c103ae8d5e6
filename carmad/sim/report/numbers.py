"""Formats numbers for people: digits, and change relative to another."""

from __future__ import annotations

NOTHING = "-"


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
