"""`carma` itself, asked for what a form says: its parser, its checks, its notes and its errors.

A process of its own, since the command line means the directory, the umask and the standard error
of a process, and the pages have threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.problems import Problem, Refused, Unknown

WITHIN_S = 60.0
LOOK = "it is not known what it did: look at your jobs"
MOST_CHARACTERS = 100_000  # Linux takes 128 KiB per argument


def carma(
    words: Sequence[str], folder: Path, within_s: float = WITHIN_S
) -> tuple[Any, tuple[str, ...]]:
    """What `carma` with these words, one of which is --json, answers in that folder; and its notes.
    Raises CarmaError as it does, and Unknown if it says nothing."""
    if any("\0" in word or len(word) > MOST_CHARACTERS for word in (*words, str(folder))):
        raise Problem("it is too long, or not text", "put long commands into a script")
    code = "from cli.main import main; main()"
    try:
        done = subprocess.run(  # -P: nothing is imported from that folder
            [sys.executable, "-P", "-c", code, *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unknown(f"carma {words[0]} has not answered in {within_s:g} s", LOOK) from None
    except OSError as error:
        raise Problem(f"cannot run in {folder}: {error.strerror}", "see --chdir") from None
    said = done.stderr.decode(errors="replace").splitlines()
    notes = tuple(line.removeprefix("carma: ") for line in said if line.strip())
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise Unknown(notes[-1] if notes else f"carma {words[0]} has failed", LOOK) from None
    if "error" in answer:
        raise Refused(answer["error"], answer["hint"], answer["code"])
    return answer, notes
