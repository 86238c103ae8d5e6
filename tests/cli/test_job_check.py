"""The job that `carma doctor` runs from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from carmad.errors import CarmaError
from cli.commands import doctor
from tests import fake_daemon
from tests.daemon import running

DONE = {"exit": {"code": 0, "cause": "success", "evidence": ""}, "failures": [], "attempt": 1}


def test_it_runs_where_carma_is_well(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB") as daemon:
        checks = json.loads(daemon.carma("doctor", "--json", rc=None))["checks"]
        (job,) = (check for check in checks if check["name"] == "job")
        assert job["ok"] is True, job
        ended = daemon.get("/v1/history")["jobs"]
        assert [each["state"] for each in ended] == ["succeeded"], "nobody is to look into it"


def test_a_server_that_is_busy_is_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "STARTS_WITHIN_S", 1.0)
    with running(tmp_path, "1xA100-40GB", CARMA_HOST__CPUS="1") as daemon:
        monkeypatch.setenv("CARMA_SOCKET", daemon.socket)
        busy = daemon.sh("exec sleep 600", gpus=0)
        daemon.await_state(busy, "running")
        found = doctor.check_job()
        assert found["ok"] is None
        assert "cancelled: (CPUs: " in found["detail"]
        assert [job["id"] for job in daemon.get("/v1/jobs")["jobs"]] == [busy]


@pytest.mark.parametrize(
    ("job", "lines", "said"),
    [
        (DONE, ["began", "began", "ended"], "started 2 times"),
        (
            DONE | {"attempt": 2, "failures": [{"evidence": "its supervisor is gone"}]},
            ["began", "ended"],
            "started 2 times: its supervisor is gone",
        ),
        (
            DONE | {"exit": {"code": 1, "cause": "failure", "evidence": ""}},
            [],
            "exits with 0, and",
        ),
        (DONE, [], "its output is not here"),
    ],
)
def test_it_says_what_went_wrong(job: dict[str, Any], lines: list[str], said: str) -> None:
    found = doctor._end(fake_daemon.ended(42, **job), lines)  # type: ignore[arg-type]
    assert found["ok"] is False
    assert said in found["detail"]


def test_a_job_that_is_not_accepted_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise CarmaError("the disk is full", "Free some.")

    monkeypatch.setattr(doctor.Client, "submit", refuse)
    assert doctor.check_job() == {
        "name": "job",
        "ok": False,
        "detail": "the disk is full",
        "hint": "Free some.",
    }
