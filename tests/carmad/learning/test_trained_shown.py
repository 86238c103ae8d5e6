"""Showing models and profiles: in the API, `carma doctor --models`, `carma why`, and as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import a_job, a_spec, changed
from carmad.core.jobs.attempt import GpuId, JobId, ProfilingRun
from carmad.core.jobs.findings import Indicator, Prediction, Profile
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step, Tick, Trained
from carmad.core.placing.decision import Decision, Placement, Reason
from carmad.installed import how_to_add
from carmad.learning import trained as daemon_models
from carmad.learning.models import Additive, Bins, Model, Node, Shape, Tree
from cli import render
from cli.main import run
from tests import fake_daemon as fake
from tests.api_server import Daemon, Untrained, as_uid, running, user_name
from tests.carmad.api.test_api import ADA, needs_root, open_path  # noqa: F401 - a fixture
from tests.terminal import plain
from tests.waiting import PATIENCE_S

TREE = Tree(
    "a class",
    "a test",
    ("sm", "dram"),
    ("tiny", "jumbo"),
    (Node((3, 3), 0, 0.5, 1, 2), Node((3, 1)), Node((0, 2))),
    rows=6,
    trained_at=0.0,
    errors=(("accuracy", 0.75),),
)
ADDITIVE = Additive(
    "seconds",
    "a test",
    5.0,
    (
        Shape(
            Bins("gpus", cuts=tuple(map(float, range(1, 40)))),
            (0.0, *(0.1,) * 40, 0.0),
            (1.0,) * 42,
        ),
        Shape(Bins("user", categories=("ada", "bob")), (0.0, -2.0, 1.0, 0.0), (0.0, 5.0, 5.0, 0.0)),
    ),
    (),
    "log",
    rows=10,
    trained_at=1e9,
)


@pytest.fixture
def daemon(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:  # noqa: F811
    brought: dict[str, Model] = {"tree": TREE, "duration": TREE}
    monkeypatch.setattr("carmad.api.models.load_shipped", lambda: brought)
    monkeypatch.setenv("CARMA_SOCKET", str(open_path / "carmad.sock"))
    with running(open_path) as daemon:
        trained = Trained(daemon.inbox.clock(), (("duration", ADDITIVE),))
        daemon.inbox.request(trained).result(PATIENCE_S)
        yield daemon


def learned(id: int, **changes: Any) -> Job:
    spec = a_spec(user=user_name(), uid=0, name="train")
    job = a_job(id, spec=spec, state=JobState.SUCCEEDED, submitted_at=100.0)
    profile = Profile(30.0, 900, (Indicator("gpu_utilization", 0.5, 0.01),), of=JobId(3))
    told = Prediction(
        5400.0, "additive", (("gpus", 0.25), ("user", -1.5)), ("learned from 10 jobs",)
    )
    job = changed(
        job,
        gpus=(GpuId("GPU-a"),),
        started_at=110.0,
        ended_at=210.0,
        profile=profile,
        prediction=told,
    )
    return changed(job, accumulation=4, **changes)


def keep(daemon: Daemon, *jobs: Job, decisions: tuple[Decision, ...] = ()) -> None:
    daemon.store.commit(Step((Tick(300.0),), jobs, decisions, ()))


# -- the API


def test_models_that_were_trained_here_go_before_those_that_came_along(daemon: Daemon) -> None:
    status, out = daemon.call("GET", "/v1/models")
    assert status == 200
    found = {one["name"]: one for one in out["models"]}
    assert [(name, one["kind"]) for name, one in found.items()] == [
        ("duration", "additive"),
        ("tree", "tree"),
    ]
    assert found["tree"]["trained_at"] is None
    assert found["duration"]["trained_at"] == "2001-09-09T01:46:40.000Z"
    assert found["tree"]["errors"] == {"accuracy": 0.75}
    assert found["tree"]["importance"] == {"sm": 1.0, "dram": 0.0}
    assert out["training"]["last_at"] is None


@needs_root
def test_who_is_no_administrator_sees_no_words_of_it_and_trains_nothing(daemon: Daemon) -> None:
    keep(daemon, learned(7))
    daemon.service.models.last_words = ("duration: trained",)
    assert as_uid(ADA, daemon.path, "GET", "/v1/models")[1]["training"]["last_words"] == []
    assert daemon.call("GET", "/v1/models")[1]["training"]["last_words"] == ["duration: trained"]
    assert as_uid(ADA, daemon.path, "POST", "/v1/models/train")[0] == 403
    assert as_uid(ADA, daemon.path, "GET", "/v1/past")[1]["rows"] == []
    assert as_uid(ADA, daemon.path, "GET", f"/v1/past?user={user_name()}")[0] == 403


def test_an_administrator_has_them_trained(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon_models, "NEEDED", {})
    assert run(["doctor", "--train"]) == 0
    assert "training has started" in capsys.readouterr().out
    keeper = daemon.service.models
    assert isinstance(keeper, Untrained) and keeper.begun == 1
    monkeypatch.setattr(Untrained, "under_way", True)
    assert daemon.call("POST", "/v1/models/train")[0] == 409
    monkeypatch.setattr(Untrained, "under_way", False)
    monkeypatch.setattr(daemon_models, "NEEDED", {"interpret_of_nobody": "interpret-core"})
    status, out = daemon.call("POST", "/v1/models/train")
    assert (status, out["hint"]) == (400, how_to_add("policies"))
    assert keeper.begun == 1


def test_a_job_tells_what_is_known_of_it_and_why_it_went_there(daemon: Daemon) -> None:
    ground = Reason("affine", 2, 1, detail="job 3 is Tiny, this one Medium")
    placed = Placement(JobId(7), (GpuId("GPU-a"),), explanation=(ground,))
    job = learned(7)
    keep(daemon, job, decisions=(Decision(105.0, "lucid", placed),))
    why = daemon.call("GET", "/v1/jobs/7/why")[1]
    assert [one["code"] for one in why["grounds"]] == ["affine"]
    shown = daemon.call("GET", "/v1/jobs/7")[1]
    assert shown["profile"]["of"] == 3
    assert shown["profile"]["indicators"] == [
        {"name": "gpu_utilization", "mean": 0.5, "variance": 0.01}
    ]
    assert shown["prediction"]["parts"] == {"gpus": 0.25, "user": -1.5}
    assert (shown["accumulation"], shown["profiled_until"]) == (4, None)

    ground_of = why["grounds"][0]["text"]
    assert ground_of not in plain(render.why(why)), "it has ended"  # type: ignore[arg-type]
    running = {**why, "job": {**why["job"], "ended_at": None}}
    text = plain(render.why(running))  # type: ignore[arg-type]
    assert ground_of in text
    assert "profile: taken from job 3: alone for 30 s, peak 900M" in text
    assert "gpu_utilization  0.50  (variance 0.01)" in text
    assert "expected to run for 1.5 h (additive)" in text
    guessed = {**running["job"], "prediction": {**shown["prediction"], "is_guess": True}}
    text_of_guess = plain(render.why({**running, "job": guessed}))  # type: ignore[arg-type]
    assert "duration unknown; a guess: 1.5 h (additive)" in text_of_guess
    assert text.index("user  -1.50") < text.index("gpus  +0.25"), "the greatest first"
    assert "each batch is split into 4 parts" in text


def test_of_a_job_that_was_never_seen_no_duration_is_told(daemon: Daemon) -> None:
    unseen = Prediction(0.0, "forest", notes=("it has not run before",))
    keep(daemon, replace(learned(7), prediction=unseen))
    shown = daemon.call("GET", "/v1/jobs/7")[1]
    assert shown["prediction"]["seconds"] == 0.0
    text = plain(render.prediction(shown))
    assert "duration unknown (forest)\n  · it has not run before" in text


def test_an_outline_of_anothers_job_has_none_of_it() -> None:
    assert list(render.prediction(fake.private(fake.job()))) == []  # type: ignore[arg-type]


def test_a_profiling_run_says_until_when(daemon: Daemon) -> None:
    keep(daemon, learned(7, profiling=ProfilingRun(1e9, False)))
    assert daemon.call("GET", "/v1/jobs/7")[1]["profiled_until"] == "2001-09-09T01:46:40.000Z"


# -- the table


def test_the_past_is_written_as_a_table(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.commands.past.PAGE", 2)
    jobs = [learned(id) for id in range(1, 6)]
    jobs[0] = replace(jobs[0], profile=None)
    keep(daemon, *jobs, a_job(6))  # that one has not ended
    assert run(["history", "--table"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["job"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert (rows[0]["gpu_utilization"], rows[1]["gpu_utilization"]) == ("", "0.5")
    assert rows[1]["duration_s"] == "100.0"
    assert run(["history", "--table", "--limit", "3"]) == 2


# -- the terminal


def test_the_list_says_how_good_each_is(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--models"]) == 0
    header, duration, tree, *rest = capsys.readouterr().out.splitlines()
    assert header.split() == ["MODEL", "KIND", "ROWS", "TRAINED", "ERROR", "PREDICTS"]
    assert tree.split() == ["tree", "tree", "6", "shipped", "accuracy", "0.75", "a", "class"]
    assert duration.split()[:3] == ["duration", "additive", "10"]
    assert rest[-1] == "trained every 7 days, last -"
