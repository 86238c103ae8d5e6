"""The administrators' pages of `carma web`, in a browser, and simulations of other policies."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import tempfile
import urllib.error
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from carma_web.app import base_of, build
from carma_web.share import DAY, LABEL, Calendar
from tests.api_server import as_user
from tests.attack.users import HOSTILE, needs_root
from tests.browser import needs_browser
from tests.daemon import NO_KERNELS, Carmad, running, train
from tests.extras.carma_web.web import PHONE, Web, accessible, browsing, picture, serving
from tests.waiting import PATIENCE_S, until

HOSTILE_NAME = "<b>x</b>\u202e" + "y" * 900


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    folder = tmp_path_factory.mktemp("admin")
    with running(folder, XDG_CACHE_HOME=str(folder), **NO_KERNELS) as carmad:
        yield carmad


@needs_browser
def test_an_administrator_drains_limits_and_reserves(carmad: Carmad, web: Web) -> None:
    me = carmad.get("/v1/status")["me"]["user"]
    busy = carmad.submit(*train(memory_mib=4000, seconds=600), gpus=1)
    carmad.await_state(busy, "running")
    with browsing(web, "/admin") as page:
        page.get_by_role("link", name="Admin").wait_for()
        row = page.locator("#drain-2")
        row.get_by_label("Reason to drain GPU 2").fill(HOSTILE_NAME)
        row.get_by_role("button", name="Drain").click()
        page.locator("#drain-2").get_by_role("button", name="Resume").wait_for()
        assert HOSTILE_NAME[:8] in page.locator("#drain-2 .name").inner_text()
        assert "GPU 2 is drained" in page.locator(".told").inner_text()
        assert [gpu["state"] for gpu in carmad.gpus()].count("drained") == 1

        form = page.locator("form#limit")
        form.get_by_label("Who").fill(me)
        form.get_by_label("GPUs at once").fill("2")
        form.get_by_label("GPU-hours").fill("100")
        form.get_by_role("button", name="Set").click()
        page.get_by_text(f"The limit of {me} is in force.").wait_for()
        (limit,) = (x for x in carmad.get("/v1/limits")["limits"] if x["subject"] == me)
        assert (limit["gpus"], limit["gpu_hours"], limit["per"]) == (2, 100.0, "week")

        page.get_by_label("or which").fill("0")
        page.get_by_label("For users").fill(me)
        page.get_by_label("From").fill("now+20h")
        page.get_by_label("For", exact=True).fill("30h")
        page.get_by_label("every week").check()
        page.get_by_role("button", name="Reserve").click()
        page.locator(".told").get_by_text("Reserved:").wait_for()
        page.get_by_label("How many").fill("1")
        page.get_by_label("For", exact=True).fill("6h")
        page.get_by_role("button", name="Reserve").click()
        page.get_by_role("button", name="Cancel reservation 2").wait_for()
        assert page.locator(".calendar .slot").count() >= 3, "the weekly one is there twice"
        accessible(page)
        picture(page, "admin")

        page.get_by_role("button", name="Cancel reservation 2").click()
        page.get_by_text("Reservation 2 is cancelled.").wait_for()
        page.get_by_role("button", name="Resume GPU 2").click()
        page.get_by_text("GPU 2 takes jobs again.").wait_for()
    carmad.cancel(busy)


@needs_browser
def test_a_user_books_and_cancels_the_booking(carmad: Carmad, web: Web) -> None:
    me = carmad.get("/v1/status")["me"]["user"]
    with browsing(web, "/share") as page:
        book = page.locator("form", has=page.get_by_role("button", name="Book", exact=True))
        assert book.count() == 0, "nobody may"
        limit = page.locator("form#limit")
        limit.get_by_label("Who").fill(me)
        limit.get_by_label("Booked hours").fill("8")
        limit.get_by_role("button", name="Set").click()
        page.get_by_text(f"The limit of {me} is in force.").wait_for()
        book.get_by_label("How many").fill("2")
        book.get_by_label("From").fill("now+30h")
        book.get_by_label("For", exact=True).fill("3h")
        book.get_by_role("button", name="Book").click()
        page.locator(".told").get_by_text("Reserved:").wait_for()
        page.get_by_text(f"{me} has booked 6.0 of 8.0 GPU-hours.").wait_for()
        (made,) = (x for x in carmad.get("/v1/reservations")["reservations"] if x["booked"])
        assert made["users"] == [me]
        accessible(page)
        page.goto(f"{web.url}/share")
        page.get_by_role("button", name=f"Cancel reservation {made['id']}").click()
        page.get_by_text(f"Reservation {made['id']} is cancelled.").wait_for()
        page.get_by_role("button", name=f"Remove the limit of {me}").click()
        page.get_by_text(f"The limit of {me} is removed.").wait_for()


@pytest.mark.long
@needs_browser
def test_dark_and_on_a_phone(web: Web) -> None:
    with browsing(web, "/admin", dark=True) as page:
        page.locator("summary").click()
        accessible(page)
        page.evaluate("scrollTo(0, 0)")
        picture(page, "admin-dark")
    with browsing(web, "/share", size=PHONE) as page:
        accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        picture(page, "shares-phone")
        page.goto(f"{web.url}/admin/doctor")
        page.get_by_role("rowheader", name="settings").wait_for()
        accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.long
@needs_browser
def test_what_another_policy_would_have_done(carmad: Carmad, web: Web) -> None:
    jobs = [carmad.submit(*train(memory_mib=4000, seconds=1), gpus=1) for _ in range(3)]
    for job in jobs:
        carmad.ended(job)
    with browsing(web, "/admin") as page:
        page.get_by_role("button", name="What would another policy").click()
        page.wait_for_url("**/what-if")
        _hurry(web, page.locator("#simulation table").count)
        page.locator("#simulation table").wait_for(timeout=1000 * PATIENCE_S)
        kinds = page.locator("#simulation .badge").all_inner_texts()
        assert kinds == ["as it was", "in force"]
        names = page.locator("#simulation tbody td:first-child").all_inner_texts()
        assert names[0].startswith("recorded") and {"exclusive", "lug"} <= set(names)
        accessible(page)
        link = page.get_by_text("The whole report")
        link.wait_for(timeout=1000 * PATIENCE_S)
        picture(page, "shadow")
        with page.expect_popup() as opened:
            link.click()
        report = opened.value
        wrong: list[str] = []
        report.on("console", lambda said: wrong.append(said.text))
        report.wait_for_load_state()  # a page that is still opening cannot be loaded again
        report.reload()
        assert report.locator("img").count() > 2 and not wrong, wrong
        assert report.evaluate("getComputedStyle(document.querySelector('.facts')).display") == (
            "grid"
        )
        accessible(report)
        picture(report, "report")


def test_a_simulation_is_alone_can_be_cancelled_and_ends_with_its_server(
    carmad: Carmad,
) -> None:
    """Its child waits here for an answer that never comes."""
    with serving(carmad) as web:
        os.kill(carmad.pid, signal.SIGSTOP)
        try:
            child = _begun(web)
            assert _post(web, "/what-if", "days=7") == 400, "there is one already"
            assert _post(web, "/what-if/cancel", "") == 303
            until(lambda: not _alive(child), "the child to be ended")
            second = _begun(web)
            assert os.getpriority(os.PRIO_PROCESS, second) == 19, "the lowest"
            os.kill(_parent(second), signal.SIGKILL)
            until(lambda: not _alive(second), "the child to end with its parent")
        finally:
            os.kill(carmad.pid, signal.SIGCONT)


def _post(web: Web, path: str, body: str) -> int:
    connection = http.client.HTTPConnection(web.origin.removeprefix("http://"), timeout=PATIENCE_S)
    headers = {
        "Cookie": f"carma={web.token}",
        "Origin": web.origin,
        "Content-Type": "application/x-www-form-urlencoded",
    }
    connection.request("POST", web.base + path, body, headers)
    return connection.getresponse().status


def _begun(web: Web) -> int:
    """The process of a simulation that has lowered its priority: one that gave up is replaced."""

    def begin() -> int:
        _post(web, "/what-if", "days=7&policy-lug=1")  # refused while there is one
        return _simulation(web)

    return int(until(begin, "a simulation to begin"))


def _simulation(web: Web) -> int:
    """The process of the pages' simulation, once it has lowered its priority."""
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        pid = int(each.name)
        with contextlib.suppress(OSError):  # processes end at any time
            # Its parent first: another process's command line may keep whoever reads it waiting.
            its = _parent(pid) == web.pid and os.getpriority(os.PRIO_PROCESS, pid) == 19
            if its and b"what-if" in (each / "cmdline").read_bytes():
                return pid
    return 0


def _hurry(web: Web, ended: Callable[[], object]) -> None:
    """Other tests may be busy for minutes. Only root may do that."""
    if os.geteuid() == 0:
        until(lambda: _simulation(web) or ended(), "the simulation to begin")
        with contextlib.suppress(OSError):
            if pid := _simulation(web):
                os.setpriority(os.PRIO_PROCESS, pid, 0)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.long
@needs_browser
def test_many_tabs(carmad: Carmad, web: Web) -> None:
    """A browser has six connections to a server; a tab that nobody sees gives its own back."""
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    hide += "document.dispatchEvent(new Event('visibilitychange'))"
    with browsing(web) as page:
        tabs = [page]
        for _ in range(7):
            tabs[-1].evaluate(hide % "true")
            tabs.append(page.context.new_page())
            tabs[-1].goto(f"{web.url}/")
        job = carmad.submit(*train(memory_mib=4000, seconds=600), gpus=1)
        tabs[-1].locator(f"#job-{job}").wait_for()
        assert not page.locator(f"#job-{job}").count()
        tabs[-1].evaluate(hide % "true")
        page.evaluate(hide % "false")
        page.locator(f"#job-{job}").wait_for()
    carmad.cancel(job)


# -- without a browser


def test_a_lab_screen_shows_and_changes_nothing(carmad: Carmad) -> None:
    with serving(carmad, "--read-only") as web:
        assert "<form" not in web.get("/admin") + web.get("/share") + web.get("/what-if")
        for path in ("/share/limit", "/share/reserve", "/admin/drain", "/what-if"):
            assert _post(web, path, "gpu=0&days=7") in (404, 405), path
        with pytest.raises(urllib.error.HTTPError, match="404"):
            web.get("/what-if/report")


@needs_root
def test_others_see_shares_and_nothing_for_administrators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a page of their own: the app in a process of that user."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), **NO_KERNELS) as carmad:
        Path(folder).chmod(0o755)  # not tmp_path: others may not enter that
        os.chmod(carmad.socket, 0o666)  # noqa: PTH101

        monkeypatch.setenv("CARMA_SOCKET", carmad.socket)

        def look() -> list[object]:
            client = TestClient(build("t" * 24, read_only=False))
            base = base_of("t" * 24)
            client.get(f"{base}/?token={'t' * 24}")
            head = {"Sec-Fetch-Site": "same-origin"}
            share, admin = client.get(f"{base}/share"), client.get(f"{base}/admin")
            drained = client.post(f"{base}/admin/drain", content="gpu=0", headers=head)
            return [
                (share.status_code, "<form" in share.text, f'{base}/admin"' in share.text),
                (admin.status_code, "for administrators" in admin.text),
                (drained.status_code, "may drain" in drained.text or "only" in drained.text),
            ]

        assert look()[0] == (200, True, True), "and all is loaded that others may not read"
        assert as_user(HOSTILE[0], look) == [[200, False, False], [403, True], [403, True]]


def test_a_weekly_reservation_keeps_its_hour_in_the_calendar() -> None:
    now = datetime(2026, 11, 23, 12)

    def stamp(day: int, hour: int) -> str:
        return datetime(2026, 11, day, hour).astimezone().isoformat()

    weekly = {
        "id": 3,
        "gpus": ["b"],
        "indices": [1],
        "users": ["ada", "bo"],
        "by": "root",
        "starts_at": stamp(24, 6),
        "ends_at": stamp(24, 18),
        "times_left": 50,
        "active": False,
        "text": "GPU 1 for ada and bo",
        "in_the_way": [],
    }
    long = weekly | {"gpus": ["a", "gone"], "users": [], "times_left": 1, "active": True}
    long |= {"starts_at": stamp(20, 0), "ends_at": datetime(2027, 1, 1).astimezone().isoformat()}
    calendar = Calendar({"a": "GPU 0", "b": "GPU 1"}, [weekly, long], now)  # type: ignore[list-item]
    first, second, whole = calendar.bars
    assert (first.x, second.x) == (LABEL + 1.25 * DAY, LABEL + 8.25 * DAY)
    assert first.width == second.width == DAY / 2 and first.text == "ada, bo"
    assert (whole.x, whole.x + whole.width) == (LABEL, calendar.width)
    assert (whole.text, whole.kind, first.y > whole.y) == ("maintenance", "active", True)
    assert calendar.now_x == LABEL + DAY / 2
    assert [name for _, name, _, weekend in calendar.days if weekend] == ["Sat", "Sun"] * 2


def test_a_form_with_nonsense_is_refused_with_words(web: Web) -> None:
    for path, body, status in (
        ("/share/limit", "who=root", 400),
        ("/share/limit", "who=root&gpus=-1", 400),
        ("/share/limit", "who=nobody-of-that-name&gpus=1", 404),
        ("/share/reserve", "gpus=1", 400),
        ("/share/reserve", "gpus=1&for=soon", 400),
        ("/share/reserve", "gpus=1&on=0&for=4h", 400),
        ("/share/cancel", "id=99", 404),
        ("/admin/drain", "gpu=../../v1/cancel", 404),
        ("/what-if", "days=0", 400),
    ):
        assert _post(web, path, body) == status, (path, body)
