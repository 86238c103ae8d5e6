"""What all tests share: fixtures, and how Hypothesis tries examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fake_daemon import FakeDaemon, serving

# No deadline: a busy machine is not a fault.
settings.register_profile("carma", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("carma")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """For `carma` in this test."""
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "carmad.sock"))
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "carmad.sock") as daemon:
        yield daemon
