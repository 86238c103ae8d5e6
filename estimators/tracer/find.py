"""Finds the Python command behind a job's command, and executes the tracer with it.

The daemon is root, and must neither open nor even look for paths that a user named. So this runs
in the trial, as the job's user and in the job's directory and environment, with CARMA's own
Python. Its arguments are the Python to use if the command names none itself ("": it is refused
then), the command, the tracer, its options, and what follows the command. Without a Python to use,
the command itself is traced: a script with a `#!` line, a shell script with one Python command,
`uv run`, a notebook.
"""
# The job's Python is yet to start, so imports are few:
# ruff: noqa: RUF005, PTH206, PTH100, PTH109, PTH112, PTH118, PTH119, PTH120

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from estimators.tracer import shell
from estimators.tracer.command import HINT, PYTHON, Options, Unreadable, parse, prefix_note, unwrap

LINE_BYTES = 256  # that the kernel reads of a first line
MOST_STEPS = 8  # of shell scripts that run shell scripts
KNOWN = frozenset(("torchrun", "accelerate", "deepspeed", "env"))
NOTEBOOKS = frozenset(("ipython", "ipython3", "jupyter", "papermill"))
UV_VALUES = frozenset(  # options of `uv run` with a value
    ("--with", "--with-requirements", "--with-editable", "-p", "--python", "--project", "--extra")
    + ("--directory", "--group", "--only-group", "--env-file", "--package", "--index", "-w")
)


def main() -> None:
    other, name, tracer, text, *words = sys.argv[1:]
    try:
        if other:
            path = name if "/" in name else shutil.which(name)
            start((*(shebang(path) or (other,)), tracer, text, *words), dict(os.environ))
        options = Options.loads(text)
        argv, env, cwd, skipped = resolve(
            [name, *words], dict(os.environ), os.getcwd(), options.gpus
        )
        program, options = parse(argv), replace(options, skipped=skipped)
        os.chdir(cwd)
        start((*program.python, tracer, options.dumps(), *program.script), env)
    except (Unreadable, shell.Unclear) as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"cannot read {error.filename}: {error.strerror}")


def resolve(words: Sequence[str], env: dict[str, str], cwd: str, gpus: int) -> shell.Command:
    """The Python command that a command ends up running. Raises Unreadable, Unclear or OSError."""
    skipped = ""
    for _ in range(MOST_STEPS):
        skipped = skipped or prefix_note(words)
        words = unwrap(words)
        name = os.path.basename(words[0]) if words else ""
        if PYTHON.fullmatch(name) or name in KNOWN:
            return shell.Command(list(words), env, cwd, skipped)
        path = words[0] if words and "/" in words[0] else shutil.which(name, path=env.get("PATH"))
        if name in shell.SHELLS:
            try:
                words, env, cwd, more = shell.command(words, env, cwd, gpus)
                skipped = skipped or more
            except shell.Unclear as error:
                raise shell.Unclear(f"a {name} script: {error}; {HINT}") from None
        elif name == "uv":
            words, env, cwd, more = uv(words[1:], env, cwd)
            skipped = skipped or more
        elif name in NOTEBOOKS:
            skipped = skipped or "IPython's kernel and magics were left out"
            words = (*(shebang(path) or ("python",)), *notebook(name, words[1:]))
            if name == "jupyter":  # its kernels start beside the notebook
                folder, file = os.path.split(words[-1])
                cwd, words = os.path.join(cwd, folder), (*words[:-1], file)
        elif path is None and name:
            raise Unreadable(f"{name} is not installed: it is in no folder of PATH")
        else:
            before = interpreter(path and os.path.join(cwd, path))
            if not before:
                raise Unreadable(f"{name} is no Python command: {HINT}")
            words = (*before, str(path), *words[1:])
    raise Unreadable(f"its scripts run each other more than {MOST_STEPS} deep: {HINT}")


def uv(words: Sequence[str], env: dict[str, str], cwd: str) -> shell.Command:
    """What `uv run …` runs, in the environment that uv has made for the project."""
    rest, module, folder = list(words), False, cwd
    if rest[:1] != ["run"]:
        raise Unreadable(f"of uv, only `uv run` is known: {HINT}")
    del rest[0]
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in UV_VALUES and not equals and rest:
            value = rest.pop(0)
        if option in ("--project", "--directory"):
            folder = os.path.join(cwd, value)
            cwd = folder if option == "--directory" else cwd
        module |= option in ("-m", "--module")
    if not rest:
        raise Unreadable("uv is given nothing to run")
    venv = env.get("UV_PROJECT_ENVIRONMENT") or next(
        (f"{place}/.venv" for place in _upwards(folder) if os.path.isdir(f"{place}/.venv")), ""
    )
    if not venv:
        raise Unreadable("uv has made no .venv for this project yet: run `uv sync` first")
    env = env | {"VIRTUAL_ENV": venv, "PATH": f"{venv}/bin:{env.get('PATH', os.defpath)}"}
    if module:
        rest = ["-m", *rest]
    if module or rest[0].endswith(".py"):
        rest = ["python", *rest]
    return shell.Command(rest, env, cwd, "uv was not run, which may install packages first")


def _upwards(folder: str) -> list[str]:
    parts = os.path.normpath(folder).split(os.sep)
    return [os.sep.join(parts[:n]) or os.sep for n in range(len(parts), 0, -1)]


def notebook(program: str, words: Sequence[str]) -> list[str]:
    """The notebook or script that ipython, jupyter or papermill runs, and its arguments."""
    if program == "papermill" and any(word.startswith("-") for word in words):
        raise Unreadable(f"papermill's options and parameters are not known here: {HINT}")
    for at, word in enumerate(words):
        if word.endswith((".ipynb", ".py")):
            return [word] if word.endswith(".ipynb") else list(words[at:])
    raise Unreadable(f"it is given no notebook: {HINT}")


def interpreter(script: str | None) -> tuple[str, ...]:
    """The command in a script's first line; () if there is none, or none to be read."""
    if not script:
        return ()
    try:
        start = shell.beginning(script, LINE_BYTES)
    except OSError:
        return ()
    line = start.partition(b"\n")[0].decode(errors="replace")
    words = line[2:].split() if line.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return tuple(words)


def shebang(script: str | None) -> tuple[str, ...]:
    """The same if it is Python."""
    words = interpreter(script)
    return words if words and PYTHON.fullmatch(os.path.basename(words[0])) else ()


def start(argv: Sequence[str], env: dict[str, str]) -> None:
    """Does not return."""
    try:
        os.execvpe(argv[0], list(argv), env)
    except OSError as error:
        refuse(f"its Python did not start: cannot run {argv[0]}: {error.strerror}")


def refuse(why: str) -> None:
    """Answer as the tracer would. Does not return."""
    from estimators.tracer.answering import ANSWER_FD
    from estimators.tracer.report import refusal

    os.write(ANSWER_FD, refusal(why))
    os._exit(1)


if __name__ == "__main__":
    main()
