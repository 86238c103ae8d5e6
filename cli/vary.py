"""Varies one number in a command, and searches for the largest value that fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isqrt
from typing import TYPE_CHECKING, Any

from cli.problems import Usage

if TYPE_CHECKING:
    from carmad.api.guesses import EstimateOut, EstimatesOut

MOST = 1 << 20
FIRST = 16  # if the command has no number: a batch of 1 is too small for many models
LEAP = 64  # at most by this factor further than what was tried
PRECISION = 0.01  # of the largest value that fits
STRAIGHT = 5  # values that are tried along lines alone
WELL_BELOW = 0.9
FIXED = ("context", "parameters", "gradients", "optimizer")  # parts that depend on no batch size
BLIND = ("declared", "history")  # not about the command that is tried


@dataclass(frozen=True, slots=True)
class Open:
    name: str  # of the number: batch-size
    words: tuple[str, ...]
    at: int  # index of the word with the number
    before: str  # the number's prefix in that word: nothing, --batch-size=, train.batch_size=
    value: int  # the current value

    def fill(self, value: int) -> list[str]:
        return [*self.words[: self.at], f"{self.before}{value}", *self.words[self.at + 1 :]]


def find_number(argv: Sequence[str], name: str) -> Open:
    """The number called `name` (batch-size) in `argv`: as --batch-size N, --batch-size=N, -b N,
    batch_size=N or data.batch_size=N. If there is none, it is appended."""
    if not re.fullmatch(r"[A-Za-z]\w*([-.]\w+)*", name):
        hint = "give an option's name without its dashes, as in --vary batch-size"
        raise Usage(f"--vary {name!r} is not a valid name", hint)
    spelled = "[-_]".join(map(re.escape, re.split("[-_]", name)))
    letter = "b" if spelled == "batch[-_]size" else name if len(name) == 1 else "(?!)"
    alone = re.compile(rf"--?{spelled}|-{letter}")
    joined = re.compile(rf"(--?{spelled}=|-{letter}=?|\+*(?:\w+\.)*{spelled}=)([0-9]+)")
    for at in reversed(range(1, len(argv))):  # programs use the last of several
        if found := joined.fullmatch(argv[at]):
            return Open(name, tuple(argv), at, found[1], int(found[2]))
        if alone.fullmatch(argv[at - 1]) and re.fullmatch("[0-9]+", argv[at]):
            return Open(name, tuple(argv), at, "", int(argv[at]))
    return Open(name, (*argv, f"--{name}", str(FIRST)), len(argv) + 1, "", FIRST)


def following(
    tried: Mapping[int, int], start: int, limit_mib: int, refused: int | None = None
) -> int | None:
    """The value to try next, if any. `tried`: MiB by value, so far; of 0, what does not depend on
    the value. `refused`: a value that has no estimate.

    Memory is nearly linear in a batch size. So the line through a value that fits and one that does
    not leads to a value just below the limit, and one 1 % above that shows that no more fits. Where
    memory is not linear, every other step then takes the geometric mean instead.
    """
    count = sum(value > 0 for value in tried)
    if not count:
        return None if refused else max(1, start)
    fits, over = bounds(tried, limit_mib)
    if is_settled(fits, over) or (over is None and fits >= MOST) or steady(tried):
        return None
    if refused is not None and (over is None or refused < over):
        return isqrt(fits * refused) if 0 < 2 * fits < refused and count < STRAIGHT else None
    if over is not None and fits and count >= STRAIGHT and count % 2:
        return isqrt(fits * over)
    meets = _meets(tried, fits, over, limit_mib)
    value = min(int(meets), ceil(meets * (1 - PRECISION / 2)))
    most = min(MOST, LEAP * fits) if over is None else over - _step(over)
    return max(fits + _step(fits), min(value, most))


def _meets(tried: Mapping[int, int], fits: int, over: int | None, limit_mib: int) -> float:
    """Where the line through `fits` and `over` meets the limit; or, if all fit, through `fits` and
    one well below it. Of neighbours, the larger one may even take less: the allocator rounds, and
    fills its gaps differently."""
    left, right = fits, over
    if right is None:
        left, right = max(value for value in tried if value <= fits * WELL_BELOW), fits
    rise = tried[right] - tried[left]
    if rise <= 0:
        return MOST
    return left + (limit_mib - tried[left]) * (right - left) / rise


def _step(value: int) -> int:
    return max(1, int(value * PRECISION))


def bounds(tried: Mapping[int, int], limit_mib: int) -> tuple[int, int | None]:
    """The largest value that fits, 0 for none; and the smallest above it that does not."""
    over = min((value for value, mib in tried.items() if value and mib > limit_mib), default=None)
    fitting = (value for value, mib in tried.items() if mib <= limit_mib)
    return max((value for value in fitting if over is None or value < over), default=0), over


def is_settled(fits: int, over: int | None) -> bool:
    """Whether the largest value that fits is known, to PRECISION."""
    return over is not None and over - fits <= _step(fits)


def steady(tried: Mapping[int, int]) -> bool:
    """Whether the memory does not depend on the value."""
    measured = [mib for value, mib in tried.items() if value]
    return len(measured) > 2 and len(set(measured)) == 1


# -- the search


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a search. `refused`: a value without an estimate, and why."""

    command: Open
    limit_mib: int
    tried: Mapping[int, EstimateOut]
    refused: tuple[int, EstimatesOut] | None = None

    @property
    def mib(self) -> dict[int, int]:
        return {value: safe_mib(one) for value, one in self.tried.items()}

    @property
    def steady(self) -> bool:
        return steady(self.mib)

    @property
    def largest(self) -> int | None:
        """The largest value that fits. Above it, one that is at most 1 % larger does not fit, or
        the next one that was tried was refused."""
        return None if self.steady else bounds(self.mib, self.limit_mib)[0] or None

    @property
    def too_large(self) -> int | None:
        """The smallest value that was found not to fit."""
        return bounds(self.mib, self.limit_mib)[1]

    @property
    def cut_short(self) -> tuple[int, str] | None:
        """If the search ended for want of an estimate: of which value, and why there is none."""
        over = self.too_large
        if self.refused is None or (over is not None and over < self.refused[0]):
            return None
        value, answer = self.refused
        whys = (one["why"] for one in answer["estimates"] if one["source"] not in BLIND)
        return value, next(filter(None, whys), "no estimator has an answer")

    @property
    def best(self) -> EstimateOut | None:
        return None if self.largest is None else self.tried[self.largest]

    def as_json(self) -> dict[str, Any]:
        fields = ("mib", "low", "high", "seconds")
        return {
            "schema": 1,
            "vary": self.command.name,
            "limit_mib": self.limit_mib,
            "source": next((one["source"] for one in self.tried.values()), None),
            "largest": self.largest,
            "too_large": self.too_large,
            "precision": PRECISION,
            "depends": not self.steady,
            "tried": [
                {"value": value} | {field: one[field] for field in fields}  # type: ignore[literal-required]
                for value, one in self.tried.items()
            ],
            "refused": self.refused and {"value": self.refused[0], **self.refused[1]},
        }


def search(
    ask: Callable[[list[str]], EstimatesOut],
    command: Open,
    limit_mib: int,
    tell: Callable[[int, Mapping[int, int]], None],
) -> Fit:
    """All values are judged by the same estimator. `tell` is called with each value before it is
    tried, and with the MiB that those before it take."""
    tried: dict[int, EstimateOut] = {}
    mib: dict[int, int] = {}
    source = None
    refused: tuple[int, EstimatesOut] | None = None
    while value := following(mib, command.value, limit_mib, refused and refused[0]):
        tell(value, {known: size for known, size in mib.items() if known})
        answer = ask(command.fill(value))
        judged = _judge(answer, source)
        if judged is None:
            refused = value, answer
            continue
        tried[value], mib[value] = judged, safe_mib(judged)
        mib.setdefault(0, sum(judged["parts"].get(part, 0) for part in FIXED))
        source = judged["source"]
    return Fit(command, limit_mib, tried, refused)


def _judge(answer: EstimatesOut, source: str | None) -> EstimateOut | None:
    """The estimate of `source`; without one, the trace's, the chosen one, or any."""
    able = [
        one
        for one in answer["estimates"]
        if one["mib"] is not None and one["source"] not in BLIND and source in (None, one["source"])
    ]
    able.sort(key=lambda one: (one["source"] != "trace", not one["chosen"]))
    return able[0] if able else None


def safe_mib(one: EstimateOut) -> int:
    """How much must be free, for an estimate with a number."""
    return one["high"] or one["mib"] or 0
