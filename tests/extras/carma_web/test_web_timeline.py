"""The charts and the line of the first page of `carma web`, from the daemon's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.requests import Request

from carma_web import charts, gpu
from carma_web import job as page
from carma_web.hues import COUNT, Hues
from carma_web.overview import Line
from cli import client
from cli.problems import Refused

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


def drawn(hours: int = 6, **of_gpu: object) -> tuple[charts.Chart, charts.Chart]:
    made = charts.gpu_charts(answer(**of_gpu), hours, Hues())
    return made["memory"], made["load"]


def named(chart: charts.Chart) -> dict[str, charts.Series]:
    return {one["name"]: one for one in chart["series"]}


def test_memory_is_stacked_by_job_below_what_was_promised() -> None:
    memory, _ = drawn()
    assert [*named(memory)] == ["7 ann bert", "promised", "total 40.0G", "start"]
    job, promised, total, _ = memory["series"]
    assert job["values"] == [None, 2000, 5000, None, None] and job["kind"] == "stack"
    assert promised["values"] == [0, 3000, 7000, None, None] and promised["kind"] == "step"
    assert set(total["values"]) == {40_960}


def test_the_axis_is_the_time_that_was_asked_for() -> None:
    """Also where nothing was recorded yet, as of a new server."""
    for chart in drawn(used_mib=[None, None, None, 5]):
        assert (chart["times"][0], chart["times"][-1]) == (0, 35)
        assert all(len(one["values"]) == len(chart["times"]) for one in _lines(chart))


def _lines(chart: charts.Chart) -> list[charts.Series]:
    return [one for one in chart["series"] if one["kind"] != "events"]


def test_external_memory_is_on_top_if_there_was_any() -> None:
    memory, _ = drawn(external_mib=[0, 0, 900, None])
    assert [*named(memory)][:3] == ["external processes", "7 ann bert", "promised"]


def test_of_many_jobs_those_that_are_there_are_named_each_in_a_colour_of_its_own() -> None:
    jobs = [
        GPU["jobs"][0]
        | {"id": 7 * number, "label": str(number), "first": number % 3, "used_mib": [number]}
        for number in range(1, 31)
    ]
    memory, _ = drawn(jobs=jobs)
    stacked = [one for one in memory["series"] if one["kind"] == "stack"]
    assert stacked[0]["name"] == "other jobs" and len(stacked) == 21
    assert len({one["colour"] for one in stacked}) == 21
    there = {f"{number} ann bert" for number in range(1, 31) if number % 3 == 2}
    assert there <= named(memory).keys()
    summed = [sum(number for number in range(1, 31) if number % 3 == at) for at in range(3)]
    assert [sum(one["values"][at] or 0 for one in stacked) for at in range(3)] == summed


def test_events_are_in_their_bins_beside_what_they_explain() -> None:
    memory, load = drawn()
    start, slowed = memory["series"][-1], load["series"][-1]
    assert start["name"] == "start" and start["values"] == [None, charts.BEGIN, None, None]
    assert [text.partition(" ")[2] for text in start["words"][1]] == ["7 ann"]
    assert slowed["name"] == "slow-down" and [*slowed["words"]] == [2]
    assert slowed["words"][2][0].endswith("7 ann by 8 %")
    assert "risk limit 0.80" in named(load)


def test_a_job_is_drawn_from_what_is_recorded_of_its_gpu() -> None:
    job: Any = {
        "id": 7,
        "memory": {"declared_mib": 3000, "estimate_mib": None, "estimate_high": None},
    }
    made = charts.job_charts(answer(), job, Hues())
    used = named(made["memory"])
    assert used["used by it"]["values"] == [None, 2000, 5000, None, None]
    assert used["used by all on the GPU"]["values"] == [0, 2000, 5000, None, None]
    assert used["promised 2.9G, as declared"]["kind"] == "limit" and "start" in used
    assert "slow-down" in named(made["load"])
    assert charts.job_charts(answer(), job | {"id": 8}, Hues()) == {}


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
    assert [*named(memory)] == ["promised"]
    assert "at most - of - used; no jobs." in memory["summary"]
    assert "- in the mean" in load["summary"]


def test_a_job_keeps_its_colour_and_none_beside_it_has_the_same() -> None:
    hues = Hues()
    first = hues.give("a", [1, 8, 15])
    assert len(set(first.values())) == 3
    again = hues.give("a", [8, 22])
    assert again[8] == first[8] and again[22] not in first.values()
    assert hues.give("b", [15, 3])[15] == first[15], "one colour on all of its GPUs"
    for id in range(100, 200):  # long after the others have gone
        now = hues.give("a", [8, id - 1, id])
        assert now[8] == first[8] and len(set(now.values())) == 3
    assert set(hues.give("a", range(40)).values()) <= set(range(COUNT))


def test_an_older_carmad_tells_no_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(path: str, **query: object) -> Any:
        raise Refused("there is nothing at /v1/timeline", "", "not_found")

    monkeypatch.setattr(client, "get", get)
    said = gpu.sparks(Request({"type": "http", "query_string": b""}))
    assert said.status_code == 404
    assert "tells no timeline" in json.loads(bytes(said.body))["error"]


def test_of_a_job_that_has_not_begun_no_timeline_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """All GPUs' day, each time that its page is looked at."""
    asked: list[str] = []

    def get(path: str, **query: object) -> Any:
        asked.append(path)
        return {"id": 7, "attempts": [], "started_at": None, "metrics": {}}

    monkeypatch.setattr(client, "get", get)
    page.timeline(Request({"type": "http", "path_params": {"label": "7"}}))
    assert asked == ["/v1/jobs/7", "/v1/jobs/7/metrics"]


@pytest.mark.parametrize(("code", "is_shown"), [("not_found", True), ("unavailable", False)])
def test_only_what_is_recorded_no_more_is_left_out(
    monkeypatch: pytest.MonkeyPatch, code: str, is_shown: bool
) -> None:
    def get(path: str, **query: object) -> Any:
        if path == "/v1/timeline":
            raise Refused("no", "", code)
        return {"id": 7, "attempts": [], "started_at": "2026-11-30T12:00:00Z", "metrics": {}}

    monkeypatch.setattr(client, "get", get)
    asked = Request({"type": "http", "path_params": {"label": "7"}})
    if is_shown:
        assert json.loads(bytes(page.timeline(asked).body)) == {"charts": {}}
    else:
        with pytest.raises(Refused):
            page.timeline(asked)


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
