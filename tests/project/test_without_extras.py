"""The middle where no extra is installed. That it imports none, the import linter shows."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, ROOT, Carmad
from tests.waiting import PATIENCE_S

EXTRAS = sorted(path.parent.name for path in ROOT.glob("extras/*/__init__.py"))
WITHOUT = """
import sys
sys.path.insert(0, {site!r})
sys.modules.update(dict.fromkeys({extras!r}))  # to import one of them fails
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Has the entry points of CARMA that no extra has registered."""
    (info,) = (file for file in distribution("carma-gpu").files or () if file.name == "METADATA")
    theirs = Path(str(info.locate())).parent
    ours = Path(shutil.copytree(theirs, tmp_path / "site" / theirs.name))
    points = configparser.ConfigParser(delimiters=("=",))
    points.optionxform = str  # type: ignore[assignment,method-assign]
    points.read(ours / "entry_points.txt")
    for group in points.values():
        for name, value in list(group.items()):
            if value.partition(":")[0].partition(".")[0] in EXTRAS:
                del group[name]
    with (ours / "entry_points.txt").open("w") as file:
        points.write(file)
    return ours.parent


def test_jobs_run_and_commands_answer(site: Path, tmp_path: Path) -> None:
    daemon = Carmad(tmp_path, **NO_KERNELS)
    without = WITHOUT.format(site=str(site), extras=EXTRAS)

    def carma(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", f"{without}\nfrom cli.main import main; main()", *words],
            env=daemon.env | {"CARMA_SOCKET": daemon.socket},
            cwd=daemon.work,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    try:
        daemon.start_cold(first=without)
        ran = carma("submit", "--wait", "--gpus", "0", "--", "sh", "-c", "exit 3")
        assert ran.returncode == 3, ran.stderr
        assert " web " not in carma("--help").stdout
        refused = carma("web")
        assert refused.returncode == 2 and "web" in refused.stderr
        plugins = {check["name"]: check for check in daemon.get("/v1/doctor")["checks"]}["plugins"]
        assert plugins["ok"], plugins
        assert "Traceback" not in daemon.log.read_text()
    finally:
        daemon.clear_away()
