"""What pip has installed: CARMA itself, and what packages declare as entry points."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import EntryPoints, PackageNotFoundError, entry_points, requires, version
from importlib.util import find_spec
from typing import Any

from carmad import CLIENT, DISTRIBUTION
from carmad.errors import CarmaError

try:
    VERSION = version(DISTRIBUTION)
except PackageNotFoundError:
    VERSION = "source"


def points(group: str) -> EntryPoints:
    """The entry points of a group, of packages that are found on Python's path now; of those that
    are installed later, only after `look_again`."""
    found: EntryPoints = _points(tuple(sys.path)).select(group=group)
    return found


@lru_cache(maxsize=1)  # it reads a file of each installed package
def _points(path: tuple[str, ...]) -> Any:
    return entry_points()  # of Python 3.11 no EntryPoints, but it has `select`


def look_again() -> None:
    _points.cache_clear()


BESIDE = "/usr/local/lib/carma-gpu"  # where the Debian package's Python looks next: it has no pip


def how_to_add(extra: str) -> str:
    """The command that installs an optional part where this CARMA runs, whatever environment it is
    given in. It names packages: an index may not have CARMA."""
    needed = (each.partition(";") for each in requires(DISTRIBUTION) or ())
    quoted = (f"'{extra}'", f'"{extra}"')
    packages = " ".join(
        f"'{name.strip()}'" for name, _, of in needed if any(each in of for each in quoted)
    )
    if BESIDE in sys.path:
        return f"python3 -m pip install --target {BESIDE} {packages}"
    if find_spec("pip") is None:
        return f"uv pip install --python {sys.executable} {packages}"
    return f"{sys.executable} -m pip install {packages}"


def conflict() -> CarmaError | None:
    """What is wrong if the client alone is installed here, too, or an earlier release, which pip
    knew as `carma`.

    Both have the same files: uninstalling one of them breaks the other.
    """
    programs = points("console_scripts").select(name="carmad")
    names = {f"{point.dist.name} {point.dist.version}" for point in programs if point.dist}
    others = [
        f"{name}, an earlier release of CARMA,"
        for name in sorted(names)
        if name.split()[0] != DISTRIBUTION
    ]
    with suppress(PackageNotFoundError):
        others.append(f"{CLIENT} {version(CLIENT)}, the client alone,")
    if not others:
        return None
    other, pip = others[0], f"{sys.prefix}/bin/pip"
    return CarmaError(
        f"{other} is installed in {sys.prefix} beside {DISTRIBUTION}: they have the same files",
        f"{pip} uninstall {other.split()[0]}, then install {DISTRIBUTION} again"
        " (pip install --force-reinstall --no-deps)",
    )
