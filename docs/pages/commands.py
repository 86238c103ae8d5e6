"""commands.md: every command of `carma`, from its function and its parser."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

from cli.commands import doctor, estimate, models, server
from cli.submission import build_parser
from cli.summaries import SUMMARIES
from cli.verbs import ARGPARSE, BY_NAME, ITSELF, Verb
from docs.pages.text import cell, one_line

GROUPS = {"daemon": server.daemon, "config": doctor.config, "gpumemnet": models.gpumemnet}
GROUPS_SECTION = "Administration"


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    aliases: tuple[str, ...]
    section: str
    about: str
    function: Callable[..., Any]
    verb: Verb | None = None  # None: a command of a group


def commands() -> list[Command]:
    """Every command of `carma`, those of its groups too."""
    found = []
    for section, names in SUMMARIES.items():
        for verb in (BY_NAME[name] for name in names if name not in GROUPS):
            about = verb.about()
            found.append(Command(verb.name, verb.aliases, section, about, verb.function(), verb))
        if section == GROUPS_SECTION:
            found += [one for group, app in GROUPS.items() for one in _below(group, app)]
    return found


def _below(group: str, app: typer.Typer) -> Iterator[Command]:
    for one in app.registered_commands:
        assert one.callback is not None
        name, about = one.name or one.callback.__name__, one.callback.__doc__ or ""
        yield Command(f"{group} {name}", (), GROUPS_SECTION, about, one.callback)


@dataclass(frozen=True, slots=True)
class Word:
    """An option or an argument: its names with their values, such as `-G N`, and its help."""

    names: tuple[str, ...]
    said: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Described:
    """What a page says of a command after its first line. Texts may have links and code."""

    usage: tuple[str, ...] = ()
    before: str = ""
    groups: tuple[tuple[str, tuple[Word, ...]], ...] = ()  # with their titles, if they have any
    after: str = ""


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
    " you run one, or at `/run/carma/carmad.sock`. `--color auto|always|never` goes before the"
    " verb; `NO_COLOR` is honoured. Data goes to standard output, notes and errors to standard"
    " error. Lines are cut to the terminal's width only if the output is a terminal."
)


def page() -> str:
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    out = ["# Commands", "", ABOUT, "", "| Exit code | Meaning |", "|---|---|", *codes]
    out += ["", OTHER_CODES]
    last = ""
    for one in commands():
        if one.section != last:
            last = one.section
            out += ["", f"## {last}"]
        out += ["", f"### `carma {one.name}`", ""]
        if one.aliases:
            out += ["Also: " + ", ".join(f"`carma {alias}`" for alias in one.aliases) + ".", ""]
        out += [one_line(one.about), ""]
        out += _written(describe(one))
    return "\n".join(out)


def describe(one: Command) -> Described:
    if one.name == "submit":
        return _submit()
    if one.name == "estimate":
        return _estimate()
    if one.verb is not None and one.verb.reads == ITSELF:
        return Described(after=ITSELF_WORDS[one.name])
    if one.verb is not None and one.verb.reads == ARGPARSE:
        return Described(groups=(("", of_parser(one.verb.parser()._actions)),))
    words = tuple(_parameters(one.function))
    return Described(groups=(("", words),) if words else ())


def _written(what: Described) -> list[str]:
    parts = [["```", *what.usage, "```"]] if what.usage else []
    parts += [[what.before]] if what.before else []
    for title, words in what.groups:
        parts += [[f"**{title}**"]] if title else []
        parts += [["| Word | Meaning |", "|---|---|", *map(_row, words)]]
    parts += [[what.after]] if what.after else []
    lines = [line for part in parts for line in (*part, "")]
    return lines[:-1]


def _row(word: Word) -> str:
    names = ", ".join(f"`{name}`" for name in word.names)
    if word.choices:
        names += " (" + ", ".join(f"`{choice}`" for choice in word.choices) + ")"
    return f"| {names} | {cell(word.said)} |"


ITSELF_WORDS = {
    "run": "Takes the options of [`carma submit`](#carma-submit), except those that say where"
    " output goes or make an array; then the command. It exits with the command's exit code, or"
    " 128+N if signal N ended it. Ctrl-C while it waits leaves the line.",
    "shell": "Takes the same options as [`carma run`](#carma-run), and no command.",
    "attach": "`carma attach JOB`.",
    "exec": "`carma exec JOB [--] COMMAND [ARG…]`. It exits with the command's exit code.",
    "demo": "`--jobs N`: how many (default 20).",
}
IGNORED = "ignored: it is for scripts that were written for Slurm"
VALUES = {int: "N", float: "N", Path: "PATH", str: "TEXT"}


def _parameters(function: Callable[..., Any]) -> Iterator[Word]:
    """From the annotations that typer itself reads."""
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    for name, hint in get_type_hints(function, include_extras=True).items():
        info = next((m for m in getattr(hint, "__metadata__", ()) if hasattr(m, "help")), None)
        if info is None:
            continue
        kind, default, said = hint.__origin__, defaults[name], one_line(info.help)
        if isinstance(default, int | float | str | Path) and not isinstance(default, bool):
            said += f" Default: `{default}`."
        if isinstance(info, ArgumentInfo):
            listed = isinstance(kind, type) and issubclass(kind, Enum)
            choices = tuple(choice.value for choice in kind) if listed else ()
            yield Word((info.metavar or name.upper(),), said, choices)
            continue
        # In an annotation, typer takes the first name for the default.
        first = (info.default,) if isinstance(info.default, str) else ()
        decls = (*first, *(info.param_decls or ())) or (f"--{name.replace('_', '-')}",)
        value = "" if kind is bool else f" {info.metavar or _value_of(kind)}"
        yield Word(tuple(f"{option}{value}" for option in decls), said)


def _value_of(kind: Any) -> str:
    return next((word for known, word in VALUES.items() if known in (kind, *get_args(kind))), "X")


def _submit() -> Described:
    parser = build_parser()
    groups = tuple(
        (str(group.title).capitalize(), of_parser(group._group_actions))
        for group in parser._action_groups
        if group._group_actions
    )
    return Described(_usage(parser), groups=groups, after=one_line(parser.epilog or ""))


def _estimate() -> Described:
    parser = estimate.build_parser()
    own = of_parser(parser._action_groups[-1]._group_actions)
    also = "It takes the options of [`carma submit`](#carma-submit), and also:"
    return Described(_usage(parser), also, (("", own),), one_line(parser.epilog or ""))


def _usage(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    return tuple(line.strip() for line in str(parser.usage).splitlines())


def of_parser(actions: Iterable[argparse.Action]) -> tuple[Word, ...]:
    """Each option and argument that argparse reads."""
    found = []
    for action in actions:
        value = f" {_metavar(action)}" if _metavar(action) and action.nargs != 0 else ""
        names = tuple(f"{option}{value}" for option in action.option_strings) or (value.strip(),)
        said = IGNORED if action.help == argparse.SUPPRESS else action.help or ""
        found.append(Word(names, said.replace("%%", "%")))
    return tuple(found)


def _metavar(action: argparse.Action) -> str:
    more = "…" if action.nargs == "+" else ""
    if action.choices is not None and action.metavar is None:
        return "|".join(action.choices)
    return f"{action.metavar or ''}{more}"
