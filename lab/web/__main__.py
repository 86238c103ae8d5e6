"""How soon the first page of `carma web` is seen, what is sent for it, and what keeping it up to
date takes: with 1, 100 and 1,000 jobs in line, in the distribution's Chromium.

Each opening is cold: a new browser context, without a cache. Sizes are as sent, compressed, with
headers.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.daemon.carmad import GPUS, SLEEPER, Daemon, memory_mb, plain_environment
from benchmarks.harness import Report, Row, milliseconds, of_rows, of_runs
from lab.main import main

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAITING = (1, 100, 1000)
OPENED = 7
ASKED = 15
WATCHED_S = 15.0
PAINT_MS = 300.0
LONG_MS = 50.0  # what browsers call a long task
NEEDS_MIB = 30_000  # so that one job is on each GPU, and the others wait
PARTS = ("server", "gpus", "jobs", "ended")
KINDS = {"script": "scripts", "link": "styles", "css": "styles", "img": "icon", "fetch": "data"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

PAINT_JS = """() => new Promise((found) => new PerformanceObserver((list) => {
  for (const one of list.getEntriesByName("first-contentful-paint")) found(one.startTime);
}).observe({ type: "paint", buffered: true }))"""
OPENED_JS = """() => {
  const entry = (kind) => performance.getEntriesByType(kind);
  const [page] = entry("navigation");
  const kinds = entry("resource").map((one) => [one.initiatorType, one.transferSize]);
  return {
    paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
    complete: page.domComplete,
    drawn: performance.now(),
    sent: [["page", page.transferSize], ...kinds],
  };
}"""
# What `live.js` does with an answer in which all rows have moved by one; with the layout.
MORPHED_JS = """async ([part, from]) => {
  const url = new URL(location.href);
  url.searchParams.set("part", part);
  url.searchParams.set("from", from);
  const html = await (await fetch(url)).text();
  const begun = performance.now();
  renew(document.getElementById(part), html);
  document.body.offsetHeight;
  return performance.now() - begun;
}"""
WATCH_JS = """() => {
  window.long = [];
  const note = (list) => window.long.push(...list.getEntries().map((one) => one.duration));
  new PerformanceObserver(note).observe({ entryTypes: ["longtask"] });
}"""


class Web:
    """`carma web`, asked as its owner."""

    def __init__(self, daemon: Daemon) -> None:
        self._process = subprocess.Popen(
            [Path(sys.executable).with_name("carma"), "web", "--port", "0"],
            env=plain_environment() | {"CARMA_SOCKET": daemon.socket},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.link = self._process.stdout.readline().strip()
        found = re.fullmatch(r"(.*)/\?token=(.*)", self.link)
        if found is None:
            raise SystemExit(f"carma web printed no link: {self.link!r}")
        self._url, self._token = found.groups()

    def get(self, path: str) -> bytes:
        headers = {"Cookie": f"carma={self._token}", "Accept-Encoding": "gzip"}
        request = urllib.request.Request(self._url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = bytes(answer.read())
            return gzip.decompress(found) if answer.headers["Content-Encoding"] else found

    def rss_mb(self) -> float:
        return memory_mb(self._process.pid, "status", "VmRSS:")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)


@contextmanager
def _serving(daemon: Daemon) -> Iterator[Web]:
    web = Web(daemon)
    try:
        yield web
    finally:
        web.stop()


def measure() -> Report:
    if CHROMIUM is None:
        sys.exit("there is no Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    rows: list[Row] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for count in WAITING:
            with Daemon() as daemon:
                for number in range(GPUS + count):
                    daemon.run(SLEEPER, memory_mib=NEEDS_MIB, name=f"train-{number}")
                daemon.await_queued(GPUS + count)
                with _serving(daemon) as web:
                    rows += _case(browser, daemon, web, count)
            print(f"{count} jobs", file=sys.stderr)
        version = browser.version
        browser.close()
    notes = [f"Chromium {version}; {GPUS} emulated GPUs; {OPENED} openings, {ASKED} requests each"]
    return of_rows("The page of `carma web`", rows, notes=notes, name="web")


def _case(browser: Browser, daemon: Daemon, web: Web, count: int) -> list[Row]:
    group = f"{count:,} waiting"
    web.get("/")  # the first one also reads the templates
    rows = [*_opened(browser, web, group), *_answers(web, group)]
    rows += _kept_up(browser, daemon, web, group)
    return [*rows, Row(group, "RSS of carma web", web.rss_mb(), "MB")]


def _opened(browser: Browser, web: Web, group: str) -> Iterator[Row]:
    seen, text = [], []
    for _ in range(OPENED):
        with _page(browser, web.link) as page:
            page.wait_for_selector("#spark-0 canvas")
            seen.append(page.evaluate(OPENED_JS))
        with _page(browser, web.link.partition("?")[0]) as page:  # without the token
            text.append(page.evaluate(PAINT_JS))
    times = {"paint": "first contentful paint", "complete": "DOM complete", "drawn": "charts drawn"}
    for key, what in times.items():
        bound = PAINT_MS if key == "paint" else None
        yield of_runs(group, what, [each[key] for each in seen], "ms", bound=bound)
    yield of_runs(group, "for comparison: first paint of a line of text", text, "ms")
    for kind, sizes in _by_kind(seen).items():
        yield of_runs(group, f"sent: {kind}", sizes, "kB")
    yield of_runs(group, "requests", [len(each["sent"]) for each in seen], "")


def _by_kind(seen: list[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Kilobytes of each opening."""
    made: dict[str, list[float]] = {}
    for each in seen:
        sums: Counter[str] = Counter()
        for kind, size in each["sent"]:
            sums[KINDS.get(kind, kind)] += size
            sums["all"] += size
        for kind, size in sums.items():
            made.setdefault(kind, []).append(size / 1000)
    return made


def _answers(web: Web, group: str) -> Iterator[Row]:
    paths = {"the page": "/", **{f"part {name}": f"/?part={name}" for name in PARTS}}
    paths |= {"the load of all GPUs": "/charts.json", "a GPU's page": "/gpus/0"}
    paths["a GPU's charts of a day"] = "/gpus/0/timeline.json?hours=24"
    for what, path in paths.items():
        runs = []
        for _ in range(ASKED):
            runs.append(milliseconds(lambda path=path: web.get(path)))  # type: ignore[misc]
            time.sleep(0.1)
        yield of_runs(group, f"answered: {what}", runs, "ms")


def _kept_up(browser: Browser, daemon: Daemon, web: Web, group: str) -> Iterator[Row]:
    with _page(browser, web.link) as page:
        page.wait_for_selector("#spark-0 canvas")
        for part in ("gpus", "jobs"):
            runs = [page.evaluate(MORPHED_JS, [part, 1 + n % 2]) for n in range(1, OPENED + 1)]
            yield of_runs(group, f"part {part} renewed in the browser", runs, "ms", bound=LONG_MS)
        page.evaluate(WATCH_JS)
        until = time.monotonic() + WATCHED_S
        while time.monotonic() < until:
            daemon.run(SLEEPER, memory_mib=NEEDS_MIB)
            page.mouse.wheel(0, 300)
            page.wait_for_timeout(500)
        long = page.evaluate("window.long")
        note = f"{len(long)} tasks above {LONG_MS:g} ms in {WATCHED_S:g} s of news and scrolling"
        yield Row(group, "longest task", max(long, default=0.0), "ms", note=note)


@contextmanager
def _page(browser: Browser, link: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto(link)
        yield page
    finally:
        context.close()


if __name__ == "__main__":
    main("web", measure)
