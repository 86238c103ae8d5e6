"""What pip has installed: CARMA itself, and what packages declare as entry points."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.metadata import (
    Distribution,
    EntryPoint,
    EntryPoints,
    PackageNotFoundError,
    entry_points,
    requires,
    version,
)
from importlib.util import find_spec
from typing import Any

from carmad import CLIENT, DISTRIBUTION
from carmad.errors import CarmaError

log = logging.getLogger(__name__)

try:
    VERSION = version(DISTRIBUTION)
except PackageNotFoundError:
    VERSION = "source"


def points(group: str) -> EntryPoints:
    """The entry points of a group, of packages that are found on Python's path now; of those that
    are installed later, only after `look_again`. CARMA's own come first."""
    return _of_group(tuple(sys.path), group)


def by_name(group: str) -> dict[str, EntryPoint]:
    """Those of a group. Of several packages' with the same name, CARMA's own counts."""
    found: dict[str, EntryPoint] = {}
    for point in points(group):
        found.setdefault(point.name, point)
    return found


def load_each(
    group: str, make: Callable[[Any], Any] = lambda found: found, *, quietly: bool = False
) -> Iterator[tuple[str, Any]]:
    """What is made of each of a group, by name. One that fails is logged and left out, and
    `carma doctor` names it."""
    for name, point in by_name(group).items():
        try:
            made = make(point.load())
        except (Exception, SystemExit):  # foreign code
            if not quietly:
                log.exception("%s of %s is left out, as %s fails", name, group, point.value)
        else:
            yield name, made


def is_own(point: EntryPoint) -> bool:
    return point.dist is not None and _name(point.dist) == DISTRIBUTION


@lru_cache(maxsize=32)  # asked for each job's estimate
def _of_group(path: tuple[str, ...], group: str) -> EntryPoints:
    found = _points(path).select(group=group)
    return EntryPoints(sorted(found, key=lambda point: (not is_own(point), point.name)))


@lru_cache(maxsize=1)  # it reads a file of each installed package
def _points(path: tuple[str, ...]) -> Any:
    return entry_points()  # of Python 3.11 no EntryPoints, but it has `select`


@lru_cache(maxsize=32)  # it reads a file
def _name(distribution: Distribution) -> str:
    return distribution.name


def look_again() -> None:
    _points.cache_clear()
    _of_group.cache_clear()


PACKAGE = "/usr/lib/carma-gpu"  # the Debian package's environment, which has no pip
BESIDE = "/usr/local/lib/carma-gpu"  # where its Python looks next, once the folder is there


def how_to_add(extra: str) -> str:
    """The command that installs the packages of an optional part where this CARMA runs: never CARMA
    itself, as an index may have something else of that name."""
    if sys.prefix == PACKAGE:  # its Python is a link to the system's
        command = ["sudo", "python3", "-m", "pip", "install", "--target", BESIDE]
    elif find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install"]
    else:
        command = ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*command, *packages_of(extra)])


def packages_of(extra: str) -> list[str]:
    """The packages of an optional part, with their least versions: "apprise>=1.9"."""
    needed = (each.partition(";") for each in requires(DISTRIBUTION) or ())
    quoted = (f"'{extra}'", f'"{extra}"')
    return [name.strip() for name, _, of in needed if any(each in of for each in quoted)]


def conflict() -> CarmaError | None:
    """What is wrong if the client alone is installed here, too: both have the same files, so
    uninstalling one of them breaks the other."""
    try:
        other = f"{CLIENT} {version(CLIENT)}"
    except PackageNotFoundError:
        return None
    pip = f"{sys.prefix}/bin/pip"
    return CarmaError(
        f"{other}, the client alone, is installed in {sys.prefix} beside {DISTRIBUTION}: they have"
        " the same files",
        f"{pip} uninstall {CLIENT}, then install CARMA again from your copy:"
        f" {pip} install --force-reinstall --no-deps PATH",
    )
