"""Finds out whether a command is a job script, a local program, or a program on PATH.

A job script is run as its `#!` line says. If it has directives or is a shell script, the job gets a
copy made at submission, as from sbatch.
"""

from __future__ import annotations

import os
import stat

from carmad.options import MAX_SCRIPT_BYTES
from cli.problems import Usage

PREFIXES = ("#CARMA", "#SBATCH")
Directive = tuple[int, str, list[str]]  # line number, prefix, words
HEAD_BYTES = 65536  # directives are at the top
SHELLS = ("sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh")


class Script:
    """`data`: what the job gets a copy of, at most one byte more than MAX_SCRIPT_BYTES; None: it is
    run where it is."""

    def __init__(
        self,
        path: str,
        interpreter: tuple[str, ...],
        directives: list[Directive],
        data: bytes | None,
    ):
        self.path = path
        self.name = os.path.basename(path)  # noqa: PTH119 - pathlib is slow to import
        self.interpreter = interpreter
        self.directives = directives
        self.data = data

    def text(self) -> str:
        """Of the copy. Raises Usage if it cannot be copied."""
        data = self.data or b""
        hint = "give --no-copy to run it where it is"
        if len(data) > MAX_SCRIPT_BYTES:
            most = MAX_SCRIPT_BYTES >> 20
            raise Usage(f"{self.name} is larger than {most} MiB: too large to copy", hint)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise Usage(f"{self.name} cannot be copied: it is not in UTF-8", hint) from None
        if "\0" in text:
            raise Usage(f"{self.name} cannot be copied: it is not text", hint)
        return text


def find_script(word: str) -> Script | None:
    """The job script `word`: a text file with directives, or one that is not executable."""
    if not _is_here(word) or not (data := _read(word)):
        return None
    text = data[:HEAD_BYTES].decode(errors="replace")
    directives = _directives(word, text)
    if not directives and os.access(word, os.X_OK):
        return None
    path = os.path.abspath(word)  # noqa: PTH100
    interpreter = _interpreter(text)
    if interpreter or directives:
        interpreter = interpreter or ("/bin/sh",)
        copied = directives or _is_shell(interpreter)
        return Script(path, interpreter, directives, data if copied else None)
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


def _read(path: str) -> bytes:
    """The file, up to what is too large to copy; b"" if it does not begin as text does, or is not
    readable."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(HEAD_BYTES)
            return b"" if b"\0" in head else head + file.read(MAX_SCRIPT_BYTES + 1 - len(head))
    except OSError:
        return b""


def _interpreter(text: str) -> tuple[str, ...]:
    """The words of the `#!` line as the kernel reads them: a program and at most one argument."""
    first = text.partition("\n")[0]
    return tuple(first[2:].strip().split(None, 1)) if first.startswith("#!") else ()


def _is_shell(interpreter: tuple[str, ...]) -> bool:
    """Whether a shell runs it, perhaps through env."""
    names = [word.rpartition("/")[2] for word in " ".join(interpreter).split()]
    return any(name in SHELLS for name in (names[1:] if names[:1] == ["env"] else names[:1]))


def _directives(path: str, text: str) -> list[Directive]:
    """Those before the first line that is neither blank nor a comment, as sbatch reads them."""
    import shlex

    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            break
        prefix, _, rest = line.partition(" ")
        if prefix in PREFIXES:
            try:
                found.append((number, prefix, shlex.split(rest, comments=True)))
            except ValueError as error:
                raise Usage(f"{path}:{number}: {error}", "is a quote missing?") from None
    return found
