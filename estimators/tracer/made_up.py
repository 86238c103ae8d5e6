"""Notices when a script gets what a real run would not give it: from then on it may behave
differently.

It may turn to the world outside of its process: programs that it starts can write nothing, and what
a forked process writes, only that sees (`following`). The network answers nobody (`sockets`). It
may go on without them, and fail later for a reason that no longer shows.

A value that is only printed decides nothing that comes later (`is_only_printed`). Only plain
statements count, such as `print(f"loss {loss.item():.3f}")`: the call of `print`, of a logger or a
progress bar, whose arguments neither keep what they get, nor fail for its value.
"""

from __future__ import annotations

import ast
import functools
import linecache
import logging
import mmap
import sys
from types import FrameType
from typing import Any

from .answering import is_own

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


def is_only_printed() -> bool:
    """Judged by the innermost line of the script that is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_own(frame):
        frame = frame.f_back
    if frame is None:
        return False
    statement = _statement(frame.f_code.co_filename, frame.f_lineno)
    call = _call(statement) if isinstance(statement, ast.Expr) else None
    return call is not None and _shows(call.func, frame)


def _shows(function: ast.expr, frame: FrameType) -> bool:
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


def truth_for(place: str) -> bool | None:
    """What a truth value has to be for the assertion that reads it at this line
    (`/home/ann/train.py:12`) to hold; None if there is no assertion, or it wants several."""
    statement = _statement_at(place)
    if not isinstance(statement, ast.Assert):
        return None
    negations = [node for node in ast.walk(statement.test) if isinstance(node, ast.Not)]
    if not negations:
        return True
    return False if isinstance(statement.test, ast.UnaryOp) and len(negations) == 1 else None


def is_loop(place: str) -> bool:
    """Whether the line is the head of a `while`."""
    return isinstance(_statement_at(place), ast.While)


def is_repeated(place: str) -> bool:
    """Whether the innermost loop around the line is a `while`."""
    path, _, line = place.rpartition(":")
    loops = [one for one in _statements(path) if isinstance(one, (ast.For, ast.While))]
    around = [one for one in loops if one.lineno <= int(line or 0) <= (one.end_lineno or 0)]
    return isinstance(max(around, key=lambda one: one.lineno, default=None), ast.While)


def _statement_at(place: str) -> ast.stmt | None:
    path, _, line = place.rpartition(":")
    return _statement(path, int(line)) if line else None


@functools.lru_cache(maxsize=None)
def _statement(path: str, line: int) -> ast.stmt | None:
    """The one at the line; None if there are several."""
    found = [one for one in _statements(path) if one.lineno <= line <= _end(one)]
    return found[0] if len(found) == 1 else None


def _end(statement: ast.stmt) -> int:
    """The last line of a statement, or of the head of one that contains others."""
    if not hasattr(statement, "body"):
        return statement.end_lineno or statement.lineno
    head = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
    return max([statement.lineno, *(node.end_lineno or 0 for node in head)])


@functools.lru_cache(maxsize=None)
def _statements(path: str) -> list[ast.stmt]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def _call(statement: ast.Expr) -> ast.Call | None:
    call = statement.value
    if not isinstance(call, ast.Call) or any(one.arg == "file" for one in call.keywords):
        return None
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    return call if all(map(_is_harmless, (n for one in given for n in ast.walk(one)))) else None


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", getattr(node.func, "attr", "")) in _PURE
    if isinstance(node, ast.BinOp) and isinstance(node.op, _MAY_FAIL):
        text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        return text or not any(isinstance(part, ast.Call) for part in ast.walk(node.right))
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant)
    return isinstance(node, _PARTS)


class Deceit:
    """Whether the script got something that a real run would not give it, and that it did not only
    print; it itself, or a process that it has forked."""

    def __init__(self) -> None:
        self._here = False
        self._forked: mmap.mmap | None = None  # a byte that they share

    def __bool__(self) -> bool:
        return self._here or (self._forked is not None and self._forked[0] == 1)

    def notice(self) -> None:
        if not is_only_printed():
            self._here = True
            if self._forked is not None:
                self._forked[0] = 1

    def forget(self) -> None:
        self._here = False

    def share(self) -> None:
        """Call this before a fork."""
        self._forked = self._forked or mmap.mmap(-1, 1)
