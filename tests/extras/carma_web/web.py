"""`carma web` beside a test's carmad, and a real browser that looks at it."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from tests.browser import chromium
from tests.daemon import Carmad, Process, fork
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

DESKTOP, PHONE = (1280, 900), (360, 740)
# All is laid out, as if it had been scrolled to: axe-core and innerText pass over what was not.
LAID_OUT_JS = """
const style = new CSSStyleSheet();
style.replaceSync("* { content-visibility: visible !important }");
document.adoptedStyleSheets.push(style);
"""


class Web:
    """A running `carma web`. `link` is the one that it printed."""

    def __init__(self, carmad: Carmad, *options: str) -> None:
        env = carmad.env | {"CARMA_SOCKET": carmad.socket}
        with tempfile.NamedTemporaryFile("r") as said:
            words = ["web", "--port", "0", *options]
            self._process = Process(fork(words, env, Path(said.name), program="carma"))
            self.link = until(said.readline, "the link").strip()
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)(/\w+)/\?token=(\S+)", self.link)
        assert found, self.link
        self.origin, self.base, self.token = found.groups()
        self.url = self.origin + self.base

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str, **headers: str) -> str:
        """The page at `path`, as the owner of the link."""
        headers = {"Cookie": f"carma={self.token}"} | headers
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def post(self, path: str, **fields: str) -> tuple[int, str]:
        """As a form of the owner's page does: the status, and where to go on."""
        address = urlsplit(self.origin)
        connection = http.client.HTTPConnection(
            str(address.hostname), address.port, timeout=PATIENCE_S
        )
        headers = {"Cookie": f"carma={self.token}", "Sec-Fetch-Site": "same-origin"}
        connection.request("POST", self.base + path, urlencode(fields), headers)
        answer = connection.getresponse()
        connection.close()
        return answer.status, answer.getheader("Location") or ""

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)


@contextlib.contextmanager
def serving(carmad: Carmad, *options: str) -> Iterator[Web]:
    web = Web(carmad, *options)
    try:
        yield web
    finally:
        web.stop()


@contextlib.contextmanager
def browsing(
    web: Web,
    path: str = "/",
    size: tuple[int, int] = DESKTOP,
    dark: bool = False,
    away: bool = False,
) -> Iterator[Page]:
    """A page of a browser of its own that has opened the link. What a page must never do fails the
    test: an error in a script, or anything that the content security policy forbids. `away`: carmad
    may be, so answers that say so are no mistake."""
    width, height = size
    context = chromium().new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    context.add_init_script(LAID_OUT_JS)
    context.set_default_timeout(1000 * PATIENCE_S)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    try:
        page.goto(f"{web.url}{path}{'&' if '?' in path else '?'}token={web.token}")
        yield page
        assert not [said for said in wrong if not (away and "status of 503" in said)], wrong
    finally:
        context.close()


def picture(page: Page, name: str, whole: bool = True) -> None:
    """A picture of the page, or of what is in sight, in its 256 most frequent colours; if
    CARMA_PICTURES names a folder."""
    if folder := os.environ.get("CARMA_PICTURES"):
        from PIL import Image

        path = Path(folder) / f"{name}.png"
        page.screenshot(path=path, full_page=whole)
        taken = Image.open(path).convert("RGB")
        counts: Any = taken.getcolors(1 << 24)
        colours = sorted(counts, reverse=True)[:256]
        palette = Image.new("P", (1, 1))
        palette.putpalette([part for _, colour in colours for part in colour])
        taken.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


def accessible(page: Page) -> None:
    """Axe-core finds nothing."""
    from axe_playwright_python.sync_playwright import Axe

    until(lambda: page.evaluate("document.readyState") == "complete", "the page")
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    assert not found.violations_count, found.generate_report()
