"""The options of `carma submit`, which `carma estimate` also takes."""

from __future__ import annotations

import argparse

from carmad.options import HINTS, OPTIONS, RESOURCES, RUN, START, Option
from cli import parse
from cli.parser import Parser

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# Options of sbatch that mean nothing here, each with a value.
IGNORED = (
    *(("-A", "--account"), ("-C", "--constraint"), ("-n", "--ntasks")),
    *(("-N", "--nodes"), ("-p", "--partition"), ("-q", "--qos"), ("-w", "--nodelist")),
    *(("-x", "--exclude"), ("--cpus-per-gpu",), ("--mem-per-cpu",), ("--mem-per-gpu",)),
    *(("--ntasks-per-node",), ("--reservation",)),
)


class Ignored(argparse.Action):
    """Collects what is ignored, as it was written."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        text = f"{option}={values}" if (option or "").startswith("--") else f"{option} {values}"
        namespace.ignored = [*(getattr(namespace, "ignored", None) or ()), text]


def build_parser() -> Parser:
    parser = Parser(
        prog="carma submit",
        usage="carma submit [OPTION…] [--] COMMAND [ARG…]\n       carma submit [OPTION…] SCRIPT"
        " [ARG…]",
        description="Queue a command, or a job script with #CARMA lines, to run on GPUs.",
        epilog="In a job script, #CARMA lines take the options above; the command line overrides "
        "them. "
        "A job script is copied now: later changes to it do not reach the job. "
        "Options of sbatch that mean nothing on one server, such as --partition, are ignored. "
        "With --wait, the exit code is the job's, or 128+N if signal N killed it. "
        "The job inherits the environment of this shell, except variables that look like secrets "
        "(names with TOKEN, PASSWORD, API_KEY, ...): pass those on with --export.",
        allow_abbrev=False,
        add_help=False,
    )
    parser.runs_command = True
    sections = {name: parser.add_argument_group(name) for name in (RESOURCES, HINTS, START, RUN)}
    for option in OPTIONS.values():
        add_option(sections[option.section], option)
    _add_other_forms(sections)
    for flags in IGNORED:
        about = argparse.SUPPRESS  # not parser.add_argument, which imports more
        sections[RESOURCES].add_argument(*flags, action=Ignored, dest="ignored", help=about)
    _add_output(parser.add_argument_group("output"))
    return parser


def add_option(
    group: argparse._ActionsContainer, option: Option, default: str | None = None
) -> None:
    """An option that is not given is None, so that the request uses the default; or `SUPPRESS`."""
    about: dict[str, Any] = {
        "dest": option.name,
        "default": default,
        "help": option.help.replace("%", "%%"),
    }
    if isinstance(option.default, bool):
        both = option.default or default == argparse.SUPPRESS  # it may have to be switched off
        about["action"] = argparse.BooleanOptionalAction if both else "store_true"
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
    add = sections[START].add_argument
    add(
        "--param",
        type=parse.param,
        action="append",
        metavar="NAME=LIST",
        help="a sweep: an array with a task for each value, such as lr=1e-3,1e-4 or seed=0-4, and"
        " for each combination if given several times. The value takes the place of {NAME} in the"
        " command, or follows it as --NAME VALUE, and is in CARMA_PARAM_NAME. --array %%N: at most"
        " N tasks at a time",
    )
    add(
        "--params",
        metavar="FILE",
        help="a sweep with a task for each row of a CSV file, whose first row has the names",
    )
    add("--zip", action="store_true", help="take the values of all --param together, not combined")
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
    add(
        "--no-copy",
        action="store_true",
        help="run a job script where it is, as it is when the job starts, instead of a copy made"
        " now",
    )
    add(
        "--mail-type",
        type=parse.mail_type,
        metavar="LIST",
        help="--notify in Slurm's words: BEGIN, END, FAIL, TIME_LIMIT_80, ALL",
    )
    add(
        "--mail-user",
        metavar="ADDRESS",
        help="accepted for Slurm's sake: where messages go is in your own file, see `carma notify`",
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
