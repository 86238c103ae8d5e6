"""`carma attach`: a process beside a running job."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from cli import client
from cli.app import argument, complete_jobs
from cli.client import resolve
from cli.problems import Problem

# Of this terminal, not of the one from which the job was submitted.
OWN = (
    *("TERM", "COLORTERM", "DISPLAY", "XAUTHORITY", "SSH_AUTH_SOCK", "SSH_CONNECTION", "SSH_TTY"),
    *("TMUX", "TMUX_PANE", "STY"),
)


def attach(
    job: Annotated[str, argument("JOB", "a running job of yours", autocompletion=complete_jobs)],
    command: Annotated[
        list[str] | None, argument("[COMMAND]...", "what to run (default: your shell)")
    ] = None,
) -> int:
    """It has the environment of the job, and ends with it. The exit code is the command's."""
    words = (command or [])[(command or [])[:1] == ["--"] :]
    label = resolve(job)
    taken = client.post(f"/v1/jobs/{label}/join", {})
    env = taken["env"] | {name: os.environ[name] for name in OWN if name in os.environ}
    argv = words or [os.environ.get("SHELL") or "/bin/sh", "-i"]
    sys.stdout.flush()
    try:
        os.chdir(taken["cwd"])
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        what = "command not found" if isinstance(error, FileNotFoundError) else error.strerror
        raise Problem(f"cannot run {argv[0]} in {taken['cwd']}: {what}") from None
