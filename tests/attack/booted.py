"""`benchmarks.daemon.booted` for tests: with their settings, and skipped where it cannot be had."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.daemon import booted as machines
from benchmarks.daemon.booted import SOCKET as SOCKET
from benchmarks.daemon.booted import USERS as USERS
from benchmarks.daemon.booted import Json as Json
from benchmarks.daemon.booted import Machine as Machine
from tests.attack.refused import recorded
from tests.daemon import NO_KERNELS, QUICK


@contextlib.contextmanager
def booted(folder: Path, users: Mapping[str, int] = USERS, **settings: str) -> Iterator[Machine]:
    settings = QUICK | NO_KERNELS | settings
    with skipped(), machines.boot(folder, users, **settings) as machine, recorded(machine):
        yield machine


@contextlib.contextmanager
def systemd_in(folder: Path, inside: str, variables: Mapping[str, str]) -> Iterator[Machine]:
    with skipped(), machines.systemd_in(folder, inside, variables) as machine, recorded(machine):
        yield machine


@contextlib.contextmanager
def skipped() -> Iterator[None]:
    """Skip the test where no machine can be booted."""
    try:
        yield
    except machines.NotBooted as error:
        pytest.skip(str(error))
