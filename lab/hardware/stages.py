"""The stages of the campaign, in order, and whether this machine has the packages for each."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from carmad import DISTRIBUTION
from lab.hardware.visit import Stage

ORDER = ("facts", "cost", "memory", "loads", "pairs", "suspend", "trace", "faults")
ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "wheels"  # packages that were carried here, unpacked
MODULES = {"nvidia-ml-py": "pynvml", "scikit-learn": "sklearn"}  # where it is not the name


class Lacking(Exception):
    """A stage cannot be run by this Python; the message says what to bring."""


def bring() -> None:
    """Look for packages in WHEELS, too, and in children as well. What this Python has itself comes
    first, unless some of it is too old."""
    if not WHEELS.is_dir():
        return
    known = list(filter(None, [os.environ.get("PYTHONPATH")]))
    if any(map(_too_old, _minimums())):
        sys.path.insert(0, str(WHEELS))
        path = [str(WHEELS), *known]
    else:
        sys.path.append(str(WHEELS))
        path = [*known, str(WHEELS)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)


def load(name: str) -> Stage:
    """Raises Lacking, with what to carry."""
    if missing := [package for package in _own() if not _here(package)]:
        raise Lacking(_advice(name, missing))
    try:
        stage: Stage = import_module(f"lab.hardware.{name}").STAGE
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(("benchmarks", "lab")):
            raise Lacking(f"stage {name} is not part of this checkout: no {error.name}") from None
        raise Lacking(_advice(name, [(error.name or "?").partition(".")[0]])) from error
    except (ImportError, AttributeError) as error:  # as of a package that is too old, or broken
        raise Lacking(f"stage {name} cannot be loaded by this Python: {error}") from error
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
    """The distributions that CARMA itself needs, and its own, by which it finds its plugins."""
    return [DISTRIBUTION, *map(_name, _project(ROOT)["dependencies"])]


@cache
def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0]


@cache
def _minimums() -> dict[str, str]:
    """Of what CARMA, its estimators and the laboratory need."""
    carma, lab = _project(ROOT), _project(ROOT / "lab")
    estimators = carma["optional-dependencies"]["estimators"]
    needed = [*carma["dependencies"], *estimators, *lab["dependencies"]]
    return {_name(each): least[1] for each in needed if (least := re.search(r">=([\d.]+)", each))}


def _here(package: str) -> bool:
    if package == DISTRIBUTION:
        return _version(package) is not None
    module = MODULES.get(package, package.replace("-", "_").lower())
    return find_spec(module) is not None and not _too_old(package)


def _too_old(package: str) -> bool:
    least, its = _minimums().get(package), _version(package)
    return least is not None and its is not None and _release(its) < _release(least)


def _version(package: str) -> str | None:
    """None: there is no metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """2.13.0a1+cpu is (2, 13); zeros at the end mean nothing."""
    told = re.match(r"[\d.]*", version)
    numbers = re.findall(r"\d+", told[0] if told else "")
    while numbers and int(numbers[-1]) == 0:
        numbers.pop()
    return tuple(map(int, numbers))


def _advice(stage: str, missing: Sequence[str]) -> str:
    """Of `missing`, CARMA itself is no package: it comes with the checkout."""
    names = ["carma's metadata" if package == DISTRIBUTION else package for package in missing]
    return (
        f"stage {stage} needs packages that this Python lacks, or has too old: {' '.join(names)}\n"
        "On a machine with a network, where CARMA is installed, in the project's folder:\n"
        f"  python -m lab.hardware carry {WHEELS.name}\n"
        f"and bring the folder here as {WHEELS}; PYTHONPATH is searched, too. Torch, timm and"
        " transformers are not among them: the machine has its own."
    )
