"""Forms: the options of a job as fields, the words of a command line that fields stand for, and
`carma` itself, asked with these words. All fields follow from the table of options
(`carmad.options`)."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from carmad.layout_text import OF_STAGE, OF_TIMES, format_fields
from carmad.options import AUTO_MIB, HINTS, OPTIONS, RESOURCES, RUN, START, Option
from carmad.paths import python
from cli.options import FORMS
from cli.problems import Problem, Refused, Unknown, Usage
from cli.render import option as shown
from cli.text import clock

if TYPE_CHECKING:
    from carmad.api.job import JobOut

FIRST = ("gpus", "memory_mib", "time_limit_s", "name")  # what most jobs say
LABELS = {
    "gpus": "GPUs",
    "memory_mib": "Memory per GPU",
    "time_limit_s": "Time limit",
    "after": "After other jobs",
    "begin_at": "Not before",
    "held": "Hold it",
    "stdout": "Output file",
    "stderr": "File for errors",
    "param": "Sweep",
    "no_copy": "Run the script in place",
    "stage_times": "Stage times",
}
BESIDE = ("param", "no_copy")  # that only the command line knows
ONCE = ("after", "array", "begin_at", "deadline_at", "held")  # were about that submission
SWITCHES = {"yes": "", "no": "no-"}
TITLES = {
    RESOURCES: "More resources",
    HINTS: "Hints for placement",
    START: "When it starts",
    RUN: "Output and environment",
}


@dataclass(frozen=True, slots=True)
class Field:
    """`kind`: switch, lines (a value in each) or text. `now`: what the job has."""

    name: str
    label: str
    flags: Sequence[str]
    help: str
    kind: str
    metavar: str = ""
    usual: bool = False  # of a switch: it is on unless switched off
    now: str = ""

    @property
    def flag(self) -> str:
        return next(flag for flag in self.flags if flag.startswith("--"))


def _of_option(option: Option, now: str = "") -> Field:
    switch = isinstance(option.default, bool)
    return Field(
        option.name,
        _label(option.name, option.show or option.flag),
        option.flags,
        option.help,
        "switch" if switch else "lines" if option.repeated else "text",
        option.metavar,
        option.default is True,
        now,
    )


def _label(name: str, words: str) -> str:
    text = LABELS.get(name) or words.removeprefix("--").replace("-", " ")
    return text[:1].upper() + text[1:]


def _all() -> Iterator[tuple[str, Field]]:
    for option in OPTIONS.values():
        yield option.section, _of_option(option)
    for name in BESIDE:
        yield FORMS[name].section, _of_option(FORMS[name])


def first() -> list[Field]:
    return [_of_option(OPTIONS[name]) for name in FIRST]


def sections() -> list[tuple[str, list[Field]]]:
    """The other fields, by title."""
    by_section = list(_all())
    return [
        (title, [field for its, field in by_section if its == name and field.name not in FIRST])
        for name, title in TITLES.items()
    ]


def changes(job: JobOut) -> list[Field]:
    """The options that can be changed now, with their present values."""
    names = job.get("changeable", ())  # the limit of an array is not one task's
    return [_of_option(OPTIONS[name], _now(job, name)) for name in names if name != "array"]


def _now(job: Mapping[str, Any], name: str) -> str:
    if name == "memory_mib":
        declared = job["memory"]["declared_mib"]
        return "estimated" if declared is None else _memory(declared)
    if name == "after":
        named = (f"{one['kind']}:{one.get('label', one['job'])}" for one in job.get("after", ()))
        return ", ".join(named) or "none"
    value = job.get(name)
    return "none" if value is None else shown(name, value)


def words(given: Mapping[str, str], fields: Iterable[Field]) -> list[str]:
    """The options of the command line for what was filled in."""
    found: list[str] = []
    for field in fields:
        value = given.get(field.name, "").strip()
        if field.kind == "switch":
            if value in SWITCHES:
                found.append(f"--{SWITCHES[value]}{field.flag[2:]}")
        elif value:
            parts = value.splitlines() if field.kind == "lines" else [value]
            found += [f"{field.flag}={part.strip()}" for part in parts if part.strip()]
    return found


def to_submit(given: Mapping[str, str]) -> list[str]:
    """What follows `carma submit`."""
    found = words(given, (field for _, field in _all()))
    if given.get("minimal"):
        found.append("--export=NONE")
    found += [f"--export={line.strip()}" for line in given.get("export", "").splitlines() if line]
    try:
        command = shlex.split(given.get("command", ""))
    except ValueError as error:
        raise Usage(f"the command cannot be read: {error}", "is a quote missing?") from None
    return [*found, "--", *command]


OF_FORM = {"--export": "Further variables", "--chdir": "Directory to run in"}


@cache
def _labels() -> dict[str, str]:
    """What a form calls each option."""
    found = {flag: field.label for _, field in _all() for flag in field.flags}
    switches = [field for _, field in _all() if field.kind == "switch"]
    found |= {f"--{SWITCHES['no']}{field.flag[2:]}": f"{field.label}: no" for field in switches}
    return found | OF_FORM


def in_fields(text: str) -> str:
    """With the names of fields in place of those of options."""
    labels = _labels()
    return re.sub(
        r"(?<![\w-])(?:argument )?(?:-[A-Za-z]/)?(--[a-z][a-z-]*[a-z])(?![\w-])",
        lambda found: f"“{labels[found[1]]}”" if found[1] in labels else found[0],
        text,
    )


def at_fault(message: str) -> str:
    """The name of the field that an error is about; "" if none is named."""
    said = message.replace(":", " ").replace("/", " ").replace(",", " ").split()
    for _, field in _all():
        if any(flag in said for flag in field.flags) or field.name in said:
            return field.name
    return "command" if any(word in message for word in ("command", "nothing to run")) else ""


def of_job(job: JobOut) -> dict[str, str]:
    """The fields of a form that submits the same again."""
    its: Mapping[str, Any] = job
    found = {"command": shlex.join(_command(job)), "folder": job.get("cwd", "")}
    found["gpus"] = str(job["gpus_wanted"])
    found["name"] = job["name"]
    if (mib := job["memory"]["declared_mib"]) is not None:
        found["memory_mib"] = _memory(mib)
    for name, option in OPTIONS.items():
        value = its.get(name)
        if name in (*found, *ONCE, "stdout", "stderr") or value in (None, option.default, [], ()):
            continue
        found[name] = _text(name, value)
    return found


def _memory(mib: int) -> str:
    """As one writes it on a command line."""
    return "auto" if mib == AUTO_MIB else f"{mib}M"


def _command(job: JobOut) -> list[str]:
    """As it was typed: the interpreter of a job script is in front of the script's path."""
    argv = job.get("argv", [])
    if job.get("script_bytes") is None:
        return argv
    return argv[next((at for at, word in enumerate(argv) if at and word[:1] == "/"), 0) :]


def _text(name: str, value: Any) -> str:
    """The value as one writes it on a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "layout":
        return "\n".join(format_fields(stage, OF_STAGE) for stage in value["stages"])
    if name == "stage_times":
        return "\n".join(format_fields(times, OF_TIMES) for times in value)
    if name == "warn":
        return f"{Signals(value['signum']).name.removeprefix('SIG')}@{value['before_s']:.0f}"
    if name.endswith("_s"):
        return clock(value)
    return f"{value}M" if name.endswith("_mib") else str(value)


Given = Mapping[str, str]
MOST_BYTES = 1 << 20
MOST_FIELDS = 1_000


def form_endpoint(
    act: Callable[[Request, Given], Response],
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """An endpoint that calls `act`, which may block, with the form's fields."""

    async def endpoint(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise HTTPException(413, "the form is too long")
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
        except ValueError:
            raise HTTPException(400, "the form cannot be read") from None
        return await run_in_threadpool(act, request, dict(pairs))

    return endpoint


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
    try:
        done = subprocess.run(
            [*python("cli.main"), *words],
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
