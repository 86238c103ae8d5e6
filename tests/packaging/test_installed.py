"""What pip installs: the wheel, and what is said of an earlier release that is there, too."""

from __future__ import annotations

import configparser
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.shared import made_once
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
OFFLINE = ["--no-index", "--no-deps"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (made,) = made_once(tmp_path_factory, "wheel", _build).iterdir()
    return made


def _build(folder: Path) -> None:
    build = ["wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*PIP, *build], check=True, timeout=PATIENCE_S)


def test_the_wheel_has_all_that_the_packages_have(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    info = wheel.name.partition("-py3")[0]
    assert info.startswith("carma_gpu-")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = Parser().parsestr(archive.read(f"{info}.dist-info/METADATA").decode())
        points = configparser.ConfigParser(delimiters=("=",))
        points.optionxform = str  # type: ignore[assignment,method-assign]  # not in lower case
        points.read_string(archive.read(f"{info}.dist-info/entry_points.txt").decode())
    assert metadata["Name"] == "carma-gpu"
    assert dict(points["console_scripts"]) == project["project"]["scripts"]
    for group, declared in project["project"]["entry-points"].items():
        assert dict(points[group]) == declared
    target = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in target["packages"]:
        place = target["sources"].get(package, Path(package).name)
        for file in (ROOT / package).rglob("*.*"):  # templates, static files, models, tables, …
            if file.is_file() and "__pycache__" not in file.parts:
                assert str(place / file.relative_to(ROOT / package)) in names
    for unit in (ROOT / "systemd").iterdir():
        assert f"{info}.data/data/share/carma/systemd/{unit.name}" in names


class Environment:
    """A virtual environment, which has what CARMA needs but not CARMA."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        (self.packages,) = folder.glob("lib/python*/site-packages")
        needs = sysconfig.get_path("purelib")
        (self.packages / "needs.pth").write_text(needs, encoding="utf-8")

    def install(self, *what: str | Path) -> None:
        into = ["--python", str(self.python), "install", "--no-compile"]
        run = subprocess.run([*PIP, *into, *OFFLINE, *map(str, what)], timeout=PATIENCE_S)
        assert run.returncode == 0

    def run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [str(self.python.parent / program), *words],
            cwd=self.packages.parent,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def env(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    env = Environment(tmp_path_factory.mktemp("installed") / "env")
    env.install(wheel)
    return env


def test_the_wheel_works_in_an_environment_of_its_own(env: Environment, tmp_path: Path) -> None:
    root = tmp_path / "root"
    where = env.run("python", "-c", "import carmad; print(carmad.__file__)")
    assert where.startswith(str(env.packages))
    assert env.run("carma", "--version").startswith("carma ")
    env.run("carma", "daemon", "install", "--root", str(root))
    assert "ExecStart=" in (root / "etc/systemd/system/carmad.service").read_text(encoding="utf-8")


def test_the_wheel_works_as_it_is(wheel: Path, tmp_path: Path) -> None:
    """As a zip on Python's path, beside others' packages."""
    env = Environment(tmp_path / "env")
    (env.packages.parent / "cli.py").write_text("raise SystemExit('theirs')")
    code = (
        f"import sys; sys.path.insert(1, {str(wheel)!r}); from carmad.entry import carma; carma()"
    )
    assert env.run("python", "-c", code, "--version").startswith("carma ")


CHECKED = """
import subprocess

from carmad.daemon import doctor

assert doctor._plugins()["ok"], doctor._plugins()["detail"]

from cli.commands import doctor

run = subprocess.run
doctor.subprocess.run = lambda argv, **_: run(argv, cwd="/")  # only root can become another user
assert doctor._run_as(0, 0, "import cli.main", 60.0).returncode == 0
"""


@pytest.mark.long
def test_the_doctor_finds_what_is_in_our_folder(env: Environment) -> None:
    env.run("python", "-c", f"from carmad import registry\n{CHECKED}")


THEIRS = ("cli", "estimators", "policies", "recovery")
OF_THEIRS = "; ".join(f"import {name}; assert {name}.WHOSE == 'theirs'" for name in THEIRS)
OWN_AND_THEIRS = """
from carmad import registry
from carmad.config import Settings

assert registry.bare_policy(Settings()).name == "magm"
assert registry.bare_recovery(Settings()).name == "exclusive"
assert registry.bare_policy(Settings(policy="theirs")).name == "theirs"

from carma_testing.training import assert_fits, trace
"""
POLICY = """
class Theirs:
    name = "theirs"

def make(settings):
    return Theirs()
"""
PROJECT = f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "theirs"
version = "1"
[project.entry-points."carma.policies"]
theirs = "their_policy:make"
[tool.hatch.build.targets.wheel]
include = {[*THEIRS, "their_policy.py"]}
"""


def test_others_packages_may_have_the_names_of_our_folders(wheel: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in THEIRS:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("WHOSE = 'theirs'\n")
    (project / "their_policy.py").write_text(POLICY)
    (project / "pyproject.toml").write_text(PROJECT)
    env = Environment(tmp_path / "env")
    for each in (project, wheel):
        env.install("--no-build-isolation", each)
    env.run("python", "-c", OF_THEIRS)
    env.run("python", "-c", OWN_AND_THEIRS)
    assert "List running and waiting jobs" in env.run("carma", "queue", "--help")
