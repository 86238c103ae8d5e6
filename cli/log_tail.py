"""The end of a job's log, as plain text for a page. Little of a large file is read."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import BinaryIO

from carma_client.logs import HEADER, open_log
from carmad.readable import clean

READ_BYTES = 1 << 18
LONGEST = 2_000  # characters of a line
# What terminals take for colours, titles and movements of the cursor.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


@dataclass(frozen=True, slots=True)
class Tail:
    """`why`: instead of lines. `more`: the file has earlier ones."""

    lines: tuple[str, ...] = ()
    why: str = ""
    more: bool = False


def tail(path: str, job: int, lines: int) -> Tail:
    """The last lines that `job` wrote to the file, read with the caller's rights."""
    try:
        with open_log(path) as file:
            return _of(file, job, lines)
    except FileNotFoundError:
        return Tail(why="there is no output yet")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return Tail(why=f"cannot read {clean(path)}: {why}")


def _of(file: BinaryIO, job: int, lines: int) -> Tail:
    size = file.seek(0, os.SEEK_END)
    begin = max(0, size - READ_BYTES)
    file.seek(begin)
    data = file.read(READ_BYTES)
    if begin:  # not from the middle of a line
        data = data[data.find(b"\n") + 1 :]
    own = _own(data, job)
    found = [plain(line) for line in own.decode(errors="replace").rstrip("\n").split("\n")]
    if not own:
        why = "the end of the file was written by other jobs" if size else "it is empty so far"
        return Tail(why=why, more=bool(begin))
    return Tail(tuple(found[-lines:]), more=bool(begin) or len(found) > lines)


def _own(data: bytes, job: int) -> bytes:
    """What follows the job's headers; and what has none, unless its first attempt has one."""
    headers = list(HEADER.finditer(data))
    begun = any(int(header[1]) == job and header[2] == b"1" for header in headers)
    found = b"" if begun else data[: headers[0].start() if headers else None]
    ends = [header.start() for header in headers[1:]] + [len(data)]
    for header, end in zip(headers, ends[: len(headers)], strict=True):
        if int(header[1]) == job:
            found += data[header.start() : end]
    return found


def plain(line: str) -> str:
    """A line as a terminal would show it in the end: of a progress bar, its last state."""
    states = _ESCAPE.sub("", line).split("\r")
    text = next((state for state in reversed(states) if state.strip()), "")
    shown = clean(text.expandtabs(8))
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"
