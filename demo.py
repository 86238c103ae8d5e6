"""Installs CARMA into .venv, beside this file, and runs `carma demo` there: `python3 demo.py`.

It does not need make; and where there is uv, virtualenv or pip, it does not need ensurepip, which
Debian has in the package python3-venv.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
CARMA, PYTHON, PIP = (str(VENV / "bin" / name) for name in ("carma", "python", "pip"))
OLDEST = (3, 11)
PACKAGE = ["--constraint", str(HERE / "constraints.txt"), "--editable", str(HERE)]
TOO_OLD = (
    "CARMA needs Python 3.11 or newer, and this is {}.{}: use another, as in python3.12 demo.py"
)
NO_WAY = """\
This Python cannot make an environment: its module ensurepip is missing.
As root, on Debian or Ubuntu: apt-get install python3-venv
Without root: install uv (https://docs.astral.sh/uv), then run this again."""


def main() -> None:
    if sys.version_info < OLDEST:
        sys.exit(TOO_OLD.format(*sys.version_info[:2]))
    if not Path(CARMA).exists():
        install()
    os.execv(CARMA, [CARMA, "demo", *sys.argv[1:]])


def install() -> None:
    commands = find_way()
    if not commands:
        sys.exit(NO_WAY)
    print("Installing CARMA into .venv: once, for a minute or two.", flush=True)
    for command in commands:
        code = subprocess.call(command)
        if code:
            shutil.rmtree(VENV, ignore_errors=True)
            sys.exit("this failed with exit code {}: {}".format(code, " ".join(command)))


def find_way() -> list[list[str]]:
    """The commands that make an environment and install CARMA in it; none if there is no way."""
    # From pip 26 on, what starts `carma` imports no `re`, which takes half of Python's start.
    newer = [PIP, "install", "--quiet", "--upgrade", "pip>=26"]
    own = [newer, [PIP, "install", "--quiet", "--no-compile", *PACKAGE]]
    if find_spec("ensurepip"):
        return [[sys.executable, "-m", "venv", str(VENV)], *own]
    uv = shutil.which("uv")
    if uv:
        make = [uv, "--quiet", "venv", "--python", sys.executable, str(VENV)]
        return [make, [uv, "--quiet", "pip", "install", "--python", PYTHON, *PACKAGE]]
    if find_spec("virtualenv"):
        return [[sys.executable, "-m", "virtualenv", "--quiet", str(VENV)], *own]
    if find_spec("pip"):
        make = [sys.executable, "-m", "venv", "--without-pip", str(VENV)]
        return [make, [sys.executable, "-m", "pip", "--python", PYTHON, *own[1][1:]]]
    return []


if __name__ == "__main__":
    main()
