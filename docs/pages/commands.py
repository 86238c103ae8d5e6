"""commands.md: every command of `carma`, from its summary and its parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from cli.commands import estimate
from cli.submission import build_parser
from cli.verbs import ITSELF, Group, Verb, sections
from docs.pages.text import cell, one_line


def commands() -> list[tuple[str, Verb]]:
    """Every command of `carma`, those of its groups too, each with the title of its section."""
    return [
        (section, verb)
        for section, verbs in sections().items()
        for each in verbs
        for verb in (each.verbs if isinstance(each, Group) else (each,))
    ]


@dataclass(frozen=True, slots=True)
class Word:
    """An option or an argument: its names with their values, such as `-G N`, and its help."""

    names: tuple[str, ...]
    said: str


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
    for section, one in commands():
        if section != last:
            last = section
            out += ["", f"## {last}"]
        out += ["", f"### `carma {one.name}`", ""]
        if one.aliases:
            out += ["Also: " + ", ".join(f"`carma {alias}`" for alias in one.aliases) + ".", ""]
        out += [one_line(one.about()), ""]
        out += _written(describe(one))
    return "\n".join(out)


def describe(one: Verb) -> Described:
    if one.name == "submit":
        return _submit()
    if one.name == "estimate":
        return _estimate()
    if one.reads == ITSELF:
        return Described(after=ITSELF_WORDS[one.name])
    return Described(groups=(("", of_parser(one.parser()._actions)),))


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
    return f"| {names} | {cell(word.said)} |"


ITSELF_WORDS = {
    "run": "Takes the options of [`carma submit`](#carma-submit), except those that say where"
    " output goes or make an array; then the command. It exits with the command's exit code, or"
    " 128+N if signal N ended it. Ctrl-C while it waits leaves the line.",
    "shell": "Takes the same options as [`carma run`](#carma-run), and no command.",
    "attach": "`carma attach JOB`.",
    "exec": "`carma exec JOB [--] COMMAND [ARG…]`. It exits with the command's exit code.",
    "demo": "`carma demo [FILE] [--jobs N] [--gpus SPEC]`: the jobs of a CSV file, or of any"
    " [trace](../guides/simulate.md) such as `slurm:PATH`, the first 20 or N of them, on emulated"
    " GPUs such as `4xH100`. `carma demo suspend` shows jobs that make room.",
}
IGNORED = "ignored: it is for scripts that were written for Slurm"


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
