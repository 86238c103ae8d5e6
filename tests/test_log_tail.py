"""The end of a log, as a page shows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carma_client.logs import READ_BYTES, plain, tail


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
def test_a_line_is_shown_as_plain_text(line: str, shown: str) -> None:
    assert plain(line) == shown


def test_a_huge_log_is_read_from_its_end(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(1 << 40)  # takes no room: to read it would take hours
        file.seek(0, os.SEEK_END)
        file.write(b"\nfirst\nlast\n")
    found = tail(str(log), 1, 2)
    assert found.lines == ("first", "last") and found.more


def test_a_line_that_never_ends_has_a_last_state(log: Path) -> None:
    log.write_bytes(b"step\r" * READ_BYTES)
    assert tail(str(log), 1, 200).lines == ("step",)


def test_others_parts_of_the_same_file_are_left_out(log: Path) -> None:
    log.write_text(
        "mine\n=== carma job 2, attempt 1, now ===\nnot mine\n"
        "=== carma job 1, attempt 2, now ===\nmine again\n"
    )
    header = "=== carma job 1, attempt 2, now ==="
    assert tail(str(log), 1, 200).lines == ("mine", header, "mine again")
    assert tail(str(log), 2, 200).lines == ("=== carma job 2, attempt 1, now ===", "not mine")


def test_what_is_no_file_says_so_at_once(log: Path) -> None:
    assert tail(str(log), 1, 200).why == "there is no output yet"
    os.mkfifo(log)
    assert "is not a regular file" in tail(str(log), 1, 200).why
    assert "is not a regular file" in tail("/dev/zero", 1, 200).why
    link = log.with_name("link")
    link.symlink_to(log)
    assert "is not a regular file" in tail(str(link), 1, 200).why
