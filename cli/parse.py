"""Parses the values of options: times, sizes, arrays, dependencies.

The formats are Slurm's where Slurm has one. Imports stay light: `carma submit` needs this.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

from carmad.options import (
    AUTO_MIB,
    COMMA,
    JOB,
    LEAST_HOST_MIB,
    MAX_GPUS,
    MAX_MIB,
    MAX_TASKS,
    MAX_TIME_S,
    MAX_WITHIN_S,
    OPTIONS,
    TOLD_OF,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from typing import Any

UNIT_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
UNIT_MIB = {"m": 1, "g": 1024, "t": 1024 * 1024}
DEFAULT_WARNING_S = 60
SMALLEST_BARE_MIB = 256
SHORTEST_S = 0.2
MOST = 1_000_000_000

# Not compiled here: most submissions use one or two of them.
_CLOCK = r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?"
_SPAN = r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+)\s*"
_SIZE = r"(\d{1,9}(?:\.\d{1,9})?)\s*([mgt])?(?:i?b)?"
_PARAM = r"[A-Za-z_][\w.-]{0,63}"
_COUNT = r"\d{1,9}"
_RANGE = r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?"
_JOB = rf"{JOB}|last"
_SIGNAL = r"(?:[RB]:)?(\w+)(?:@(\d{1,8}))?"
_NAME = r"[A-Za-z_][\w.]*"
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOUR = rf"(?:({'|'.join(_DAYS)})[a-z]* +)?(\d{{1,2}}):(\d\d)(?::(\d\d))?"
_DATE = (  # Slurm's: month first
    r"(\d{1,2})[/.](\d{1,2})(?:[/.](\d{4}|\d\d))?(?:[ t-](\d{1,2}):(\d\d)(?::(\d\d))?)?"
)
CLOCKS = {
    "midnight": "0:00",
    "noon": "12:00",
    "fika": "15:00",
    "teatime": "16:00",
}
_NEXT_EXPORT = rf",(?={_NAME}=)"


def seconds(text: str) -> float | None:
    """Slurm's MM, MM:SS, HH:MM:SS, D-HH[:MM[:SS]]; also 2h30m, 90s. None: no limit."""
    word = text.strip().lower()
    if word in ("0", "unlimited", "infinite", "none"):
        return None
    if match := re.fullmatch(_CLOCK, word):
        span: float | None = _clock(match)
    else:
        span = span_s(word)
    if span is None:
        raise ArgumentTypeError(f"{text!r} is not a time; try 90 (minutes), 2:30:00, 1-12 or 2h30m")
    if span > MAX_TIME_S:
        raise ArgumentTypeError(f"{text!r} is more than ten years; 0 means no limit")
    return span or None


def processor_time(text: str) -> float:
    """Seconds of a processor: 90 or 90s, at most ten minutes."""
    word = text.strip().lower()
    span = float(word) if re.fullmatch(_COUNT, word) else span_s(word)
    if not span or span > MAX_WITHIN_S:
        raise ArgumentTypeError(f"{text!r} is not a time up to {MAX_WITHIN_S:g} seconds; try 120")
    return span


def _clock(match: re.Match[str]) -> float:
    days, first, second, third = match.groups()
    numbers = [int(n) for n in (first, second, third) if n is not None]
    if days is not None:  # D-HH[:MM[:SS]]
        hours, minutes, secs = numbers + [0] * (3 - len(numbers))
    elif len(numbers) == 3:
        hours, minutes, secs = numbers
    else:  # MM[:SS]
        hours, minutes, secs = 0, numbers[0], numbers[1] if len(numbers) == 2 else 0
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs)


def span_s(word: str) -> float | None:
    """2h30m, 1.5h, 90s, 3 days; units are recognised by their beginning. None: it is no span."""
    total, end = 0.0, 0
    for match in re.finditer(_SPAN, word):
        number, unit = match.groups()
        start = unit.rstrip("s") or "s"
        unit_s = next((s for name, s in UNIT_S.items() if name.startswith(start)), None)
        if match.start() != end or unit_s is None:
            return None
        total += float(number) * unit_s
        end = match.end()
    return total if word and end == len(word) else None


def mebibytes(text: str) -> int:
    """12G, 12GiB, 900M, or MiB as a bare number. Units are powers of 1024, as in Slurm.

    A small bare number is refused: it was probably meant to be GiB.
    """
    match = re.fullmatch(_SIZE, text.strip().lower())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a memory size; try 12G or 900M")
    number, unit = match.groups()
    mib = float(number) * UNIT_MIB[unit or "m"]
    if not unit and mib < SMALLEST_BARE_MIB:
        raise ArgumentTypeError(f"{text!r} is in MiB; write {number}G, or {number}M")
    if not 1 <= mib <= MAX_MIB:
        raise ArgumentTypeError(f"{text!r} is out of range for a memory size")
    return int(-(-mib // 1))  # rounded up: never promise less than requested


def gpu_memory(text: str) -> int:
    """As `mebibytes`, or auto."""
    return AUTO_MIB if text.strip().lower() == "auto" else mebibytes(text)


def host_memory(text: str) -> int:
    """As `mebibytes`, and enough for a process."""
    mib = mebibytes(text)
    if mib < LEAST_HOST_MIB:
        raise ArgumentTypeError(f"{text!r} is too little for any process; try 4G")
    return mib


def gpu_count(text: str) -> int:
    if not re.fullmatch(_COUNT, text) or int(text) > MAX_GPUS:
        raise ArgumentTypeError(f"{text!r} is not a number of GPUs from 0 to {MAX_GPUS}")
    return int(text)


def gpus_of_kind(text: str) -> tuple[int, str]:
    """N, KIND:N or KIND: how many, and the kind or ""."""
    kind, colon, number = text.rpartition(":")
    if not colon and text[:1].isalpha():
        return 1, constraint(text)
    return gpu_count(number), constraint(kind) if colon else ""


def constraint(text: str) -> str:
    """Words joined by & or |."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*([&|,][A-Za-z0-9][\w.-]*)*", text, re.ASCII):
        what = "words of the GPUs' names, or sizes such as 80g, joined by & or |"
        raise ArgumentTypeError(f"{text!r} is not {what}")
    return text.replace(",", "&").replace("_", "-")


def numbers(text: str) -> str:
    """N,N…"""
    return _matching("on", text, "not a list of GPU numbers; give one such as 0,2")


def exit_codes(text: str) -> str:
    """N,N…"""
    what = "not a list of exit codes from 1 to 255; give one such as 75,137"
    return _matching("retry_on", text, what)


def mail_address(text: str) -> str:
    """USER@HOST, or a user's name alone."""
    what = "not a mail address; give one such as ada@example.org"
    return _matching("mail_user", text.strip(), what)


def _matching(option: str, text: str, what: str) -> str:
    """A text with the form that the table demands."""
    if not re.fullmatch(OPTIONS[option].limits["pattern"], text):
        raise ArgumentTypeError(f"{text!r} is {what}")
    return text


def whole(low: int, high: int = MOST) -> Callable[[str], int]:
    """A parser of whole numbers in that range."""

    def read(text: str) -> int:
        if not re.fullmatch(rf"-?{_COUNT}", text) or not low <= int(text) <= high:
            most = f" to {high}" if high < MOST or len(text) >= len(str(MOST)) else " on"
            raise ArgumentTypeError(f"{text!r} is not a whole number from {low}{most}")
        return int(text)

    return read


def gpu_hours(text: str) -> tuple[float, str]:
    """100/week: GPU-hours, and the period."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*/\s*(day|week|month)", text.strip().lower())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not GPU-hours per day, week or month; try 100/week")
    return float(match[1]), match[2]


def not_empty(text: str) -> str:
    if not text:
        raise ArgumentTypeError("it must not be empty")
    return text


def one_line(text: str) -> str | None:
    """Its words; None: it has none."""
    return " ".join(text.split()) or None


def gres(text: str) -> tuple[int, str]:
    """gpu[:KIND][:N], or none"""
    if text.lower() == "none":
        return 0, ""
    what, colon, rest = text.partition(":")
    if what != "gpu" or "," in text:
        raise ArgumentTypeError(f"{text!r}: only GPUs can be requested, as in gpu:2")
    return gpus_of_kind(rest if colon else "1")


def param(text: str) -> tuple[str, list[str]]:
    """NAME=VALUE,VALUE…; a value like 0-4 or 0-8:2 stands for the numbers in between. Commas within
    brackets, or within quotes around a value, do not separate."""
    name, given, body = text.partition("=")
    if not given or not re.fullmatch(_PARAM, name, re.ASCII):
        raise ArgumentTypeError(f"{text!r}: write NAME=LIST, such as lr=1e-3,1e-4 or seed=0-4")
    values: list[str] = []
    for part in _values(body):
        match = re.fullmatch(r"(0|[1-9]\d*)-(0|[1-9]\d*)(?::\d+)?", part)
        if match and int(match[1]) <= int(match[2]):  # not 2024-12, nor 01-03
            values += map(str, array(part)["indices"])
        else:
            quoted = len(part) > 1 and part[0] == part[-1] and part[0] in "'\""
            values.append(part[1:-1] if quoted else part)
    return name, values


_CLOSES = {"(": ")", "[": "]", "{": "}"}


def _values(text: str) -> list[str]:
    """The parts between commas that are in no bracket and no quote. A quote counts at the start of
    a value, and in brackets."""
    found, part, quote = [], "", ""
    open_brackets: list[str] = []
    for character in f"{text},":
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and (open_brackets or not part):
            quote = character
        elif character in _CLOSES:
            open_brackets.append(_CLOSES[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
        elif character == "," and not open_brackets:
            found.append(part)
            part = ""
            continue
        part += character
    if part:
        missing = quote or open_brackets[-1]
        hint = "or put the values into a file, a row for each task: --params FILE"
        raise ArgumentTypeError(f"{text!r} lacks a {missing}: add it, {hint}")
    return found


def metric(text: str) -> tuple[str, float]:
    """NAME=NUMBER."""
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not re.fullmatch(_PARAM, name, re.ASCII) or not math.isfinite(number):
        raise ArgumentTypeError(f"{text!r} is not NAME=NUMBER, such as acc=0.91")
    return name, number


def array(text: str) -> dict[str, Any]:
    """0-15, 0-15:4, 1,3,7, and any of these with %N, the limit of tasks running at once; %N alone
    for an array that is made otherwise."""
    body, _, limit = text.partition("%")
    if "%" in text and not (re.fullmatch(_COUNT, limit) and int(limit)):
        raise ArgumentTypeError(f"{text!r}: % takes the number of tasks that may run at once")
    indices: set[int] = set()
    for part in body.split(",") if body or not limit else ():
        match = re.fullmatch(_RANGE, part)
        first, last, step = (int(n or 0) for n in match.groups()) if match else (1, 0, 0)
        if match and match[2] is None:
            last = first
        if last < first or (match and match[3] is not None and step == 0):
            raise ArgumentTypeError(f"{text!r} is not an array; try 0-15, 0-15:4%2 or 1,3,7")
        tasks = range(first, last + 1, step or 1)
        if len(indices) + len(tasks) > MAX_TASKS:
            raise ArgumentTypeError(f"{text!r} has more than {MAX_TASKS} tasks")
        indices.update(tasks)
    return {"indices": sorted(indices), "limit": min(int(limit), MAX_TASKS) if limit else None}


def dependency(text: str) -> list[dict[str, str]]:
    """afterok:ID[:ID],afterany:ID,…; all of them must be met. A bare number is afterany, as with
    Slurm. `none`: wait for no job."""
    if text == "none":
        return []
    if "?" in text:
        raise ArgumentTypeError("'?' (any of several) is not supported; ',' means all of them")
    found = []
    for part in re.split(COMMA, text):
        bare = re.fullmatch(_JOB, part)
        kind, _, ids = f"afterany:{part}".partition(":") if bare else part.partition(":")
        if kind not in ("afterok", "afterany", "afternotok"):
            raise ArgumentTypeError(f"{part!r}: use afterok, afterany or afternotok")
        found += [{"job": job, "kind": kind} for job in _jobs(ids.split(":"), text)]
    return found


def after(text: str) -> list[dict[str, str]]:
    """ID[,ID]: start when these have succeeded."""
    return [{"job": job, "kind": "afterok"} for job in _jobs(re.split(COMMA, text), text)]


def _jobs(ids: list[str], text: str) -> list[str]:
    if not all(re.fullmatch(_JOB, job) for job in ids):
        raise ArgumentTypeError(f"{text!r}: give job ids (42, 40_2, 40_[0-3]) or 'last'")
    return ids


def signal_before(text: str) -> dict[str, int]:
    """USR2@60: this signal, 60 seconds before the time limit."""
    import signal

    match = re.fullmatch(_SIGNAL, text.upper())
    name = match[1] if match else ""
    try:
        number = (
            signal.Signals(int(name))
            if name.isdecimal()
            else signal.Signals["SIG" + name.removeprefix("SIG")]
        )
    except (KeyError, ValueError):
        raise ArgumentTypeError(f"{text!r} is not a signal; try USR2@60") from None
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ArgumentTypeError(f"{text!r}: no program can react to {number.name}; try USR2@60")
    seconds_before = int(match[2]) if match and match[2] else DEFAULT_WARNING_S
    if seconds_before == 0:
        raise ArgumentTypeError(f"{text!r}: 0 seconds before the limit leave no time to react")
    return {"signum": number.value, "before_s": seconds_before}


def moment(text: str) -> str:
    """now+2h, HH:MM[:SS], noon or mon HH:MM (the next one), HH:MM tomorrow, MM/DD[/YY][-HH:MM], or
    ISO 8601, in local time; returns UTC."""
    return _utc(text, _moment, "now+2h, 22:30, 'mon 9:00' or 2026-11-20T22:30")


def deadline(text: str) -> str:
    """A time to finish by: 8h (from now), or as in `moment`; returns UTC."""
    return _utc(text, _ahead, "8h, 22:30 or 2026-11-22T08:00")


def since(text: str) -> str:
    """Start or end of a period: 7d or 12h (ago), or ISO 8601 in local time; returns UTC."""
    return _utc(text, _ago, "7d or 2026-11-20")


def _utc(text: str, read: Callable[[str, datetime], datetime], examples: str) -> str:
    from datetime import UTC, datetime

    try:
        local = read(text.strip(), datetime.now().astimezone())
        utc = local.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is not a time; try {examples}") from None
    return utc.strftime("%Y-%m-%dT%H:%M:%S.") + f"{utc.microsecond // 1000:03}Z"


def _moment(word: str, now: datetime) -> datetime:
    from datetime import datetime, timedelta

    low = word.lower()
    if low.startswith("now"):
        return now + timedelta(seconds=_offset(low[3:].replace(" ", "")))
    tomorrow = re.fullmatch("(?:(.+)[ -])?tomorrow", low)
    clock = tomorrow[1] or "midnight" if tomorrow else low
    if match := re.fullmatch(_HOUR, CLOCKS.get(clock, clock)):
        day, hour, minute, second = match.groups()
        today = datetime(now.year, now.month, now.day, int(hour), int(minute), int(second or 0))
        if tomorrow and not day:
            return today + timedelta(days=1)
        ahead = (_DAYS.index(day) - now.weekday()) % 7 if day else 0
        then = today + timedelta(days=ahead)
        if not tomorrow:
            return then if then.astimezone() > now else then + timedelta(days=7 if day else 1)
    if match := re.fullmatch(_DATE, low):
        month, date, year, hour, minute, second = (int(part or 0) for part in match.groups())
        year += 2000 if 0 < year < 100 else 0
        then = datetime(year or now.year, month, date, hour, minute, second)
        return then if year or then.astimezone() > now else then.replace(year=now.year + 1)
    return datetime.fromisoformat(word)


def _ahead(word: str, now: datetime) -> datetime:
    from datetime import timedelta

    span = span_s(word.lower())
    return _moment(word, now) if span is None else now + timedelta(seconds=span)


def _ago(word: str, now: datetime) -> datetime:
    from datetime import datetime, timedelta

    span = span_s(word.lower())
    return datetime.fromisoformat(word) if span is None else now - timedelta(seconds=span)


def _offset(rest: str) -> float:
    """The part after `now`: nothing, or + and seconds or a span."""
    if not rest:
        return 0.0
    span = float(rest[1:]) if rest[1:].isdecimal() else span_s(rest[1:])
    if rest[0] != "+" or span is None:
        raise ValueError(rest)
    return span


def stage(text: str) -> dict[str, Any]:
    """2x forward=20ms backward=40ms in=12M out=12M weights=320M: a stage of a layout."""
    from carmad import layout_text

    return _read(layout_text.stage, text)


def stage_times(text: str) -> dict[str, Any]:
    """load=10ms forward=37ms backward=76ms communication=98ms sync=forward gpu=NAME"""
    from carmad import layout_text

    return _read(layout_text.stage_times, text)


def _read(read: Callable[[str], dict[str, Any]], text: str) -> dict[str, Any]:
    try:
        return read(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def happenings(text: str) -> str:
    """end,fail"""
    return _choices(text, TOLD_OF)


# What Slurm's words mean here. A job that is requeued tells nobody: it ends later.
MAIL_TYPES: Mapping[str, tuple[str, ...]] = {
    "NONE": (),
    "BEGIN": ("start",),
    "END": ("end",),
    "FAIL": ("fail",),
    "ALL": ("start", "end"),
    "REQUEUE": (),
    "INVALID_DEPEND": ("fail",),
    "TIME_LIMIT": ("fail",),
    "TIME_LIMIT_50": ("limit80",),
    "TIME_LIMIT_80": ("limit80",),
    "TIME_LIMIT_90": ("limit80",),
    "STAGE_OUT": (),
    "ARRAY_TASKS": (),
}


def mail_type(text: str) -> str | None:
    """Slurm's --mail-type, as --notify has it; None: nothing."""
    words = _choices(text.upper(), tuple(MAIL_TYPES)).split(",")
    return ",".join(dict.fromkeys(what for word in words for what in MAIL_TYPES[word])) or None


def _choices(text: str, known: tuple[str, ...]) -> str:
    words = dict.fromkeys(word.strip() for word in text.split(","))
    for word in words:
        if word not in known:
            raise ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
    return ",".join(words)


def export(text: str) -> list[str]:
    """NAME=VALUE[,NAME=VALUE…], or ALL or NONE, alone or first. Values may contain commas."""
    words: list[str] = []
    for part in re.split(_NEXT_EXPORT, text):
        words += [part] if "=" in part else part.split(",")
    for word in words:
        if not re.fullmatch(_NAME, word.partition("=")[0]):
            raise ArgumentTypeError(f"{word!r} is not NAME=VALUE")
    return words


def interval(text: str) -> float:
    """Seconds between two pictures."""
    try:
        span = float(text)
    except ValueError:
        span = 0.0
    if not SHORTEST_S <= span <= MAX_TIME_S:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from {SHORTEST_S:g}")
    return span


def allreduce(text: str) -> str:
    return _choices(text, ("ring", "tree"))


def step(text: str) -> float:
    """The duration of a training step: 120ms, or 0.12, which is seconds."""
    from carmad import layout_text

    try:
        return float(text) if text.replace(".", "").isdecimal() else layout_text.time_s(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def exact(*choices: str) -> Callable[[str], str]:
    """A parser of one of these words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ArgumentTypeError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return read
