"""A pytest plugin: `forked` makes benchmarks' daemons start as those of other tests do, by
tests.warm, which takes a tenth of the processor time."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.daemon import carmad
from tests.daemon import Process, fork


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(words: list[str], *, env: dict[str, str], **others: Any) -> Any:
        if "FAKE_GPU" in env:  # only a new process loads the fake driver
            return subprocess.Popen(words, env=env, **others)
        return Process(fork(words[3:], env))

    its = SimpleNamespace(
        Popen=start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    monkeypatch.setattr(carmad, "subprocess", its)
