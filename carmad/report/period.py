"""Whole weeks and months, in local time."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta

PERIODS = ("week", "month")


def last(period: str, today: date) -> tuple[datetime, datetime]:
    """The last whole week, Monday to Sunday, or calendar month, before `today`. In local time: a
    week in which the clock changes has an hour more or less."""
    if period == "month":
        until = today.replace(day=1)
        since = (until - timedelta(days=1)).replace(day=1)
    else:
        until = today - timedelta(days=today.weekday())
        since = until - timedelta(days=7)
    return _midnight(since), _midnight(until)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time()).astimezone()
