"""`carma slurm-commands`: Slurm's commands on PATH, as links to `carma`, or no longer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shutil import which
from typing import Annotated

from carma_slurm import WORDS
from cli.app import option
from cli.problems import Problem

To = Annotated[
    str | None,
    option(
        "--to",
        metavar="DIR",
        help="the folder for the links, which has to be on PATH (default: where carma is)",
    ),
]


def slurm_commands_install(to: To = None) -> int:
    """Makes links to carma with the names sbatch, squeue, scancel, sacct, scontrol, sinfo, srun and
    salloc. Where Slurm's own commands are on PATH, nothing is done."""
    folder, program = _folder(to), _program()
    for word in WORDS:
        if found := _find_slurm(word, folder):
            raise Problem(
                f"Slurm's own {word} is there: {found}",
                "CARMA's would stand in its way: use carma on this machine",
            )
        if os.path.lexists(folder / word) and not _is_ours(folder / word):
            raise Problem(
                f"{folder / word} is there, and is no link to carma",
                "remove it, or choose another folder with --to",
            )
    for word in WORDS:
        link = folder / word
        try:
            if link.is_symlink():
                link.unlink()
            link.symlink_to(program.name if folder == program.parent else program)
        except OSError as error:
            raise Problem(
                f"cannot make {link}: {error.strerror}", "choose a folder of yours with --to"
            ) from None
    print(f"made in {folder}: {', '.join(WORDS)}")
    if str(folder) not in os.environ.get("PATH", "").split(os.pathsep):
        print(f"{folder} is not on PATH yet: add it", file=sys.stderr)
    return 0


def slurm_commands_remove(to: To = None) -> int:
    """Removes the links that `carma slurm-commands install` has made, and nothing else."""
    folder = _folder(to)
    removed = [word for word in WORDS if _is_ours(folder / word)]
    for word in removed:
        try:
            (folder / word).unlink()
        except OSError as error:
            raise Problem(f"cannot remove {folder / word}: {error.strerror}") from None
    print(f"removed from {folder}: {', '.join(removed) or 'none was there'}")
    return 0


def _program() -> Path:
    """`carma` itself, as it was called."""
    called = sys.argv[0]
    path = Path(called if "/" in called else which(called) or called).absolute()
    if path.name != "carma" or not path.exists():
        raise Problem("this program is not called carma", "call it by its own name")
    return path


def _folder(given: str | None) -> Path:
    folder = Path(given).absolute() if given else _program().parent
    if not folder.is_dir():
        raise Problem(f"there is no folder {folder}", "make it first")
    return folder


def _find_slurm(word: str, folder: Path) -> Path | None:
    """A program of this name on PATH, or in the folder, that is no link to carma."""
    folders = [folder, *map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep))]
    for each in folders:
        path = each / word
        if os.access(path, os.X_OK) and not _is_ours(path):
            return path
    return None


def _is_ours(path: Path) -> bool:
    return path.is_symlink() and path.readlink().name == "carma"
