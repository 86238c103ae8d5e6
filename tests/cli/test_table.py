"""Tables and text for the terminal: what gives way when the room is short, and colour."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len

from cli import output
from cli.text import Column, Table, columns, in_style
from tests.terminal import plain

REASON = "(GpuMemory: GPU0 20.0G free, need 141.0G, ReservedForMaintenance)"


def made(headers: str, *rows: tuple[str, ...]) -> Table:
    table = Table(columns(headers))
    for row in rows:
        table.add(*row)
    return table


def test_columns_are_as_wide_as_what_they_hold() -> None:
    table = made("NAME N>", ("a", "100"), ("longer", "7"))
    assert plain([table]) == "NAME      N\na       100\nlonger    7"
    assert "\n".join(table.plain()) == plain([table]), "without rich"


def test_text_is_cut_and_numbers_are_not() -> None:
    table = made("NAME~ N>", ("a" * 40, "12345678"))
    assert plain([table], 20).splitlines()[1] == "aaaaaaaaa…  12345678"


def test_columns_that_matter_least_go_first() -> None:
    table = made("A> B>? C>? TEXT*", ("1", "2", "3", "words that need some room here"))
    assert plain([table], 40).splitlines()[0].split() == ["A", "B", "C", "TEXT"]
    assert plain([table], 28).splitlines()[0].split() == ["A", "B", "TEXT"]
    assert plain([table], 20).splitlines()[0].split() == ["A", "TEXT"]
    every = Table(columns("A> B>? TEXT*"), drops=False)
    assert list(every.fit(5)) == [0, 1, 2]


def test_text_wraps_at_words_in_its_column() -> None:
    table = made("GPU> WHY*", ("0", "needs 8G of memory\nis drained"))
    assert plain([table], 16).splitlines() == [
        "GPU  WHY",
        "  0  needs 8G of",
        "     memory",
        "     is drained",
    ]


def test_no_word_is_broken_that_there_is_room_for() -> None:
    table = made("ID> NAME~ USER~ AT N>? WHY*", ("9" * 14, "n" * 30, "u" * 30, "2026", "1", REASON))
    for room in range(40, 120):
        shown = plain([table], room)
        assert max(map(len, shown.splitlines())) <= room
        if room >= 57:  # before, not even the longest word has room
            assert set(REASON.split()) <= set(shown.split()), (room, shown)


def test_some_columns_are_dropped_only_when_no_other_is_left() -> None:
    table = Table([Column("A", fit="drop late"), Column("B", fit="drop"), Column("C")])
    table.add("a" * 8, "b" * 8, "c" * 8)
    assert [plain([table], room).split("\n")[0].split() for room in (30, 20, 10)] == [
        ["A", "B", "C"],
        ["A", "C"],
        ["C"],
    ]


def test_a_paragraph_keeps_its_indent_and_long_words_are_broken() -> None:
    assert plain(["  · one two three"], 11) == "  · one two\n    three"
    assert plain(["a" * 25], 10).splitlines() == ["a" * 10, "a" * 10, "a" * 5]


def test_wide_characters_are_never_halved() -> None:
    table = made("NAME~ N>", ("日本語" * 10, "1"))
    for room in range(9, 20):
        line = plain([table], room).splitlines()[1]
        assert cell_len(line) <= room and line.endswith("1")


def shown(monkeypatch: pytest.MonkeyPatch, table: Table, color: bool) -> str:
    written = io.StringIO()
    monkeypatch.setattr("sys.stdout", written)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1" if color else "")
    output.show([table])
    return written.getvalue()


def test_a_pipe_gets_whole_lines_without_blanks_and_colour_only_if_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = made("NAME WHY*", ("x" * 300, "[bold]:smile: " * 100))
    table.add(in_style("on", "bold red"), "-")
    text = shown(monkeypatch, table, False)
    assert text.splitlines()[1] == f"{'x' * 300}  {('[bold]:smile: ' * 100).rstrip()}"
    assert "\x1b" not in text and not any(line.endswith(" ") for line in text.splitlines())
    assert "\x1b[1;31mon\x1b[0m" in shown(monkeypatch, table, True)


def test_long_lists_are_printed_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    table = made("NAME N>", *(("job", str(n)) for n in range(output.MOST_DRAWN + 1)))
    monkeypatch.setattr(Table, "__rich_console__", None)
    lines = shown(monkeypatch, table, True).splitlines()
    assert lines[0] == "NAME    N" and lines[-1] == "job   300"
