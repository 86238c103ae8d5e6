"""Forks carmads from a process that has imported everything: a start takes 0.1 s instead of 1 s.

`python -m tests.warm` reads one JSON request per line: argv, env, log, and the faults to inject. It
answers each with a pid.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import Any

from carmad.core.messages import Step
from carmad.daemon import main as carmad
from carmad.engine.engine import Engine
from carmad.store.sql import SqlStore


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ordered it watches it
    gc.freeze()
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            become(**json.loads(line))
        print(pid, flush=True)


def become(
    argv: list[str], env: dict[str, str], log: str, crash_after: int, forgetful: bool
) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    nothing = os.open(os.devnull, os.O_RDWR)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target, fd in enumerate((nothing, written, written)):
        os.dup2(fd, target)
    if crash_after:
        crash(crash_after)
    if forgetful:
        leave_owed_actions_out()
    sys.exit(carmad.main(argv))


def crash(commits: int) -> None:
    """Die as by kill -9 just after this many commits, before their actions are carried out."""
    commit = SqlStore.commit
    left = commits

    def counted(store: Any, step: Step) -> None:
        nonlocal left
        before = store._step
        commit(store, step)
        left -= store._step - before
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    SqlStore.commit = counted  # type: ignore[method-assign]


def leave_owed_actions_out() -> None:
    Engine.restore = Engine._reload  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    serve()
