"""Varies one number in a command, and searches for the largest value that fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.problems import Usage

if TYPE_CHECKING:
    from carmad.api.responses.estimates import EstimateOut, EstimatesOut

MOST = 1 << 20
FIRST = 16  # if the command has no number: a batch of 1 is too small for many models
LEAP = 64  # memory is allocated in blocks: doubling a small value may change nothing
BLIND = ("declared", "history")  # not about the command that is tried


@dataclass(frozen=True, slots=True)
class Open:
    name: str  # of the number: batch-size
    words: tuple[str, ...]
    at: int  # index of the word with the number
    before: str  # the number's prefix in that word: nothing, --batch-size=, train.batch_size=
    value: int  # the current value

    def filled(self, value: int) -> list[str]:
        return [*self.words[: self.at], f"{self.before}{value}", *self.words[self.at + 1 :]]


def opened(argv: Sequence[str], name: str) -> Open:
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


def following(tried: Mapping[int, int], start: int, limit_mib: int) -> int | None:
    """The value to try next, if any. `tried`: MiB by value, so far.

    Doubles while it fits, then bisects between the largest that fits and the next larger one.
    """
    if not tried:
        return max(1, start)
    fits, over = bounds(tried, limit_mib)
    if over is not None:
        return (fits + over) // 2 if over - fits > 1 else None
    if fits >= MOST or steady(tried):
        return None
    alike = len(tried) == 2 and len(set(tried.values())) == 1
    return min(MOST, fits * (LEAP if alike else 2))


def bounds(tried: Mapping[int, int], limit_mib: int) -> tuple[int, int | None]:
    """The largest value that fits, 0 for none; and the smallest above it that does not."""
    over = min((value for value, mib in tried.items() if mib > limit_mib), default=None)
    fitting = (value for value, mib in tried.items() if mib <= limit_mib)
    return max((value for value in fitting if over is None or value < over), default=0), over


def left(tried: Mapping[int, int], limit_mib: int) -> int | None:
    """How many more values will be tried; None while none was too large."""
    fits, over = bounds(tried, limit_mib)
    return None if over is None else (over - fits - 1).bit_length()


def steady(tried: Mapping[int, int]) -> bool:
    """Whether the memory does not depend on the value."""
    return len(tried) > 2 and len(set(tried.values())) == 1


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
        """None also if the search ended before finding it."""
        return None if self.refused or self.steady else bounds(self.mib, self.limit_mib)[0] or None

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
    tell: Callable[[int, int, int | None], None],
) -> Fit:
    """All values are judged by the same estimator. `tell` is called with the next value, the
    number tried so far, and the number left, if known."""
    tried: dict[int, EstimateOut] = {}
    mib: dict[int, int] = {}
    source = None
    while (value := following(mib, command.value, limit_mib)) is not None:
        tell(value, len(mib), left(mib, limit_mib))
        answer = ask(command.filled(value))
        judged = _judge(answer, source)
        if judged is None:
            return Fit(command, limit_mib, tried, (value, answer))
        tried[value], mib[value] = judged, safe_mib(judged)
        source = judged["source"]
    return Fit(command, limit_mib, tried)


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
