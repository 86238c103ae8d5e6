"""Other Pythons of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache


@cache
def find_python(version: str, module: str = "") -> str | None:
    """The interpreter of a version, such as "3.8", that can import a module; None: there is none.
    It is looked for on PATH, where it may be one of pyenv's."""
    command = shutil.which(f"python{version}")
    if command is None:
        return None
    env = {name: word for name, word in os.environ.items() if not name.startswith("PYTHON")}
    if shutil.which("pyenv"):
        argv = ["pyenv", "whence", f"python{version}"]
        has = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
        env |= {"PYENV_VERSION": has[-1]} if has else {}
    code = f"import sys, {module or 'os'}; print(sys.executable)"
    ran = subprocess.run(
        [command, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    return ran.stdout.strip() or None
