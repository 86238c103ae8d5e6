"""A request to run a job, from its options and its command: for `carma submit`, `carma run`, the
web page, agents and login nodes. Imports stay light."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from carma_client.client import environment, umask
from carma_client.limits import soft_limits
from carmad.options import OPTIONS
from cli.client import resolve
from cli.options import IGNORED, SUBMIT, find_ignored, override, settle
from cli.problems import Usage, note
from cli.reader import Parser
from cli.script import Directive, Script, find_script, runnable, sweep
from cli.verbs import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any


PLACE = ("$0", "${0", "BASH_SOURCE", "__file__")  # in a script: where it is
HELP = frozenset(("-h", "--help", "--usage"))
MINIMAL_ENV = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER")
HELP_HINT = "see `carma submit --help`"


def build_parser() -> Parser:
    """Of the options of `carma submit`."""
    return Parser("carma submit", SUBMIT)


def read(
    words: Sequence[str],
    parser: Parser | None = None,
    **more: Any,
) -> tuple[Namespace, dict[str, Any]]:
    """As `complete`, from the words of a command line. `parser`: for a verb that takes the same
    options and more."""
    parser = parser or build_parser()
    own, command, marked = parser.split(words)
    options = parser.parse_args(own)
    return complete(options, ["--", *command] if marked else command, parser, **more)


def complete(
    given: Namespace,
    command: Sequence[str],
    parser: Parser | None = None,
    foreign: list[str] | None = None,
    known: Callable[[str], str] | None = None,
    find: Callable[[str], Script | None] = find_script,
    variables: Sequence[Directive] = (),
) -> tuple[Namespace, dict[str, Any]]:
    """The options with those of the job script, and the resulting request. `command`: perhaps with
    `--` in front. `parser`: reads the lines of a script. `foreign`: where they have options of
    sbatch that mean nothing on one server, they are added here instead of being reported. `known`:
    which job a word such as `last` names, if a daemon is not to be asked. `find`: the job script
    that the first word of the command is, or that is there without any. `variables`: options of the
    environment: they override those of the script, and the command line overrides both."""
    parser = parser or build_parser()
    marked, command = list(command[:1]) == ["--"], list(command)
    command = command[marked:]
    script = None if given.wrap is not None else find(command[0] if command else "")
    values: dict[str, Any] = {}
    for lines in (script.directives if script else (), variables):
        values = override(values, _read_directives(parser, lines, bool(given.quiet), foreign))
    options = Namespace(**settle(override(values, vars(given))))
    if options.gpus is None:
        options.gpus = options.gres
    if not marked and command and command[0] in OWN and not Path(command[0]).exists():
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
    options.ignored = getattr(given, "ignored", None) or find_ignored(given)
    options.lost = script.lost if script else ""
    options.late = "" if marked else _late(parser, command)
    return options, request


def _late(parser: Parser, command: list[str]) -> str:
    """What to say of an option of CARMA's that follows the command; "" if none does."""
    for word in command[1:]:
        if word == "--":
            break
        if word.startswith("--") and parser.knows(word):
            flag = word.partition("=")[0]
            return (
                f"{flag} comes after the command, so {command[0]} gets it, not CARMA. For CARMA,"
                f" write: {parser.prog} {flag} … {command[0]} …. To hide this note, put -- in"
                " front of the command"
            )
    return ""


def is_silent(options: Namespace) -> bool:
    """Whether nobody waits for advice."""
    return bool(options.anyway or options.json or options.parsable or options.quiet)


def tell_ignored(options: Namespace) -> None:
    """Name the options that have no effect, unless `--quiet`."""
    if not options.quiet:
        _tell_ignored(options.ignored)
        warn_of_place(options)


def warn_of_place(options: Namespace) -> None:
    """Of options that have no effect where they stand."""
    for text in filter(None, (options.lost, options.late)):
        note(text)


def _tell_ignored(options: list[str] | None, where: str = "") -> None:
    if options:
        text = f"{where}ignored: {' '.join(options)}"
        if any(option.startswith("--mem") for option in options):
            text += " (for GPU memory, use --gpu-mem)"
        note(text)


def warn_of_choice(options: Namespace) -> None:
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
        own, parents = os.fstat(0), Path(f"/proc/{os.getppid()}/fd/0").stat()
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


def settle_messages(options: Namespace, body: dict[str, Any]) -> None:
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


def _may_be_there(word: str, options: Namespace) -> bool:
    """Whether a program given by its path exists, or may by then: an earlier job may create it, or
    the image have it."""
    later = options.chdir or options.after or options.after_ok
    in_image = options.container and word.startswith("/")
    return "/" not in word or bool(later or in_image) or Path(word).exists()


def _read_directives(
    parser: Parser,
    directives: Iterable[Directive],
    quiet: bool,
    foreign: list[str] | None,
) -> Mapping[str, Any]:
    """The values of the options in lines of a script."""
    options = parser.parse_args([])
    for where, prefix, words in directives:
        if not HELP.isdisjoint(words) or parser.asks_for_help(words):
            raise Usage(f"{where}: a {prefix} line cannot ask for help", f"remove it; {HELP_HINT}")
        left: list[str] = []
        try:
            own, others, _ = parser.split(words)
            if prefix == "#SBATCH":
                _, left = parser.parse_known_args([*own, *others], options)
            else:
                parser.parse_args([*own, *others], options)
        except Usage as error:
            raise Usage(f"{where}: {error.message}", error.hint) from None
        left += options.__dict__.pop("ignored", None) or find_ignored(options)
        vars(options).update(dict.fromkeys(IGNORED))
        if foreign is not None:
            foreign += left
        elif not quiet:
            _tell_ignored(left, f"{where}: {prefix} ")
    return vars(options)


def _argv(options: Namespace, command: list[str], script: Script | None) -> list[str]:
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
    options: Namespace,
    argv: list[str],
    script: Script | None,
    known: Callable[[str], str],
) -> dict[str, Any]:
    cwd = os.path.abspath(options.chdir or ".")  # noqa: PTH100 - without following links
    if not Path(cwd).is_dir():
        raise Usage(f"{cwd} is not a directory", "give the directory to run in with -D")
    exports = [word for words in options.export or () for word in words]
    submitted_from = {"SLURM_SUBMIT_DIR": str(Path.cwd())} if options.chdir else {}
    own_name = "wrap" if options.wrap is not None else script.name if script else None
    body = {
        "argv": argv,
        "cwd": cwd,
        "env": _capture(exports),
        "export": submitted_from | _exports(exports),
        "umask": umask(),
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


def _gpus(options: Namespace) -> int:
    """The number of GPUs, from the layout if there is one."""
    wanted: int | None = options.gpus[0] if options.gpus else None
    if not options.layout:
        return 1 if wanted is None else wanted
    spread: int = sum(stage.get("replicas", 1) * stage.get("tensor", 1) for stage in options.layout)
    if wanted not in (None, spread):
        hint = f"--gpus {spread}, or leave it out; a stage has a GPU per replica and tensor slice"
        raise Usage(f"--layout needs {spread} GPUs, but --gpus says {wanted}", hint)
    return spread


def _constraint(options: Namespace) -> str | None:
    """With the kind of GPU in --gpus or --gres."""
    kind = options.gpus[1] if options.gpus else ""
    words = [word for word in (options.constraint, kind) if word]
    if len(words) == 2 and "|" in words[0]:
        hint = f"write the kind into each alternative of --constraint, such as {kind}&…"
        raise Usage(f"--gpus {kind}:N does not go with alternatives in --constraint", hint)
    return "&".join(words) or None


def _layout(options: Namespace) -> dict[str, Any] | None:
    if options.layout:
        return {"stages": options.layout, "allreduce": options.allreduce or "ring"}
    if options.allreduce:
        raise Usage("--allreduce needs a --layout", HELP_HINT)
    return None


def _after(options: Namespace, known: Callable[[str], str]) -> list[dict[str, str]]:
    named = [*(options.after or ()), *(options.after_ok or ())]
    return [{**one, "job": known(one["job"])} for one in named]


def _capture(exports: list[str]) -> dict[str, str]:
    """This shell's variables. The daemon drops those that are of no use in a job."""
    here = environment()
    return {name: here[name] for name in MINIMAL_ENV if name in here} if "NONE" in exports else here


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
