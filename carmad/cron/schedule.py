"""When an entry of a crontab is due: five fields as in crontab(5), or a word such as `@daily`.

APScheduler has the calendar. What differs from cron is brought into its form here: it counts
weekdays from Monday, and wants the day of the month and of the week to fit, where for cron one of
them is enough unless one is left open. Times are on the wall: an hour that comes twice in autumn
counts once, and what falls into the one that spring leaves out comes an hour later.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from carmad.errors import CarmaError

WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
HINT = "Five fields: minute hour day month weekday, such as 30 2 * * mon-fri; or @daily."
TO_COME = timedelta(microseconds=1)


@lru_cache(maxsize=4096)
def next_time(schedule: str, after: float) -> float | None:
    """The first time later than `after` by the server's clock, in Unix seconds; None: never.
    Raises CarmaError if it is no schedule."""
    wall = datetime.fromtimestamp(after).replace(tzinfo=UTC)
    found: datetime | None = _trigger(schedule).get_next_fire_time(None, wall + TO_COME)
    return found.replace(tzinfo=None).timestamp() if found else None


@lru_cache(maxsize=1024)
def _trigger(schedule: str) -> BaseTrigger:
    fields = WORDS.get(schedule, schedule).lower().split()
    try:
        if len(fields) != 5:
            raise ValueError(f"it has {len(fields)} fields")
        minute, hour, day, month, weekday = fields
        weekday = _from_monday(weekday)
        open_day, open_weekday = day.startswith("*"), weekday.startswith("*")
        dates = ((day, weekday),) if open_day or open_weekday else ((day, "*"), ("*", weekday))
        found = [
            CronTrigger(None, month, d, None, w, hour, minute, 0, timezone=UTC) for d, w in dates
        ]
    except ValueError as error:
        raise CarmaError(f"{schedule!r:.80} is no schedule: {error}", HINT) from None
    return found[0] if len(found) == 1 else OrTrigger(found)


def _from_monday(field: str) -> str:
    """Weekdays by name. A range that ends on a Sunday, or goes over it, becomes a list."""
    return ",".join(map(_days, field.split(",")))


def _days(part: str) -> str:
    span, slash, step = part.partition("/")
    if span == "*":
        return part if not slash else _list(0, 6, int(step))
    first, dash, last = span.partition("-")
    begin, end = _number(first), _number(last) if dash else _number(first)
    if dash and end < begin:
        if end == 0:
            end = 7
        else:
            raise ValueError(f"{span} ends before it begins")
    return _list(begin, end, int(step) if slash else 1)


def _list(begin: int, end: int, step: int) -> str:
    if step < 1:
        raise ValueError("a step is at least 1")
    return ",".join(dict.fromkeys(DAYS[day] for day in range(begin, end + 1, step)))


def _number(word: str) -> int:
    if re.fullmatch("[0-7]", word):
        return int(word)
    if word in DAYS:
        return DAYS.index(word)
    raise ValueError(f"{word!r:.20} is no day of the week")
