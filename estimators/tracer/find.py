"""Finds the Python command behind a job's command, and executes the tracer with it.

The daemon is root, and must neither open nor even look for paths that a user named. So this runs
in the trial, as the job's user and in the job's directory and environment, with CARMA's own
Python. Its arguments are the Python to use if the command names none itself ("": it is refused
then), the command, the tracer, its options, and what follows the command. Without a Python to use,
the command itself is traced: a script with a `#!` line, a shell script or a target of make
with one Python command, `uv run` and its like, a notebook.
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
from estimators.tracer.command import (
    HINT,
    PYTHON,
    Options,
    Unreadable,
    interpreter,
    parse,
    take_options,
    unwrap,
)
from estimators.tracer.report import ANSWER_FD, No

MOST_STEPS = 8  # of shell scripts that run shell scripts
KNOWN = frozenset(("torchrun", "accelerate", "deepspeed", "env"))
NOTEBOOKS = frozenset(("ipython", "ipython3", "jupyter", "papermill"))
MAKES = {"uv": "sync", "rye": "sync", "hatch": "env create"}
WITH_VALUES = frozenset(  # options of `run` with a value
    ("--with", "--with-requirements", "--with-editable", "-p", "--python", "--project", "--extra")
    + ("--directory", "--group", "--only-group", "--env-file", "--package", "--index", "-w")
    + ("-n", "--name", "--prefix", "--cwd", "-C", "-e", "--env")
)


def main() -> None:
    other, name, tracer, text, *words = sys.argv[1:]
    try:
        if other:
            path = name if "/" in name else shutil.which(name)
            start((*(shell.shebang(path) or (other,)), tracer, text, *words), dict(os.environ))
        options = Options.loads(text)
        argv, env, cwd, skipped, note = resolve(
            [name, *words], dict(os.environ), os.getcwd(), options.gpus
        )
        program, options = parse(argv), replace(options, skipped=skipped, note=note)
        os.chdir(cwd)
        start((*program.python, tracer, options.dumps(), *program.script), env)
    except (Unreadable, shell.Unclear) as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"cannot read {error.filename}: {error.strerror}")


def resolve(words: Sequence[str], env: dict[str, str], cwd: str, gpus: int) -> shell.Command:
    """The Python command that a command ends up running. Raises Unreadable, Unclear or OSError."""
    skipped = note = ""
    for _ in range(MOST_STEPS):
        bare = unwrap(words)
        if "srun" in map(os.path.basename, words[: len(words) - len(bare)]):
            skipped = skipped or "`srun` was left out"
        words = bare
        name = os.path.basename(words[0]) if words else ""
        if PYTHON.fullmatch(name) or name in KNOWN:
            return shell.Command(list(words), env, cwd, skipped, note)
        path = words[0] if words and "/" in words[0] else shutil.which(name, path=env.get("PATH"))
        if name in shell.SHELLS or name == "make":
            try:
                words, env, cwd, more, said = shell.command(words, env, cwd, gpus)
                skipped, note = skipped or more, note or said
            except shell.Unclear as error:
                raise shell.Unclear(f"a {name} script: {error}; {HINT}") from None
        elif name in shell.RUNNERS:
            words, env, cwd, more, _ = run(name, words[1:], env, cwd)
            skipped = skipped or more
        elif name in NOTEBOOKS:
            skipped = skipped or "IPython's kernel and magics were left out"
            words = (*(shell.shebang(path) or ("python",)), *notebook(name, words[1:]))
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


def run(tool: str, words: Sequence[str], env: dict[str, str], cwd: str) -> shell.Command:
    """What `uv run …`, `poetry run …`, `conda run -n x …` run, in the environment of the tool."""
    if list(words[:1]) != ["run"]:
        raise Unreadable(f"of {tool}, only `{tool} run` is known: {HINT}")
    given, rest = take_options(words[1:], WITH_VALUES)
    if not rest:
        raise Unreadable(f"{tool} is given nothing to run")
    inside = given.get("--directory") or given.get("--cwd") or given.get("-C") or ""
    folder = os.path.join(cwd, given.get("--project") or inside)
    cwd = os.path.join(cwd, inside)
    if tool.endswith(("conda", "mamba")):
        venv = given.get("-p") or given.get("--prefix") or ""
        root = os.path.dirname(os.path.dirname(env.get("CONDA_EXE") or shutil.which(tool) or ""))
        if name := given.get("-n") or given.get("--name"):
            venv = root if name == "base" else os.path.join(root, "envs", name)
        variable, make = "CONDA_PREFIX", f"{tool} create"
    else:
        own = (f"{place}/.venv" for place in _upwards(folder))
        venv = env.get("UV_PROJECT_ENVIRONMENT") or next(filter(os.path.isdir, own), "")
        if not venv and shell.RUNNERS[tool]:
            venv = shell.output((tool, *shell.RUNNERS[tool]), env, folder)
        variable, make = "VIRTUAL_ENV", f"{tool} {MAKES.get(tool, 'install')}"
    if not venv or not os.path.isdir(os.path.join(cwd, venv)):
        raise Unreadable(f"{tool} has made no {venv or '.venv'} for this yet: run `{make}` first")
    venv = os.path.join(cwd, venv)
    env = env | {variable: venv, "PATH": f"{venv}/bin:{env.get('PATH', os.defpath)}"}
    if module := "-m" in given or "--module" in given:
        rest = ["-m", *rest]
    if module or rest[0].endswith(".py"):
        rest = ["python", *rest]
    note = f"{tool} was not run, which may install packages first" if tool == "uv" else ""
    return shell.Command(rest, env, cwd, note)


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


def start(argv: Sequence[str], env: dict[str, str]) -> None:
    """Does not return."""
    try:
        os.execvpe(argv[0], list(argv), env)
    except OSError as error:
        refuse(f"its Python did not start: cannot run {argv[0]}: {error.strerror}")


def refuse(why: str) -> None:
    """Answer as the tracer would. Does not return."""
    os.write(ANSWER_FD, No(why).dumps())
    os._exit(1)


if __name__ == "__main__":
    main()
