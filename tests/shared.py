"""What takes long to make and nobody changes: made once for all workers of a run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of that name, which `make` has made, in this worker or another."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # that of all
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / name).exists():
            unfinished = base / f"{name}.unfinished"
            make(unfinished)
            unfinished.rename(base / name)
    return base / name
