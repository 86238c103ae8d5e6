"""Builds the documentation as a site, without a network: `make docs`, or `python docs/publish.py`.

The site has all pages of docs, and, below `repository/`, the pages and files elsewhere in the
repository that they link to. They are copied to a temporary folder, where the links between them
are adapted, and rendered by Zensical; a link that leads nowhere is an error. `docs/zensical.toml`
has the navigation.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?\[([^\]]*)\])\(([^)\s]+)\)")
ATTRIBUTE = re.compile(r'((?:src|srcset|href)=")([^"]+)(?=")')
OTHER_SITE = re.compile(r"[a-z]+:")


def links(page: Path) -> Iterator[str]:
    """The links of a page to pages, their parts and files, but not those to other sites."""
    for text in _prose(page.read_text(encoding="utf-8"))[::2]:
        found = [match[3] for match in LINK.finditer(text)]
        found += [match[2] for match in ATTRIBUTE.finditer(text)]
        yield from (link for link in found if not OTHER_SITE.match(link))


def main() -> int:
    into = Path(sys.argv[1] if sys.argv[1:] else ROOT / "site").absolute()
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        collect(stage / "docs")
        shutil.copytree(DOCS / "theme", stage / "theme")
        shutil.copy(DOCS / "zensical.toml", stage)
        zensical = Path(sys.executable).with_name("zensical")
        done = subprocess.run([zensical, "build", "--strict"], cwd=stage, check=False)
        if done.returncode:
            return done.returncode
        shutil.rmtree(into, ignore_errors=True)
        shutil.move(stage / "site", into)
    print(f"open {into / 'index.html'}")
    return 0


def collect(into: Path) -> None:
    """Copy the site's pages, and all that they link to, with links adapted to their new places."""
    waiting = [*DOCS.rglob("*.md"), ROOT / "README.md"]
    done: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in done or not file.exists():  # Zensical says whose link it was
            continue
        done.add(file)
        copy = into / _place(file)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            page = _Page(file)
            copy.write_text(page.text, encoding="utf-8")
            waiting += page.linked
        else:
            shutil.copy(file, copy)


class _Page:
    """A page as it is on the site: `text`, and the published files that it links to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.linked: list[Path] = []
        pieces = _prose(file.read_text(encoding="utf-8"))
        for i in range(0, len(pieces), 2):
            adapted = LINK.sub(self._link, pieces[i])
            pieces[i] = ATTRIBUTE.sub(lambda m: m[1] + (self._adapted(m[2]) or m[2]), adapted)
        self.text = "".join(pieces)

    def _link(self, match: re.Match[str]) -> str:
        adapted = self._adapted(match[3])
        return f"{match[1]}({adapted})" if adapted else match[2]

    def _adapted(self, link: str) -> str | None:
        """None: the site does not have it."""
        path, hash_, anchor = link.partition("#")
        if not path or OTHER_SITE.match(link):
            return link
        target = (self._file.parent / path).resolve()
        if target.is_dir() or target.suffix in ("", ".py"):
            return None
        self.linked.append(target)
        place = os.path.relpath(_place(target), _place(self._file).parent)
        return place + hash_ + anchor


def _place(file: Path) -> Path:
    """Where on the site, or in its sources, a file of the repository is."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    return "repository" / file.relative_to(ROOT)


def _prose(text: str) -> list[str]:
    """The text, cut so that every second piece is a block of code."""
    pieces, end = [], 0
    for block in FENCE.finditer(text):
        pieces += [text[end : block.start()], block[0]]
        end = block.end()
    return [*pieces, text[end:]]


if __name__ == "__main__":
    sys.exit(main())
