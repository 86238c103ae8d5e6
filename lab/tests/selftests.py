"""A pytest plugin beside `tests.fake_machine`: its machine runs the laboratory's checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.selftest import PROBE, faults
from lab.selftest.facts import EXPLAINING

if TYPE_CHECKING:
    from tests.fake_machine import Machine


@pytest.fixture
def laboratory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(machine), "facts", EXPLAINING)
    monkeypatch.setattr(type(machine), "probe", PROBE)
    monkeypatch.setattr(faults, "NEWS_WITHIN_S", 0.7)
