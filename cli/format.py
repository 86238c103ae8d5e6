"""Formats numbers, times and untrusted text for a terminal."""

from __future__ import annotations

from carmad import readable
from carmad.readable import clean, duration

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from carmad.api.job import ExitOut, MemoryOut

NOTHING = "-"
GIB = 1024


def memory(mib: float | None) -> str:
    if mib is None:
        return NOTHING
    return f"{mib:.0f}M" if mib < GIB else f"{mib / GIB:.1f}G"


def spread(used: MemoryOut) -> str:
    """Half-width of an estimate's interval in GiB, on its longer side; "" without one."""
    mib = used["estimate_mib"] or 0
    ends = (used.get("estimate_low"), used.get("estimate_high"))
    off = max((abs(mib - end) for end in ends if end is not None), default=0)
    return f"±{off / GIB:.1f}" if off else ""


def clock(seconds: float | None) -> str:
    """In squeue's format: 0:07, 1:02:03, 2-01:02:03."""
    if seconds is None:
        return NOTHING
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def span(seconds: float | None) -> str:
    return NOTHING if seconds is None else duration(seconds)


def fraction(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def number(value: float | None, unit: str, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}{unit}"


def energy(kwh: float | None) -> str:
    return NOTHING if kwh is None else readable.energy(kwh)


def local_time(stamp: str | None) -> str:
    """The API's UTC in local time."""
    if stamp is None:
        return NOTHING
    from datetime import datetime

    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M:%S}"


def bar(share: float | None, width: int, ascii_only: bool = False) -> str:
    full, empty = ("#", ".") if ascii_only else ("█", "░")
    filled = round(min(1.0, max(0.0, share or 0.0)) * width)
    return full * filled + empty * (width - filled)


def command(argv: list[str]) -> str:
    import shlex

    return clean(shlex.join(argv))


def exit_code(how: ExitOut | None) -> str:
    """code:signal, as in sacct; NOTHING for a job that never ran."""
    if how is None or (how["code"] is None and how["signal"] is None):
        return NOTHING
    return f"{how['code'] or 0}:{how['signal'] or 0}"
