"""Tells whether what is being asked for is only printed: it then decides nothing that comes later.

Only plain statements count, such as `print(f"loss {loss.item():.3f}")`: the call of `print`, of a
logger or a progress bar, whose arguments neither keep what they get, nor fail for its value.
"""

import ast
import functools
import linecache
import logging
import sys
from types import FrameType
from typing import Any, Iterator, List, Optional, Union

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
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and not is_own(frame):
        frame = frame.f_back
    if frame is None:
        return False
    calls = _calls(frame.f_code.co_filename, frame.f_lineno)
    return bool(calls) and all(call is not None and _shows(call.func, frame) for call in calls)


def _shows(function: ast.expr, frame: FrameType) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "print" and _named("print", frame) is None
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    thing = _named(function.value.id, frame)
    if thing is logging or type(thing) is logging.Logger:
        return function.attr in _LOGS
    return type(thing).__module__.startswith("tqdm.") and function.attr in _SHOWS


def _named(name: str, frame: FrameType) -> Any:
    return frame.f_locals.get(name, frame.f_globals.get(name))


@functools.lru_cache(maxsize=None)
def _calls(path: str, line: int) -> List[Optional[ast.Call]]:
    """Of each statement at this line, the call that may only print; None if it may do more."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return []
    return [_call(one) for one in _statements(tree) if one.lineno <= line <= _end(one)]


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _end(statement: ast.stmt) -> int:
    """The last line of a statement, or of the head of one that contains others."""
    if not hasattr(statement, "body"):
        return statement.end_lineno or statement.lineno
    head = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
    return max([statement.lineno, *(node.end_lineno or 0 for node in head)])


def _call(statement: ast.stmt) -> Optional[ast.Call]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or any(one.arg == "file" for one in call.keywords):
        return None
    given: List[Union[ast.expr, ast.keyword]] = [*call.args, *call.keywords]
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
