"""`python3 demo.py`, by which newcomers begin: how it installs CARMA, and why it cannot."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import demo

ROOT = Path(__file__).parents[2]
ENSUREPIP, VIRTUALENV, PIP, UV = "ensurepip", "virtualenv", "pip", "uv"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """One that has these only."""
    there: set[str] = request.param
    monkeypatch.setattr(demo, "find_spec", lambda name: name if name in there else None)
    uv = "/bin/uv" if UV in there else None
    monkeypatch.setattr(demo.shutil, "which", lambda name: uv)


@pytest.mark.parametrize(
    ("machine", "first", "last"),
    [
        ({ENSUREPIP, UV, PIP}, "-m venv", "pip install"),
        ({UV, PIP}, "/bin/uv --quiet venv", "/bin/uv --quiet pip install"),
        ({VIRTUALENV, PIP}, "-m virtualenv", "pip install"),
        ({PIP}, "-m venv --without-pip", "-m pip --python"),
    ],
    indirect=["machine"],
)
@pytest.mark.usefixtures("machine")
def test_it_takes_what_there_is(first: str, last: str) -> None:
    begin, *_, end = [" ".join(words) for words in demo.find_way()]
    assert first in begin and last in end
    assert f"--constraint {ROOT / 'constraints.txt'} --editable {ROOT}" in end


@pytest.mark.parametrize("machine", [set()], indirect=True)
@pytest.mark.usefixtures("machine")
def test_without_any_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "CARMA", str(tmp_path / "carma"))
    with pytest.raises(SystemExit, match="apt-get install python3-venv"):
        demo.main()


def test_a_step_that_fails_leaves_nothing_half_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "venv").mkdir()
    monkeypatch.setattr(demo, "VENV", tmp_path / "venv")
    monkeypatch.setattr(demo, "find_way", lambda: [["true"], ["false"], ["true"]])
    with pytest.raises(SystemExit, match="exit code 1: false"):
        demo.install()
    assert not (tmp_path / "venv").exists()


def test_an_old_python_is_told_and_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ast.parse((ROOT / "demo.py").read_text(encoding="utf-8"), feature_version=(3, 7))
    monkeypatch.setattr(demo.sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer, and this is 3\.9"):
        demo.main()


@pytest.mark.skipif(not Path(demo.CARMA).exists(), reason="would install CARMA")
def test_what_is_installed_is_run() -> None:
    words = [sys.executable, str(ROOT / "demo.py"), "--help"]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: carma demo")
