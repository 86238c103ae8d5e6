"""The Python command that a shell script comes to: bash runs the script, but none of its programs.

Bash runs the script's own language, confined as a traced script is: variables, arrays, functions,
conditions and loops are its own, and files are looked for where they are. Of the programs only
those are run that print something, such as `dirname` or `grep`; any other is reported by
`shell.bash` and taken to succeed. Redirections into files are left out with the programs that they
belong to. make runs its recipes in the same bash. Standard library only.
"""
# Few imports, as in `find`:
# ruff: noqa: PTH116, PTH118, PTH119, PTH120

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

from estimators.tracer.command import PREFIXES, PYTHON, interpreter

SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
PATIENCE_S, PROCESSOR_S = 30, 10  # what waits for something that its programs would do is stopped
MEMORY_MIB = 2048
MOST_BYTES = 1 << 24
MOST_LETTERS = 1000  # of what it prints, from the end
HIGH = 500  # scripts use low descriptors
TRAINERS = re.compile(r"python\d*(\.\d+)?t?|torchrun|accelerate|ipython|papermill|deepspeed")
# Tools that run a command in an environment, and how those are asked for it that keep it elsewhere
# than in the project's .venv.
RUNNERS = {
    **dict.fromkeys(("uv", "pdm", "rye", "conda", "mamba", "micromamba"), ()),
    "poetry": ("env", "info", "--path"),
    "pipenv": ("--venv",),
    "hatch": ("env", "find"),
}
NO_TRAINING = frozenset(("--version", "-V", "config", "-"))
HELPERS = frozenset(("pip", "venv", "ensurepip", "http.server", "site", "compileall"))
# Programs that change nothing the Python command could notice, or run beside it or after it.
HARMLESS = frozenset(("sleep", "tee", "tail", "kill", "pkill", "killall", "clear", "free", "df"))
FOR_POSIX = frozenset(("POSIXLY_CORRECT", "SHELLOPTS"))  # bash would read no BASH_ENV
TRAINING = re.compile("train|tune|fit", re.IGNORECASE)  # in the name of one script among several
UNKNOWN = "\2"  # the output of programs that are not run
# Ends with a number that grows with the time at which the script began it, even in the background.
REPORT = """import json, os, sys
_, shell, *words = sys.argv
began = os.getpid() if os.getppid() == int(shell) else os.getppid()
os.write({}, json.dumps([words, dict(os.environ), os.getcwd(), began]).encode() + b"\\n")"""


class Unclear(Exception):
    """There is no one Python command to be found; the message says why."""


class Command(NamedTuple):
    words: list[str]
    env: dict[str, str]
    cwd: str
    skipped: str = ""  # as in `Options`, like the next
    note: str = ""


def command(argv: Sequence[str], env: Mapping[str, str], cwd: str, gpus: int) -> Command:
    """The Python command that `sh script.sh …`, `sh -c text` or `make target` runs. Raises Unclear,
    and OSError if the script cannot be read."""
    name, *rest = argv
    words = ["make", "SHELL=bash", *rest] if name == "make" else _bash(name, rest, cwd)
    programs, complaint = _list_programs(words, env, cwd, gpus)
    found: dict[str, Command] = {}
    others: list[Command] = []  # console scripts: most of them only help
    runs, skipped = 0, ""
    for words, env, cwd in programs:
        if _trains(words):
            runs += 1
            found.setdefault(_script(words), Command(words, env, cwd, skipped))
            skipped = skipped or f"`{' '.join(words[:2])}` before it was not run"
        elif words and os.path.basename(words[0]) not in HARMLESS:
            path = shutil.which(words[0], path=env.get("PATH"))
            if shebang(path and os.path.join(cwd, path)):
                others.append(Command(words, env, cwd, skipped))
            skipped = skipped or f"`{words[0]}` before it was not run"
    if not found and len(others) == 1:
        return _check_known(others[0])
    if not found:
        because = complaint or skipped
        raise Unclear("it runs no Python command" + f"; perhaps because {because}" * bool(because))
    if len(found) > 1:  # one that runs a line of Python only helps
        found = {key: one for key, one in found.items() if "-c" not in key.split()} or found
    training = [script for script in found if TRAINING.search(os.path.basename(script))]
    if len(found) > 1 and len(training) != 1:
        which = ", ".join(sorted({" ".join(one.words[:2]) for one in found.values()}))
        raise Unclear(f"it runs {len(found)} Python commands ({which}): submit one of them")
    chosen = training[0] if len(found) > 1 else next(iter(found))
    note = f"only the first run of {chosen} was traced, of {runs} Python commands" * (runs > 1)
    return _check_known(found[chosen]._replace(note=note))


def _bash(shell: str, words: Sequence[str], cwd: str) -> list[str]:
    """The same for bash. Raises Unclear or OSError."""
    rest, flags = list(words), ""
    while rest and re.fullmatch(r"[-+]\w+|--[\w-]*", rest[0]):
        flag = rest.pop(0)
        flags += "l" if flag == "--login" else flag if flag[:2] != "--" else ""
        if flag in ("-o", "+o", "-O", "+O"):
            del rest[:1]
    if not rest:
        raise Unclear(f"{shell} is given no script")
    if "c" not in flags and not stat.S_ISREG(os.stat(os.path.join(cwd, rest[0])).st_mode):
        raise Unclear(f"{rest[0]} is no file")
    kept = [f"-{one}" for one in "elu" if one in flags]
    return ["bash", *kept, *(["-c"] if "c" in flags else []), *rest]


Program = tuple[list[str], dict[str, str], str]  # words, environment, folder


def _list_programs(
    argv: list[str], env: Mapping[str, str], cwd: str, gpus: int
) -> tuple[list[Program], str]:
    """The programs that would be started, in this order, and the last error message. Raises
    Unclear."""
    import fcntl
    import subprocess

    reports = os.memfd_create("reports")
    fcntl.fcntl(reports, fcntl.F_SETFL, os.O_APPEND)
    into = fcntl.fcntl(reports, fcntl.F_DUPFD, HIGH)
    indices = env.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    given = {
        "CUDA_VISIBLE_DEVICES": indices,  # CARMA sets these two for the job alone
        "CARMA_GPU_MEM_MB": UNKNOWN,
        "BASH_ENV": os.path.join(os.path.dirname(__file__), "shell.bash"),
        "__carma_python": f"/.{sys.executable}",  # as no script calls it: that would be a function
        "__carma_code": REPORT.format(into),
        "__carma_gpus": str(gpus),
    }
    variables = {n: it for n, it in {**env, **given}.items() if n not in FOR_POSIX}
    try:
        complaint = _find_last_message(_run(argv, variables, cwd, "stderr", [into])[0])
    except subprocess.TimeoutExpired:
        complaint = f"it took longer than {PATIENCE_S} s, without its programs"
    except subprocess.SubprocessError:
        raise Unclear("finding its command needs Landlock (Linux 5.13 or newer)") from None
    lines = os.pread(reports, MOST_BYTES, 0).splitlines(keepends=True)
    os.close(reports)
    os.close(into)
    found = [json.loads(line) for line in lines if line.endswith(b"\n")]
    found.sort(key=itemgetter(3))
    for _, variables, *_ in found:
        for name, value in given.items():
            if variables.get(name, "") in (value, ""):
                variables.pop(name, None)
                variables.update({name: env[name]} if name in env else {})
    return [(words, variables, folder) for words, variables, folder, _ in found], complaint


def _run(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, stream: str, fds: Sequence[int] = ()
) -> tuple[str, int]:
    """The end of what a confined program and all that it starts write to a stream, and its exit
    status. Raises TimeoutExpired, and another SubprocessError if it cannot be confined."""
    import select
    import subprocess
    import time

    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    streams[stream] = subprocess.PIPE
    process = subprocess.Popen(
        argv, env=env, cwd=cwd, pass_fds=fds, start_new_session=True, preexec_fn=_confine, **streams
    )
    said, deadline = b"", time.monotonic() + PATIENCE_S
    try:
        with getattr(process, stream) as pipe:
            while (left := deadline - time.monotonic()) > 0:
                is_ready = select.select([pipe], [], [], left)[0]
                if not is_ready or not (more := os.read(pipe.fileno(), 1 << 16)):
                    break
                said = (said + more)[-MOST_LETTERS:]
            status = process.wait(max(0, left))  # before the pipe is closed, which would end it
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
    return said.decode(errors="replace"), status


def _find_last_message(said: str) -> str:
    lines = said.replace(UNKNOWN, "…").splitlines()
    messages = [line for line in lines if line.strip() and not line.startswith("+")]  # of `set -x`
    return "".join(filter(str.isprintable, messages[-1] if messages else ""))


def output(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
    """What a program prints that is confined like a script; "" if it fails or takes too long."""
    import subprocess

    with suppress(OSError, subprocess.SubprocessError):
        said, status = _run(argv, env, cwd, "stdout")
        return said.strip() if status == 0 else ""
    return ""


def _confine() -> None:
    import resource

    from estimators.tracer.confine import confine, limit

    limit(MEMORY_MIB, PROCESSOR_S)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
    if not confine(is_alone=True):
        raise OSError


def _trains(words: Sequence[str]) -> bool:
    """Whether it is a Python command, and not one of the usual helpers."""
    for at, word in enumerate(words):
        base = os.path.basename(word)
        if base in SHELLS:
            return True
        if base in RUNNERS:
            return words[at + 1 : at + 2] == ["run"]
        if base.endswith(".py"):
            return True
        if TRAINERS.fullmatch(base):
            rest = words[at + 1 :]
            helper = rest[:1] == ["-m"] and rest[1:2] and rest[1] in HELPERS
            return bool(rest) and rest[0] not in NO_TRAINING and not helper
        if at == 0 and base not in PREFIXES:
            return False
    return False


def shebang(script: str | None) -> tuple[str, ...]:
    """The command in a script's first line, if that is Python."""
    words = interpreter(script)
    return words if words and PYTHON.fullmatch(os.path.basename(words[0])) else ()


def _script(words: Sequence[str]) -> str:
    """What tells one Python command from another, whatever its arguments are."""
    return next((word for word in words if word.endswith(".py")), " ".join(words[:3]))


def _check_known(found: Command) -> Command:
    words, env, cwd, skipped, note = found
    if any(UNKNOWN in word for word in words):
        text = " ".join(words).replace(UNKNOWN, "…")
        raise Unclear(f"its command `{text}` is not known before it runs")
    if unknown := [name for name, value in env.items() if UNKNOWN in value]:
        skipped = skipped or f"{unknown[0]} is not known before it runs"
    return Command(words, {n: it for n, it in env.items() if n not in unknown}, cwd, skipped, note)
