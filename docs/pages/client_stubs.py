"""Stubs of the daemon's answers for the type checkers of those who have the client alone
(packaging/client): the daemon's own modules need more than it has."""

from __future__ import annotations

from functools import partial
from types import NoneType, UnionType
from typing import Any, NotRequired, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

from carmad.api.actions import ResultOut
from carmad.api.events import EventOut
from carmad.api.job import JobOut

HEADER = """\
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict
"""


def _stub(answer: Any) -> str:
    """The shape of an answer, and those of its parts."""
    shapes, written = [answer], []
    for shape in shapes:  # it grows
        hints = get_type_hints(shape, include_extras=True)
        for name in shape.__optional_keys__:  # those of a base may not say so themselves
            if get_origin(hints[name]) is not NotRequired:
                hints[name] = NotRequired[hints[name]]
        lines = [f"    {name}: {_word(hint, shapes)}" for name, hint in hints.items()]
        written.append("\n".join([f"class {shape.__name__}(TypedDict):", *lines]))
    return "\n\n".join([HEADER, *written, ""])


def _word(hint: Any, shapes: list[Any]) -> str:
    """The type as a word of a stub; shapes that it names are added."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (None, NoneType):
        return "None"
    if hint is Any:
        return "Any"
    if is_typeddict(hint):
        if hint not in shapes:
            shapes.append(hint)
        return str(hint.__name__)
    if origin in (Union, UnionType):
        return " | ".join(_word(each, shapes) for each in args)
    if hasattr(hint, "__metadata__"):
        return _word(args[0], shapes)
    if origin is NotRequired:
        return f"NotRequired[{_word(args[0], shapes)}]"
    if origin is None:
        return str(hint.__name__)
    inner = (repr(each) if isinstance(each, str) else _word(each, shapes) for each in args)
    return f"{origin.__name__}[{', '.join(inner)}]"


STUBS = {  # by their names
    f"{answer.__module__.rpartition('.')[2]}.pyi": partial(_stub, answer)
    for answer in (JobOut, ResultOut, EventOut)
}
