"""The options of `carma submit`, which `carma estimate` also takes."""

from __future__ import annotations

import argparse

from carmad.options import HINTS, OPTIONS, RESOURCES, RUN, START, Option
from cli import parse
from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# Options of sbatch that CARMA does not have, and what to do instead.
OF_SLURM = {
    **dict.fromkeys(
        ("--mem", "--mem-per-cpu", "--mem-per-gpu"),
        "CARMA does not allocate host memory: leave this out; for GPU memory, use --gpu-mem 8G",
    ),
    **dict.fromkeys(
        ("-c", "--cpus-per-task", "-n", "--ntasks", "-N", "--nodes", "-p", "--partition"),
        "CARMA allocates only the GPUs of this server: leave this out",
    ),
}


class Parser(argparse.ArgumentParser):
    """Knows which of its options take a value, and raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise Usage(message, self._hint(message.removeprefix("unrecognized arguments: ")))

    def _hint(self, unknown: str) -> str:
        option = unknown.partition(" ")[0].partition("=")[0]
        if option in OF_SLURM:
            return OF_SLURM[option]
        if option.startswith("--"):
            from difflib import get_close_matches

            known = [name for action in self._actions for name in action.option_strings]
            if near := get_close_matches(option, known, n=1):
                return f"did you mean {near[0]}?"
        return f"see `{self.prog} --help`"

    def split(self, args: list[str]) -> tuple[list[str], list[str], bool]:
        """The options, the command that follows them, and whether `--` separates them.

        argparse.REMAINDER behaves differently in every Python version, and parses options that
        belong to the command.
        """
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            at += 2 if self.takes_next(args[at]) else 1
        marked = args[at : at + 1] == ["--"]
        return args[:at], args[at + marked :], marked

    def knows(self, word: str) -> bool:
        """Whether it is one of the options, perhaps with its value: --gpus=2."""
        return word.partition("=")[0] in self._option_string_actions

    def takes_next(self, word: str) -> bool:
        """Whether the option's value is the next word."""
        if word.startswith("--"):
            return "=" not in word and self._has_value(word)
        for position, letter in enumerate(word[1:], 1):  # -HW, -G2, -HG 2
            if self._has_value("-" + letter):
                return position == len(word) - 1
        return False

    def _has_value(self, option: str) -> bool:
        return any(option in a.option_strings and a.nargs != 0 for a in self._actions)


def build_parser() -> Parser:
    parser = Parser(
        prog="carma submit",
        usage="carma submit [OPTION…] [--] COMMAND [ARG…]\n       carma submit [OPTION…] SCRIPT"
        " [ARG…]",
        description="Queue a command, or a job script with #CARMA lines, to run on GPUs.",
        epilog="#CARMA lines take the options above; the command line overrides them. "
        "A job script is not copied: do not edit it before the job starts. "
        "With --wait, the exit code is the job's, or 128+N if signal N killed it. "
        "The job inherits the environment of this shell, except variables that look like secrets "
        "(names with TOKEN, PASSWORD, API_KEY, ...): pass those on with --export.",
        allow_abbrev=False,
        add_help=False,
    )
    sections = {name: parser.add_argument_group(name) for name in (RESOURCES, HINTS, START, RUN)}
    for option in OPTIONS.values():
        _add(sections[option.section], option)
    _add_other_forms(sections)
    _add_output(parser.add_argument_group("output"))
    return parser


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    """An option that is not given is None, so that the request uses the default."""
    about: dict[str, Any] = {
        "dest": option.name,
        "default": None,
        "help": option.help.replace("%", "%%"),
    }
    if isinstance(option.default, bool):
        about["action"] = argparse.BooleanOptionalAction if option.default else "store_true"
    else:
        about |= {"type": _reader(option), "metavar": option.metavar}
        about["action"] = "append" if option.repeated else "store"
    group.add_argument(*option.flags, **about)


def _reader(option: Option) -> Callable[[str], Any]:
    if option.read == "whole":
        return parse.whole(int(option.limits["ge"] or 0), int(option.limits["le"] or 0))
    reader: Callable[[str], Any] = getattr(parse, option.read)
    return reader


def _add_other_forms(sections: dict[str, argparse._ArgumentGroup]) -> None:
    """Other forms of options, and options handled here, before the request is sent."""
    sections[RESOURCES].add_argument(
        "--gres",
        type=parse.gres,
        dest="gpus",
        metavar="gpu:N",
        help="number of GPUs in Slurm's form; a GPU type is ignored",
    )
    sections[HINTS].add_argument(
        "--allreduce",
        choices=("ring", "tree"),
        help="all-reduce algorithm of the replicas of a --layout (default ring)",
    )
    sections[START].add_argument(
        "--after",
        type=parse.after,
        dest="after_ok",
        metavar="ID[,ID]",
        help="start once these jobs have succeeded; 'last' is your last job",
    )
    add = sections[RUN].add_argument
    add("-D", "--chdir", metavar="DIR", help="working directory (default: the current one)")
    add(
        "--export",
        type=parse.export,
        action="append",
        metavar="NAME=VALUE",
        help="set a variable in the job's environment, or pass on one by its NAME; NONE: start"
        " from a minimal environment instead of the current one",
    )
    add("--wrap", metavar="TEXT", help="run TEXT with /bin/sh")


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-h", "--help", action="help", help="show this help")
    add("-W", "--wait", action="store_true", help="wait for the job to end; exit with its code")
    add(
        "--anyway",
        action="store_true",
        help="return at once: on a terminal, carma submit otherwise waits for a trial of the"
        " script's first steps, and asks what to do if the script stops by itself",
    )
    add("--parsable", action="store_true", help="print only the job's id")
    add("-Q", "--quiet", action="store_true", help="print only errors")
    add("--json", action="store_true", help="print the daemon's answer as JSON")
    add(
        "--dry-run",
        "--test-only",
        action="store_true",
        help="do not submit; show where the job would run now, or why it would wait",
    )
