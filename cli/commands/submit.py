"""`carma submit`: the one verb that a script may call a thousand times.

It is parsed by argparse and not by typer, as the other verbs are, because importing typer alone
takes longer than this whole command may (tests/test_cli_submit.py keeps the imports light).
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from carmad.errors import CarmaError
from cli import client, parse
from cli.commands.script import Script, find_script, runnable
from cli.jobs import exit_code, resolve, wait_for
from cli.problems import INTERRUPTED, Usage, report

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import Any, NoReturn

# What `carma X` means; a test holds this against the app.
VERBS = frozenset(
    {
        *("cancel", "completion", "config", "daemon", "demo", "doctor", "drain", "estimate"),
        *("estimators", "explain", "gpumemnet", "gpus", "history", "hold", "kill", "logs"),
        *("models", "ps", "queue", "release", "report", "requeue", "resume", "show", "simulate"),
        *("stats", "status", "sub", "submit", "top", "wait", "why"),
    }
)
MINIMAL_ENV = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER")
HELP_HINT = "see `carma submit --help`"
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


def submit(args: list[str]) -> int:
    """Everything behind `carma submit`. Answers with the exit code."""
    try:
        options, body = read(args)
        if options.dry_run:
            return _dry_run(body, options)
        return _submit(body, options)
    except CarmaError as error:
        return report(error, as_json=wants_json(args))


def _submit(body: dict[str, Any], options: argparse.Namespace) -> int:
    answer = client.post("/v1/jobs", body)
    label = answer["label"]
    if not options.quiet:
        for warning in (*answer.get("warnings", ()), *_foreseen(answer)):
            print(f"carma: {warning}", file=sys.stderr)
    if options.json:
        print(json.dumps(answer))
    elif options.parsable:
        print(label)
    elif not options.quiet:
        print(f"Submitted batch job {label}")
    if not options.wait:
        return 0
    sys.stdout.flush()
    return _wait([str(job) for job in answer["ids"]], label)


def _foreseen(answer: dict[str, Any]) -> list[str]:
    """Of a job with a deadline, whether it will be met."""
    outlook = answer.get("outlook")
    return [outlook["text"]] if outlook else []


def _wait(jobs: list[str], label: str) -> int:
    """The exit code of the job; of an array, that of the first task that failed."""
    try:
        codes = [exit_code(wait_for(job)) for job in jobs]
    except KeyboardInterrupt:
        hint = f"job {label} goes on; `carma wait {label}` waits, `carma cancel {label}` ends it"
        print(f"\ncarma: {hint}", file=sys.stderr)
        return INTERRUPTED
    return next((code for code in codes if code), 0)


def _dry_run(body: dict[str, Any], options: argparse.Namespace) -> int:
    answer = client.post("/v1/jobs", {**body, "dry_run": True})
    if options.json:
        print(json.dumps(answer))
        return 0
    from cli import output, render

    output.show(render.dry_run(answer))
    return 0


def wants_json(args: list[str]) -> bool:
    return "--json" in build_parser().split(args)[0]


def read(
    args: list[str], parser: Parser | None = None
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options, and the request that they ask for. `parser`: of a verb that takes the same
    words and more."""
    parser = parser or build_parser()
    words, command, marked = parser.split(args)
    options = given = parser.parse_args(words)
    script = None if options.wrap is not None or not command else find_script(command[0])
    if script is not None:  # directives first: the command line's word counts more
        options = parser.parse_args(words, _directives(parser, script, options.quiet))
        for name in ("layout", "stages"):  # of several words, which together are one thing
            setattr(options, name, getattr(given, name) or getattr(options, name))
    if not marked and command[:1] and command[0] in VERBS and not os.path.exists(command[0]):  # noqa: PTH110 - pathlib is slow to import
        raise Usage(
            f"`carma submit {command[0]}` would submit a job that runs `{command[0]}`",
            f"did you mean `carma {command[0]}`? if not, put -- in front of the command",
        )
    if command and not _may_be_there(command[0], options):
        hint = "give the path of a program or a job script as seen from here, or --chdir"
        raise Usage(f"there is no {command[0]}", hint)
    return options, _request(options, _argv(options, command, script), script)


def _may_be_there(word: str, options: argparse.Namespace) -> bool:
    """Whether a program given by its path is there, or a job before this one may yet make it."""
    later = options.chdir or options.after or options.dependency
    return "/" not in word or bool(later) or os.path.exists(word)  # noqa: PTH110


def _directives(parser: Parser, script: Script, quiet: bool) -> argparse.Namespace:
    options = argparse.Namespace()
    for number, prefix, words in script.directives:
        ignored: list[str] = []
        try:
            if prefix == "#SBATCH":
                options, ignored = parser.parse_known_args(words, options)
            else:
                options = parser.parse_args(words, options)
        except Usage as error:
            raise Usage(f"{script.path}:{number}: {error.message}", error.hint) from None
        if ignored and not quiet:
            text = f"{script.path}:{number}: ignored: #SBATCH {' '.join(ignored)}"
            print(f"carma: {text}", file=sys.stderr)
    return options


def _argv(options: argparse.Namespace, command: list[str], script: Script | None) -> list[str]:
    if options.wrap is not None:
        if command:
            raise Usage("--wrap and a command: give one of them", HELP_HINT)
        return ["/bin/sh", "-c", options.wrap]
    if not command:
        raise Usage("nothing to run: give a command or a job script", HELP_HINT)
    if script is not None:
        return [*script.interpreter, script.path, *command[1:]]
    return [runnable(command[0]), *command[1:]]


def _request(options: argparse.Namespace, argv: list[str], script: Script | None) -> dict[str, Any]:
    if not all(map(_is_text, argv)):
        raise Usage("the command is not valid UTF-8", "give the file a name that is")
    cwd = os.path.abspath(options.chdir or ".")  # noqa: PTH100 - pathlib is slow to import
    if not os.path.isdir(cwd):  # noqa: PTH112
        raise Usage(f"{cwd} is no directory", "give -D the directory to run in")
    exports = [word for words in options.export or () for word in words]
    own_name = "wrap" if options.wrap is not None else script.name if script else None
    return {
        "argv": argv,
        "cwd": cwd,
        "name": options.name or own_name,
        "env": _captured(exports),
        "export": _exported(exports),
        "conda_env": options.conda,
        "gpus": _gpus(options),
        "memory_mib": options.gpu_mem,
        "batch_size": options.batch_size,
        "amp": options.amp,
        "cold_start_s": options.cold_start or 0.0,
        "exclusive": options.exclusive,
        "nice": options.nice,
        "time_limit_s": options.time,
        "expected_s": options.expect,
        "deadline_at": options.deadline,
        "layout": _layout(options),
        "stages": options.stages or [],
        "watch_stages": options.watch_stages,
        "warn": options.signal,
        "begin_at": options.begin,
        "after": _after(options),
        "array": options.array,
        "stdout": options.output,
        "stderr": options.error,
        "requeue": options.requeue,
        "held": options.hold,
        "dry_run": False,
    }


def _gpus(options: argparse.Namespace) -> int:
    """As many as its layout has, where that says it."""
    wanted: int | None = options.gpus
    if not options.layout:
        return 1 if wanted is None else wanted
    spread: int = sum(stage.get("replicas", 1) * stage.get("tensor", 1) for stage in options.layout)
    if wanted not in (None, spread):
        hint = f"--gpus {spread}, or leave it out; a stage has a GPU per replica and tensor slice"
        raise Usage(f"its --layout is one of {spread} GPUs, and --gpus says {wanted}", hint)
    return spread


def _layout(options: argparse.Namespace) -> dict[str, Any] | None:
    if options.layout:
        return {"stages": options.layout, "allreduce": options.allreduce or "ring"}
    if options.allreduce:
        raise Usage("--allreduce is about a --layout, and there is none", HELP_HINT)
    return None


def _after(options: argparse.Namespace) -> list[dict[str, str]]:
    named = [*(options.dependency or ()), *(options.after or ())]
    return [{**one, "job": _whole(one["job"])} for one in named]


def _whole(word: str) -> str:
    """Of an array, the last job is its last task: `last` means all of them."""
    return resolve(word).partition("_")[0] if word == "last" else word


def _captured(exports: list[str]) -> dict[str, str]:
    """This shell's variables. The daemon keeps no secrets of them: what a job needs of those is
    named with `--export`."""
    names = MINIMAL_ENV if "NONE" in exports else tuple(os.environ)
    env = {name: os.environ[name] for name in names if name in os.environ}
    return {name: value for name, value in env.items() if _is_text(name + value)}


def _exported(exports: list[str]) -> dict[str, str]:
    env = {}
    for word in exports:
        name, given, value = word.partition("=")
        if given:
            env[name] = value
        elif word in os.environ:
            env[word] = os.environ[word]
        elif word not in ("ALL", "NONE"):
            raise Usage(f"--export {word}: there is no such variable here", "give NAME=VALUE")
    return env


def _is_text(word: str) -> bool:
    """False for bytes that are not UTF-8: JSON cannot carry them."""
    return not any("\ud800" <= c <= "\udfff" for c in word)


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
