"""Finds out whether a command is a job script, a local program, or a program on PATH.

A job script is run by its path, as its `#!` line says. It is not copied, so it finds the files
next to it, and edits before the job starts take effect.
"""

from __future__ import annotations

import os
import stat

from cli.problems import Usage

PREFIXES = ("#CARMA", "#SBATCH")
Directive = tuple[int, str, list[str]]  # line number, prefix, words
HEAD_BYTES = 65536  # directives are at the top


class Script:
    def __init__(self, path: str, interpreter: tuple[str, ...], directives: list[Directive]):
        self.path = path
        self.name = os.path.basename(path)  # noqa: PTH119 - pathlib is slow to import
        self.interpreter = interpreter
        self.directives = directives


def find_script(word: str) -> Script | None:
    """The job script `word`: a text file with directives, or one that is not executable."""
    if not _is_here(word) or not (text := _text(word)):
        return None
    directives = _directives(word, text)
    if not directives and os.access(word, os.X_OK):
        return None
    path = os.path.abspath(word)  # noqa: PTH100
    interpreter = _interpreter(text)
    if interpreter or directives:
        return Script(path, interpreter or ("/bin/sh",), directives)
    hint = f"`carma submit -- python {word}`? or give it a first line such as #!/bin/bash"
    raise Usage(f"{word} is neither executable nor a job script", hint)


def runnable(word: str) -> str:
    """Also finds programs in the current directory, after those on PATH."""
    return os.path.abspath(word) if _is_here(word) and "/" not in word else word  # noqa: PTH100


def _is_here(word: str) -> bool:
    try:
        there = stat.S_ISREG(os.stat(word).st_mode)  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return there and ("/" in word or not _on_path(word))


def _on_path(word: str) -> bool:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.access(f"{folder}/{word}", os.X_OK) for folder in folders if folder)


def _text(path: str) -> str:
    """The beginning of the file; "" if it is not text or not readable."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(HEAD_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in head else head.decode(errors="replace")


def _interpreter(text: str) -> tuple[str, ...]:
    """The words of the `#!` line as the kernel reads them: a program and at most one argument."""
    first = text.partition("\n")[0]
    return tuple(first[2:].strip().split(None, 1)) if first.startswith("#!") else ()


def _directives(path: str, text: str) -> list[Directive]:
    """Those before the first line that is neither blank nor a comment, as sbatch reads them."""
    import shlex

    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            break
        prefix, _, rest = line.partition(" ")
        if prefix in PREFIXES:
            try:
                found.append((number, prefix, shlex.split(rest, comments=True)))
            except ValueError as error:
                raise Usage(f"{path}:{number}: {error}", "is a quote missing?") from None
    return found
