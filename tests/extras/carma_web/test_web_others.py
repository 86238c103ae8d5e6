"""What a page shows of a job that is not its reader's."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from carma_web.app import COOKIE, base_of, build
from cli import client
from cli.problems import Refused

TOKEN = "t" * 32
MEMORY = dict.fromkeys(
    ("declared_mib", "estimate_mib", "estimate_low", "estimate_high", "used_mib", "peak_mib")
) | {"estimate_source": None}
OUTLINE: dict[str, Any] = {
    "id": 7,
    "label": "7",
    "user": "ann",
    "name": "-",
    "state": "running",
    "code": "R",
    "gpus": [{"id": "GPU-1", "index": 1, "first_kernel_at": None}],
    "gpus_wanted": 1,
    "submitted_at": "2026-11-23T01:00:00.000Z",
    "started_at": "2026-11-23T01:00:00.000Z",
    "elapsed_s": 61.0,
    "memory": MEMORY,
}


STATUS = {
    "me": {"user": "bob", "admin": False},
    "server": {"version": "1"},
    "jobs": [],
    "gpus": [],
}


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    def get(path: str, *_: object, **query: object) -> Any:
        if path == "/v1/status":
            return STATUS
        if path == "/v1/jobs" and query == {"select": "7"}:
            return {"jobs": [OUTLINE]}
        if path.startswith("/v1/jobs/7"):
            raise Refused("job 7 is ann's", "Ask them.", "not_yours")
        raise Refused("there is no such job", "", "not_found")

    monkeypatch.setattr(client, "get", get)
    base = f"http://test{base_of(TOKEN)}"
    return TestClient(build(TOKEN, read_only=False), base, cookies={COOKIE: TOKEN})


def test_others_jobs_are_shown_in_outline(pages: TestClient) -> None:
    answer = pages.get("jobs/7")
    assert answer.status_code == 200
    assert "a job of ann" in answer.text and "1:01" in answer.text
    assert "<form" not in answer.text and "carma logs" not in answer.text


def test_what_the_daemon_refuses_has_its_status(pages: TestClient) -> None:
    assert pages.get("jobs/7/timeline.json").status_code == 403
    assert pages.get("jobs/8").status_code == 404
    assert pages.get("jobs/8?part=log").status_code == 404
    assert pages.post("jobs/7/cancel").status_code == 403  # another site's page sent it
