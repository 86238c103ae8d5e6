"""What a command names and is not there: told at once, instead of by a job that waited for it.

Nothing is refused that may be there by the time the job starts: an earlier job may make it, and an
image or an environment may have it. `--anyway` goes on.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cli.problems import Usage, nearest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from typing import Any

PODMAN_S = 20.0  # the first call of a user's podman prepares its storage
NO_IMAGE = 1  # how `podman image exists` ends; otherwise if it cannot tell
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of python
ANYWAY = "or go on with --anyway"


def refuse_missing(options: argparse.Namespace, body: dict[str, Any]) -> None:
    """Raises Usage. Slow only where something is missing, or an image is named."""
    if body["container"]:
        refuse_missing_image(body["container"])
    if options.anyway:
        return
    later = bool(options.after or options.after_ok)
    if options.wrap is None and not body["container"]:
        _refuse_program(body)
        if not later:
            _refuse_script(body)
    if body["conda_env"]:
        _refuse_environment(body["conda_env"], body["env"])
    for name in ("stdout", "stderr"):
        if body[name] and not later:
            _refuse_folder(body[name], body["cwd"])


def _refuse_program(body: dict[str, Any]) -> None:
    word, path = body["argv"][0], (body["env"] | body["export"]).get("PATH", os.defpath)
    if not word:
        raise Usage("the command is an empty word", "give a program, or a job script")
    if "/" in word or body["conda_env"]:
        return
    folders = [folder for folder in path.split(os.pathsep) if folder]
    if any(os.access(f"{folder}/{word}", os.X_OK) for folder in folders):
        return
    if " " in word:
        hint = f"without the quotes: {word}; or --wrap '{word}' for a shell's line; {ANYWAY}"
    else:
        hint = _nearest(word, (name for folder in folders for name in _names(folder)), ANYWAY)
    raise Usage(f"there is no program {word!r} on PATH", hint)


def _refuse_script(body: dict[str, Any]) -> None:
    """Of `python SCRIPT`."""
    argv = body["argv"]
    if not re.fullmatch(r"(python|pypy)[\d.]*", argv[0].rpartition("/")[2]):
        return
    words = iter(argv[1:])
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word in ("-m", "-c", "-"):
            return
        elif not word.startswith("-"):
            break
    else:
        return
    path = Path(body["cwd"], word)
    if "{" in word or path.exists():
        return
    hint = _nearest(path.name, _names(str(path.parent)), ANYWAY)
    raise Usage(f"there is no script {word!r} in {body['cwd']}", hint)


def _refuse_environment(name: str, env: dict[str, str]) -> None:
    """Raise Usage if conda lists its environments, and this one is not among them."""
    home = Path.home()
    paths = [line.rstrip("/") for line in _lines(f"{home}/.conda/environments.txt")]
    if exe := env.get("CONDA_EXE"):
        root = exe.rpartition("/")[0].rpartition("/")[0]
        paths += [root, *(f"{root}/envs/{one}" for one in _names(f"{root}/envs"))]
        names = {path.rpartition("/")[2] for path in paths} | {"base"}
    else:
        names = set()
    if "/" in name:
        if not Path(name).expanduser().is_dir():
            raise Usage(f"there is no conda environment {name}", f"`conda env list`; {ANYWAY}")
    elif names and name not in names:
        hint = _nearest(name, names, f"`conda env list` shows yours; {ANYWAY}")
        raise Usage(f"there is no conda environment {name!r}", hint)


def _refuse_folder(file: str, cwd: str) -> None:
    """Of a log."""
    folder = str(Path(cwd, file).parent)
    if "%" not in folder and not Path(folder).is_dir():
        hint = f"mkdir -p {folder}"
        if "$" in folder or file.startswith("~"):
            hint = "variables and ~ are not replaced here: write the path out"
        raise Usage(f"there is no directory {folder} for {file}", f"{hint}; {ANYWAY}")


def refuse_missing_image(image: str) -> None:
    """Raises Usage if podman is here and says that it does not have the image: the job would find
    out only when it holds GPUs."""
    import shutil
    import subprocess

    podman = shutil.which("podman")
    if podman is None:
        return
    asked = [podman, "--remote=false", "image", "exists", image]
    try:
        ran = subprocess.run(asked, capture_output=True, check=False, timeout=PODMAN_S)
    except subprocess.TimeoutExpired:
        return
    if ran.returncode == NO_IMAGE:
        raise Usage(f"you have no image {image} on this server", f"podman pull {image}")


def _nearest(word: str, names: Iterable[str], otherwise: str) -> str:
    found = nearest(word, names)
    return f"did you mean {found}? {otherwise}" if found else otherwise


def _names(folder: str) -> list[str]:
    try:
        return [entry.name for entry in Path(folder).iterdir()]
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read().split()
    except OSError:
        return []
