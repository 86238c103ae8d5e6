"""The charts and the line of the first page of `carma web`, from the daemon's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.requests import Request

from cli import client
from cli.problems import Refused
from web import charts, overview
from web.overview import Line

GPU: dict[str, Any] = {
    "id": "GPU-a",
    "index": 0,
    "name": "A100",
    "mig": False,
    "memory_mib": 40_960,
    "used_mib": [0, 2000, 5000, None],
    "used_max_mib": [0, 2500, 6144, None],
    "external_mib": [0, 0, 0, None],
    "promised_mib": [0, 3000, 7000, None],
    "sm_active": [0.0, 0.5, 1.0, None],
    "sm_active_max": [0.0, 0.75, 1.0, None],
    "power_w": [50.0, 100.0, 200.0, None],
    "jobs": [
        {
            "id": 7,
            "label": "7",
            "user": "ann",
            "name": "bert",
            "first": 1,
            "used_mib": [2000, 5000],
            "used_max_mib": [2500, 6144],
            "promised_mib": [3000, 7000],
        }
    ],
    "marks": [
        {"at": 12.5, "kind": "started", "job": 7, "label": "7", "user": "ann", "text": ""},
        {"at": 13.5, "kind": "running", "job": 7, "label": "7", "user": "ann", "text": ""},
        {"at": 25.0, "kind": "slowed", "job": 7, "label": "7", "user": "ann", "text": "by 8 %"},
    ],
    "left_out": 0,
}


def answer(**of_gpu: object) -> Any:
    return {
        "times": [0, 10, 20, 30],
        "until": "1970-01-01T00:00:35Z",
        "limits": {"sm_active": 0.8},
        "gpus": [GPU | of_gpu],
    }


def drawn(**of_gpu: object) -> tuple[charts.Chart, charts.Chart]:
    made = charts.gpu_charts(answer(**of_gpu), 6)
    return made[charts.memory_of("GPU-a")], made[charts.load_of("GPU-a")]


def test_memory_is_stacked_by_job_below_what_was_promised() -> None:
    memory, _ = drawn()
    job, promised = memory["series"]
    assert job["values"] == [None, 2000, 5000, None]
    assert (job["name"], job["short"], job["stack"]) == ("7 ann bert", "7 ann", True)
    assert (promised["values"], promised["stack"]) == ([0, 3000, 7000, None], False)
    assert memory["limits"] == [{"name": "total 40.0G", "value": 40_960}]


def test_external_memory_is_on_top_if_there_was_any() -> None:
    memory, _ = drawn(external_mib=[0, 0, 900, None])
    assert [one["name"] for one in memory["series"]] == [
        "7 ann bert",
        "external processes",
        "promised",
    ]


def test_a_new_server_begins_where_its_record_does() -> None:
    made = answer()
    made["times"] = list(range(0, 400, 10))
    made["gpus"][0] |= {
        name: [None] * 8 + [0.5] * 32
        for name, values in GPU.items()
        if isinstance(values, list) and name not in ("jobs", "marks")
    }
    made["gpus"][0]["jobs"] = []
    for chart in charts.gpu_charts(made, 6).values():
        assert chart["times"][0] == 80
        assert all(len(one["values"]) == 32 for one in chart["series"])


def test_marks_are_beside_what_they_explain() -> None:
    memory, load = drawn()
    assert [(mark["kind"], mark["text"]) for mark in memory["marks"]] == [("started", "7 ann")]
    assert [(mark["kind"], mark["text"]) for mark in load["marks"]] == [("slowed", "7 ann by 8 %")]
    assert load["limits"] == [{"name": "risk limit 0.80", "value": 0.8}]


def test_who_sees_no_chart_is_told_what_it_shows() -> None:
    memory, load = drawn()
    assert memory["summary"] == (
        "Memory of GPU 0 in the last 6 h: at most 6.0G of 40.0G used; jobs 7 of ann; start: 1."
    )
    assert load["summary"] == (
        "SM activity of GPU 0 in the last 6 h: 0.50 in the mean, at most 1.00; slow-down: 1."
    )


def test_a_hostile_name_is_harmless_text() -> None:
    memory, _ = drawn(jobs=[GPU["jobs"][0] | {"name": "\x1b[31m\u202e<b>"}])
    assert memory["series"][0]["name"] == "7 ann ?[31m?<b>"


def test_a_gpu_of_which_nothing_is_known() -> None:
    nothing: list[None] = [None] * 4
    unknown: dict[str, object] = dict.fromkeys(
        (name for name in GPU if name.endswith(("_mib", "max"))), nothing
    )
    unknown |= {"sm_active": nothing, "memory_mib": None, "jobs": [], "marks": []}
    memory, load = drawn(**unknown)
    assert memory["limits"] == []
    assert "at most - of - used; no jobs." in memory["summary"]
    assert "- in the mean" in load["summary"]


def test_only_what_is_new_is_asked_for() -> None:
    whole = charts.query(6, None, now=100_000.0)
    assert whole == {"since": "1970-01-01T21:46:40+00:00", "step_s": 30}
    assert charts.query(6, 99_990.0, now=100_000.0)["since"] == "1970-01-02T03:46:30+00:00"
    assert charts.query(6, 5.0, now=100_000.0) == whole


def test_an_older_carmad_tells_no_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(path: str, **query: object) -> Any:
        raise Refused("there is nothing at /v1/timeline", "", "not_found")

    monkeypatch.setattr(client, "get", get)
    said = overview.timeline(Request({"type": "http", "query_string": b"hours=1"}))
    assert said.status_code == 404
    assert "tells no timeline" in json.loads(bytes(said.body))["error"]


# the line


def job(id: int, user: str = "ann", name: str = "bert", gpus: bool = False) -> dict[str, Any]:
    memory = dict.fromkeys(("used_mib", "peak_mib", "declared_mib", "estimate_mib"))
    return {
        "id": id,
        "label": str(id),
        "user": user,
        "name": name,
        "state": "running" if gpus else "queued",
        "code": "R" if gpus else "PD",
        "gpus": [{"index": 0}] if gpus else [],
        "reason": "(Priority)",
        "memory": memory,
    }


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The live jobs; those that wait are in line by falling id."""
    jobs: list[dict[str, Any]] = []

    def get(path: str, user: str | None = None, **query: object) -> Any:
        its = [job for job in jobs if user in (None, job["user"])]
        if path == "/v1/jobs":
            return {"jobs": its}
        assert path == "/v1/starts"
        line = sorted((job["id"] for job in its if not job["gpus"]), reverse=True)
        return {"starts": [{"id": id, "expected_at": None} for id in line]}

    monkeypatch.setattr(client, "get", get)
    return jobs


def line(status: object = None, **asked: str) -> Line:
    return Line(asked, lambda: status)  # type: ignore[arg-type, return-value]


def test_what_runs_is_first_and_the_others_are_in_the_order_of_the_line(daemon: Any) -> None:
    daemon += [job(1), job(2), job(3, gpus=True), job(4)]
    found = line(**{"from": "1"})
    assert [row.id for row in found.rows] == ["3", "4", "2", "1"]
    assert found.counts == "4 jobs: 1 on GPUs, 3 waiting"


def test_the_filter_looks_for_a_user_and_all_words(daemon: Any) -> None:
    daemon += [job(1), job(2, "ben"), job(3, "ben", "GPT tiny"), job(4, name="gpt")]
    assert [row.id for row in line(user="ben").rows] == ["3", "2"]
    assert [row.id for row in line(q="gpt").rows] == ["4", "3"]
    assert [row.id for row in line(user="ben", q="tiny gpt").rows] == ["3"]
    assert line(user="ben").counts == "2 jobs found: 0 on GPUs, 2 waiting"


def test_a_long_line_is_shown_a_page_at_a_time(daemon: Any) -> None:
    daemon += [job(id) for id in range(1, 251)]
    second = line(**{"from": "101"})
    assert [second.rows[0].id, second.rows[-1].id] == ["150", "51"]
    assert list(second.others) == [("Previous", 1), ("Next", 201)]
    assert second.counts == "250 jobs: 0 on GPUs, 250 waiting; shown: 101–200"
    assert list(line(**{"from": "201"}).others) == [("Previous", 101)]
    assert list(line(**{"from": "x"}).others) == [("Next", 101)]


def test_the_front_is_what_the_status_tells(daemon: Any) -> None:
    ended = job(9) | {"code": "CD", "state": "succeeded"}
    front = line({"jobs": [job(1, gpus=True), job(5), ended], "more": 990})
    assert [row.id for row in front.rows] == ["1", "5"]
    assert front.counts == "992 jobs: 1 on GPUs, 991 waiting"
    assert not list(front.others)


def test_what_ended_last_is_first_and_says_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"cause": "failure", "evidence": "ModuleNotFoundError: wandb"}
    old = job(9) | {"ended_at": "2026-11-23T01:00:00Z", "exit": {"cause": "success"}}
    late = job(2) | {"ended_at": "2026-11-23T02:00:00Z", "exit": how}
    monkeypatch.setattr(client, "get", lambda path, **query: {"jobs": [late, old]})
    found = Line({}, lambda: pytest.fail("not asked")).past
    assert [(row.id, row.failure) for row in found] == [("2", how["evidence"]), ("9", "")]
