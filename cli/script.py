"""What a submission is made of besides its options. Imports stay light.

A command may be a job script, a local program, or a program on PATH. A job script is run as its
`#!` line says. If it has directives or is a shell script, the job gets a copy made at submission,
as from sbatch. `--param` and `--params` make an array of it: a sweep.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from carmad.options import MAX_PARAMS, MAX_SCRIPT_BYTES, MAX_TASKS
from cli.problems import Usage

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    Columns = dict[str, list[str]]  # the values of each parameter, one for each row

PREFIXES = ("#CARMA", "#SBATCH")
Directive = tuple[str, str, list[str]]  # where it is, one of `PREFIXES`, words
HEAD_BYTES = 65536  # directives are at the top
SHELLS = ("sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh")


class Script(NamedTuple):
    path: str
    interpreter: tuple[str, ...]
    directives: list[Directive]
    data: bytes | None  # for the job's copy, at most MAX_SCRIPT_BYTES + 1; None: it is run in place
    lost: str = ""  # where directives have no effect, and why; "": nowhere

    @property
    def name(self) -> str:
        return Path(self.path).name

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
            convert = f"convert it: iconv -f LATIN1 -t UTF-8 {self.name}; or {hint}"
            raise Usage(f"{self.name} cannot be copied: it is not in UTF-8", convert) from None
        if "\0" in text:
            raise Usage(f"{self.name} cannot be copied: it is not text", hint)
        return text


def find_script(word: str) -> Script | None:
    """The job script `word`: a text file with directives, or one that is not executable."""
    if not _is_here(word) or not (data := _read(word)):
        return None
    text = data[:HEAD_BYTES].decode(errors="replace")
    path = os.path.abspath(word)  # noqa: PTH100 - without following links
    directives, lost = _directives(path, text)
    interpreter = _interpreter(text) or (("/bin/sh",) if directives else ())
    executable = os.access(word, os.X_OK)
    if _is_shell(interpreter) or (executable and text.partition("\n")[0].endswith("\r")):
        _refuse_line_breaks(word, text)
    if not directives and executable:
        return Script(path, (), [], None, lost) if lost else None
    if interpreter:
        copied = directives or _is_shell(interpreter)
        return Script(path, interpreter, directives, data if copied else None, lost)
    program = "bash" if word.endswith(".sh") else "python"
    hint = f"`carma submit -- {program} {word}`? or give it a first line such as #!/bin/bash"
    raise Usage(f"{word} is neither executable nor a job script", hint)


def read_script(word: str, data: bytes) -> Script:
    """A job script for sbatch. `data`: the contents of the file `word`. Raises Usage if they do not
    begin with a `#!` line."""
    _refuse_mark(word, data)
    text = data[:HEAD_BYTES].decode(errors="replace")
    interpreter = _interpreter(text)
    if not interpreter:
        raise Usage(
            "This does not look like a batch script.  The first line must start with #! followed by"
            " the path to an interpreter.",
            "For instance: #!/bin/sh",
        )
    _refuse_line_breaks(word, text)
    path = os.path.abspath(word)  # noqa: PTH100 - without following links
    directives, lost = _directives(path, text)
    return Script(path, interpreter, directives, data, lost)


def runnable(word: str) -> str:
    """Also finds programs in the current directory, after those on PATH."""
    is_here = _is_here(word) and "/" not in word
    return os.path.abspath(word) if is_here else word  # noqa: PTH100


def _is_here(word: str) -> bool:
    try:
        there = stat.S_ISREG(Path(word).stat().st_mode)
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
        with Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
            _refuse_mark(path, head)
            return b"" if b"\0" in head else head + file.read(MAX_SCRIPT_BYTES + 1 - len(head))
    except OSError:
        return b""


MARKS = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def _refuse_mark(word: str, data: bytes) -> None:
    """Raise Usage for a byte-order mark, which hides a `#!` line from the kernel."""
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            made = f"sed '1s/^\\xEF\\xBB\\xBF//' {word}"
            if encoding != "UTF-8":
                made = f"iconv -f {encoding} -t UTF-8 {word}"
            raise Usage(
                f"{word} begins with the byte-order mark of {encoding}",
                f"write it without: {made} >new.sh",
            )


def _refuse_line_breaks(word: str, text: str) -> None:
    """Raise Usage for those of Windows: a shell takes the \r as part of each command, and the
    kernel as part of the interpreter's name."""
    if "\r\n" in text:
        raise Usage(
            f"{word} has the line breaks of DOS and Windows (\\r\\n) instead of Unix's (\\n)",
            f"convert it: sed -i 's/\\r$//' {word}",
        )


def _interpreter(text: str) -> tuple[str, ...]:
    """The words of the `#!` line as the kernel reads them: a program and at most one argument."""
    first = text.partition("\n")[0]
    return tuple(first[2:].strip().split(None, 1)) if first.startswith("#!") else ()


def _is_shell(interpreter: tuple[str, ...]) -> bool:
    """Whether a shell runs it, perhaps through env."""
    names = [word.rpartition("/")[2] for word in " ".join(interpreter).split()]
    return any(name in SHELLS for name in (names[1:] if names[:1] == ["env"] else names[:1]))


def _directives(path: str, text: str) -> tuple[list[Directive], str]:
    """Those before the first line that is neither blank nor a comment, as sbatch reads them; and
    what is to be said of the others, of which sbatch says nothing."""
    import shlex

    found: list[Directive] = []
    lost: list[str] = []
    below = False
    for number, line in enumerate(text.split("\n"), 1):
        prefix = next((each for each in PREFIXES if line.lstrip().startswith(each)), "")
        rest = line.strip()[len(prefix) :]
        where = f"{path}:{number}"
        if prefix and (below or line[0].isspace()):
            lost += [f"{where}: {prefix}"] if rest.lstrip()[:1] == "-" else []
        elif prefix and (not rest or rest[0].isspace() or rest[0] == "-"):
            try:
                words = _split(rest) if prefix == "#SBATCH" else shlex.split(rest, comments=True)
                found.append((where, prefix, words))
            except ValueError as error:
                raise Usage(f"{where}: {error}", "is a quote missing?") from None
        elif below and line.startswith("#!"):
            break  # a script that this one writes
        below = below or line.lstrip()[:1] not in ("", "#")
    if not lost:
        return found, ""
    more = f", as have {len(lost) - 1} more" if len(lost) > 1 else ""
    return (
        found,
        f"{lost[0]} has no effect{more}: such lines stand above the first command, unindented",
    )


def _split(text: str) -> list[str]:
    """The words of an #SBATCH line, as sbatch splits it: unlike in a shell, a backslash also keeps
    a blank within quotes. Raises ValueError if a quote has no end."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            if kept := next(characters, ""):
                word = (word or "") + kept
        elif character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote, word = character, word or ""
        elif quote or not (character.isspace() or character == "#"):
            word = (word or "") + character
        else:
            if word is not None:
                words.append(word)
            word = None
            if character == "#":
                break
    if quote:
        raise ValueError("No closing quotation")
    return words if word is None else [*words, word]


MAX_CHARACTERS = 8 << 20  # of a file: a request has no room for more


def sweep(body: dict[str, Any], options: Namespace, plain: bool) -> dict[str, Any]:
    """The request with an array of a task for each combination. `plain`: a command, which gets the
    parameters that it does not mention as arguments."""
    array = body["array"] or {"indices": [], "limit": None}
    if array["indices"]:
        raise Usage("--param makes an array of its own", "with it, --array takes only %N")
    tables = _tables(options)
    names = [name for table in tables for name in table]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Usage(f"the parameter {twice} is given twice", "give each once, with all its values")
    if len(names) > MAX_PARAMS:
        raise Usage(f"{len(names)} parameters: at most {MAX_PARAMS} are allowed")
    columns: Columns = {}
    count = 1
    for table in tables:
        rows = len(next(iter(table.values())))
        count *= rows
        if count > MAX_TASKS:
            raise Usage(f"there are more than {MAX_TASKS} combinations", "submit several sweeps")
        for name, its in columns.items():
            columns[name] = [each for each in its for _ in range(rows)]
        columns |= {name: its * (count // rows) for name, its in table.items()}
    argv = body["argv"]
    if plain:
        silent = [name for name in names if not any(f"{{{name}}}" in word for word in argv)]
        argv = [*argv, *(word for name in silent for word in (f"--{name}", f"{{{name}}}"))]
    array = {"indices": list(range(count)), "limit": array["limit"], "params": columns}
    return body | {"argv": argv, "array": array}


def _tables(options: Namespace) -> list[Columns]:
    """What is combined: the rows of the file, and each --param or, with --zip, all of them."""
    tables = [_read_columns(options.params)] if options.params else []
    given = [{name: values} for name, values in options.param or ()]
    if not options.zip:
        return tables + given
    lengths = {name: len(values) for name, values in options.param or ()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise Usage(f"--zip takes as many values of each parameter: {said}")
    zipped = {name: values for table in given for name, values in table.items()}
    if len(zipped) < len(given):
        raise Usage("a parameter is given twice", "give each once, with all its values")
    return [*tables, zipped] if zipped else tables


def _read_columns(path: str) -> Columns:
    """The columns of a CSV file."""
    import csv
    import io

    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            text = file.read(MAX_CHARACTERS + 1)  # it may never end
        if len(text) > MAX_CHARACTERS:
            raise Usage(f"{path} is larger than {MAX_CHARACTERS >> 20} MiB")
        header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row] or [[]]
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise Usage(f"{path} is not CSV in UTF-8: {error}") from None
    if not rows or len(rows) > MAX_TASKS:
        hint = f"after the row of names, 1 to {MAX_TASKS} rows are needed"
        raise Usage(f"{path} has {len(rows)} rows of values", hint)
    if odd := next((n for n, row in enumerate(rows, 2) if len(row) != len(header)), None):
        raise Usage(f"{path}: row {odd} does not have {len(header)} values")
    if len(set(header)) < len(header):
        raise Usage(f"{path} has two columns of the same name")
    from argparse import ArgumentTypeError

    from cli.parse import param

    for name in header:
        try:
            param(f"{name}=x")
        except ArgumentTypeError as error:
            raise Usage(f"{path}: {error}") from None
    return {name: [row[at].strip() for row in rows] for at, name in enumerate(header)}
