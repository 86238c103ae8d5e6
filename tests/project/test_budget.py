"""The budget of lines, which `make lint` holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import ROOT

BUDGET = """
[tool.carma.budget]
middle = { lines = 5, of = ["core", "cli"] }
tests = { lines = 9, of = ["tests"] }
"""


@pytest.mark.parametrize(("lines", "code"), [(2, 0), (3, 1)])
def test_a_part_that_grows_beyond_its_budget_fails(tmp_path: Path, lines: int, code: int) -> None:
    (tmp_path / "pyproject.toml").write_text(BUDGET)
    for folder, count in {"core/rules": 3, "cli": lines, "tests": 9}.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "code.py").write_text("pass\n" * count)
    argv = [sys.executable, ROOT / ".ci/budget.py"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    shown = [line.split()[:2] for line in done.stdout.splitlines()]
    assert shown == [["middle", str(3 + lines)], ["tests", "9"]]
    assert ("over their budgets: middle" in done.stderr) == (code == 1)
