"""A runtime directory of a test's own; what `carma estimate` starts there ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.attempt.proc import process_stat, running
from tests.waiting import until


@contextlib.contextmanager
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="carma-run-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        try:
            yield Path(folder)
        finally:
            end_alone(Path(folder))


def end_alone(runtime: Path) -> None:
    for lock in runtime.glob("carma/estimates-*.lock"):
        pid = int(lock.read_text() or 0)
        if pid and (stat := process_stat(pid)):
            os.kill(pid, signal.SIGTERM)
            _await_end(pid, stat[1])


def _await_end(pid: int, start: int) -> None:
    until(lambda: not running(pid, start), "the process that estimates to end")
