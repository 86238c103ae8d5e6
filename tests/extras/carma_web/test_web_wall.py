"""The page for a screen on a wall, as a screen of 1920x1080 shows it, and what every page says when
carmad is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import needs_browser
from tests.daemon import NO_KERNELS, Carmad, running, train
from tests.extras.carma_web.web import PHONE, Web, accessible, browsing, picture, serving
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = needs_browser

WALL = (1920, 1080)
LEAST_PX = 28  # of what is to be read from three metres
HOSTILE = "<b>" + "w" * 200
# Of each piece of text: how large it is, and whether it is in sight as a whole.
TEXTS_JS = """
() => {
  const found = [];
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { textContent, parentElement } = texts.currentNode;
    if (!textContent.trim()) continue;
    const box = parentElement.getBoundingClientRect();
    const section = parentElement.closest("section").getBoundingClientRect();
    const inside = box.top >= section.top - 1 && box.bottom <= section.bottom + 1
      && box.left >= section.left - 1 && box.right <= section.right + 1
      && section.bottom <= innerHeight;
    found.push([textContent.trim(), parseFloat(getComputedStyle(parentElement).fontSize), inside]);
  }
  return found;
}
"""
FITS_JS = """
document.documentElement.scrollWidth <= innerWidth
  && document.documentElement.scrollHeight <= innerHeight
"""


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("wall"), "8xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


@pytest.fixture(scope="module")
def web(carmad: Carmad) -> Iterator[Web]:
    with serving(carmad, "--read-only") as web:
        yield web


def readable(page: Page) -> list[str]:
    """All that is written there, which is large and in sight."""
    texts = page.evaluate(TEXTS_JS)
    small = [(text, px) for text, px, _ in texts if px < LEAST_PX]
    hidden = [text for text, _, inside in texts if not inside]
    assert (small, hidden) == ([], [])
    assert page.evaluate(FITS_JS)
    return [text for text, _, _ in texts]


def test_without_jobs(web: Web) -> None:
    with browsing(web, "/wall", WALL) as page:
        found = readable(page)
        assert found.count("free") == 8
        assert {"Nobody waits.", "No job has failed."} <= set(found)
        accessible(page)
        picture(page, "wall-empty")


@pytest.fixture(scope="module")
def crowd(carmad: Carmad) -> dict[str, int]:
    """More of everything than there is room for."""
    for number in range(10):
        failed = carmad.sh("exit 3", name=f"failed-{number}", gpus=0, cpus=1)
        carmad.ended(failed)
    carmad.sh("sleep 900", name=HOSTILE, memory_mib=30_000)
    for number in range(7 + 20):
        last = carmad.sh("sleep 900", name=f"train-{number}", memory_mib=30_000)
    until(lambda: carmad.get("/v1/status")["counts"]["running"] == 8, "a job on each GPU")
    return {"failed": failed, "last": last}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_gpus_line_and_failures_are_readable(web: Web, crowd: dict[str, int], dark: bool) -> None:
    with browsing(web, "/wall", WALL, dark) as page:
        found = readable(page)
        assert {f"GPU {index}" for index in range(8)} <= set(found)
        rows = page.locator("#queue tr").count()
        assert page.locator("#failures tr").count() == min(10, rows) and rows > 6
        assert f"and {20 - rows} more" in found
        assert str(crowd["failed"]) in page.locator("#failures tr").first.inner_text()
        accessible(page)
        picture(page, f"wall-{'dark' if dark else 'light'}")


def test_a_screen_opens_a_link_of_its_own(web: Web) -> None:
    with browsing(web, size=WALL) as page:
        page.goto(f"{web.origin}/wall?token={web.token}")
        page.locator("#cards").wait_for()
        assert page.url == f"{web.url}/wall"


def test_on_a_phone_it_scrolls_down_only(web: Web, crowd: dict[str, int]) -> None:
    with browsing(web, "/wall", PHONE) as page:
        page.locator("#gpu-7").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("gpus", [1, 56])
def test_any_number_of_gpus(tmp_path_factory: pytest.TempPathFactory, gpus: int) -> None:
    with (
        running(tmp_path_factory.mktemp("gpus"), f"{gpus}xA100-40GB", **NO_KERNELS) as carmad,
        serving(carmad) as web,
    ):
        names = ["starting", "running"]
        for _ in range(3):
            carmad.await_state(carmad.sh("sleep 900", name="small", memory_mib=3000), *names)
        for _ in range(12):
            carmad.sh("sleep 900", name="waits", memory_mib=3000, held=True)
        with browsing(web, "/wall", WALL) as page:
            found = readable(page)
            assert {f"{'GPU ' if gpus < 17 else ''}{index}" for index in range(gpus)} <= set(found)
            assert page.locator("#queue tr").count()
            picture(page, f"wall-{gpus}")


def test_eight_large_gpus_fill_the_screen_and_show_their_figures(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        running(tmp_path_factory.mktemp("large"), "8xA100-80GB", **NO_KERNELS) as carmad,
        serving(carmad) as web,
    ):
        for _ in range(8):
            carmad.submit(*train(memory_mib=45_000, seconds=900), memory_mib=50_000)
        until(
            lambda: all((gpu["memory_used_mib"] or 0) > 44_000 for gpu in carmad.gpus()), "memory"
        )
        with browsing(web, "/wall", WALL) as page:
            page.locator("h2 .amount", has_text="44 of 80G").nth(7).wait_for()
            readable(page)
            cut = page.locator("#cards h2 *").evaluate_all(
                "(its) => its.filter((one) => one.scrollWidth > one.clientWidth).length"
            )
            assert not cut
            rows = page.locator(".cards, #queue > *, #failures > *").evaluate_all(
                "(its) => its.map((one) => one.getBoundingClientRect().bottom)"
            )
            assert max(rows) > 0.95 * WALL[1]
            picture(page, "wall-large")


def test_what_is_known_of_others_failures(carmad: Carmad, crowd: dict[str, int]) -> None:
    found = carmad.get("/v1/failures?limit=2")
    assert [job["id"] for job in found["jobs"]][:1] == [crowd["failed"]]
    assert found["more"] == 1 and found["jobs"][0]["ended_at"]


@pytest.mark.parametrize(("path", "size"), [("/wall", WALL), ("/", PHONE)])
def test_a_daemon_that_is_gone(carmad: Carmad, web: Web, path: str, size: tuple[int, int]) -> None:
    with browsing(web, path, size, away=True) as page:
        state = page.locator("#state")
        assert state.is_hidden()
        page.locator("#gpu-7").wait_for()
        carmad.stop()
        try:
            state.wait_for()
            said = state.inner_text()
            assert re.match(r"carmad has not answered since \d\d:\d\d", said), said
            box = state.bounding_box()
            assert box and box["x"] <= 40 and box["width"] >= size[0] - 80
            grey = "getComputedStyle(document.querySelector('main')).filter"
            assert page.evaluate(grey) == "grayscale(1)"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            if path == "/wall":
                readable(page)
            picture(page, f"gone-{size[0]}", whole=path == "/wall")
        finally:
            carmad.start()
        state.wait_for(state="hidden")


def test_a_page_that_is_opened_while_the_daemon_is_gone(carmad: Carmad, web: Web) -> None:
    web.get("/wall")
    carmad.stop()
    try:
        with pytest.raises(OSError) as caught:
            web.get("/wall")
        said = caught.value.read().decode()  # type: ignore[attr-defined]
        assert re.search(r'role="alert">carmad has not answered since \d\d:\d\d<', said)
        assert 'http-equiv="refresh"' in said
    finally:
        carmad.start()
    assert 'role="alert" hidden' in web.get("/wall")
