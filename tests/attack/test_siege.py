"""The siege's cases, once and small: the states that they promise, and never a time.

Those that can be on at once are, in `all`. `python -m benchmarks.daemon.siege` has each alone, and
measures what an honest user notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from benchmarks.daemon.siege import cases
from benchmarks.daemon.siege.__main__ import besiege
from benchmarks.daemon.siege.cases import AT_ONCE, CASES, Case
from benchmarks.daemon.siege.field import Field, open_field
from tests.attack.booted import skipped
from tests.attack.refused import recorded

TOGETHER = {*AT_ONCE, cases.array}
SMALL = {"TASKS": 300, "CONNECTIONS": 100, "STREAMS": 80, "FORKS": 50, "KILLS": 1}


@pytest.fixture(scope="module")
def field() -> Iterator[Field]:
    """One machine for all: what a case leaves behind, the next one meets."""
    with skipped(), open_field() as field:
        yield field


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.attack not in TOGETHER], ids=lambda case: case.name
)
def test_an_honest_user_goes_on(field: Field, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(cases, name, value)
    # To trace each call of a daemon that is flooded takes most of all tests' processor time; what
    # the kernel refuses it, it refuses in the other cases as well.
    with recorded(field.machine) if case.attack is not cases.everything else nullcontext():
        found = besiege(field, case, rounds=0, times=0, jobs=1)
    if found.skipped:
        pytest.skip(found.skipped)
    assert not found.failed
    assert not found.lost and not found.doubled
