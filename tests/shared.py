"""What tests share to be quick: what is made once for all workers, and cases that only `make
test-long` tries."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable
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


def rarely(rare: Iterable[object], daily: Iterable[object]) -> list[object]:
    """The cases of a parametrised test, of which `rare` are marked `long`."""
    cases = [each if isinstance(each, tuple) else (each,) for each in rare]
    return [*daily, *(pytest.param(*each, marks=pytest.mark.long) for each in cases)]
