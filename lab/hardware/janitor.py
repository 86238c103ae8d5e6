"""Ends what a command of the campaign leaves behind, should it be killed in the midst of a stage.

Daemons, their jobs and MPS are meant to outlive who started them. So this module, as a program,
waits for the end of the command's pipe, and kills all that has to do with its temporary folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import psutil

from benchmarks import ROOT
from carmad.attempt.proc import own_environment

MARKS = ("TMPDIR", "CUDA_MPS_PIPE_DIRECTORY")  # of the environment, in which the folder is named
ROUNDS = 20  # whoever is killed last may have started another
PAUSE_S = 0.1
DONE_WITHIN_S = 30.0


@contextlib.contextmanager
def looked_after() -> Iterator[None]:
    """TMPDIR is a folder that is gone at the end of the block, or of this process, together with
    the processes that have it from this one."""
    folder = tempfile.mkdtemp(prefix="cv-")  # short: sockets of MPS lie below
    command = [sys.executable, "-m", "lab.hardware.janitor", folder]
    janitor = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
    try:
        with (
            mock.patch.dict(os.environ, TMPDIR=folder),
            mock.patch.object(tempfile, "tempdir", folder),
        ):
            yield
    finally:
        assert janitor.stdin
        janitor.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            janitor.wait(DONE_WITHIN_S)


def clean(folder: str) -> None:
    for _ in range(ROUNDS):
        left = leftovers(folder)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not left:
            break
        time.sleep(PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)


def leftovers(folder: str) -> set[psutil.Process]:
    """Those that name the folder, and their descendants, as MPS daemons of root's carmad do not."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if not (env := own_environment(process.pid)):
                continue
            words = [*(env.get(mark, "") for mark in MARKS), *process.cmdline()]
            if process.status() != psutil.STATUS_ZOMBIE and any(folder in word for word in words):
                found.update([process, *process.children(recursive=True)])
    return {process for process in found if process.pid != os.getpid()}


if __name__ == "__main__":
    sys.stdin.read()
    clean(str(Path(sys.argv[1])))
