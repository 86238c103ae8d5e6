"""The pages of `carma web` in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import needs_browser
from tests.daemon import NO_KERNELS, Carmad, running, train
from tests.extras.carma_web.web import DESKTOP, PHONE, Web, accessible, browsing, picture

WINDOWS = 7  # one more than a browser has connections

pytestmark = needs_browser


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("web"), **NO_KERNELS) as carmad:
        yield carmad


def test_a_job_appears_on_the_open_page(carmad: Carmad, web: Web) -> None:
    with browsing(web) as page:
        job = carmad.submit(*train(memory_mib=4000, seconds=600), name="seen", gpus=1)
        page.locator(f"#job-{job}").wait_for()
        assert "token" not in page.url
        accessible(page)
        picture(page, "one-job")
    for name, size, dark in (("dark", DESKTOP, True), ("phone", PHONE, False)):
        with browsing(web, "/", size, dark) as page:
            assert page.locator("header nav [aria-current]").inner_text() == "GPUs"
            page.locator("#gpu-0" if size == PHONE else "#spark-0 canvas").wait_for()
            picture(page, f"one-job-{name}")
    carmad.cancel(job)


def test_what_the_last_days_were_used_for(carmad: Carmad, web: Web) -> None:
    carmad.ended(carmad.submit(*train(memory_mib=4000, seconds=1), name="short", gpus=1))
    with browsing(web, "/report") as page:
        page.get_by_text("1 job held GPUs").or_(page.get_by_text("2 jobs held GPUs")).wait_for()
        accessible(page)
        page.get_by_role("link", name="Last month").click()
        page.get_by_text("carma stats --report month").wait_for()


@pytest.mark.long
def test_more_windows_than_a_browser_has_connections(carmad: Carmad, web: Web) -> None:
    with browsing(web) as first:
        pages = [first]
        for _ in range(WINDOWS - 1):
            pages.append(first.context.new_page())
            pages[-1].goto(f"{web.url}/")
        assert not any(page.evaluate("document.hidden") for page in pages)
        job = carmad.submit(*train(memory_mib=4000, seconds=600), name="all", gpus=1)
        for page in pages:
            page.locator(f"#job-{job}").wait_for()
    carmad.cancel(job)
