"""The page of a job and the form for new ones, in a real browser."""

from __future__ import annotations

import re
import urllib.error
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

HOSTILE = "<img src=x onerror=alert(1)>\u202e" + "x" * 200
TALKS = r"""
i=0
printf '<b>bold</b> \033[31mred\033[0m\n'
while [ $i -lt 6000 ]; do printf "step $i of 6000\r"; i=$((i+1)); sleep 0.1; done
"""


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("jobs"), gpus="1xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


def fill_in(page: Page, carmad: Carmad, command: str, **fields: str) -> None:
    page.get_by_label("Command, or job script").fill(command)
    page.get_by_label("Directory to run in").fill(str(carmad.work))
    for name, value in fields.items():
        page.locator(f"#field-{name}").fill(value)
    page.get_by_role("button", name="Preview").click()


def state(page: Page, word: str) -> None:
    page.locator("h1 .badge", has_text=re.compile(f"^{word}$")).wait_for()


def await_narrow(page: Page) -> None:
    """Nothing is wider than the screen once the charts have been fitted to it."""
    fits = "document.documentElement.scrollWidth <= innerWidth"
    until(lambda: page.evaluate(fits), "a page as narrow as the screen")


def test_a_job_from_the_form_to_its_end(carmad: Carmad, web: Web) -> None:
    first = carmad.submit(*train(memory_mib=20_000, seconds=600), name="ahead", exclusive=True)
    carmad.await_state(first, "running")
    (carmad.work / "talks.sh").write_text(f"#!/bin/sh\n#CARMA --job-name talks\n{TALKS}")
    with browsing(web, "/submit") as page:
        accessible(page)
        fill_in(page, carmad, "talks.sh", time_limit_s="soon", memory_mib="4G")
        fault = page.locator("#field-time_limit_s-fault").inner_text()
        assert "“Time limit”" in fault and "'soon' is not a time" in fault
        said = page.locator("main").inner_text()
        assert not re.search(r"--[a-z]", said), said  # it speaks of fields, not of options
        fill_in(page, carmad, "talks.sh", time_limit_s="1h")  # the rest is still there
        page.get_by_text("It would wait").wait_for()
        page.locator("#estimate table").wait_for()
        assert "4.0G must be free" in page.locator("#estimate").inner_text()
        accessible(page)
        picture(page, "submit")
        preview = page.url
        page.get_by_role("button", name="Submit").click()
        page.get_by_text("submitted job").wait_for()
        state(page, "queued")
        assert "talks" in page.locator("h1").inner_text()
        assert f"job {first}" in page.locator("#why").inner_text()
        label = page.url.rsplit("/", 1)[1]
        accessible(page)

        assert page.locator("button", has_text="Release").count() == 0
        page.get_by_role("button", name="Hold").click()
        page.get_by_text("waits: it is held").wait_for()
        page.get_by_text("Change…").click()
        page.get_by_label("Memory per GPU").fill("5G")
        page.get_by_role("button", name="Change the job").click()
        page.get_by_text(f"job {label}: updated: “Memory per GPU”").wait_for()
        page.get_by_role("button", name="Release").click()
        page.get_by_role("button", name="Hold").wait_for()
        carmad.cancel(first)
        page.locator("#log", has_text="<b>bold</b> red").wait_for()
        before = page.locator("#log pre").inner_text()
        until(lambda: page.locator("#log pre").inner_text() != before, "the log to go on")
        assert before.count("step") == 1
        accessible(page)

        page.get_by_text("Cancel…").click()
        page.get_by_role("button", name="Cancel the job").click()
        state(page, "cancelled")
        assert page.get_by_text("Cancel…").count() == 0
        page.goto(preview)
        assert page.get_by_role("button", name="Submit").count() == 0
    status = web.post(preview.removeprefix(web.url))
    assert status == (303, f"{web.base}/jobs/{label}")  # it is not submitted twice
    assert len(carmad.get("/v1/history")["jobs"]) == 2


def test_a_hostile_job_on_a_phone_with_the_keyboard_alone(carmad: Carmad, web: Web) -> None:
    job = carmad.sh("exec sleep 600", name=HOSTILE, memory_mib=1000)
    other = carmad.sh("exec sleep 600", name="b" * 200, memory_mib=1000)
    carmad.await_state(other, "starting", "running")
    with browsing(web, f"/jobs/{job}", PHONE, dark=True) as page:
        page.locator("#beside a").wait_for()
        await_narrow(page)
        assert HOSTILE[:20] in page.locator("h1").inner_text()
        assert page.locator("img").count() == 0
        accessible(page)
        picture(page, "hostile-job-phone")
        page.locator("summary", has_text="Cancel…").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_text(f"job {job}: ").wait_for()
        state(page, "cancelled")
        page.get_by_role("link", name="Submit again").click()
        assert (
            page.get_by_label("Command, or job script").input_value().endswith("'exec sleep 600'")
        )
        await_narrow(page)
        accessible(page)
    carmad.cancel(other)


@pytest.mark.parametrize("width", [320])
def test_nothing_scrolls_sideways_on_a_phone(carmad: Carmad, web: Web, width: int) -> None:
    """Of a job that waits, one that has run beside another, one that has failed, and the forms."""
    waits = carmad.sh("exec sleep 600", name="n" * 200, held=True)
    command = ("echo " + "y" * 500, "exit 3")
    failed = carmad.sh("; ".join(command), name="a b " * 40, memory_mib=1000)
    carmad.ended(failed)
    for path in (f"/jobs/{waits}", f"/jobs/{failed}", "/submit", "/history", "/"):
        with browsing(web, path, (width, 740)) as page:
            page.evaluate(
                "document.querySelectorAll('details').forEach((one) => (one.open = true))"
            )
            await_narrow(page)
            for wide in page.locator(".wide").all():  # nor does a part
                assert wide.evaluate("(part) => part.scrollWidth <= part.clientWidth + 1")
            if path == f"/jobs/{failed}":
                picture(page, f"failed-job-{width}")
    carmad.cancel(waits)


def test_arrays_and_what_is_not_there(carmad: Carmad, web: Web) -> None:
    array = carmad.sh("true", name="sweep", gpus=1, memory_mib=1000, array={"indices": [3, 5]})
    with browsing(web, f"/jobs/{array}_[3-5]") as page:
        page.locator(f"#task-{array}_5").wait_for()
        accessible(page)
        page.get_by_role("link", name=f"{array}_5").click()
        page.get_by_role("link", name=f"array {array}").wait_for()
    for path in ("/jobs/99999", "/jobs/1%0d%0aX:%201", "/submit/unknown"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            web.get(path)
        assert caught.value.code == 404


def test_a_screen_shows_no_forms_that_change_something(carmad: Carmad) -> None:
    job = carmad.sh("exec sleep 600", memory_mib=1000, held=True)
    with serving(carmad, "--read-only") as screen:
        assert 'method="post"' not in screen.get(f"/jobs/{job}")
        with pytest.raises(urllib.error.HTTPError) as caught:
            screen.get("/submit")
        assert caught.value.code == 404
        assert screen.post(f"/jobs/{job}/cancel")[0] in (404, 405)
    carmad.cancel(job)
