"""commands.md: every command of `carma`, from its function and its parser."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo

from cli.commands import diagnosis, estimate, gpumemnet, server
from cli.commands.submit_options import build_parser
from cli.verbs import ARGPARSE, ITSELF, JOBS, MORE, SERVER, VERBS, WATCH, Verb
from docs.pages.text import cell, one_line

SECTIONS = (JOBS, WATCH, SERVER, MORE)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    aliases: tuple[str, ...]
    section: str
    function: Callable[..., Any]
    verb: Verb | None = None  # None: a command of a group


def commands() -> list[Command]:
    """Every command of `carma`, those of its groups too."""
    groups = {"daemon", "config", "gpumemnet"}
    found = [
        Command(verb.name, verb.aliases, verb.section, verb.function(), verb)
        for verb in VERBS
        if verb.name not in groups
    ]
    for group, app in (
        ("daemon", server.daemon),
        ("config", diagnosis.config),
        ("gpumemnet", gpumemnet.gpumemnet),
    ):
        for one in app.registered_commands:
            assert one.callback is not None
            found.append(
                Command(f"{group} {one.name or one.callback.__name__}", (), SERVER, one.callback)
            )
    return sorted(found, key=lambda one: SECTIONS.index(one.section))


def page() -> str:
    out = [
        "# Commands",
        "",
        "`carma` talks to the daemon at `CARMA_SOCKET`; otherwise at your own daemon's socket if"
        " you run one, or at `/run/carma/carmad.sock`. `--color auto|always|never` goes before the"
        " verb; `NO_COLOR` is honoured. Data goes to standard output, notes and errors to standard"
        " error. Lines are cut to the terminal's width only if the output is a terminal.",
        "",
        "| Exit code | Meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | the daemon refused, a check failed, or another error |",
        "| 2 | wrong command line |",
        "| 3 | no daemon is running |",
        "| 4 | not permitted for this user |",
        "| 130 | interrupted with Ctrl-C |",
        "",
        "`carma wait` and `carma submit --wait` exit with the job's exit code instead, 128+N if"
        " signal N ended it, and 1 if it never ran or its code is unknown. With `--json`, errors"
        " are JSON too: `error`, `hint`, `code`.",
    ]
    last = ""
    for one in commands():
        if one.section != last:
            last = one.section
            out += ["", f"## {last}"]
        out += ["", f"### `carma {one.name}`", ""]
        if one.aliases:
            out += ["Also: " + ", ".join(f"`carma {alias}`" for alias in one.aliases) + ".", ""]
        out += [one_line(one.function.__doc__), ""]
        if one.name == "submit":
            out += _submit()
        elif one.name == "estimate":
            out += _estimate()
        elif one.verb is not None and one.verb.reads == ITSELF:
            out += [ITSELF_WORDS[one.name]]
        elif one.verb is not None and one.verb.reads == ARGPARSE:
            out += _options(one.verb.parser()._actions)
        else:
            out += _parameters(one.function)
    return "\n".join(out)


ITSELF_WORDS = {
    "run": "Takes the options of [`carma submit`](#carma-submit), except those that say where"
    " output goes or make an array; then the command. It exits with the command's exit code, or"
    " 128+N if signal N ended it. Ctrl-C while it waits leaves the line.",
    "shell": "Takes the same options as [`carma run`](#carma-run), and no command.",
    "attach": "`carma attach JOB`.",
    "exec": "`carma exec JOB [--] COMMAND [ARG…]`. It exits with the command's exit code.",
    "demo": "`--jobs N`: how many (default 20).",
}
VALUES = {int: "N", float: "N", Path: "PATH", str: "TEXT"}


def _parameters(function: Callable[..., Any]) -> list[str]:
    """From the annotations that typer itself reads."""
    rows = []
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    for name, hint in get_type_hints(function, include_extras=True).items():
        info = next((m for m in getattr(hint, "__metadata__", ()) if hasattr(m, "help")), None)
        if info is None:
            continue
        kind, default, said = hint.__origin__, defaults[name], one_line(info.help)
        if isinstance(info, ArgumentInfo):
            words = f"`{info.metavar or name.upper()}`"
            if isinstance(kind, type) and issubclass(kind, Enum):
                words += " (" + ", ".join(f"`{choice.value}`" for choice in kind) + ")"
        else:
            # In an annotation, typer takes the first name for the default.
            first = (info.default,) if isinstance(info.default, str) else ()
            decls = (*first, *(info.param_decls or ())) or (f"--{name.replace('_', '-')}",)
            value = "" if kind is bool else f" {info.metavar or _value_of(kind)}"
            words = ", ".join(f"`{option}{value}`" for option in decls)
        if isinstance(default, int | float | str | Path) and not isinstance(default, bool):
            said += f" Default: `{default}`."
        rows.append(f"| {words} | {cell(said)} |")
    return ["| Word | Meaning |", "|---|---|", *rows] if rows else []


def _value_of(kind: Any) -> str:
    return next((word for known, word in VALUES.items() if known in (kind, *get_args(kind))), "X")


def _submit() -> list[str]:
    parser = build_parser()
    out = [*_usage(parser), ""]
    for group in parser._action_groups:
        if group._group_actions:
            title = f"**{str(group.title).capitalize()}**"
            out += [title, "", *_options(group._group_actions), ""]
    return [*out, one_line(parser.epilog or "")]


def _estimate() -> list[str]:
    parser = estimate.build_parser()
    own = parser._action_groups[-1]._group_actions
    also = "It takes the options of [`carma submit`](#carma-submit), and also:"
    return [*_usage(parser), "", also, "", *_options(own), "", one_line(parser.epilog or "")]


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    return ["```", *(line.strip() for line in str(parser.usage).splitlines()), "```"]


def _options(actions: Iterable[argparse.Action]) -> list[str]:
    """A row for each option and argument."""
    out = ["| Word | Meaning |", "|---|---|"]
    for action in actions:
        value = f" {_metavar(action)}" if _metavar(action) and action.nargs != 0 else ""
        words = ", ".join(f"`{option}{value}`" for option in action.option_strings)
        said = (action.help or "").replace("%%", "%")
        out.append(f"| {words or f'`{value.strip()}`'} | {cell(said)} |")
    return out


def _metavar(action: argparse.Action) -> str:
    more = "…" if action.nargs == "+" else ""
    if action.choices is not None and action.metavar is None:
        return "|".join(action.choices)
    return f"{action.metavar or ''}{more}"
