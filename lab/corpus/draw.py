"""The order in which `unseen.toml` was drawn: the repositories of four public lists, shuffled.

`python -m lab.corpus.draw --folder CLONES` prints it. It is gone down strictly until 40 are
accepted. One is passed over only if it cannot be fetched, is not PyTorch, gives no training command
in its README, needs packages that cannot be installed (Python 3.11, the newest torch, nothing that
compiles CUDA), or needs data or weights that can be neither had nor made in 15 minutes of work.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import click

from lab.corpus.listed import Repository

SEED = 20261201
BEFORE = "2fa7669ad14850e29071107182e4af1e9a109eb7"  # what this commit names is seen
LISTS = (
    Repository("ritchieng/the-incredible-pytorch", "9382d9ce423fac132a7b4c3d78b5077ae893927b", ()),
    Repository("bharathgs/Awesome-pytorch-list", "8b9be0839f420b663adb7025281d908d6fba0996", ()),
    Repository(
        "diff-usion/Awesome-Diffusion-Models", "01be334d2e258b0150093761d77ab55b789e88d3", ()
    ),
    Repository(
        "dk-liang/Awesome-Visual-Transformer", "d7617b3efc3187ebf0da7722fb87b8e631c96779", ()
    ),
)
LINK = re.compile(r"github\.com/([A-Za-z0-9-]+/[A-Za-z0-9_.-]+)", re.IGNORECASE)
NO_OWNERS = ("topics", "orgs", "users", "collections", "sponsors", "features", "about")


def linked(page: str) -> list[str]:
    """The repositories a page links to, as owner/name, in order."""
    names = (name.rstrip(".").removesuffix(".git") for name in LINK.findall(page))
    return [name for name in names if name.partition("/")[0].lower() not in NO_OWNERS]


def order(names: Iterable[str], known: str, seed: int = SEED) -> list[str]:
    """Each once, without those that the text `known` names, shuffled."""
    known = known.lower()
    firsts = {name.lower(): name for name in reversed(list(names))}
    left = [firsts[name] for name in sorted(firsts) if name not in known]
    random.Random(seed).shuffle(left)
    return left


def _said_before() -> str:
    words = ("git", "grep", "-hIE", "[A-Za-z0-9-]/[A-Za-z0-9_.-]", BEFORE, "--", ":/")
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@click.command()
@click.option("--mirror", type=click.Path(path_type=Path))
@click.option("--folder", type=click.Path(path_type=Path), required=True)
def main(mirror: Path | None, folder: Path) -> None:
    pages = [(one.clone(folder, mirror) / "README.md").read_text() for one in LISTS]
    for name in order((name for page in pages for name in linked(page)), _said_before()):
        print(name)


if __name__ == "__main__":
    main()
