"""The first page of `carma web` in a real browser: GPUs, their last hours, and the line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon import NO_KERNELS, Carmad, running, train
from tests.waiting import until
from tests.web import DESKTOP, PHONE, Web, accessible, browsing, needs_browser, picture, serving

pytestmark = needs_browser

HOSTILE = "<img src=x onerror=alert(1)></td><script>alert(2)</script>\u202eevil\u2066" + "w" * 170
SHOWN = "<img src=x onerror=alert(1)></td><script>alert(2)</script>?evil?www"
ALONE = {"memory_mib": 30_000}  # so that one is on each GPU


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    folder = tmp_path_factory.mktemp("web")
    with running(folder, "8xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


@pytest.fixture(scope="module")
def web(carmad: Carmad) -> Iterator[Web]:
    with serving(carmad) as web:
        yield web


def test_without_jobs_it_says_how_to_submit_one(web: Web) -> None:
    with browsing(web) as page:
        assert "carma submit -- python train.py" in page.locator("#jobs").inner_text()
        assert page.locator(".gpu").count() == 8
        accessible(page)
        picture(page, "no-jobs")


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
    [("desktop", DESKTOP, False), ("dark", DESKTOP, True), ("phone", PHONE, False)],
)
def test_a_thousand_jobs_and_a_hostile_name(
    web: Web, crowd: dict[str, int], name: str, size: tuple[int, int], dark: bool
) -> None:
    with browsing(web, "/?hours=1", size, dark) as page:
        row = page.locator(f"#job-{crowd['hostile']} .name")
        assert row.inner_text().startswith(SHOWN)
        assert row.bounding_box()["width"] < size[0] / 2 + 60  # type: ignore[index]
        assert "1,000 jobs: 8 on GPUs" in page.locator("#jobs").inner_text()
        assert not page.locator("main img, main script").count()
        page.locator("#memory-0 canvas").wait_for()
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


def test_charts_are_read_out_by_the_keyboard(web: Web, crowd: dict[str, int]) -> None:
    with browsing(web, "/?hours=1") as page:
        page.locator("#memory-0 canvas").wait_for()
        plot = page.locator("#memory-0 .plot")
        assert "Memory of GPU 0 in the last 1 h" in (plot.get_attribute("aria-label") or "")

        def said(key: str = "End") -> str:
            plot.press(key)
            return page.locator("#memory-0 .said").inner_text()

        plot.focus()
        last = until(said, "values", wanted=lambda text: "promised: " in text)
        assert said("ArrowLeft") != last
        assert page.locator("#memory-0 .read").is_visible()
        assert page.locator("#memory-0 .marks").inner_text().split()[-2:] == ["promised", "start"]


def test_what_is_new_is_added_to_what_is_known(web: Web) -> None:
    with browsing(web) as page:
        until(lambda: page.evaluate("typeof merged") == "function", "what draws charts")
        added = page.evaluate(
            """() => {
              const line = (name, values) => ({ name, values, kind: "area", stack: true });
              const old = { times: [10, 20, 30], series: [line("a", [1, 2, 3])],
                            marks: [{ at: 12, kind: "oom" }, { at: 31, kind: "oom" }] };
              const fresh = { span_s: 25, times: [30, 40], marks: [{ at: 35, kind: "oom" }],
                              series: [line("a", [4, null]), line("b", [null, 5])] };
              return merged(old, fresh);
            }"""
        )
    assert added["times"] == [20, 30, 40]
    assert [one["values"] for one in added["series"]] == [[2, 4, None], [None, None, 5]]
    assert [mark["at"] for mark in added["marks"]] == [35]
