"""Forks carmads from a process that has imported everything: a start takes 0.1 s instead of 1 s;
and `carma`s.

`python -m tests.warm` reads one JSON request per line: argv, env, where output goes, and the faults
to inject. It answers each with a pid.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from carmad.core.messages import Step
from carmad.daemon import main as carmad
from carmad.engine.engine import Engine
from carmad.store.sql import SqlStore
from cli import commands
from cli import main as cli
from tests import audit


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ordered it watches it
    audit.listen()
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order.get("program") == "carma":
            import_carma(order["argv"][0])
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            become(**order)
        print(pid, flush=True)


@cache
def import_carma(verb: str) -> None:
    for command in iter_modules(commands.__path__, "cli.commands."):
        import_module(command.name)
    if verb == "web":
        import_module("carma_web.app")


def become(
    argv: list[str],
    env: dict[str, str],
    out: str,
    err: str,
    crash_after: int = 0,
    forgetful: bool = False,
    status: str = "",
    program: str = "carmad",
    cwd: str = ".",
    umask: int = 0o022,
) -> None:
    """`status`: a file for the exit status."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if status:
        tell_status(status)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    os.umask(umask)
    if path := env.get("PYTHONPATH"):
        sys.path[1:1] = path.split(os.pathsep)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for target, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), target)
    if crash_after:
        crash(crash_after)
    if forgetful:
        leave_owed_actions_out()
    if program == "carma":
        sys.argv[:] = [program, *argv]
        cli.main()
    sys.exit(carmad.main(argv))


def tell_status(path: str) -> None:
    """Goes on in a child, and writes how that ends."""
    if pid := os.fork():
        Path(path).write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)


def crash(commits: int) -> None:
    """Die as by kill -9 just after this many commits, before their actions are carried out."""
    commit = SqlStore.commit
    left = commits

    def counted(store: Any, step: Step) -> None:
        nonlocal left
        commit(store, step)
        left -= step.to_write
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    SqlStore.commit = counted  # type: ignore[method-assign]


def leave_owed_actions_out() -> None:
    Engine.restore = Engine._reload  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    serve()
