"""The options of `carma submit`, which `carma estimate` takes, too."""

from __future__ import annotations

import argparse

from cli import parse
from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import NoReturn

# Options of sbatch's that are not ours, and what to do instead.
OF_SLURM = {
    **dict.fromkeys(
        ("--mem", "--mem-per-cpu", "--mem-per-gpu"),
        "the host's memory is not given out: leave it out; for the GPU's, --gpu-mem 8G",
    ),
    **dict.fromkeys(
        ("-c", "--cpus-per-task", "-n", "--ntasks", "-N", "--nodes", "-p", "--partition"),
        "only GPUs are given out, those of this one server: leave it out",
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
        """Options, the command that follows them, and whether `--` stood between.

        argparse.REMAINDER would do this differently in every Python version, and looks at
        options that belong to the command.
        """
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            at += 2 if self._takes_next(args[at]) else 1
        marked = args[at : at + 1] == ["--"]
        return args[:at], args[at + marked :], marked

    def _takes_next(self, word: str) -> bool:
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
        description="Queue a command, or a job script with #CARMA lines, to run on a GPU.",
        epilog="A job script is read again when its job starts: leave it alone until then. "
        "Directives take the options above; what the command line says counts more. "
        "--wait answers with the job's exit code, 128+N if signal N ended it. "
        "The environment of this shell goes along; carmad drops what looks like a secret "
        "(names with TOKEN, PASSWORD, API_KEY, ...): name it with --export if the job needs it.",
        allow_abbrev=False,
        add_help=False,
    )
    _what_to_ask_for(parser.add_argument_group("what it needs"))
    _what_is_known(parser.add_argument_group("what is known of it, for policies that ask"))
    _when_to_start(parser.add_argument_group("when it starts"))
    _how_to_run(parser.add_argument_group("how it runs"))
    _how_to_answer(parser.add_argument_group("what is printed"))
    return parser


def _what_to_ask_for(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "-G",
        "--gpus",
        "--gpus-per-node",
        type=parse.gpu_count,
        metavar="N",
        help="how many GPUs (default 1)",
    )
    add(
        "--gres",
        type=parse.gres,
        dest="gpus",
        metavar="gpu:N",
        help="the same, Slurm's way; a GPU type is not looked at",
    )
    add(
        "--gpu-mem",
        type=parse.mebibytes,
        metavar="SIZE",
        help="peak memory on each GPU: 12G, 900M; without it, it is estimated",
    )
    add(
        "--batch-size",
        type=parse.whole(1, parse.MAX_BATCH),
        metavar="N",
        help="its batch on each GPU, which it can split: CARMA may start it with a part of N, as"
        " CARMA_BATCH_SIZE, CARMA_ACCUMULATION_STEPS and {batch_size} in the command say",
    )
    add("--exclusive", action="store_true", help="share its GPUs with no other job")
    add(
        "-t",
        "--time",
        type=parse.seconds,
        metavar="TIME",
        help="stop it after MM, MM:SS, HH:MM:SS, D-HH[:MM[:SS]] or 2h30m",
    )
    add(
        "--signal",
        type=parse.signal_before,
        metavar="SIG[@SECONDS]",
        help="send this signal so long before the time limit (default 60)",
    )


def _what_is_known(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--expect",
        type=parse.seconds,
        metavar="TIME",
        help="how long it should run, for policies that start short jobs first; no limit",
    )
    add(
        "--deadline",
        type=parse.deadline,
        metavar="WHEN",
        help="when it is wanted done: 8h from now, 22:30 or 2026-11-22T08:00; it is not stopped",
    )
    add("--amp", action="store_true", help="it trains in mixed precision")
    add(
        "--cold-start",
        type=parse.seconds,
        metavar="TIME",
        help="how long it prepares before it trains: so much longer it is profiled",
    )
    add(
        "--layout",
        type=parse.stage,
        action="append",
        metavar="STAGE",
        help="a stage of its pipeline, such as '2x forward=20ms backward=40ms in=12M out=12M"
        " weights=320M': replicas, and an iteration's times and sizes; also tensor=,"
        " tensor-data=, experts=. Once for each stage, in their order",
    )
    add(
        "--allreduce",
        choices=("ring", "tree"),
        help="how the replicas of a --layout add up their gradients (default ring)",
    )
    add(
        "--stages",
        type=parse.stage_times,
        action="append",
        metavar="TIMES",
        help="what an iteration takes alone: 'load=10ms forward=37ms backward=76ms"
        " communication=98ms', sync=backward if it ends only with the gradients there, and at"
        " last gpu=NAME; once for each kind of GPU",
    )
    add(
        "--watch-stages",
        action="store_true",
        help="measure --stages when it runs: PyTorch's profiler looks at a few iterations",
    )


def _when_to_start(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "-a",
        "--array",
        type=parse.array,
        metavar="LIST",
        help="one job per index: 0-15, 0-15:4, 1,3,7; %%N: at most N at once",
    )
    add(
        "-d",
        "--dependency",
        type=parse.dependency,
        metavar="LIST",
        help="afterok:ID[:ID],afterany:ID,afternotok:ID; all must hold",
    )
    add(
        "--after",
        type=parse.after,
        metavar="ID[,ID]",
        help="start when these have succeeded; 'last' is your last job",
    )
    add(
        "-b",
        "--begin",
        type=parse.moment,
        metavar="TIME",
        help="not before now+2h, 22:30 or 2026-11-20T22:30",
    )
    add("-H", "--hold", action="store_true", help="not before `carma release`")
    add(
        "--nice",
        type=parse.whole(-10_000, 10_000),
        default=0,
        metavar="N",
        help="let others go first (default 0)",
    )


def _how_to_run(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "-J",
        "--job-name",
        "--name",
        dest="name",
        type=parse.filled,
        metavar="NAME",
        help="its name in the queue",
    )
    add("-D", "--chdir", metavar="DIR", help="run in this directory (default: this one)")
    add(
        "-o",
        "--output",
        type=parse.filled,
        metavar="FILE",
        help="%%j id, %%x name, %%u user, %%A array, %%a index (default carma-%%j.out)",
    )
    add(
        "-e",
        "--error",
        type=parse.filled,
        metavar="FILE",
        help="standard error (default: with the output)",
    )
    add(
        "--export",
        type=parse.export,
        action="append",
        metavar="NAME=VALUE",
        help="add to the environment, which is this one without its secrets; NONE: a bare one",
    )
    add("--conda", type=parse.filled, metavar="ENV", help="activate this conda environment")
    add("--wrap", metavar="TEXT", help="run this text in /bin/sh")
    add(
        "--requeue",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run it again if a reboot ends it (default)",
    )


def _how_to_answer(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-h", "--help", action="help", help="print this")
    add("-W", "--wait", action="store_true", help="wait until it ends, exit with its code")
    add("--parsable", action="store_true", help="print the id alone")
    add("-Q", "--quiet", action="store_true", help="print nothing but errors")
    add("--json", action="store_true", help="print the daemon's answer")
    add(
        "--dry-run",
        "--test-only",
        action="store_true",
        help="submit nothing; say where it would run now, or why it would wait",
    )
