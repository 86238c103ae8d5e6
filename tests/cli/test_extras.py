"""Optional parts: what they need, and how that is installed."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from carmad import installed
from carmad.installed import how_to_add

ROOT = Path(__file__).parents[2]
DEVELOPERS = {"docs", "test"}


def test_the_guide_has_all_that_is_optional() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    guide = (ROOT / "docs/guides/packages.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", guide, re.MULTILINE))
    declared = project["optional-dependencies"]
    wanted = {name: set(its) for name, its in declared.items() if name not in DEVELOPERS}
    wanted.pop("otel", None)
    assert {name: set(re.findall(r"`([^`]+)`", row)) for name, row in rows.items()} == wanted


def test_the_command_is_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda _: object())
    assert how_to_add("mcp") == f"{sys.executable} -m pip install 'mcp>=2'"
    monkeypatch.setattr(installed, "find_spec", lambda _: None)
    assert how_to_add("mcp") == f"uv pip install --python {sys.executable} 'mcp>=2'"
    monkeypatch.setattr(installed, "PACKAGE", sys.prefix)
    assert how_to_add("mcp").startswith("sudo python3 -m pip install --target /usr/local/lib/")


def test_no_message_has_pip_install_carma_by_name() -> None:
    """The name is not CARMA's on any index: whoever takes it there would be installed as root."""
    by_name = re.compile(
        r"\b(pip|pipx|tool|conda|apt-get) install[^\n`#]*['\" ]carma(-gpu|-client)?(\[|['\" `]|$)",
        re.MULTILINE,
    )
    assert by_name.search("pip install 'carma-gpu[mcp]'") and by_name.search("pip install carma")
    shown = [path for path in sources() if by_name.search(path.read_text(encoding="utf-8"))]
    assert shown == []
    assert "carma" not in how_to_add("mcp").rpartition("install")[2].replace(sys.prefix, "")


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
