"""The first page of `carma web` in a real browser: GPUs, their last hours, and the line."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator

import pytest

from tests.browser import needs_browser
from tests.daemon import NO_KERNELS, Carmad, running, train
from tests.extras.carma_web.web import DESKTOP, PHONE, Web, accessible, browsing, picture
from tests.waiting import until

pytestmark = needs_browser

HOSTILE = "<img src=x onerror=alert(1)></td><script>alert(2)</script>\u202eevil\u2066" + "w" * 170
SHOWN = "<img src=x onerror=alert(1)></td><script>alert(2)</script>?evil?www"
ALONE = {"memory_mib": 30_000}  # so that one is on each GPU


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    folder = tmp_path_factory.mktemp("web")
    with running(folder, "8xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


def test_without_jobs_it_says_how_to_submit_one(web: Web) -> None:
    with browsing(web) as page:
        assert "carma submit -- python train.py" in page.locator("#jobs").inner_text()
        assert page.locator(".gpu").count() == 8
        accessible(page)
        picture(page, "no-jobs")


def test_a_chart_that_is_not_drawn_is_read_out_too(web: Web) -> None:
    with browsing(web) as page:
        page.route("**/charts.json*", lambda request: None)  # never answered
        page.reload()
        assert page.locator("#spark-0 .plot").get_attribute("aria-label") == "not loaded yet"
        accessible(page)
        page.unroute("**/charts.json*")
        page.route("**/charts.json*", lambda request: request.fulfill(json={"charts": {}}))
        page.reload()
        page.locator("#spark-0 [data-empty]").wait_for()
        said = page.locator("#spark-0 .plot").get_attribute("aria-label")
        assert said == "nothing is recorded"
        accessible(page)


@pytest.fixture(scope="module")
def crowd(carmad: Carmad) -> dict[str, int]:
    """A thousand jobs: eight that run, and others that wait."""
    made = {"running": carmad.submit(*train(memory_mib=9000, seconds=300), name="bert", **ALONE)}
    made["hostile"] = carmad.sh("sleep 300", name=HOSTILE, **ALONE)
    for number in range(58):
        made["last"] = carmad.sh("sleep 300", name=f"train-{number}", **ALONE)
    array = {"indices": list(range(940)), "limit": None}
    carmad.sh("sleep 300", name="sweep", array=array, **ALONE)
    until(lambda: carmad.get("/v1/status")["counts"]["running"] == 8, "a job on each GPU")
    return made


@pytest.mark.parametrize(
    ("name", "size", "dark"),
    [("desktop", DESKTOP, True), ("phone", PHONE, False)],
)
def test_a_thousand_jobs_and_a_hostile_name(
    web: Web, crowd: dict[str, int], name: str, size: tuple[int, int], dark: bool
) -> None:
    with browsing(web, "/", size, dark) as page:
        row = page.locator(f"#job-{crowd['hostile']} .name")
        assert row.inner_text().startswith(SHOWN)
        assert row.bounding_box()["width"] < size[0] / 2 + 60  # type: ignore[index]
        assert "1,000 jobs: 8 on GPUs" in page.locator("#jobs").inner_text()
        assert not page.locator("main img, main script").count()
        if size != PHONE:  # whose cards are too small for it
            page.locator("#spark-0 canvas").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        accessible(page)
        picture(page, f"thousand-jobs-{name}")


def test_the_filter_follows_what_is_typed(web: Web, crowd: dict[str, int]) -> None:
    with browsing(web) as page:
        page.keyboard.press("/")
        page.keyboard.type("train-57")
        page.locator("#jobs", has_text="1 job found").wait_for()
        assert page.locator("#jobs tbody tr").count() == 1
        assert page.locator(f"#job-{crowd['last']}").is_visible()
        assert "q=train-57" in page.url
    found = web.get("/?q=train-57")  # as without scripts
    assert f'id="job-{crowd["last"]}"' in found
    assert f'id="job-{crowd["hostile"]}"' not in found
    assert "No such jobs" in web.get("/?user=nobody-of-that-name")


def test_all_jobs_are_a_page_at_a_time_and_arrays_a_row(web: Web, crowd: dict[str, int]) -> None:
    found = web.get("/?from=1")
    assert "×940" in found
    assert found.count('<tr id="job-') == 61
    assert "2 jobs found" not in found


@pytest.mark.parametrize(("size", "rows"), [(DESKTOP, 5), ((390, 844), 0)])
def test_jobs_begin_on_the_first_screen(
    web: Web, crowd: dict[str, int], size: tuple[int, int], rows: int
) -> None:
    with browsing(web, "/", size) as page:
        heading = page.locator("#line").bounding_box()
        assert heading and heading["y"] + heading["height"] < size[1]
        shown = page.locator("#jobs tbody tr").evaluate_all(
            "(its) => its.filter((row) => row.getBoundingClientRect().bottom < innerHeight).length"
        )
        assert shown >= rows


def test_a_card_leads_to_a_page_of_its_gpu(web: Web, crowd: dict[str, int]) -> None:
    with browsing(web) as page:
        page.get_by_role("link", name="GPU 3").click()
        page.locator("h1", has_text="GPU 3").wait_for()
        page.get_by_role("link", name="24 h").click()
        page.locator('[aria-current="true"]', has_text="24 h").wait_for()
        page.locator("#memory canvas").wait_for()
        page.locator("#load canvas").wait_for()
        accessible(page)
        picture(page, "gpu")
    with browsing(web, "/gpus/3", PHONE, dark=True) as page:
        page.locator("#load canvas").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        accessible(page)
        picture(page, "gpu-phone")
    for path in ("/gpus/8", "/gpus/8/timeline.json", "/gpus/" + "9" * 30, "/gpus/-1"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            web.get(path)
        assert caught.value.code == 404


def test_charts_are_read_out_by_the_keyboard(web: Web, crowd: dict[str, int]) -> None:
    with browsing(web, "/gpus/0?hours=1") as page:
        page.locator("#memory canvas").wait_for()
        plot = page.locator("#memory .plot")
        assert "Memory of GPU 0 in the last 1 h" in (plot.get_attribute("aria-label") or "")
        legend = page.locator("#memory [role=status]")

        def said(key: str = "End") -> str:
            plot.press(key)
            return legend.inner_text()

        assert "promised" in legend.inner_text() and "29.3G" not in legend.inner_text()
        plot.focus()
        last = until(said, "values", wanted=lambda text: "29.3G" in text)
        assert said("ArrowLeft") != last
