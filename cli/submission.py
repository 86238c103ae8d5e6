"""A request to run a job, from the words of a command line: for `carma submit`, `carma run`, the
web page, agents and login nodes. Imports stay light."""

from __future__ import annotations

import argparse
import os

from carma_client.limits import soft_limits
from carmad.options import HINTS, OPTIONS, RESOURCES, RUN, START, Option
from cli import parse
from cli.client import resolve
from cli.parser import Parser
from cli.problems import Usage, note
from cli.script import Directive, Script, find_script, runnable, sweep
from cli.verbs import OWN

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

# Options of sbatch that mean nothing here, each with a value.
IGNORED = (
    *(("-A", "--account"), ("-n", "--ntasks")),
    *(("-N", "--nodes"), ("-p", "--partition"), ("-q", "--qos"), ("-w", "--nodelist")),
    *(("-x", "--exclude"), ("--cpus-per-gpu",), ("--mem-per-cpu",), ("--mem-per-gpu",)),
    *(("--ntasks-per-node",), ("--reservation",)),
)


REPEATED = (*(name for name, option in OPTIONS.items() if option.repeated), "param", "export")


class Ignored(argparse.Action):
    """Collects what is ignored, as it was written."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        sign = "=" if (option or "").startswith("--") else " "
        text = f"{option}" if values is None else f"{option}{sign}{values}"
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
        "The job inherits the environment and the limits (ulimit) of this shell.",
        allow_abbrev=False,
        add_help=False,
    )
    add_job_options(parser)
    for flags in IGNORED:
        about = argparse.SUPPRESS
        parser.add_argument(*flags, action=Ignored, dest="ignored", help=about)
    return parser


def add_job_options(parser: Parser) -> None:
    """Those of the table and their other forms, and what is to be done with the job's id."""
    parser.runs_command = True
    sections = {name: parser.add_argument_group(name) for name in (RESOURCES, HINTS, START, RUN)}
    for option in OPTIONS.values():
        add_option(sections[option.section], option)
    _add_other_forms(sections)
    _add_output(parser.add_argument_group("output"))


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
        metavar="gpu:[KIND:]N",
        help="number of GPUs, and perhaps their kind, in Slurm's form",
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
    add("--wrap", metavar="TEXT", help="run TEXT with /bin/sh")


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-h", "--help", action="help", help="show this help")
    add("-W", "--wait", action="store_true", help="wait for the job to end; exit with its code")
    add(
        "--anyway",
        action="store_true",
        help="submit it though the program, the script or a folder is missing now, and return at"
        " once: on a terminal, carma submit otherwise waits for a trial of the script's first"
        " steps, and asks what to do if the script stops by itself",
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


PLACE = ("$0", "${0", "BASH_SOURCE", "__file__")  # in a script: where it is
MINIMAL_ENV = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER")
HELP_HINT = "see `carma submit --help`"


def read(
    args: list[str],
    parser: Parser | None = None,
    foreign: list[str] | None = None,
    known: Callable[[str], str] | None = None,
    find: Callable[[str], Script | None] = find_script,
    variables: Sequence[Directive] = (),
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options, and the resulting request. `parser`: for a verb that takes the same options and
    more. `foreign`: where a script's lines have options of sbatch that mean nothing on one
    server, they are added here instead of being reported. `known`: which job a word such as `last`
    names, if a daemon is not to be asked. `find`: the job script that the first word of the command
    is, or that is there without any. `variables`: options of the environment: they override those
    of the script, and the command line overrides both."""
    parser = parser or build_parser()
    words, command, marked = parser.split(args)
    options = parser.parse_args(words)
    script = None if options.wrap is not None else find(command[0] if command else "")
    sources = [lines for lines in (script.directives if script else (), variables) if lines]
    before = argparse.Namespace()
    for lines in sources:
        earlier = _take_repeated(before)
        _read_directives(parser, lines, before, options.quiet, foreign)
        _override(earlier, before)
    if sources:
        earlier = _take_repeated(before)
        options = parser.parse_args(words, before)
        _override(earlier, options)
    if not marked and command[:1] and command[0] in OWN and not os.path.exists(command[0]):  # noqa: PTH110 - pathlib is slow to import
        raise Usage(
            f"`{parser.prog} {command[0]}` would start a job that runs `{command[0]}`",
            f"did you mean `carma {command[0]}`? if not, put -- in front of the command",
        )
    if command and not _may_be_there(command[0], options):
        hint = "give the path of a program or job script relative to this directory, or --chdir"
        raise Usage(f"there is no {command[0]}", hint)
    request = _request(options, _argv(options, command, script), script, known or resolve)
    if options.param or options.params:
        request = sweep(request, options, plain=script is None and options.wrap is None)
    elif request["array"] and not request["array"]["indices"]:
        raise Usage("which indices? %N alone is for --param", "give a list, such as --array 0-15%4")
    options.lost = script.lost if script else ""
    options.late = "" if marked else _late(parser, command)
    return options, request


def _late(parser: Parser, command: list[str]) -> str:
    """What to say of an option of CARMA's that follows the command; "" if none does."""
    for word in command[1:]:
        if word == "--":
            break
        if word.startswith("--") and parser.knows(word) and not parser.asks_for_help([word]):
            option = word.partition("=")[0]
            return (
                f"{option} comes after the command, so {command[0]} gets it, not CARMA. For CARMA,"
                f" write: {parser.prog} {option} … {command[0]} …. To hide this note, put -- in"
                " front of the command"
            )
    return ""


def wants_json(args: list[str]) -> bool:
    return "--json" in build_parser().split(args)[0]


def is_silent(options: argparse.Namespace) -> bool:
    """Whether nobody waits for advice."""
    return bool(options.anyway or options.json or options.parsable or options.quiet)


def tell_ignored(options: argparse.Namespace) -> None:
    """Name the options that have no effect, unless `--quiet`."""
    if not options.quiet:
        _tell_ignored(options.ignored)
        warn_of_place(options)


def warn_of_place(options: argparse.Namespace) -> None:
    """Of options that have no effect where they stand."""
    for text in filter(None, (options.lost, options.late)):
        note(text)


def _tell_ignored(options: list[str] | None, where: str = "") -> None:
    if options:
        text = f"{where}ignored: {' '.join(options)}"
        if any(option.startswith("--mem") for option in options):
            text += " (for GPU memory, use --gpu-mem)"
        note(text)


def warn_of_choice(options: argparse.Namespace) -> None:
    """CARMA chooses the GPUs: the shell's own choice has no effect. In a job of CARMA, it is
    CARMA's."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or "CARMA_JOB_ID" in os.environ or options.on or options.gpus == 0:
        return
    numbers = chosen.replace(" ", "")
    asks = "`--on 0,1` asks for GPUs by number"
    if numbers and numbers.replace(",", "").isdecimal():
        asks = f"`--on {numbers}` asks for {'these' if ',' in numbers else 'this'}"
    elif not numbers:
        asks = "`--gpus 0` asks for none"
    note(f"CUDA_VISIBLE_DEVICES={chosen} has no effect, as CARMA chooses the GPUs; {asks}")


def warn_of_input() -> None:
    """A job reads nothing. What was given to this command alone, not to the script that it is in,
    was meant for the job."""
    try:
        own, parents = os.fstat(0), os.stat(f"/proc/{os.getppid()}/fd/0")  # noqa: PTH116
        if (own.st_dev, own.st_ino) != (parents.st_dev, parents.st_ino) and _has_input(own.st_mode):
            note(
                "the job does not get this input, as a job reads nothing: save it as a file, and"
                " give that to the command"
            )
    except OSError:
        pass  # closed, or it is not known whose it is


def _has_input(mode: int) -> bool:
    import stat

    if stat.S_ISREG(mode):
        return os.fstat(0).st_size > os.lseek(0, 0, os.SEEK_CUR)
    if not stat.S_ISFIFO(mode):
        return False
    import fcntl
    import termios

    return any(fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4))


def settle_messages(options: argparse.Namespace, body: dict[str, Any]) -> None:
    """Make sure that messages about the job can be sent, if any are wanted. Raises CarmaError."""
    if options.notify or options.mail_type or options.mail_user:
        from cli.messages import settle

        settle(options, body)


def warn_of_script(body: dict[str, Any], in_place: str = "--no-copy") -> None:
    """Of what a job script does that may not work in a copy, or as a job. `in_place`: what runs it
    uncopied."""
    _warn_of_copy(body, in_place)
    _warn_of_module(body)


def _warn_of_copy(body: dict[str, Any], in_place: str) -> None:
    """A copy is elsewhere: a script that looks for its own path finds that."""
    script = body.get("script")
    found = next((word for word in PLACE if script and word in script["text"]), None)
    if script and found:
        name = body["argv"][script["word"]]
        text = f"{name} uses {found}, which will be the path of a copy; {in_place} runs it in place"
        note(text)


def _warn_of_module(body: dict[str, Any]) -> None:
    """Of a script that calls `module`, a function of login shells that may not be there."""
    script = body.get("script")
    login = script and any(word in ("-l", "--login") for word in body["argv"][: script["word"]])
    if not script or login or any(name.startswith("BASH_FUNC_module") for name in body["env"]):
        return
    for number, line in enumerate(script["text"].splitlines(), 1):
        first = line.split(None, 1)[:1]
        if first in (["source"], ["."]):  # it may define it
            return
        if first == ["module"]:
            where = f"{body['argv'][script['word']]}:{number}"
            text = f"{where} calls module, which this shell does not have: leave it out, or start"
            note(f"{text} the script with #!/bin/bash -l")
            return


def _may_be_there(word: str, options: argparse.Namespace) -> bool:
    """Whether a program given by its path exists, or may by then: an earlier job may create it, or
    the image have it."""
    later = options.chdir or options.after or options.after_ok
    in_image = options.container and word.startswith("/")
    return "/" not in word or bool(later or in_image) or os.path.exists(word)  # noqa: PTH110


def _take_repeated(options: argparse.Namespace) -> dict[str, Any]:
    """Remove what argparse would append to."""
    return {name: options.__dict__.pop(name, None) for name in REPEATED}


def _override(earlier: dict[str, Any], options: argparse.Namespace) -> None:
    """Keep an earlier value only where no later one was read."""
    for name, value in earlier.items():
        setattr(options, name, getattr(options, name, None) or value)


def _read_directives(
    parser: Parser,
    directives: Iterable[Directive],
    options: argparse.Namespace,
    quiet: bool,
    foreign: list[str] | None,
) -> None:
    for where, prefix, words in directives:
        if parser.asks_for_help(words):
            raise Usage(f"{where}: a {prefix} line cannot ask for help", f"remove it; {HELP_HINT}")
        ignored: list[str] = []
        try:
            if prefix == "#SBATCH":
                _, ignored = parser.parse_known_args(words, options)
            else:
                parser.parse_args(words, options)
        except Usage as error:
            raise Usage(f"{where}: {error.message}", error.hint) from None
        ignored += options.__dict__.pop("ignored", None) or ()
        if foreign is not None:
            foreign += ignored
        elif not quiet:
            _tell_ignored(ignored, f"{where}: {prefix} ")


def _argv(options: argparse.Namespace, command: list[str], script: Script | None) -> list[str]:
    if options.wrap is not None:
        if command:
            raise Usage("give either --wrap or a command, not both", HELP_HINT)
        return ["/bin/sh", "-c", options.wrap]
    if script is not None:
        return [*script.interpreter, script.path, *command[1:]]
    if not command:
        raise Usage("nothing to run: give a command or a job script", HELP_HINT)
    return [runnable(command[0]), *command[1:]]


def _request(
    options: argparse.Namespace,
    argv: list[str],
    script: Script | None,
    known: Callable[[str], str],
) -> dict[str, Any]:
    cwd = os.path.abspath(options.chdir or ".")  # noqa: PTH100 - pathlib is slow to import
    if not os.path.isdir(cwd):  # noqa: PTH112
        raise Usage(f"{cwd} is not a directory", "give the directory to run in with -D")
    exports = [word for words in options.export or () for word in words]
    submitted_from = {"SLURM_SUBMIT_DIR": os.getcwd()} if options.chdir else {}  # noqa: PTH109
    own_name = "wrap" if options.wrap is not None else script.name if script else None
    body = {
        "argv": argv,
        "cwd": cwd,
        "env": _capture(exports),
        "export": submitted_from | _exports(exports),
        "umask": _umask(),
        "limits": soft_limits(),
        "dry_run": False,
    }
    if script is not None and script.data is not None and not options.no_copy:
        body["script"] = {"word": len(script.interpreter), "text": script.text()}
    for name, option in OPTIONS.items():
        given = getattr(options, name)
        body[name] = option.default if given is None else given
    return body | {
        "name": options.name or options.unless_running or own_name,
        "gpus": _gpus(options),
        "constraint": _constraint(options),
        "layout": _layout(options),
        "after": _after(options, known),
    }


def _umask() -> str:
    """This process's umask. Setting it is the only way to read it, and safe with one thread."""
    mask = os.umask(0o077)
    os.umask(mask)
    return f"{mask:03o}"


def _gpus(options: argparse.Namespace) -> int:
    """The number of GPUs, from the layout if there is one."""
    wanted: int | None = options.gpus[0] if options.gpus else None
    if not options.layout:
        return 1 if wanted is None else wanted
    spread: int = sum(stage.get("replicas", 1) * stage.get("tensor", 1) for stage in options.layout)
    if wanted not in (None, spread):
        hint = f"--gpus {spread}, or leave it out; a stage has a GPU per replica and tensor slice"
        raise Usage(f"--layout needs {spread} GPUs, but --gpus says {wanted}", hint)
    return spread


def _constraint(options: argparse.Namespace) -> str | None:
    """With the kind of GPU in --gpus or --gres."""
    kind = options.gpus[1] if options.gpus else ""
    words = [word for word in (options.constraint, kind) if word]
    if len(words) == 2 and "|" in words[0]:
        hint = f"write the kind into each alternative of --constraint, such as {kind}&…"
        raise Usage(f"--gpus {kind}:N does not go with alternatives in --constraint", hint)
    return "&".join(words) or None


def _layout(options: argparse.Namespace) -> dict[str, Any] | None:
    if options.layout:
        return {"stages": options.layout, "allreduce": options.allreduce or "ring"}
    if options.allreduce:
        raise Usage("--allreduce needs a --layout", HELP_HINT)
    return None


def _after(options: argparse.Namespace, known: Callable[[str], str]) -> list[dict[str, str]]:
    named = [*(options.after or ()), *(options.after_ok or ())]
    return [{**one, "job": known(one["job"])} for one in named]


def _capture(exports: list[str]) -> dict[str, str]:
    """This shell's variables. The daemon drops those that are of no use in a job."""
    names = MINIMAL_ENV if "NONE" in exports else tuple(os.environ)
    env = {name: os.environ[name] for name in names if name in os.environ}
    return {name: value for name, value in env.items() if _is_text(name + value)}


def _exports(exports: list[str]) -> dict[str, str]:
    env = {}
    for word in exports:
        name, given, value = word.partition("=")
        if given:
            env[name] = value
        elif word in os.environ:
            env[word] = os.environ[word]
        elif word not in ("ALL", "NONE"):
            raise Usage(f"--export {word}: no such variable here", "give NAME=VALUE")
    return env


def _is_text(word: str) -> bool:
    """False for bytes that are not UTF-8: JSON cannot carry them."""
    return not any("\ud800" <= c <= "\udfff" for c in word)
