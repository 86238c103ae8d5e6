"""When an entry of a crontab is due: five fields as in crontab(5), or a word such as `@daily`.

APScheduler has the calendar. What differs from cron is brought into its form here: it counts
weekdays from Monday, and wants the day of the month and of the week to fit, where for cron one of
them is enough unless one is left open. Times are on the wall: an hour that comes twice in autumn
counts once, and what falls into the one that spring leaves out comes an hour later.
"""

from __future__ import annotations

from collections.abc import Sequence
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
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun"]
FIELDS = {  # the lowest and highest number, and names from there on
    "minute": (0, 59, ()),
    "hour": (0, 23, ()),
    "day": (1, 31, ()),
    "month": (1, 12, MONTHS),
    "day_of_week": (0, 7, DAYS),
}
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
        if len(fields) != len(FIELDS):
            raise ValueError(f"it has {len(fields)} fields")
        wanted = {name: _expand(name, field) for name, field in zip(FIELDS, fields, strict=True)}
        _, _, day, _, weekday = fields
        both = day.startswith("*") or weekday.startswith("*")  # as cron has it, also for */2
        left_open = ({},) if both else ({"day": "*"}, {"day_of_week": "*"})
        found = [CronTrigger(**{**wanted, **one}, second=0, timezone=UTC) for one in left_open]
    except ValueError as error:
        raise CarmaError(f"{schedule!r:.80} is no schedule: {error}", HINT) from None
    return found[0] if len(found) == 1 else OrTrigger(found)


def _expand(name: str, field: str) -> str:
    """All numbers of a field, which APScheduler does not take in all of cron's forms; weekdays by
    name. Raises ValueError."""
    if field == "*":
        return field
    numbers = sorted({number for part in field.split(",") for number in _numbers(name, part)})
    return ",".join(DAYS[each] if name == "day_of_week" else str(each) for each in numbers)


def _numbers(name: str, part: str) -> range:
    low, high, names = FIELDS[name]
    span, slash, step = part.partition("/")
    first, dash, last = span.partition("-")
    if slash and not (step.isdecimal() and int(step)):
        raise ValueError(f"{part!r:.20} has no step above 0")
    if slash and not dash and span != "*":
        raise ValueError(f"{part!r:.20} has a step, but no range")
    if span == "*":
        begin, end = low, high - (name == "day_of_week")
    else:
        begin = _number(first, low, high, names)
        end = _number(last, low, high, names) if dash else begin
    if name == "day_of_week" and last == "sun":
        end = high
    if end < begin:
        raise ValueError(f"{span} ends before it begins")
    return range(begin, end + 1, int(step) if slash else 1)


def _number(word: str, low: int, high: int, names: Sequence[str]) -> int:
    if word in names:
        return low + names.index(word)
    if word.isdecimal() and len(word) < 3 and low <= int(word) <= high:
        return int(word)
    raise ValueError(f"{word!r:.20} is not from {low} to {high}")
