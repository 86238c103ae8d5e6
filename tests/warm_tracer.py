"""Forks tracers from a process that has imported torch, which takes longer than most traces.

Run as a script, this reads a JSON request per line and answers each with the exit status. The
tracers are confined as usual: only imports come before that, not after.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class Tracers:
    """That process: it starts when it is first needed. Close it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        if self._process:
            self._process.communicate()

    def run(
        self, argv: Sequence[str], cwd: str, answer: Path, output: Path, within_s: float
    ) -> int | None:
        """Run the tracer to its end; its exit status, or None if it was killed after `within_s`.

        `argv`: the tracer's folder, then its arguments. `answer`, `output`: files to write.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin
        assert self._process.stdout
        files = {"answer": str(answer), "output": str(output)}
        request = {"argv": argv, "cwd": cwd, "env": dict(os.environ), **files}
        print(json.dumps([request, within_s]), file=self._process.stdin, flush=True)
        status: int | None = json.loads(self._process.stdout.readline())
        return status


def serve() -> None:
    import sympy  # noqa: F401  this and parts of torch are imported as late as they can be
    import torch.distributed.tensor
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    del sys.path[0]  # this folder
    while line := sys.stdin.readline():
        request, within_s = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(**request)
        ended = os.pidfd_open(pid)
        late = not select.select([ended], [], [], within_s)[0]
        os.close(ended)
        if late:
            os.killpg(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps(None if late else status), flush=True)


def become(argv: list[str], cwd: str, env: dict[str, str], answer: str, output: str) -> None:
    """Does not return."""
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for target, path in ((1, output), (3, answer)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), target)
    os.dup2(1, 2)
    sys.argv[:] = argv
    runpy.run_path(argv[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    serve()
