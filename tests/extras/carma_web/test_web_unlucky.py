"""Odd requests, and answers that never come."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from carma_web import submission
from carma_web.app import COOKIE, base_of, build
from carma_web.forms import carma
from carma_web.job import JobPage
from carma_web.page import templates
from cli import client
from cli.problems import Problem, Refused, Unknown
from tests.extras.carma_web.test_web_others import OUTLINE, STATUS

TOKEN = "t" * 32
DRY_RUN: Any = {"dry_run": True}


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    def get(path: str, *_: object, **query: object) -> Any:
        if path == "/v1/status":
            return STATUS
        if path == "/v1/jobs" and query == {"select": "7"}:
            return {"jobs": [OUTLINE]}
        raise Refused("job 7 is ann's", "Ask them.", "not_yours")

    monkeypatch.setattr(client, "get", get)
    base = f"http://test{base_of(TOKEN)}"
    return TestClient(
        build(TOKEN, read_only=False),
        base,
        cookies={COOKIE: TOKEN},
        headers={"Sec-Fetch-Site": "same-origin"},
        follow_redirects=False,
    )


# -- a job whose submission nobody answered


def test_a_job_in_doubt_is_submitted_again_only_by_another_button(
    pages: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(words: list[str], folder: Path) -> Any:
        asked.append(words[0])
        if len(asked) == 1:
            raise Refused("carmad closed the connection", "", "unknown")
        return {"label": "12"}, ()

    monkeypatch.setattr(submission, "carma", answer)
    monkeypatch.setattr(submission.Preview, "would", [])
    draft = submission.Draft({}, ["--", "true"], Path("/"), DRY_RUN, ())
    monkeypatch.setitem(submission.DRAFTS, "one", draft)
    here = f"{base_of(TOKEN)}/submit/one"
    assert ">Submit</button>" in pages.get("submit/one").text
    for _ in range(3):  # the button, the same from a page that is still open, and a reload
        answered = pages.post("submit/one")
        assert (answered.status_code, answered.headers["Location"]) == (303, here)
    assert asked == ["submit"]
    page = pages.get("submit/one").text
    assert "It may have been submitted, or not" in page and ">Submit</button>" not in page
    for _ in range(2):
        again = pages.post("submit/one", data={"again": "yes"})
        assert again.headers["Location"] == f"{base_of(TOKEN)}/jobs/12"
    assert len(asked) == 2


@pytest.mark.parametrize("read", [True, False])
def test_only_a_request_that_was_received_whole_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: bool
) -> None:
    where = str(tmp_path / "socket")
    monkeypatch.setenv("CARMA_SOCKET", where)
    words = ["submit", "--json", "--gpu-mem=1G", "--", "true"]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(where)
        if read:
            listening.listen()
            threading.Thread(target=_take, args=(listening,), daemon=True).start()
        with pytest.raises(Problem) as caught:
            carma(words, tmp_path)
    assert caught.value.code == ("unknown" if read else "unreachable")


def _take(listening: socket.socket) -> None:
    """As a carmad that dies over each request, once it has read the body's last byte."""
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            request = part = connection.recv(1 << 20)
            while part and not request.partition(b"\r\n\r\n")[2].endswith(b"}"):
                request += (part := connection.recv(1 << 20))


def test_a_carma_that_says_nothing_leaves_doubt(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="has not answered"):
        carma(["submit", "--json", "--", "true"], tmp_path, within_s=0.001)


# -- odd requests


def test_odd_parameters_are_refused_without_a_crash(pages: TestClient) -> None:
    assert pages.get("charts.json").status_code == 404  # no timeline
    for hours in ("9" * 5000, "-1", "x", "1e9", ""):
        path = "gpus/0/timeline.json"
        assert pages.get(path, params={"hours": hours}).status_code == 404, hours
    form = {"command": "true", "folder": "/tmp/\0x"}
    assert "not text" in pages.post("submit", data=form).text


def test_no_part_of_anothers_job_is_told(pages: TestClient) -> None:
    for part in templates().get_template(JobPage.template).blocks:
        status = 200 if part in JobPage.of_outline else 403
        assert pages.get("jobs/7", params={"part": part}).status_code == status, part
    for part in ("head", "main"):  # of a page that anybody may see
        assert pages.get("share", params={"part": part}).status_code == 404


def test_a_cookie_of_another_port_locks_nobody_out(pages: TestClient) -> None:
    for both in (f"carma=x; carma={TOKEN}", f"carma={TOKEN}; carma=x", f'carma={TOKEN};carma="'):
        assert pages.get("look.css", headers={"Cookie": both}).status_code == 200, both
    for none in ("carma=x; carma=y", f"xcarma={TOKEN}", f"carma ={TOKEN}x", "carma"):
        assert pages.get("look.css", headers={"Cookie": none}).status_code == 401, none


def test_what_has_a_tag_is_kept_by_the_browser_and_nothing_else_is(pages: TestClient) -> None:
    for path in ("look.css", "static/live.js"):
        first = pages.get(path)
        assert first.headers["Cache-Control"] == "private, no-cache"
        again = pages.get(path, headers={"If-None-Match": first.headers["ETag"]})
        assert again.status_code == 304
    for path in ("submit", "jobs/7", "nowhere", "../"):
        assert pages.get(path).headers["Cache-Control"] == "no-store", path
