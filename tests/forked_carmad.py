"""A pytest plugin: `forked` makes benchmarks' daemons start as those of other tests do, by
tests.warm, which takes a tenth of the processor time."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.daemon import carmad
from tests.daemon import fork


class Forked:
    """What a `Daemon` needs of `subprocess.Popen`; it is no child of this process."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self.pid = fork(words[3:], env, Path(os.devnull), Path(os.devnull))
        self._pidfd: int | None = None  # it may have ended already
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """0 once it has ended: nobody knows how."""
        return 0 if self._ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("carmad", timeout or 0.0)
        return 0

    def _ended(self, within_s: float | None) -> bool:
        return self._pidfd is None or bool(select.select([self._pidfd], [], [], within_s)[0])

    def send_signal(self, signum: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(words: list[str], *, env: dict[str, str], **others: Any) -> Any:
        if "FAKE_GPU" in env:  # only a new process loads the fake driver
            return subprocess.Popen(words, env=env, **others)
        return Forked(words, env)

    its = SimpleNamespace(
        Popen=start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    monkeypatch.setattr(carmad, "subprocess", its)
