"""Text for the terminal: how values read, and tables, which rich draws. Pure.

A picture is a sequence of blocks, from top to bottom: a string (a paragraph, "" for an empty line)
or what rich can draw, such as a `Table`. Only what draws imports rich, which takes as long as all
else that a verb does: pipes do without it.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from carmad import readable
from carmad.readable import clean, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

    from carmad.api.job import ExitOut, MemoryOut

    Block: TypeAlias = RenderableType

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


class Column:
    """`fit`: whether the column, on a narrow terminal, stays whole ("") or gives way: "cut" with an
    ellipsis, "wrap" into more lines between its words, or "drop"ped first, the last one before the
    others; "drop late": only after all of these."""

    __slots__ = ("fit", "header", "right")

    def __init__(self, header: str = "", right: bool = False, fit: str = "") -> None:
        self.header = header
        self.right = right
        self.fit = fit


_FITS = {"": "", "~": "cut", "*": "wrap", "?": "drop", "??": "drop late"}


def columns(headers: str) -> list[Column]:
    """Of headers without spaces, each with marks: `>` right-aligned, and how it gives way: `~` cut,
    `*` wrapped, `?` dropped, `??` dropped late. `-`: a column without a header."""
    return [Column(*_read_header(word)) for word in headers.split()]


def _read_header(word: str) -> tuple[str, bool, str]:
    name = word.rstrip(">~*?")
    marks = word[len(name) :]
    return "" if name == "-" else name, ">" in marks, _FITS[marks.replace(">", "")]


class Table:
    """Rows of cells, a column each: rich draws it once it is known which columns there is room for.
    A row may be higher than a line, if a cell of it wraps."""

    def __init__(self, columns: Sequence[Column], header: bool = True, drops: bool = True) -> None:
        """`drops`: False if all columns are to be shown."""
        self.columns = columns
        self.header = header
        self.drops = drops
        self.rows: list[tuple[str, ...]] = []

    def add(self, *cells: str, style: str = "") -> None:
        """`style`: of the cells that are mere text."""
        if style:
            cells = tuple(c if isinstance(c, Styled) else in_style(c, style) for c in cells)
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Block]:
        from rich import table

        shown = self.fit(options.max_width)
        made = table.Table(
            box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), show_header=self.header
        )
        for at, width in shown.items():
            column = self.columns[at]
            made.add_column(
                drawn(in_style(column.header, "bold")),
                header_style="not bold",  # what fills it up stays plain
                justify="right" if column.right else "left",
                width=width,
                no_wrap=column.fit != "wrap",
                overflow="fold" if column.fit == "wrap" else "ellipsis",
            )
        for row in self.rows:
            made.add_row(*(drawn(row[at]) for at in shown))
        yield made

    def fit(self, room: int) -> dict[int, int]:
        """The columns that are shown, each with its width."""
        from rich.cells import cell_len

        width: dict[int, int] = {}
        words: dict[int, int] = {}  # of columns that give way: narrower, and words are broken
        least: dict[int, int] = {}  # narrower, and others are dropped
        for at, column in enumerate(self.columns):
            texts = [str(row[at]) for row in self.rows] + [column.header] * self.header
            lines = [line for text in texts for line in text.split("\n")]
            width[at] = least[at] = max(map(cell_len, lines), default=0)
            if column.fit in READABLE:
                longest = (cell_len(word) for line in lines for word in line.split())
                most = room // 2 if column.fit == "wrap" else 0
                words[at] = max(NARROWEST, min(max(longest, default=0), most))
                least[at] = min(width[at], max(words[at], READABLE[column.fit]))

        def excess(of: dict[int, int]) -> int:
            return sum(of[at] for at in width) + len(GAP) * (len(width) - 1) - room

        if self.drops and excess(width) > 0:
            width = {at: w for at, w in width.items() if self._says_something(at)} or width
        for fit in DROPPED if self.drops else ():
            for at in [at for at in reversed(width) if self.columns[at].fit == fit]:
                if excess(least) > 0 and len(width) > 1:
                    del width[at]
        for lowest in (words, dict.fromkeys(words, NARROWEST)):  # at last, words are broken
            while excess(width) > 0 and (
                giving := [at for at in words.keys() & width if width[at] > lowest[at]]
            ):
                width[max(giving, key=lambda at: width[at])] -= 1
        return width

    def _says_something(self, at: int) -> bool:
        return not self.rows or any(str(row[at]) != NOTHING for row in self.rows)

    def plain(self) -> Iterator[str]:
        """Without rich, and as wide as need be."""
        lines: list[tuple[str, ...]] = []
        if self.header:
            lines.append(tuple(column.header for column in self.columns))
        for row in self.rows:
            lines += zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
        return align(lines, [column.right for column in self.columns])


def align(rows: Sequence[Sequence[str]], is_right: Sequence[bool]) -> Iterator[str]:
    """The rows as lines, whose columns are as wide as what they hold."""
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, width, is_right, strict=True)
        yield GAP.join(
            f"{cell:>{w}}" if right else f"{cell:<{w}}" for cell, w, right in cells
        ).rstrip()


class Styled(str):
    """A text whose parts have styles."""

    __slots__ = ("parts",)
    parts: list[tuple[str, str]]

    def __new__(cls, parts: list[tuple[str, str]]) -> Styled:
        made = super().__new__(cls, "".join(text for text, _ in parts))
        made.parts = parts
        return made


def styled(*texts: str | tuple[str, str]) -> Styled:
    """Texts, or pairs of a text and its style, one behind the other."""
    found: list[tuple[str, str]] = []
    for each in texts:
        found += [each] if isinstance(each, tuple) else parts(each)
    return Styled(found)


def in_style(text: str, style: str) -> Styled:
    return Styled([(text, style)])


def parts(text: str) -> list[tuple[str, str]]:
    """Each with its style."""
    return text.parts if isinstance(text, Styled) else [(text, "")]


def drawn(text: str) -> Text:
    """As rich has it. No text is read as markup."""
    from rich.text import Text

    return Text.assemble(*parts(text))


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values, a pair per line; values wrap."""
    made = Table(columns("- -*"), header=False)
    for name, value in rows:
        made.add(in_style(name, "bold"), value)
    return made


def heading(text: str) -> list[Block]:
    return ["", in_style(text, "bold")]


def draw(picture: Iterable[Block]) -> Block:
    """The blocks below each other."""
    from rich.console import Group

    return Group(*(_block(each) for each in picture))


def _block(each: Block) -> Block:
    if isinstance(each, Styled):
        return drawn(each)
    return _paragraph(each) if isinstance(each, str) else each


def _paragraph(text: str) -> Block:
    """What follows the first line of a paragraph is indented as that is, and below the text of an
    item `· …`."""
    from rich.console import Group
    from rich.table import Table

    lines: list[Block] = []
    for line in text.split("\n"):
        lead = len(line) - len(line.lstrip(" ·"))
        made = Table.grid()
        made.add_column(width=lead, no_wrap=True)
        made.add_column(overflow="fold")
        made.add_row(drawn(line[:lead]), drawn(line[lead:]))
        lines.append(made if lead else drawn(line))
    return Group(*lines)


def height(picture: Iterable[Block], room: int) -> int:
    """The number of its lines."""
    from rich.console import Console

    return len(Console(width=room, markup=False).render_lines(draw(picture), pad=False))
