"""The page of ended jobs, what sweeps and logs tell, in a real browser."""

from __future__ import annotations

import sys
import urllib.error
from collections.abc import Iterator

import pytest

from tests.browser import needs_browser
from tests.daemon import CARMA, NO_KERNELS, Carmad, running
from tests.extras.carma_web.web import PHONE, Web, accessible, browsing, picture
from tests.waiting import until

pytestmark = needs_browser

HOST = {"gpus": 0, "cpus": 1}  # jobs that need none
COUNT = 60  # rows: of a page and some more
ALIKE = 30  # jobs of a row


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("past"), gpus="1xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


def await_ends(carmad: Carmad, count: int) -> None:
    def ended() -> int:
        return len(carmad.get("/v1/history?limit=1000")["jobs"])

    until(ended, "jobs to end", wanted=lambda found: found >= count, within_s=300)


def array(count: int) -> dict[str, object]:
    return {"indices": list(range(count)), "limit": None}


def tasks(carmad: Carmad, label: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = carmad.get(f"/v1/jobs?select={label}")["jobs"]
    return found


@pytest.fixture(scope="module")
def past(carmad: Carmad) -> dict[str, int]:
    """A page of jobs that have ended, each differently, and some more; and an array."""
    crowd = carmad.sh("exit $CARMA_ARRAY_TASK_ID", name="crowd", array=array(COUNT), **HOST)
    failed = carmad.sh("echo needle in a haystack; exit 3", name="Größter Fehler", **HOST)
    carmad.ended(failed)
    alike = carmad.sh("true", name="alike", array=array(ALIKE), **HOST)
    await_ends(carmad, COUNT + ALIKE + 1)
    return {"alike": alike, "crowd": crowd, "failed": failed}


@pytest.fixture(scope="module")
def sweep(carmad: Carmad) -> str:
    """Two runs that report twice; its label."""
    (carmad.work / "train.py").write_text(
        "import os, subprocess\n"
        f"told = [{CARMA[0]!r}, 'report']\n"
        "lr = float(os.environ['CARMA_PARAM_LR'])\n"
        "for epoch in (1, 2): subprocess.run([*told, f'acc={lr * epoch}'], check=True)\n"
    )
    env = ("--export", f"CARMA_SOCKET={carmad.socket}")
    words = ("--gpus", "0", "-J", "sweep", "--param", "lr=0.25,0.125,0.4375", *env)
    label = carmad.carma("submit", "--parsable", *words, "--", sys.executable, "train.py").strip()
    until(lambda: all(job["state"] == "succeeded" for job in tasks(carmad, label)), "its runs")
    return label


def test_it_is_searched_sorted_and_paged(web: Web, past: dict[str, int]) -> None:
    with browsing(web, "/history") as page:
        rows = page.locator("#found tbody tr")
        assert rows.count() == 50
        assert f"{COUNT + ALIKE + 1} jobs; rows 1–50" in page.locator("#found").inner_text()
        accessible(page)
        picture(page, "history")
        page.get_by_role("link", name="Next jobs").click()
        until(lambda: rows.count() < 50, "the second page")
        page.get_by_role("link", name="Previous jobs").click()
        page.get_by_role("link", name="Name", exact=True).click()
        page.locator('th[aria-sort="descending"]', has_text="Name").wait_for()
        assert "Größter" in rows.first.inner_text()
        page.get_by_role("link", name="Name", exact=True).click()
        page.locator('th[aria-sort="ascending"]', has_text="Name").wait_for()
        assert "alike" in rows.first.inner_text()
        page.wait_for_load_state()  # its script listens to the keyboard
        page.keyboard.press("/")
        page.keyboard.type("größter exit")  # a word of its name, and one of its command
        until(rows.count, "what is looked for", wanted=lambda count: count == 1)
        page.get_by_label("State").select_option("cancelled")
        page.get_by_text("No such jobs have ended.").wait_for()
        assert "state=cancelled" in page.url
        page.get_by_label("State").select_option("any failure")
        page.locator(f"#ended-{past['failed']}").get_by_role("link").click()
        page.locator("h1", has_text="Größter Fehler").wait_for()


def test_tasks_of_an_array_that_ended_alike_are_a_row(web: Web, past: dict[str, int]) -> None:
    recently = web.get("/?part=ended")
    assert recently.count('<tr id="ended-') == 10 and f"×{ALIKE}" in recently
    with browsing(web, "/history?q=alike") as page:
        rows = page.locator("#found tbody tr")
        assert rows.count() == 1 and f"×{ALIKE}" in rows.inner_text()
        assert f"{ALIKE} jobs" in page.locator("#found").inner_text()
        page.get_by_role("link", name=f"{past['alike']}_[0-{ALIKE - 1}]").click()
        page.locator("h1", has_text=f"Array {past['alike']}").wait_for()


def test_a_period_and_an_odd_question(web: Web, past: dict[str, int]) -> None:
    assert "No such jobs" in web.get("/history?until=2001-01-01")
    assert f"{COUNT + ALIKE + 1} jobs" in web.get("/history?since=2001-01-01&user=")
    assert "&#39;x&lt;&#39; is no day" in web.get("/history?since=x%3C")
    assert "No such jobs" in web.get("/history?from=99999")
    assert "rows 1–50" in web.get("/history?from=x&sort=nothing&state=nonsense")


def test_the_history_on_a_phone(web: Web, past: dict[str, int]) -> None:
    with browsing(web, "/history", PHONE, dark=True) as page:
        page.locator("#found tbody tr").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        accessible(page)
        picture(page, "history-phone")


def test_command_and_page_share_a_search(carmad: Carmad, web: Web, past: dict[str, int]) -> None:
    said = carmad.carma("history", "größter", "exit", "--states", "failed")
    assert [line.split()[0] for line in said.splitlines()[1:]] == [str(past["failed"])]
    said = carmad.carma("history", "--sort", "name", "-n", "1")
    assert "Größter" in said
    said = carmad.carma("history", "crowd", "--sort", "ended", "-r", "-n", "2")
    assert [line.split()[1] for line in said.splitlines()[1:]] == ["crowd", "crowd"]


def test_runs_of_a_sweep_are_compared(web: Web, sweep: str) -> None:
    with browsing(web, f"/jobs/{sweep}") as page:
        heads = page.locator("#tasks th").all_inner_texts()
        assert heads[:4] == ["Task", "State", "lr", "acc"]
        accessible(page)
        picture(page, "sweep")

        def column() -> list[str]:
            return page.locator("#tasks tbody td:nth-child(4)").all_inner_texts()

        assert column() == ["0.5", "0.25", "0.875"]
        page.get_by_role("link", name="acc", exact=True).click()
        until(column, "the best first", wanted=lambda cells: cells == ["0.875", "0.5", "0.25"])
        page.get_by_role("link", name="acc", exact=True).click()
        until(column, "the least first", wanted=lambda cells: cells == ["0.25", "0.5", "0.875"])


def test_a_metric_is_a_curve(carmad: Carmad, web: Web, sweep: str) -> None:
    curve = carmad.get(f"/v1/jobs/{sweep}_1/metrics")["metrics"]["acc"]
    assert curve["values"] == [0.125, 0.25] and curve["times"] == sorted(curve["times"])
    with browsing(web, f"/jobs/{sweep}_1") as page:
        plot = page.locator("#chart-metric-acc .plot")
        page.locator("#chart-metric-acc canvas").wait_for()
        plot.focus()
        plot.press("End")
        said = page.locator("#chart-metric-acc [role=status]")
        until(said.inner_text, "the last value", wanted=lambda text: "0.25" in text)
        picture(page, "metric")


def test_a_log_is_searched_and_downloaded(carmad: Carmad, web: Web, past: dict[str, int]) -> None:
    long = carmad.sh("seq 1 3000; printf 'a \\033[31mNeedle\\n'; echo '<b>'", name="long", **HOST)
    carmad.ended(long)
    with browsing(web, f"/jobs/{long}") as page:
        assert "The last 200 lines" in page.locator("#log").inner_text()
        page.get_by_label("Search the log").fill("needle")
        page.keyboard.press("Enter")
        page.locator("#log mark", has_text="Needle").wait_for()
        assert "3001  a Needle" in page.locator("#log").inner_text()
        assert page.locator("#log pre").inner_text().count("\n") <= 1
        accessible(page)
        with page.expect_download() as waiting:
            page.get_by_role("link", name="Download").click()
        got = waiting.value
        assert got.suggested_filename == f"carma-{long}.out"
        whole = got.path().read_text()
        assert whole.startswith("1\n2\n") and whole.endswith("Needle\n<b>\n")
    assert "no line contains that" in web.get(f"/jobs/{long}?find=nothing+like+it")
    for path in (f"/jobs/{long}/log/stdin", f"/jobs/{past['failed']}/log/nope"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            web.get(path)
        assert caught.value.code == 404
