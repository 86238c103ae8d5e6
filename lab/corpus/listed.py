"""The repositories and their scripts, as `corpus.toml` and `unseen.toml` list them, and how to get
them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.corpus import made, made_unseen

LIST = Path(__file__).with_name("corpus.toml")
UNSEEN = Path(__file__).with_name("unseen.toml")  # drawn as `draw` says
MAKERS = made.MAKERS | made_unseen.MAKERS


@dataclass(frozen=True, slots=True)
class Script:
    """A command in a repository.

    `data`: makers of `MAKERS`, each with the path that it fills, from `cwd`. `block`: a page, and a
    word in it; the first block of Python with this word is the script `readme.py`. `stops`: part
    of why it stops by itself with the packages of `requirements.txt`, or one of several, between
    bars, if chance decides. `lacks`: what it needs and
    cannot have here, such as weights that are downloaded.
    """

    repository: str
    run: str
    cwd: str = "."
    data: tuple[str, ...] = ()
    block: str = ""
    gpus: int = 1
    stops: str = ""
    lacks: str = ""

    @property
    def name(self) -> str:
        return f"{self.repository}: {self.cwd}: {self.run}"


@dataclass(frozen=True, slots=True)
class Repository:
    name: str  # owner/name on GitHub
    commit: str  # "": it is a package of `requirements.txt`
    scripts: tuple[Script, ...]

    def clone(self, into: Path, mirror: Path | None) -> Path:
        """Its tree at the commit, in a folder of `into`. `mirror`: a folder with clones, bare or
        not, in `owner/name` or `owner+name`; None: from GitHub."""
        folder = into / self.name.replace("/", "+")
        if not self.commit:
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        if mirror is not None and not folder.exists():
            into.mkdir(parents=True, exist_ok=True)
            _git(into, "clone", "--quiet", "--no-checkout", self._found(mirror), str(folder))
        if not folder.exists():
            folder.mkdir(parents=True)
            url = f"https://github.com/{self.name}"
            _git(folder, "init", "--quiet")
            _git(folder, "fetch", "--quiet", "--depth=1", url, self.commit)
        if not any(one.name != ".git" for one in folder.iterdir()):
            # A mirror may lack large files; that it has the rest shows when a script runs.
            _git(folder, "checkout", "--quiet", "--force", self.commit, check=mirror is None)
        return folder

    def _found(self, mirror: Path) -> str:
        for name in (self.name, self.name.replace("/", "+")):
            for found in (mirror / f"{name}.git", mirror / name / "repo", mirror / name):
                if found.exists():
                    return str(found)
        raise FileNotFoundError(f"{mirror} has no {self.name}")


def _git(folder: Path, *words: str, check: bool = True) -> None:
    subprocess.run(("git", "-C", str(folder), *words), check=check)


def read(path: Path = LIST) -> list[Repository]:
    found = []
    for one in tomllib.loads(path.read_text())["repository"]:
        name = one["name"]
        scripts = (
            Script(name, **{**fields, "data": tuple(fields.get("data", ()))})
            for fields in one.get("script", ())
        )
        found.append(Repository(name, one["commit"], tuple(scripts)))
    return found


def prepare(script: Script, folder: Path) -> Path:
    """Make its data; gives the directory to run it in."""
    cwd = folder / script.cwd
    if script.block:
        page, word = script.block.split()
        (cwd / "readme.py").write_text(_block((cwd / page).read_text(), word))
    for one in script.data:
        maker, _, path = one.partition(" ")
        target = cwd / (path or "data")
        mark = target.with_name(f".{target.name}.{maker}")
        if not mark.exists():
            MAKERS[maker](target)
            mark.touch()
    return cwd


def _block(page: str, word: str) -> str:
    blocks = re.findall(r"^```(?:py|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if word in block)


def chosen(repositories: Sequence[Repository], only: str) -> list[tuple[Repository, Script]]:
    pairs = [(one, script) for one in repositories for script in one.scripts]
    return [(one, script) for one, script in pairs if only in script.name]
