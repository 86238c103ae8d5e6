"""CARMA as pip knows it."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, entry_points, version

from carmad import DISTRIBUTION
from carmad.errors import CarmaError

try:
    VERSION = version(DISTRIBUTION)
except PackageNotFoundError:
    VERSION = "source"


def conflict() -> CarmaError | None:
    """What is wrong if an earlier release, which pip knew as `carma`, is installed here, too.

    Both have the same files: uninstalling one of them breaks the other.
    """
    programs = entry_points(group="console_scripts", name="carmad")
    names = {f"{point.dist.name} {point.dist.version}" for point in programs if point.dist}
    others = sorted(name for name in names if name.split()[0] != DISTRIBUTION)
    if not others:
        return None
    other, pip = others[0], f"{sys.prefix}/bin/pip"
    return CarmaError(
        f"{other}, an earlier release of CARMA, is installed in {sys.prefix} beside {DISTRIBUTION}:"
        " they have the same files",
        f"{pip} uninstall {other.split()[0]}, then install {DISTRIBUTION} again"
        " (pip install --force-reinstall --no-deps)",
    )
