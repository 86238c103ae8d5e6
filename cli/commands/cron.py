"""`carma cron`, which is gone: what to do instead, and the entries that a user had, as lines of a
crontab."""

from __future__ import annotations

import os
import re
import sys

from cli import client
from cli.problems import Refused, note

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Iterator

INSTEAD = """\
carma cron runs nothing any more. The system's cron and systemd's timers do, with a line such as

    30 2 * * *  carma submit -Q --unless-running nightly -- python evaluate.py

in `crontab -e`: nothing is submitted while a job of yours with that name waits or runs.
"""
HEAD = """\
# Your entries of `carma cron`, for `crontab -e`. cron gives a command next to no environment: set
# what it needs here (PATH=…), or name programs by their paths, such as ~/venv/bin/python. Where you
# were told if a job failed, add --notify fail.
"""
OPTIONS = re.compile(r"#\s?(?:SCRON|CARMA)\b\s*(.*)")
SETTING = re.compile(r"[A-Za-z_]\w*\s*=.*")
WORD = r"[^\s#]+"
ENTRY = re.compile(rf"(@\w+|{WORD}(?:\s+{WORD}){{4}})\s+(\S.*)")


def cron(words: list[str]) -> int:
    if "--help" in words or "-h" in words:
        print(end=INSTEAD)
        return 0
    note(INSTEAD)
    if text := _earlier():
        print(HEAD, *lines(text, _carma()), sep="", end="")
    else:
        note("you have no entries from before")
    return 2 if words else 0  # what was asked for is not done


def _earlier() -> str:
    """The crontab that the user had."""
    try:
        return str(client.get("/v1/cron")["text"])
    except Refused as refused:
        if refused.code != "not_found":  # by a carmad that has forgotten them
            raise
        return ""


def _carma() -> str:
    """cron looks for programs in few places."""
    path = os.path.abspath(sys.argv[0])  # noqa: PTH100 - as the other verbs do
    return path if os.access(path, os.X_OK) else "carma"


def lines(text: str, carma: str) -> Iterator[str]:
    """A crontab of `carma cron` as one that submits its commands."""
    words, names = "", set[str]()
    for line in _whole(text):
        if (found := OPTIONS.fullmatch(line)) is not None:
            words += f" {found[1]}"
        elif line.startswith("#") or SETTING.fullmatch(line):
            yield f"{line}\n"
        elif (entry := ENTRY.fullmatch(line)) is not None:
            try:
                submit = _submit(carma, words, entry[2], names)
                yield f"{entry[1]}  {submit}\n"
            except ValueError as error:
                yield f"# cannot be read ({error}): {words.strip()} {line}\n"
            words = ""


def _whole(text: str) -> Iterator[str]:
    """One that ends with a backslash goes on in the next."""
    for line in re.sub(r"\\\s*\n\s*", "", text).splitlines():
        if line.strip():
            yield line.strip()


def _submit(carma: str, words: str, command: str, names: set[str]) -> str:
    """Raises ValueError. `names`: those of the other entries."""
    import shlex

    from carmad.errors import CarmaError
    from carmad.readable import job_name
    from cli.submission import build_parser

    given = shlex.split(words, comments=True)
    try:
        options = build_parser().parse_args(given)
    except CarmaError as error:
        raise ValueError(error.message) from None
    name = base = options.unless_running or options.name or job_name(command.split())
    number = 1
    while name in names:
        number += 1
        name = f"{base}-{number}"
    names.add(name)
    if options.name not in (None, name):
        given += ["--name", name]  # the last one counts
    line = shlex.join([carma, "submit", "-Q", "--unless-running", name, *given, "--wrap", command])
    return line.replace("%", "\\%")  # which cron takes for the end of the command
