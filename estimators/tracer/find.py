"""Finds the Python interpreter of a script, and executes the tracer with it.

The daemon is root, and must neither open nor even look for paths that a user named. So this runs
in the trial, as the job's user and in the job's directory and environment, with CARMA's own
Python. Its arguments are the Python to use if the command names none itself ("": it is refused
then), the command, the tracer, its options, and what follows the command. Without a Python to use,
the command itself is traced.
"""
# The job's Python is yet to start, so imports are few:
# ruff: noqa: PTH119

import os
import re
import shutil
import stat
import sys

HINT = "give --gpu-mem, or submit the python command itself"
PYTHON = re.compile(r"python\d*(\.\d+)?t?")
LINE_BYTES = 256  # that the kernel reads of a first line


def main() -> None:
    other, name, tracer, options, *words = sys.argv[1:]
    path = name if "/" in name else shutil.which(name)
    python = shebang(path) if path else ()
    if not python and not other:
        refuse(f"{os.path.basename(name)} is no Python command: {HINT}")
    script = [] if other else [str(path)]
    argv = [*(python or (other,)), tracer, options, *script, *words]
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        refuse(f"its Python did not start: cannot run {argv[0]}: {error.strerror}")


def shebang(script: str) -> "tuple[str, ...]":
    """The Python command in a script's first line; () if there is none, or none to be read."""
    try:
        fd = os.open(script, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            start = os.read(fd, LINE_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        finally:
            os.close(fd)
    except OSError:
        return ()
    line = start.partition(b"\n")[0].decode(errors="replace")
    words = line[2:].split() if line.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return tuple(words) if words and PYTHON.fullmatch(os.path.basename(words[0])) else ()


def refuse(why: str) -> None:
    """Answer as the tracer would. Does not return."""
    from pathlib import Path

    sys.path.append(str(Path(__file__).parents[2]))
    from estimators.tracer.answering import ANSWER_FD
    from estimators.tracer.report import refusal

    os.write(ANSWER_FD, refusal(why))
    os._exit(1)


if __name__ == "__main__":
    main()
