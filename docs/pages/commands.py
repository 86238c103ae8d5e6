"""commands.md: every command of `carma`, from the typer application."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cli import app, verbs
from cli.verbs import Command
from docs.pages.text import cell, one_line


def commands() -> list[tuple[str, Command]]:
    """Every command of `carma`, those of its groups too, each with the title of its panel."""
    return [(each.panel, verb) for each in verbs.every() for verb in each.below or (each,)]


@dataclass(frozen=True, slots=True)
class Word:
    """An option or an argument: its names with their values, such as `-G N`, and its help."""

    names: tuple[str, ...]
    said: str


@dataclass(frozen=True, slots=True)
class Described:
    """What a page says of a command. Texts may have links and code. `groups`: with their titles, if
    they have any."""

    usage: str
    about: tuple[str, ...]  # paragraphs
    groups: tuple[tuple[str, tuple[Word, ...]], ...]


EXIT_CODES = {
    "0": "done",
    "1": "the daemon refused, a check failed, or another error",
    "2": "wrong command line",
    "3": "no daemon is running",
    "4": "not permitted for this user",
    "130": "interrupted with Ctrl-C",
}
OTHER_CODES = (
    "`carma wait` and `carma submit --wait` exit with the job's exit code instead, 128+N if"
    " signal N ended it, and 1 if it never ran or its code is unknown. With `--json`, errors"
    " are JSON too: `error`, `hint`, `code`."
)
ABOUT = (
    "`carma` talks to the daemon at `CARMA_SOCKET`; otherwise at your own daemon's socket if"
    " you run one, or at `/run/carma/carmad.sock`. `NO_COLOR=1` and `FORCE_COLOR=1` switch"
    " colours off and on. Data goes to standard output, notes and errors to standard"
    " error. Lines are cut to the terminal's width only if the output is a terminal."
    " `carma --help-all` lists all verbs, and `carma submit --help-all` all options of one;"
    " `carma --install-completion` sets completion up for your shell."
)
OF_SUBMIT = "It also takes the [options of `carma submit`](#carma-submit){}."
JOBS_OPTIONS = ("run", "shell", "estimate")


def page() -> str:
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    out = ["# Commands", "", ABOUT, "", "| Exit code | Meaning |", "|---|---|", *codes]
    out += ["", OTHER_CODES]
    last = ""
    for panel, one in commands():
        if panel != last:
            last = panel
            out += ["", f"## {last}"]
        what = describe(one)
        out += ["", f"### `carma {one.name}`", "", "```", what.usage, "```"]
        for text in what.about:
            lines = text.removeprefix("\b").strip().splitlines()
            out += ["", *(("```", *lines, "```") if text.startswith("\b") else lines)]
        for title, words in what.groups:
            out += ["", f"**{title}**"] if title else []
            out += ["", "| Word | Meaning |", "|---|---|", *map(_row, words)]
    return "\n".join(out)


def describe(one: Command) -> Described:
    command = app.load(one)
    with command.make_context(f"carma {one.name}", [], resilient_parsing=True) as context:
        usage = command.get_usage(context).removeprefix("Usage: ")
    groups: dict[str, list[Word]] = {}
    for param in command.params:
        title = param.rich_help_panel or ""
        if title != app.REFUSED and param.name != "everything":
            shared = one.name in JOBS_OPTIONS and title
            if not shared:
                groups.setdefault(title, []).append(_word(param, context))
    about = [one_line(text) if text[:1] != "\b" else text for text in command.help.split("\n\n")]
    if one.name in JOBS_OPTIONS:
        but = "" if one.name == "estimate" else ", but those that a terminal has no use for"
        about.append(OF_SUBMIT.format(but))
    found = tuple((title, tuple(words)) for title, words in groups.items())
    return Described(usage, tuple(about), found)


def _word(param: Any, context: Any) -> Word:
    said = param.help or ""
    if param.param_type_name == "argument":
        more = "…" if param.nargs != 1 else ""
        return Word((f"{param.metavar}{more}",), said)
    value = "" if param.is_flag else f" {param.display_type_rich(context)}"
    flags = [*param.opts, *param.secondary_opts]
    return Word(tuple(f"{flag}{value}" for flag in flags), said)


def _row(word: Word) -> str:
    names = ", ".join(f"`{name}`" for name in word.names)
    return f"| {names} | {cell(word.said)} |"


def of_parser(actions: Iterable[argparse.Action]) -> tuple[Word, ...]:
    """Each option and argument that argparse reads."""
    found = []
    for action in actions:
        value = f" {action.metavar}" if action.metavar and action.nargs != 0 else ""
        names = tuple(f"{option}{value}" for option in action.option_strings) or (value.strip(),)
        found.append(Word(names, (action.help or "").replace("%%", "%")))
    return tuple(found)
