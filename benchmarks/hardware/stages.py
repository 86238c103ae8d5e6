"""The stages of the campaign, in order, and whether this machine has the packages for each."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.hardware.visit import Stage

ORDER = ("facts", "cost", "memory", "loads", "pairs", "trace", "faults")
ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "wheels"  # packages that were carried here, unpacked
MODULES = {"nvidia-ml-py": "pynvml", "scikit-learn": "sklearn"}  # where it is not the name


class Lacking(Exception):
    """A stage cannot be run by this Python; the message says what to bring."""


def bring() -> None:
    """Look for packages in WHEELS, too: what this Python has itself comes first. Children as well:
    a PYTHONPATH comes first there, but holds only what was missing."""
    if WHEELS.is_dir():
        sys.path.append(str(WHEELS))
        known = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = f"{known}{os.pathsep if known else ''}{WHEELS}"


def load(name: str) -> Stage:
    """Raises Lacking, with the wheels to carry."""
    if missing := [package for package in _own() if not _here(package)]:
        raise Lacking(_advice(name, missing))
    try:
        stage: Stage = import_module(f"benchmarks.hardware.{name}").STAGE
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("benchmarks"):
            raise Lacking(f"stage {name} is not part of this checkout: no {error.name}") from None
        raise Lacking(_advice(name, [(error.name or "?").partition(".")[0]])) from error
    if missing := [package for package in stage.packages if not _here(package)]:
        raise Lacking(_advice(name, missing))
    return stage


def loaded(names: Iterable[str]) -> tuple[list[Stage], list[str]]:
    """The stages that this machine has the packages for, and what the others lack."""
    here, lacking = [], []
    for name in names:
        try:
            here.append(load(name))
        except Lacking as error:
            lacking.append(str(error))
    return here, lacking


def _own() -> list[str]:
    """The distributions that CARMA itself needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [_bare(requirement) for requirement in project["dependencies"]]


def _bare(requirement: str) -> str:
    return requirement.split(">")[0].split("=")[0].split("<")[0].strip()


def _here(package: str) -> bool:
    return find_spec(MODULES.get(package, package.replace("-", "_").lower())) is not None


def _advice(stage: str, missing: Iterable[str]) -> str:
    pinned = " ".join(_pinned(package) for package in missing)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"stage {stage} needs packages that this Python lacks: {pinned}\n"
        "On a machine with a network, in the project's folder:\n"
        f"  pip install --target wheels --python-version {python} --only-binary=:all: "
        f"--constraint constraints.txt {pinned}\n"
        f"and bring the folder here as {WHEELS}; PYTHONPATH is searched, too."
    )


@cache
def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {line.partition("==")[0].lower(): line for line in lines if "==" in line}


def _pinned(package: str) -> str:
    """NAME==VERSION, as CARMA is tested with."""
    return _pins().get(package.lower(), package)
