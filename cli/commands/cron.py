"""`carma cron`: jobs that recur, in the format of crontab(5) and of Slurm's scrontab."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from carmad.errors import CarmaError
from carmad.readable import clean
from cli import client, output
from cli.options import add_json
from cli.problems import Problem, Usage
from cli.text import NOTHING, Table, columns, local_time

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from cli.parser import Parser

PATH = "/v1/cron"
EMPTY = """\
# minute hour day month weekday command; the server's clock. Options of `carma submit` before it:
#SCRON --gpus 1 --gpu-mem 8G --time 2:00:00
# 30 2 * * mon-fri python evaluate.py
"""
OPTIONS = re.compile(r"#\s?(?:SCRON|CARMA)\b\s*(.*)")
SETTING = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.*)")
WORD = r"[^\s#]+"
ENTRY = re.compile(rf"(@\w+|{WORD}(?:\s+{WORD}){{4}})\s+(\S.*)")


def cron_options(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="your new crontab; - reads stdin")
    parser.add_argument("-e", "--edit", action="store_true", help="edit it with $EDITOR")
    parser.add_argument("-l", "--list", action="store_true", help="print it")
    parser.add_argument("-r", "--remove", action="store_true", help="remove it")
    parser.add_argument("-u", "--user", metavar="USER", help="another's; for administrators")
    add_json(parser)


def cron(options: Namespace) -> int:
    """Each command is given to sh, in your home directory and with the environment of this shell.
    Lines that begin with #SCRON have options of `carma submit` for the next command. An entry runs
    one job at a time: while that has not ended, the next is left out; what was missed while carmad
    was down runs once. You get a message if a job fails (`carma notify`). Without words, it shows
    when each entry runs next, and what became of it.
    """
    asked = [options.file is not None, options.edit, options.list, options.remove]
    if sum(asked) > 1:
        raise Usage("one thing at a time", "give a file, --edit, --list or --remove")
    whose = {"user": options.user} if options.user else {}
    if options.remove:
        answer = client.post(PATH, {"text": "", "entries": [], **whose})
    elif options.file is not None:
        answer = client.post(PATH, read_crontab(_text(options.file)))
    elif options.edit:
        answer = _edit(client.get(PATH)["text"])
    else:
        answer = client.get(PATH, **whose)
    if options.json:
        output.print_json(answer)
    elif options.list:
        print(end=answer["text"])
    elif answer["entries"]:
        output.show([_table(answer["entries"])])
    else:
        print(f"{clean(answer['user'])} has no recurring jobs")
    return 0


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{file} cannot be read: {error}", "give a text file") from None


def _edit(text: str) -> Any:
    """What is wrong is said, and the text is kept beside."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    descriptor, name = tempfile.mkstemp(prefix="crontab.", text=True)
    path = Path(name)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text or EMPTY)
    if code := subprocess.run(["sh", "-c", f'{editor} "$1"', "sh", name], check=False).returncode:
        path.unlink()
        raise Problem(f"{editor} ended with {code}: nothing is changed", "set EDITOR to another")
    try:
        answer = client.post(PATH, read_crontab(path.read_text(encoding="utf-8")))
    except CarmaError as error:
        error.hint = f"{error.hint.rstrip('. ')}; your text is in {name}: carma cron {name}"
        raise
    path.unlink()
    return answer


def read_crontab(text: str) -> dict[str, Any]:
    """Read a crontab into the request that installs it. Raises Usage, which names the line."""
    from cli.submission import read, settle_messages

    shell = os.getcwd()  # noqa: PTH109 - as what reads the options does
    os.chdir(Path.home())
    entries, words, settings = [], "", {}
    try:
        for number, line in _lines(text):
            try:
                if (found := OPTIONS.fullmatch(line)) is not None:
                    words += f" {found[1]}"
                elif (setting := SETTING.fullmatch(line)) is not None:
                    settings[setting[1]] = setting[2].strip("\"'")
                elif not line.startswith("#"):
                    entry = ENTRY.fullmatch(line)
                    if entry is None:
                        raise Usage("not five fields and a command", "such as 30 2 * * * sh x.sh")
                    options, body = read([*_split(words), "--", "/bin/sh", "-c", entry[2]])
                    body["name"] = body.get("name") or _name(entry[2])
                    body["notify"] = body.get("notify") or "fail"
                    body["export"] = settings | body["export"]
                    settle_messages(options, body)
                    schedule = " ".join(entry[1].split())
                    entries.append({"schedule": schedule, "command": entry[2], "job": body})
                    words = ""
            except CarmaError as error:
                error.message = f"line {number}: {error.message}"
                raise
    finally:
        os.chdir(shell)
    if words:
        raise Usage("no command follows the last #SCRON line", "put it before a command")
    return {"text": text, "entries": entries}


def _lines(text: str) -> list[tuple[int, str]]:
    """Those that are not empty, with their numbers. One that ends with a backslash goes on."""
    found, begun, number = [], "", 0
    for at, line in enumerate(text.splitlines(), 1):
        number = number if begun else at
        begun += line.strip()
        if begun.endswith("\\"):
            begun = begun[:-1]
            continue
        if begun:
            found.append((number, begun))
        begun = ""
    return found


def _split(words: str) -> list[str]:
    import shlex

    try:
        return shlex.split(words, comments=True)
    except ValueError as error:
        raise Usage(f"these options cannot be read: {error}", "close the quotes") from None


def _name(command: str) -> str:
    from carmad.readable import job_name

    return job_name(command.split())


def _table(entries: list[dict[str, Any]]) -> Table:
    made = Table(columns("SCHEDULE NEXT LAST JOB> STATE SKIPPED> COMMAND~"))
    for one in entries:
        state = f"refused: {one['refused']}" if one["refused"] else one["state"]
        made.add(
            one["schedule"],
            local_time(one["next_at"]),
            local_time(one["ran_at"]),
            str(one["job"] or NOTHING),
            clean(state or NOTHING),
            str(one["skipped"] or NOTHING),
            clean(one["command"]),
        )
    return made
