"""The laboratory's commands: all are described, and all that are written about are there."""

from __future__ import annotations

from tests.commands import is_there, undescribed, written


def test_every_command_that_is_written_down_is_there() -> None:
    assert [name for name in sorted(written("lab")) if not is_there(name)] == []


def test_every_command_is_in_the_readme() -> None:
    assert list(undescribed("lab")) == []
