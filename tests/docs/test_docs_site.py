"""Builds the documentation's site once, and checks what a reader's browser would be given."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt

from docs import publish
from tests.browser import chromium, needs_browser
from tests.shared import made_once
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
SHOWN = ("h1", "h2", "h3", "h4", "p", "li", "table", "tr", "pre", "img")


class Page(HTMLParser):
    """What a page of HTML has: `ids`, `links` to other pages, `loaded` things, counted elements."""

    def __init__(self, text: str, whole: bool = False) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.shown: Counter[str] = Counter()
        self._counts = whole
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._counts = self._counts or tag == "article"
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link":
            self.loaded.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])
        if self._counts and tag in SHOWN:
            self.shown[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._counts = False


@cache
def read(file: Path) -> Page:
    return Page(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "site", _build)


def _build(folder: Path) -> None:
    argv = [sys.executable, "docs/publish.py", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _pages(site: Path) -> list[Path]:
    return [file for file in site.rglob("*.html") if file.name != "404.html"]


@pytest.mark.long
def test_nothing_is_loaded_from_another_site(site: Path) -> None:
    for file in site.rglob("*.html"):
        for loaded in read(file).loaded:
            assert "//" not in loaded, file
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert "url(http" not in text and "url(//" not in text and "@import" not in text, style


@pytest.mark.long
def test_links_lead_somewhere_on_the_site(site: Path) -> None:
    for file in _pages(site):
        for link in (*read(file).links, *read(file).loaded):
            if publish.OTHER_SITE.match(link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = (file.parent / path).resolve() if path else file
            assert target.is_file(), f"{file.relative_to(site)}: {link}"
            assert target.is_relative_to(site)
            if anchor:
                assert anchor in read(target).ids, f"{file.relative_to(site)}: {link}"


@pytest.mark.long
def test_pages_show_what_they_show_on_github(site: Path, tmp_path: Path) -> None:
    publish.collect(tmp_path)
    github = MarkdownIt("gfm-like", {"linkify": False})
    for source in tmp_path.rglob("*.md"):
        name = "index" if source.name == "README.md" else source.stem
        page = read(site / source.relative_to(tmp_path).with_name(f"{name}.html"))
        wanted = Page(github.render(source.read_text(encoding="utf-8")), whole=True)
        assert page.shown == wanted.shown, source.relative_to(tmp_path)


@pytest.mark.long
def test_python_is_not_published(site: Path) -> None:
    assert not [*site.rglob("*.py")]


def test_every_page_of_docs_is_in_the_navigation_once() -> None:
    def leaves(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for below in entry.values():
                yield from leaves(below)
        elif isinstance(entry, list):
            for below in entry:
                yield from leaves(below)

    config = tomllib.loads((publish.DOCS / "zensical.toml").read_text(encoding="utf-8"))
    listed = Counter(leaves(config["project"]["nav"]))
    pages = {str(page.relative_to(publish.DOCS)) for page in publish.DOCS.rglob("*.md")}
    assert {name for name in listed if not name.startswith("repository/")} == pages
    assert set(listed.values()) == {1}


@pytest.mark.parametrize("link", ["missing.md", "index.md#missing"])
def test_a_broken_link_fails_the_build(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(publish.DOCS / "theme", docs / "theme")
    (docs / "zensical.toml").write_text('[project]\nsite_name = "CARMA"\n', encoding="utf-8")
    (docs / "index.md").write_text(f"# CARMA\n\n[More]({link})\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("# CARMA\n", encoding="utf-8")
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setattr(publish, "DOCS", docs)
    monkeypatch.setattr(sys, "argv", ["publish.py"])
    assert publish.main() != 0
    assert "index.md:3" in capfd.readouterr().err
    assert not (tmp_path / "site").exists()


@pytest.mark.long
@needs_browser
def test_search_and_dark_mode_work_on_pages_opened_as_files(site: Path) -> None:
    from playwright.sync_api import expect

    asked: list[str] = []
    colours = set()
    for scheme in ("light", "dark"):
        page = chromium().new_page(color_scheme=scheme)
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "users.html").as_uri())
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        if scheme == "dark":
            page.keyboard.press("Control+k")
            page.keyboard.type("drain resume")
            expect(page.get_by_text("Drain and resume")).to_be_visible(timeout=1000 * PATIENCE_S)
        page.close()
    assert len(colours) == 2
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
