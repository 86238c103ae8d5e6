"""What `carma why` and `carma queue --start` said on a day, held against what happened: how many
statements of each kind were made, and how many came true."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from lab.day.figures import Played

# How much later than said is still in time, whichever is more.
CLOSE_S = 5.0
CLOSE = 0.2  # of the time that was said
Json = Mapping[str, Any]

ENDS = re.compile(r"GPU \d+ can take it when job ([\d_]+) ends")
SMALLER = re.compile(r"fits GPU \d+ now with --gpu-mem (\d+)([GM])")
BEFORE = re.compile(r"waits: job ([\d_]+) (?:goes first|is before it)")


class Statement(NamedTuple):
    """`true`: None, if the day does not say."""

    kind: str
    true: bool | None


class Tally(NamedTuple):
    """Of the statements of a kind."""

    made: int
    true: int

    def __str__(self) -> str:
        return f"{self.true} of {self.made} ({self.true / self.made:.0%})" if self.made else "–"


def judge(samples: Sequence[Json], played: Iterable[Played], began: float) -> dict[str, Tally]:
    """`began`: when the day did, in Unix seconds, which the samples' dates are held against."""
    made, true = Counter[str](), Counter[str]()
    for statement in _statements(samples, {each.label: each for each in played}, began):
        if statement.true is not None:
            made[statement.kind] += 1
            true[statement.kind] += statement.true
    return {kind: Tally(made[kind], true[kind]) for kind in KINDS}


def _statements(
    samples: Sequence[Json], jobs: Mapping[str, Played], began: float
) -> Iterator[Statement]:
    for sample in samples:
        now = sample["at"]
        for label, why in sample["why"].items():
            start = _next_start(jobs.get(label), now)
            if start is not None and why["job"]["state"] == "queued":
                yield from _of_reasons(why, now, start)
                yield from _of_headline(why, jobs, now, start)
                yield from _of_remedies(why, jobs[label], jobs, now, start)
        for each in sample["starts"]:
            start = _next_start(jobs.get(each["label"]), now)
            if start is not None:
                yield from _of_forecast(each, start, lambda at: _seconds(at) - began)


def _next_start(job: Played | None, now: float) -> float | None:
    spans = job.attempts if job else ()
    return next((span.start for span in spans if span.start > now), None)


def _of_reasons(why: Json, now: float, start: float) -> Iterator[Statement]:
    for reason in why["reasons"]:
        if reason["code"] == "promised" and not reason["detail"]:  # else it names no time
            late_s = start - now - reason["need"]
            yield Statement(PROMISED, late_s <= max(CLOSE_S, CLOSE * reason["need"]))


def _of_headline(
    why: Json, jobs: Mapping[str, Played], now: float, start: float
) -> Iterator[Statement]:
    found = BEFORE.match(why["headline"])
    first = _next_start(jobs.get(found[1]), now) if found else None
    if first is not None:
        yield Statement(GOES_FIRST, first <= start + 1.0)


def _of_remedies(
    why: Json, job: Played, jobs: Mapping[str, Played], now: float, start: float
) -> Iterator[Statement]:
    for remedy in why["remedies"]:
        if found := ENDS.search(remedy):
            other = jobs.get(found[1])
            end = next((s.end for s in other.attempts if s.end > now), None) if other else None
            yield Statement(MAY_START, None if end is None else start <= end + CLOSE_S)
        if found := SMALLER.search(remedy):
            mib = int(found[1]) * (1024 if found[2] == "G" else 1)
            yield Statement(FITS, mib >= job.job.memory_mib)


def _of_forecast(each: Json, start: float, at: Callable[[str], float]) -> Iterator[Statement]:
    yield Statement(IS_KNOWN, each["expected_at"] is not None)
    if each["earliest_at"] is not None:
        latest = each["latest_at"]
        is_soon_enough = latest is None or start <= at(latest) + 1.0
        yield Statement(IN_RANGE, is_soon_enough and start >= at(each["earliest_at"]) - 1.0)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


PROMISED = "“expected to be free within T”: starts by then"
GOES_FIRST = "“job N goes first”, “is before it”: it starts first"
MAY_START = "“GPU N can take it when job M ends”: starts by then"
FITS = "“fits with --gpu-mem M”: the job uses no more"
IN_RANGE = "`queue --start`: starts in the range"
IS_KNOWN = "the same: a time is known"
KINDS = PROMISED, GOES_FIRST, MAY_START, FITS, IN_RANGE, IS_KNOWN
