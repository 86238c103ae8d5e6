"""What a script gets that a real run would not give it: from then on it may behave differently.

A program that reads a value from the GPU which nothing has computed (`if loss < best`, `.item()`)
gets one that is made up (`Choices`). If it stops then, `attempts` runs it again with the other
answer at one of the places that asked.

For the rest there is no other answer (`Deceit`). Programs that it starts can write nothing, and
what a forked process writes, only that sees (`following`). The network answers nobody (`sockets`).
It may go on without them, and fail later for a reason that no longer shows.

A value that is only printed decides nothing that comes later. Only plain statements count, such as
`print(f"loss {loss.item():.3f}")`: the call of `print`, of a logger or a progress bar, whose
arguments neither keep what they get, nor fail for its value.
"""

from __future__ import annotations

import ast
import functools
import linecache
import logging
import mmap
import os
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
_LOGS = frozenset(("debug", "info", "warning", "error"))
_SHOWS = frozenset(("set_description", "set_postfix"))
# Functions and methods that may be part of such a statement. Those of the script's own are not
# meant: what these ask for, they ask for in a statement of their own.
_PURE = frozenset(
    (
        *("abs", "float", "format", "len", "max", "min", "round", "str", "sum"),
        *("cpu", "detach", "item", "mean", "norm", "numpy", "tolist"),
        *("current_device", "get_device_capability", "get_device_name", "get_device_properties"),
        *("is_bf16_supported", "mem_get_info", "perf_counter", "time"),
    )
)
_PARTS = (
    *(ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Constant, ast.expr_context),
    *(ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.operator, ast.Tuple, ast.List),
)
_MAY_FAIL = (ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)


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
        """The answer at this place of the program."""
        place = _place()
        known = self.asked.pop(place, None)
        is_number = known or type(usual) is not bool
        if type(usual) is bool and (holds := _truth_for(place)) is not None:
            usual, other = holds, not holds
        else:
            self._times[place] += 1
            if self._times[place] > MANY and self._times[place] % 2 and _is_repeated(place):
                usual, other = other, usual
        if known is not None or not is_only_printed():
            self.asked[place] = is_number
        if place not in self.plan.flipped:
            return usual
        if isinstance(_statement(place), ast.While):  # the first ends after turns, others after one
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


def _place() -> str:
    """`/home/ann/train.py:12`: the innermost line that is neither PyTorch's nor the tracer's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


# -- what a line does with a value


def is_only_printed() -> bool:
    """Judged by the innermost line of the script that is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_own(frame):
        frame = frame.f_back
    if frame is None:
        return False
    call = getattr(_statement(f"{frame.f_code.co_filename}:{frame.f_lineno}"), "value", None)
    return isinstance(call, ast.Call) and _shows(call, frame)


def _shows(call: ast.Call, frame: FrameType) -> bool:
    function, given = call.func, (*call.args, *call.keywords)
    if not all(_is_harmless(node) for one in given for node in ast.walk(one)):
        return False
    if isinstance(function, ast.Name):
        return function.id == "print" and _value_of("print", frame) is None
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    thing = _value_of(function.value.id, frame)
    if thing is logging or type(thing) is logging.Logger:
        return function.attr in _LOGS
    return type(thing).__module__.startswith("tqdm.") and function.attr in _SHOWS


def _value_of(name: str, frame: FrameType) -> Any:
    return frame.f_locals.get(name, frame.f_globals.get(name))


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", getattr(node.func, "attr", "")) in _PURE
    if isinstance(node, ast.BinOp) and isinstance(node.op, _MAY_FAIL):
        text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        return text or not any(isinstance(part, ast.Call) for part in ast.walk(node.right))
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant)
    return isinstance(node, _PARTS) and getattr(node, "arg", "") != "file"


def _truth_for(place: str) -> bool | None:
    """What a truth value has to be for the assertion that reads it at this line to hold; None if
    there is no assertion, or it wants several."""
    statement = _statement(place)
    if not isinstance(statement, ast.Assert):
        return None
    negations = [node for node in ast.walk(statement.test) if isinstance(node, ast.Not)]
    if not negations:
        return True
    return False if isinstance(statement.test, ast.UnaryOp) and len(negations) == 1 else None


def _is_repeated(place: str) -> bool:
    """Whether the innermost loop around the line is a `while`."""
    loops = [one for one in _around(place) if isinstance(one, (ast.For, ast.While))]
    return isinstance(max(loops, key=lambda one: one.lineno, default=None), ast.While)


@functools.lru_cache(maxsize=None)
def _statement(place: str) -> ast.stmt | None:
    """The one at the line; None if there are several. Of one that contains others, only its head is
    meant."""
    line = int(place.rpartition(":")[2] or 0)
    found = []
    for one in _around(place):
        inner = [node for node in ast.iter_child_nodes(one) if isinstance(node, ast.expr)]
        ends = [node.end_lineno or 0 for node in inner] if hasattr(one, "body") else [line]
        if line <= max([one.lineno, *ends]):
            found.append(one)
    return found[0] if len(found) == 1 else None


def _around(place: str) -> list[ast.stmt]:
    """The statements that the line is part of."""
    path, _, line = place.rpartition(":")
    number = int(line or 0)
    return [one for one in _statements(path) if one.lineno <= number <= (one.end_lineno or 0)]


@functools.lru_cache(maxsize=None)
def _statements(path: str) -> list[ast.stmt]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
