"""CARMA's optional parts: `extras`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from carmad.installed import missing, packages_of
from cli import output
from cli.options import add_json
from cli.problems import Problem, Usage
from cli.text import Column, Table

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace

    from cli.plain import Options

ABOUT = {
    "sim": "reports as pages, drawings, Parquet files",
    "policies": "the policy cuckoo, and training of models",
    "mcp": "tools for agents: carma mcp",
    "estimators": "estimates of timm's models, and gpumemnet; with PyTorch",
}
PACKAGE = "/usr/lib/carma-gpu"  # the Debian package's environment, which has no pip
BESIDE = "/usr/local/lib/carma-gpu"  # where its Python looks next, once the folder is there


def extras_options(parser: Options) -> None:
    parser.add_argument("verb", nargs="?", choices=("install",), help="install the parts named")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(ABOUT)}")
    add_json(parser)


def extras(options: Namespace) -> int:
    """Without `install`, list the parts, and which of the packages that they need are missing.

    `install` runs pip, or uv where there is no pip, in the environment that CARMA runs in. It asks
    for these packages, and never for CARMA itself: an index may have something else of that name.
    """
    if options.verb is None:
        _list(options.json)
        return 0
    unknown = [name for name in options.names if name not in ABOUT]
    if unknown or not options.names:
        what = f"there is no part {unknown[0]!r}" if unknown else "no part is named"
        raise Usage(what, f"name one or more of {', '.join(ABOUT)}")
    return _install(options.names)


def _list(as_json: bool) -> None:
    if as_json:
        parts = [
            {"name": name, "about": about, "packages": packages_of(name), "missing": missing(name)}
            for name, about in ABOUT.items()
        ]
        output.print_json({"schema": 1, "extras": parts})
        return
    table = Table([Column("PART"), Column("MISSING", fit="wrap"), Column("FOR", fit="wrap")])
    for name, about in ABOUT.items():
        table.add(name, " ".join(missing(name)) or "nothing", about)
    output.show([table])


def _install(names: list[str]) -> int:
    folder = Path(BESIDE if sys.prefix == PACKAGE else sysconfig.get_path("purelib"))
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        carma = Path(sys.prefix, "bin/carma")
        again = [str(carma) if carma.exists() else "carma", "extras", "install", *names]
        raise Problem(f"you may not write to {folder}", f"try sudo {shlex.join(again)}")
    packages = sorted({package for name in names for package in packages_of(name)})
    command = [*_installer(), *packages]
    output.note(f"runs {shlex.join(command)}")
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        output.note("done; a carmad that runs uses them after a restart")
    return code


def _installer() -> list[str]:
    """The command that installs into the environment of this Python, up to the packages. With -I,
    modules in the current folder cannot get in its way. Raises Problem."""
    if sys.prefix == PACKAGE:  # its Python is a link to the system's
        system = os.path.realpath(sys.executable)
        if subprocess.run([system, "-I", "-m", "pip", "--version"], capture_output=True).returncode:
            raise Problem("the system's Python has no pip", "apt-get install python3-pip")
        return [system, "-I", "-m", "pip", "install", "--target", BESIDE]
    if find_spec("pip"):
        return [sys.executable, "-I", "-m", "pip", "install"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    hint = f"install uv, or run {sys.executable} -m ensurepip"
    raise Problem(f"there is neither pip nor uv to install into {sys.prefix}", hint)
