"""Text for the terminal: how values read; lines of styled spans, paragraphs that wrap, and tables
that fit. Pure.

rich does more, and takes 80 ms to import and 1 ms per row: longer than `carma queue` may take.

A picture is a sequence of blocks, from top to bottom: a string (a paragraph, "" for an empty line),
a line of spans, or a `Table`. It is laid out once the width of the terminal is known.
"""

from __future__ import annotations

from carmad import readable
from carmad.readable import clean, duration

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    from carmad.api.job import ExitOut, MemoryOut

    Span: TypeAlias = tuple[str, str]  # text, style: words of SGR, such as "bold red", or ""
    Line: TypeAlias = tuple[Span, ...]
    Cell: TypeAlias = str | Line
    Block: TypeAlias = "Cell | Table"
    _Cell: TypeAlias = tuple[int, Cell]  # its width, and what it says

NOTHING = "-"
GIB = 1024


def memory(mib: float | None) -> str:
    if mib is None:
        return NOTHING
    return f"{mib:.0f}M" if mib < GIB else f"{mib / GIB:.1f}G"


def spread(used: MemoryOut) -> str:
    """Half-width of an estimate's interval in GiB, on its longer side; "" without one."""
    mib = used["estimate_mib"] or 0
    ends = (used.get("estimate_low"), used.get("estimate_high"))
    off = max((abs(mib - end) for end in ends if end is not None), default=0)
    return f"±{off / GIB:.1f}" if off else ""


def clock(seconds: float | None) -> str:
    """In squeue's format: 0:07, 1:02:03, 2-01:02:03."""
    if seconds is None:
        return NOTHING
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def span(seconds: float | None) -> str:
    return NOTHING if seconds is None else duration(seconds)


def fraction(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def number(value: float | None, unit: str, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}{unit}"


def energy(kwh: float | None) -> str:
    return NOTHING if kwh is None else readable.energy(kwh)


def local_time(stamp: str | None) -> str:
    """The API's UTC in local time."""
    if stamp is None:
        return NOTHING
    from datetime import datetime

    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M:%S}"


def bar(share: float | None, width: int, ascii_only: bool = False) -> str:
    full, empty = ("#", ".") if ascii_only else ("█", "░")
    filled = round(min(1.0, max(0.0, share or 0.0)) * width)
    return full * filled + empty * (width - filled)


def command(argv: list[str]) -> str:
    import shlex

    return clean(shlex.join(argv))


def exit_code(how: ExitOut | None) -> str:
    """code:signal, as in sacct; NOTHING for a job that never ran."""
    if how is None or (how["code"] is None and how["signal"] is None):
        return NOTHING
    return f"{how['code'] or 0}:{how['signal'] or 0}"


GAP = "  "
NARROWEST = 4  # columns are not cut further
READABLE = {"cut": 10, "wrap": 20}  # for more than that, columns that may be dropped are kept
DROPPED = ("drop", "drop late")
SGR = {
    "bold": "1",
    "dim": "2",
    "reverse": "7",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
}


class Column:
    """`fit`: whether the column, on a narrow terminal, stays whole ("") or gives way: "cut" with an
    ellipsis, "wrap" into more lines between its words, or "drop"ped first, the last one before the
    others; "drop late": only after all of these."""

    __slots__ = ("fit", "header", "right")

    def __init__(self, header: str = "", right: bool = False, fit: str = "") -> None:
        self.header = header
        self.right = right
        self.fit = fit


_FITS = {"~": "cut", "*": "wrap", "?": "drop"}


def columns(headers: str) -> list[Column]:
    """Of headers without spaces, each with marks: `>` right-aligned, and how it gives way: `~` cut,
    `*` wrapped, `?` dropped. `-`: a column without a header."""
    made = []
    for word in headers.split():
        name = word.rstrip(">~*?")
        fit = next((_FITS[mark] for mark in word[len(name) :] if mark in _FITS), "")
        made.append(Column("" if name == "-" else name, ">" in word[len(name) :], fit))
    return made


class Table:
    """Rows of cells, a column each. A row may be longer than a line, if a cell of it wraps."""

    def __init__(self, columns: Sequence[Column], header: bool = True, drops: bool = True) -> None:
        """`drops`: False if all columns are to be shown."""
        self.columns = columns
        self.header = header
        self.drops = drops
        self.rows: list[tuple[Cell, ...]] = []

    def add(self, *cells: Cell, style: str = "") -> None:
        """`style`: of the cells that are mere text."""
        if style:
            cells = tuple(in_style(c, style) if isinstance(c, str) else c for c in cells)
        self.rows.append(cells)

    def lines(self, room: int) -> list[Line]:
        return [line for row in self.row_lines(room) for line in row]

    def row_lines(self, room: int) -> list[list[Line]]:
        """The lines of each row; the header's come first."""
        rows = [[_parse(cell) for cell in row] for row in self.rows]
        if self.header:
            rows.insert(0, [_parse(in_style(c.header, "bold")) for c in self.columns])
        kept, widths = self._widths(rows, room)
        made: list[list[Line]] = []
        for row in rows:
            lines: list[Line] = []
            _set(lines, [row[at] for at in kept], [self.columns[at] for at in kept], widths)
            made.append(lines)
        return made

    def _widths(self, rows: Sequence[Sequence[_Cell]], room: int) -> tuple[list[int], list[int]]:
        """The columns that are shown, and as wide as what."""
        wide = [max((row[at][0] for row in rows), default=0) for at in range(len(self.columns))]
        kept = list(range(len(wide)))
        if self.drops and sum(wide) + len(GAP) * (len(kept) - 1) > room:
            kept = [at for at in kept if self._says_something(at)] or kept
        floor = {
            at: _longest_word(rows, at, room) if self.columns[at].fit == "wrap" else NARROWEST
            for at in kept
            if self.columns[at].fit in READABLE
        }
        least = {
            at: min(wide[at], max(its, READABLE[self.columns[at].fit])) for at, its in floor.items()
        }
        for fit in DROPPED if self.drops else ():
            for at in reversed(kept.copy()):
                needed = sum(least.get(k, wide[k]) for k in kept) + len(GAP) * (len(kept) - 1)
                if needed > room and self.columns[at].fit == fit:
                    kept.remove(at)
        excess = sum(wide[at] for at in kept) + len(GAP) * (len(kept) - 1) - room
        for lowest in (floor, dict.fromkeys(floor, NARROWEST)):  # at last, words are broken
            while excess > 0 and (giving := [at for at in floor if wide[at] > lowest[at]]):
                wide[max(giving, key=lambda at: wide[at])] -= 1
                excess -= 1
        return kept, [wide[at] for at in kept]

    def _says_something(self, at: int) -> bool:
        return not self.rows or any(row[at] != NOTHING for row in self.rows)


def _longest_word(rows: Sequence[Sequence[_Cell]], at: int, room: int) -> int:
    """The width of the longest word of a column, but half a line at most."""
    words = (word for row in rows for word in _text(row[at][1]).split())
    return min(max(map(width, words), default=0), max(NARROWEST, room // 2))


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else "".join([text for text, _ in cell])


def _parse(cell: Cell) -> _Cell:
    text = _text(cell)
    if "\n" in text:
        return max(map(width, text.split("\n"))), cell
    return width(text), cell


def _set(
    made: list[Line], row: Sequence[_Cell], columns: Sequence[Column], widths: Sequence[int]
) -> None:
    """Append the lines of a row."""
    line: list[Span] = []
    rest: list[list[Line]] = []  # of each cell, what its first line has no room for
    gap = ""
    for (size, cell), column, room in zip(row, columns, widths, strict=True):
        below: list[Line] = []
        if size > room or (not isinstance(cell, str) or "\n" in cell):
            if column.fit == "wrap" or size <= room:
                first, *below = wrap(cell, room)
            else:
                first = cut(cell, room)
            size = sum(width(text) for text, _ in first)
        else:
            first = ((cell, ""),)
        rest.append(below)
        pad = " " * (room - size)
        line += [(gap + pad, ""), *first] if column.right else [(gap, ""), *first, (pad, "")]
        gap = GAP
    made.append(tuple(line))
    for n in range(max(map(len, rest), default=0)):
        under = [parts[n] if n < len(parts) else () for parts in rest]
        _set(made, [_parse(part) for part in under], columns, widths)


def in_style(text: str, style: str) -> Line:
    return ((text, style),)


def pairs(rows: Iterable[tuple[str, Cell]]) -> Table:
    """Names and values, a pair per line; values wrap."""
    made = Table(columns("- -*"), header=False)
    for name, value in rows:
        made.add(in_style(name, "bold"), value)
    return made


def heading(text: str) -> list[Block]:
    return ["", in_style(text, "bold")]


def layout(picture: Iterable[Block], room: int) -> list[Line]:
    """The lines of a picture, none wider than `room`, if its tables can be made to fit."""
    made: list[Line] = []
    for block in picture:
        made += block.lines(room) if isinstance(block, Table) else wrap(block, room)
    return made


def wrap(cell: Cell, room: int) -> list[Line]:
    """Its lines, each at most `room` wide, broken between words where possible. What follows the
    first line of a paragraph is indented as that is, and below the text of an item `· …`."""
    spans = ((cell, ""),) if isinstance(cell, str) else cell
    if not any("\n" in text for text, _ in spans) and sum(width(t) for t, _ in spans) <= room:
        return [tuple(spans)]
    made: list[Line] = []
    for line in _split(spans):
        made += _break(line, room)
    return made


def _split(spans: Line) -> list[Line]:
    """At line ends."""
    made: list[list[Span]] = [[]]
    for text, style in spans:
        first, *more = text.split("\n")
        made[-1].append((first, style))
        made += [[(part, style)] for part in more]
    return [tuple(line) for line in made]


def _break(spans: Line, room: int) -> list[Line]:
    text = "".join([text for text, _ in spans])
    if width(text) <= room:
        return [spans]
    styles = [style for text, style in spans for _ in text]
    lead = len(text) - len(text.lstrip(" ·"))
    indent = " " * (lead if lead < room // 2 else 0)
    made: list[Line] = []
    at = 0
    while at < len(text):
        end = _end(text, at, room - (len(indent) if made else 0), lead)
        line = _join(text[at:end].rstrip(), styles[at:end])
        made.append(((indent, ""), *line) if made else line)
        at = end
        while at < len(text) and text[at] == " ":
            at += 1
    return made


def _end(text: str, at: int, room: int, lead: int) -> int:
    """Where the line that begins at `at` ends: behind a space, or within a long word."""
    end, used = at, 0
    while end < len(text) and used + width(text[end]) <= room:
        used += width(text[end])
        end += 1
    if end == len(text) or text[end] == " ":
        return end
    space = text.rfind(" ", max(at, lead) + 1, end)
    return space + 1 if space > 0 else max(end, at + 1)


def _join(text: str, styles: Sequence[str]) -> Line:
    made: list[Span] = []
    begun = 0
    for at in range(1, len(text) + 1):
        if at == len(text) or styles[at] != styles[begun]:
            made.append((text[begun:at], styles[begun]))
            begun = at
    return tuple(made)


def cut(cell: Cell, room: int) -> Line:
    """At most `room` wide; an ellipsis stands for what is left out."""
    spans = ((cell, ""),) if isinstance(cell, str) else cell
    if sum(width(text) for text, _ in spans) <= room:
        return spans
    made: list[Span] = []
    left = room - 1
    for text, style in spans:
        fits = _fitting(text, left)
        made.append((fits if fits == text else fits + "…", style))
        left -= width(fits)
        if fits != text:
            break
    return tuple(made) if room > 0 else ()


def _fitting(text: str, room: int) -> str:
    if text.isascii():
        return text[: max(0, room)]
    used = 0
    for at, char in enumerate(text):
        used += width(char)
        if used > room:
            return text[:at]
    return text


def width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(c) in ("Mn", "Me", "Cf") else 2 if east_asian_width(c) in "WF" else 1
        for c in text
    )


def paint(line: Line, color: bool) -> str:
    """For the terminal: `color` adds escape sequences."""
    if not color:
        return "".join([text for text, _ in line]).rstrip()
    last = len(line) - 1
    while last >= 0 and not line[last][0].strip():
        last -= 1
    return "".join([_sgr(text, style) for text, style in line[: last + 1]]).rstrip()


def _sgr(text: str, style: str) -> str:
    if not style or not text:
        return text
    return f"\x1b[{';'.join([SGR[word] for word in style.split()])}m{text}\x1b[0m"
