"""Reads the command and the directory of a user's process, in a process of its own: whoever reads
them waits for as long as that process likes.
"""

from __future__ import annotations

import os
import subprocess
import sys

from carmad.attempt.proc import read_file
from carmad.attempt.starting import program
from carmad.errors import CarmaError

WITHIN_S = 5.0


def title_of(pid: int) -> tuple[list[str], str]:
    """Its arguments and its directory. Raises CarmaError."""
    try:
        read = subprocess.run(
            [*program("carmad.attempt.title"), str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WITHIN_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CarmaError(
            f"the command and directory of process {pid} cannot be read",
            "It may have ended, or wait for a file system that does not answer.",
        ) from error
    directory, *words = os.fsdecode(read.stdout).removesuffix("\0").split("\0")
    return words, directory


def main() -> None:
    pid = int(sys.argv[1])
    os.write(1, os.fsencode(os.readlink(f"/proc/{pid}/cwd")) + b"\0")  # noqa: PTH115
    os.write(1, read_file(f"/proc/{pid}/cmdline"))
