"""What a script gets that a real run would not give it: from then on it may behave differently.

A program that reads a value from the GPU which nothing has computed (`if loss < best`, `.item()`)
gets one that is made up (`Choices`). If it stops then, `attempts` runs it again with the other
answer at one of the places that asked.

For the rest there is no other answer (`Deceit`). Programs that it starts can write nothing, and
what a forked process writes, only that sees (`following`). The network answers nobody (`sockets`).
It may go on without them, and fail later for a reason that no longer shows.

A value that is only printed decides nothing that comes later. What a statement does with one is
seen in its text. Of those that print, only those count that are no more than the call, such as
`print(f"loss {loss.item():.3f}")`, and whose arguments neither keep what they get, nor fail for its
value.
"""

from __future__ import annotations

import ast
import functools
import linecache
import logging
import mmap
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from .answering import is_own

GPU = "its model and its memory"  # in place of a line
TURNS = 4  # of the first loop whose condition is such a value
MANY = 64  # the same answers between two optimizer steps: a `while` may wait for the other
_BETWEEN = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, torch.__file__))
# The call of `print`, of a logger or of a progress bar.
_PRINTS = re.compile(
    r"(?:print|(\w+)\.(?:debug|info|warning|error|set_description|set_postfix))\((.*)\)"
)
_DOES_MORE = re.compile(r"\bfile=|:=|;|/.*\(|\[[^\d'\"]")
_SEVERAL = re.compile(" (and|or) ")
_CALLS = re.compile(r"(\w+)\(")
# Functions and methods that may be part of it. Those of the script's own are not meant: what these
# ask for, they ask for in a line of their own.
_PURE = frozenset(
    (
        *("abs", "float", "format", "len", "max", "min", "round", "str", "sum"),
        *("cpu", "detach", "item", "mean", "norm", "numpy", "tolist"),
        *("current_device", "get_device_capability", "get_device_name", "get_device_properties"),
        *("is_bf16_supported", "mem_get_info", "perf_counter", "time"),
    )
)


@dataclass(frozen=True)
class Plan:
    """How an attempt differs from the first."""

    flipped: frozenset[str] = frozenset()  # places that get the other answer
    whole: bool = False  # no pass is left out
    more: int = 0  # batches of each loop after two steps, on top of the usual ones


class Choices:
    def __init__(self) -> None:
        self.plan = Plan()
        # Places whose answers may have decided something, the latest last; whether it was a number.
        self.asked: dict[str, bool] = {}
        self._turns: Counter[str] = Counter()  # of loops with the other answer
        self._times: Counter[str] = Counter()  # that a place has asked since the last step

    def choose(self, usual: Any, other: Any) -> Any:
        """The answer at this place of the program: a line, or one of several truth values that are
        asked for there, which may have to differ."""
        frame = _asking()
        path, number = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
        line = place = f"{path}:{number}"
        if frame and type(usual) is bool and _SEVERAL.search(_text(path, number)):
            place = f"{frame.f_lasti}@{line}"
        known = self.asked.get(line)
        is_number = known or type(usual) is not bool
        if type(usual) is bool and (holds := _truth_for(path, number)) is not None:
            usual, other = holds, not holds
        else:
            self._times[place] += 1
            if self._times[place] > MANY and self._times[place] % 2 and _is_repeated(frame):
                usual, other = other, usual
        if known is not None or not is_only_printed():
            for one in (place, line):
                self.asked.pop(one, None)
                self.asked[one] = is_number
        if len(self.plan.flipped & {line, place}) != 1:  # a line's other answer, but for one
            return usual
        if _text(path, number).startswith("while "):  # the first ends after turns, others after one
            self._turns[place] += 1
            turns = self._turns[place] <= TURNS or self._turns[place] % 2
            return other if turns else usual
        return other

    def note_step(self) -> None:
        self._times.clear()

    def choose_of_gpu(self, usual: Any, other: Any) -> Any:
        """What the GPU may be, and how large. All such questions are asked at one place."""
        if not is_only_printed():
            self.asked[GPU] = True
        return other if GPU in self.plan.flipped else usual


class Deceit:
    """Whether the script got something else that a real run would not give it, and that it did not
    only print; it itself, or a process that it has forked."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def __bool__(self) -> bool:
        return self._shared[0] == 1

    def notice(self) -> None:
        if not is_only_printed():
            self._shared[0] = 1


def _asking() -> FrameType | None:
    """The innermost that is neither PyTorch's nor the tracer's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame


# -- what a statement does with a value


def is_only_printed() -> bool:
    """Judged by the innermost line of the script that is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_own(frame):
        frame = frame.f_back
    if frame is None:
        return False
    said = _PRINTS.fullmatch(_text(frame.f_code.co_filename, frame.f_lineno))
    if said is None or _DOES_MORE.search(said[2]):
        return False
    name = said[1] or "print"
    thing = frame.f_locals.get(name, frame.f_globals.get(name))
    known = type(thing).__module__.partition(".")[0] in ("logging", "tqdm") or thing is logging
    return (known if said[1] else thing is None) and _PURE.issuperset(_CALLS.findall(said[2]))


def _truth_for(path: str, number: int) -> bool | None:
    """What a truth value has to be for the assertion that reads it at this line to hold; None if
    there is no assertion, or it may want several."""
    statement = _statement(path, number)
    if not isinstance(statement, ast.Assert):
        return None
    negations = sum(isinstance(node, ast.Not) for node in ast.walk(statement.test))
    if negations:
        return False if negations == 1 and isinstance(statement.test, ast.UnaryOp) else None
    return True


def _is_repeated(frame: FrameType | None) -> bool:
    """Whether the innermost loop around the line that runs, or around the call of its function, is
    a `while`."""
    while frame is not None:
        path = frame.f_code.co_filename
        around = () if path.startswith(_BETWEEN) else _around(path, frame.f_lineno)
        loop = None
        for one in around:
            if isinstance(one, (ast.For, ast.While, ast.FunctionDef)):
                loop = None if isinstance(one, ast.FunctionDef) else one
        if loop is not None:
            return isinstance(loop, ast.While)
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=None)
def _text(path: str, number: int) -> str:
    """The statement at a line, as one line; of one that contains others, its head. The line itself
    if there are several."""
    statement = _statement(path, number)
    text = ast.unparse(statement) if statement else linecache.getline(path, number).strip()
    return text.partition("\n")[0]


def _statement(path: str, number: int) -> ast.stmt | None:
    """The innermost statement at a line; None if several are on it."""
    *outer, last = (None, *_around(path, number))
    return None if outer and outer[-1] and outer[-1].lineno == number else last


@functools.lru_cache(maxsize=None)
def _around(path: str, number: int) -> list[ast.stmt]:
    """The statements that contain a line, the innermost last."""
    return [one for one in _statements(path) if one.lineno <= number <= (one.end_lineno or 0)]


@functools.lru_cache(maxsize=None)
def _statements(path: str) -> list[ast.stmt]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
