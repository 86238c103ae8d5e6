"""The formats that `squeue`, `sinfo` and `sacct` take, and the lines that come of them. Pure.
Imports stay light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carmad.readable import clean
from cli.problems import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any


WIDEST = 10_000


class Column:
    """`before`: what stands in front of it. `width`: None if it takes what it needs. `right`: it is
    flush right. `more`: what its end becomes where it is cut."""

    __slots__ = ("before", "header", "more", "right", "text", "width")

    def __init__(
        self,
        header: str,
        text: Callable[[Any], str],
        width: int | None = None,
        right: bool = False,
        before: str = "",
        more: str = "",
    ) -> None:
        self.header = header
        self.text = text
        self.width = width and min(width, WIDEST)
        self.right = right
        self.before = before
        self.more = more

    def fit(self, text: str) -> str:
        if self.width is None:
            return self.before + text
        if len(text) > self.width:
            text = text[: self.width - len(self.more)] + self.more
        return self.before + (text.rjust(self.width) if self.right else text.ljust(self.width))


def parse_percent(text: str, fields: Mapping[str, Any]) -> tuple[list[Column], str]:
    """The columns of `%.18i|%j`, and what stands behind the last. Raises Usage. `fields`: by
    letter."""
    columns: list[Column] = []
    at, before = 0, ""
    while at < len(text):
        if text[at] != "%":
            before += text[at]
            at += 1
            continue
        at += 1
        right = text[at : at + 1] == "."
        at += right
        digits = at
        while text[at : at + 1].isdecimal():
            at += 1
        width, letter = text[digits:at], text[at : at + 1]
        at += 1
        if letter == "%":
            before += "%"
        elif letter in fields:
            field = fields[letter]
            wide = int(width) if width and int(width) else None
            columns.append(Column(field.header, field.text, wide, right, before))
            before = ""
        else:
            raise Usage(f"Invalid job format specification: {letter or '%'}", _list(fields))
    return columns, before


def parse_names(text: str, fields: Mapping[str, Any], width: int = 20) -> tuple[list[Column], str]:
    """The columns of `jobid:.10,name:30,state:|`, and what stands behind the last. Behind the colon
    are a width and a suffix; a column that has a colon and no width takes what it needs. Raises
    Usage."""
    columns: list[Column] = []
    before = ""
    for word in text.split(","):
        name, given, size = word.strip().partition(":")
        field = fields.get(name.lower())
        if field is None:
            raise Usage(f"Invalid job format specification: {word}", _list(fields))
        right = size.startswith(".")
        size = size.removeprefix(".")
        suffix = size.lstrip("0123456789")
        digits = size.removesuffix(suffix)
        wide = int(digits or 0) or None if given else width
        columns.append(Column(field.header, field.text, wide, right, before))
        before = suffix
    return columns, before


def parse_titles(text: str, fields: Mapping[str, tuple[str, Any]]) -> list[Column]:
    """The columns of `JobID%20,State`, as sacct has them: `ALL`, or names, of which the beginning
    is enough. Raises Usage."""
    columns = []
    text = ",".join(fields) if text.strip().lower() == "all" else text
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, given, size = word.partition("%")
        full = _complete(name.lower(), fields)
        if full is None or (given and not size.removeprefix("-").isdecimal()):
            raise Usage(f'Invalid field requested: "{word}"', _list(fields))
        title, field = fields[full]
        wide = int(size) if given else field.width
        columns.append(Column(title, field.text, abs(wide), wide >= 0, more="+"))
    return columns


def _complete(name: str, names: Iterable[str]) -> str | None:
    """The name itself, or the first in the alphabet that begins with it."""
    return min((full for full in names if full.startswith(name)), default=None) if name else None


def _list(fields: Mapping[str, Any]) -> str:
    return f"CARMA has: {', '.join(fields)}"


def lay_out(
    columns: Sequence[Column],
    rows: Iterable[Any],
    headed: bool = True,
    gap: str = "",
    after: str = "",
) -> list[str]:
    """A line for each row. `gap`, `after`: between the columns, and behind the last."""
    lines = [[column.fit(column.header) for column in columns]] if headed else []
    lines += [[column.fit(column.text(row)) for column in columns] for row in rows]
    return [gap.join(line) + after for line in lines]


def delimit(
    columns: Sequence[Column], rows: Iterable[Any], headed: bool, delimiter: str, ends: bool
) -> list[str]:
    """Lines that programs read. A name that contains the delimiter would shift what follows: it has
    a question mark there. `ends`: a delimiter ends the line, too."""
    end = delimiter if ends else ""
    lines = [[column.header for column in columns]] if headed else []
    for row in rows:
        lines.append([column.text(row).replace(delimiter, "?") for column in columns])
    return [delimiter.join(line) + end for line in lines]


def show(lines: Iterable[str]) -> None:
    """One line each, whatever is in it."""
    for line in lines:
        print(clean(line))
