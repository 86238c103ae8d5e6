"""`carma extras`: what is optional, what it needs, and how it is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from carmad.installed import how_to_add, missing, packages_of
from cli.commands import extras
from cli.main import run

ROOT = Path(__file__).parents[2]
OWN = "carma-gpu"
DEVELOPERS = {"docs", "test"}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands, of which none runs; where they would install, one may write."""
    commands: list[list[str]] = []

    def pretend(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(extras.subprocess, "run", pretend)
    monkeypatch.setattr(extras.sysconfig, "get_path", lambda _: str(tmp_path))
    return commands


def test_the_list_has_all_that_is_optional(capsys: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["optional-dependencies"]
    assert set(extras.ABOUT) == set(declared) - DEVELOPERS
    assert run(["extras", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["extras"]
    assert {one["name"]: sorted(one["packages"]) for one in listed} == {
        name: sorted(packages) for name, packages in declared.items() if name in extras.ABOUT
    }
    assert run(["extras"]) == 0
    assert "carma mcp" in capsys.readouterr().out


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing("mcp") == []
    needed = [*packages_of("mcp"), "no-such-package>=2"]
    monkeypatch.setattr("carmad.installed.packages_of", lambda _: needed)
    assert missing("mcp") == ["no-such-package>=2"]


def test_pip_is_asked_for_packages_and_never_for_carma(ran: list[list[str]]) -> None:
    assert run(["extras", "install", "mcp", "sim"]) == 0
    (command,) = ran
    assert command[:5] == [sys.executable, "-I", "-m", "pip", "install"]
    assert command[5:] == sorted([*packages_of("mcp"), *packages_of("sim")])
    for name in extras.ABOUT:
        assert packages_of(name) and OWN not in str(packages_of(name))


def test_without_pip_it_is_uv(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    monkeypatch.setattr(extras.shutil, "which", lambda name: f"/bin/{name}")
    assert run(["extras", "install", "mcp"]) == 0
    assert ran[0][:5] == ["/bin/uv", "pip", "install", "--python", sys.executable]


def test_without_both_it_says_what_to_install(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    monkeypatch.setattr(extras.shutil, "which", lambda _: None)
    assert run(["extras", "install", "mcp"]) == 1
    assert "neither pip nor uv" in capsys.readouterr().err
    assert ran == []


def test_the_debian_package_installs_beside_itself(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "BESIDE", str(tmp_path / "beside"))
    monkeypatch.setattr(extras, "PACKAGE", sys.prefix)
    assert run(["extras", "install", "mcp"]) == 0
    system = str(Path(sys.executable).resolve())
    expected = ["-I", "-m", "pip", "install", "--target", str(tmp_path / "beside")]
    assert ran[-1] == [system, *expected, *packages_of("mcp")]


def test_who_may_not_write_is_told_who_may(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(extras.os, "access", lambda *_: False)
    assert run(["extras", "install", "mcp"]) == 1
    assert re.search(r"sudo \S*carma extras install mcp", capsys.readouterr().err)
    assert ran == []


def test_pips_failure_is_ones_own(monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]) -> None:
    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(extras.subprocess, "run", fail)
    assert run(["extras", "install", "mcp"]) == 3


@pytest.mark.parametrize("words", [[], ["no-such"]])
def test_a_part_is_named(words: list[str], capsys: Any) -> None:
    assert run(["extras", "install", *words]) == 2
    assert "name one or more of sim" in capsys.readouterr().err


def test_no_message_has_pip_install_carma_by_name() -> None:
    """The name is not CARMA's on any index: whoever takes it there would be installed as root."""
    by_name = re.compile(
        r"\b(pip|pipx|tool|conda|apt-get) install[^\n`#]*['\" ]carma(-gpu|-client)?(\[|['\" `]|$)",
        re.MULTILINE,
    )
    assert by_name.search("pip install 'carma-gpu[mcp]'") and by_name.search("pip install carma")
    shown = [path for path in sources() if by_name.search(path.read_text(encoding="utf-8"))]
    assert shown == []
    assert how_to_add("mcp") == "carma extras install mcp"


def sources() -> list[Path]:
    """All that people read: the product's text, its documentation and its packaging."""
    folders = (
        "carmad",
        "carma_client",
        "cli",
        "estimators",
        "extras",
        "policies",
        "recovery",
        "docs",
    )
    return [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "demo.py")),
        *(path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in READ),
    ]


READ = (".py", ".md", ".j2", ".toml")
