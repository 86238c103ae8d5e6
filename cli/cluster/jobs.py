"""Jobs of a cluster: which ones words select, waiting for their end, their exit codes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from cli import output
from cli.cluster import slurm
from cli.patience import despite
from cli.problems import Usage

T = TypeVar("T")

LOOK_S = 1.0  # the first look for the end; each asks Slurm's controller
LOOK_MOST_S = 15.0
_SPAN = re.compile(r"(\d{1,9})-(\d{1,9})")
_JOB = re.compile(r"\d{1,9}(_\d{1,9})?")
MOST = 10_000


def resolve(word: str) -> str:
    """The number of `last`, your last job; of an array, that of all tasks."""
    if word != "last":
        return word
    mine = slurm.rows("--me", "--states=all")
    if not mine:
        raise Usage("Slurm knows no job of yours", "name a job by its number")
    newest = max(mine, key=lambda row: int(row.label.partition("_")[0]))
    return newest.label.partition("_")[0]


def selected(words: Sequence[str]) -> Iterator[str]:
    """42, 1,3,5-8, 42_3, last and all, which is yours that have not ended. Raises Usage."""
    for word in ",".join(words).split(","):
        if word == "all":
            yield from dict.fromkeys(row.label.partition("_")[0] for row in slurm.rows("--me"))
        elif match := _SPAN.fullmatch(word):
            first, last = int(match[1]), int(match[2])
            if not first <= last < first + MOST:
                raise Usage(f"{word!r} is not a range of jobs", "such as 5-8")
            yield from map(str, range(first, last + 1))
        elif word == "last" or _JOB.fullmatch(word):
            yield resolve(word)
        else:
            raise Usage(f"{word!r} is not a job", "give numbers: 42, 1,3,5-8, 42_3, last or all")


def patiently(ask: Callable[[], T]) -> T:
    """Slurm's answer, also after a restart of its controller."""
    return despite(ask, lambda why: output.note(f"{why}; still waiting"), LOOK_S)


def ended(label: str) -> list[slurm.Row]:
    """The job, or all tasks of the array, once they have ended."""
    look_s = LOOK_S
    while True:
        found = patiently(lambda: slurm.rows("--states=all", "--array", f"--jobs={label}"))
        if not found:
            raise slurm.gone(label)
        if all(row.state.ended for row in found):
            return found
        time.sleep(look_s)
        look_s = min(LOOK_MOST_S, look_s * 1.5)


def exit_code_of(label: str) -> int:
    """Once it has ended: 0 only for success; else the program's code, 128+N if signal N ended it,
    or 1. Of an array, that of the first task that failed."""
    for row in ended(label):
        if row.state.name != "succeeded":
            return exit_code(patiently(partial(slurm.details, str(row.id))).get("ExitCode", ""))
    return 0


def exit_code(said: str) -> int:
    """Of Slurm's CODE:SIGNAL, for a job that did not succeed."""
    code, _, signum = said.partition(":")
    if signum.isdecimal() and int(signum):
        return 128 + int(signum)
    return (int(code) if code.isdecimal() else 0) or 1
