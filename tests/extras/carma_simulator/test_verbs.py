"""The simulator's verbs, which plug in as any package's do."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import run
from tests.carmad.test_edge import installed as installed


def test_no_package_takes_the_place_of_one_of_ours(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["help", "--all"]) == 0
    out = capsys.readouterr().out
    assert out.count(" simulate ") == 1 and "Not ours." not in out
    assert run(["simulate", "--help"]) == 0
    assert "Not ours." not in capsys.readouterr().out
