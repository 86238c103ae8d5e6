"""The end of a log, as a page shows it."""

from __future__ import annotations

import io
import os
import tracemalloc
from pathlib import Path

import pytest

from carma_client.logs import BLOCK, READ_BYTES, Lines, last_lines, open_log, search, tail

JOB = {"id": 1, "attempt": 1, "started_at": None, "state": "queued"}
OTHER = {**JOB, "id": 2}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        (" 10%\r 50%\r100%", "100%"),
        (" 10%\r 50%\r", " 50%"),
        ("a\x08\x00b\u202ec", "a??b?c"),
        ("<b>", "<b>"),
        ("x" * 5000, "x" * 2000 + "…"),
    ],
)
def test_a_line_is_shown_as_plain_text(log: Path, line: str, shown: str) -> None:
    log.write_text(line)
    assert tail(str(log), JOB, 1).lines == (shown,)


def test_a_huge_log_is_read_from_its_end(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(1 << 40)  # takes no room: to read it would take hours
        file.seek(0, os.SEEK_END)
        file.write(b"\nfirst\nlast\n")
    found = tail(str(log), JOB, 2)
    assert found.lines == ("first", "last") and found.more


def test_a_line_that_never_ends_has_a_last_state(log: Path) -> None:
    log.write_bytes(b"step\r" * READ_BYTES)
    assert tail(str(log), JOB, 200).lines == ("step",)


def test_others_parts_of_the_same_file_are_left_out(log: Path) -> None:
    log.write_text(
        "mine\n=== carma job 2, attempt 1, now ===\nnot mine\n"
        "=== carma job 1, attempt 2, now ===\nmine again\n"
    )
    header = "=== carma job 1, attempt 2, now ==="
    assert tail(str(log), JOB, 200).lines == ("mine", header, "mine again")
    assert tail(str(log), OTHER, 200).lines == ("=== carma job 2, attempt 1, now ===", "not mine")


def test_what_is_no_file_says_so_at_once(log: Path) -> None:
    assert tail(str(log), JOB, 200).why == "there is no output yet"
    os.mkfifo(log)
    assert "is not a regular file" in tail(str(log), JOB, 200).why
    assert "is not a regular file" in tail("/dev/zero", JOB, 200).why
    link = log.with_name("link")
    link.symlink_to(log)
    assert "is not a regular file" in tail(str(link), JOB, 200).why


def test_what_is_far_into_a_long_line_is_found_and_shown(log: Path) -> None:
    log.write_text("x" * 9000 + "needle" + "y" * 9000 + "\n" + "z" * 1990 + "needle\n")
    long, short = search(str(log), JOB, "Needle", 9).lines
    assert "xneedley" in long and long.endswith("y…") and "…x" in long
    assert short == "     2  " + "z" * 1990 + "needle"
    assert tail(str(log), JOB, 9).lines[0] == "x" * 2000 + "…"


def test_a_log_that_is_gone_is_not_awaited(log: Path) -> None:
    running = {**JOB, "started_at": "2026-11-22T05:10:11+0000", "state": "running"}
    assert tail(str(log), running, 200).why == f"{log} was deleted or moved"
    assert search(str(log), running, "x", 200).why == f"{log} was deleted or moved"


# -- lines, as a terminal shows them


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"one\ntwo\n\nthree", [b"one\n", b"two\n", b"\n", b"three"]),
        (b"1/3\r2/3\r3/3\nend\n", [b"3/3\n", b"end\n"]),
        (b"\r1/3\r2/3\r", [b"2/3"]),
        (b"1/2\r2/2\r\x1b[K\nend\r\n", [b"2/2\n", b"end\n"]),
        (b"\r\r\n", [b"\n"]),
    ],
)
def test_a_bar_is_a_line_and_its_last_state_is_shown(
    log: Path, text: bytes, lines: list[bytes], size: int
) -> None:
    shown = Lines()
    parts = [(at, min(size, len(text) - at)) for at in range(0, len(text), size)]
    found = [line for at, many in parts for line in shown.feed(text[at : at + many])]
    assert [*found, *filter(None, [shown.rest()])] == lines
    log.write_bytes(text)
    for count in range(len(lines) + 2):
        with open_log(str(log)) as file:
            wanted = lines[-count:] if count else []
            assert list(last_lines(file, parts, count)) == wanted, count


@pytest.mark.parametrize("end", [b"\r", b"\n"])
def test_a_large_log_is_read_once_or_twice_and_not_held(log: Path, end: bytes) -> None:
    """Five minutes for 122 MB of a bar: all that had been read was gone through for each piece."""

    class Counting(io.FileIO):
        bytes_read = 0

        def read(self, size: int = -1) -> bytes:
            found = super().read(size)
            self.bytes_read += len(found)
            return found

    state = b"step 123456 of many many steps" + end
    size = 8_000_000
    log.write_bytes(b"first\n" + state * (size // len(state)) + b"\nlast")
    file = Counting(log)
    tracemalloc.start()
    try:
        found = b"".join(last_lines(file, [(0, log.stat().st_size)], 3))
        assert search(str(log), JOB, "last", 1).lines[0].endswith("  last")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bar = state.replace(b"\r", b"\n") if end == b"\r" else b"\n"
    assert found == (b"first\n" if end == b"\r" else state) + bar + b"last"
    assert file.bytes_read <= 2 * log.stat().st_size
    assert most < 40 * BLOCK


def test_a_line_of_any_length_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carma_client.logs.MOST_HELD", 100)
    lines = Lines()
    found = [line for _ in range(10) for line in lines.feed(b"x" * 70)]
    assert b"".join(found) + lines.rest() == b"x" * 700
    assert max(map(len, found)) <= 170
