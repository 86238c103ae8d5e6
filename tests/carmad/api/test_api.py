"""The HTTP API over a real unix socket, before the real core, store and engine."""

from __future__ import annotations

import contextlib
import getpass
import grp
import json
import os
import pwd
import re
import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from carma_testing import a_gpu, a_job
from carmad import accounts, beats
from carmad.accounts import Account, NoAccount
from carmad.api import intake
from carmad.api import jobs as jobs_routes
from carmad.api.call import Call
from carmad.api.outlook import OutlookOut, outlook_out
from carmad.api.reasons import phrase, short, wordings
from carmad.api.wire import parse_selection, stamp
from carmad.config import Access, Collocation, Limits, Monitor, Preconditions, Settings
from carmad.configfile import from_tree
from carmad.core.happenings import Kind
from carmad.core.jobs import control
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.findings import Indicator, Prediction, Profile, StageTimes, StepTime
from carmad.core.jobs.job import Job
from carmad.core.jobs.layout import Layout, Stage
from carmad.core.jobs.spec import JobSpec, Owner
from carmad.core.jobs.states import JobState
from carmad.core.messages import Discovered, Exited, Step, Submitted, Tick
from carmad.core.placing.decision import Placement, Reason
from carmad.core.placing.view import View
from carmad.core.ports import Server
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.edge import Checked, SubmissionCheck
from carmad.engine.inbox import QUANTUM
from carmad.errors import CarmaError
from carmad.estimates.asking import Guess
from carmad.explanation import ContextOut
from carmad.http import bounds, connections
from carmad.http import server as server_module
from carmad.http.connections import Credentials, Peer, Peers
from carmad.http.shares import Share
from carmad.store.database import StoreFull
from carmad.store.sql import SqlStore
from tests.aio import run_async
from tests.api_server import ROOT_JOBS, Connection, Daemon, as_uid, request, running, user_name
from tests.waiting import PATIENCE_S, until

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="acts as several users")
ADA, BOB, NAMELESS = 65534, 1, 54321  # nobody, daemon, and a uid that no passwd entry has

JSON = {"content-type": "application/json"}
JOB = {"argv": ["python", "train.py", "--lr", "0.1"], "cwd": "/tmp"}


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Makes the socket accessible to others, unlike pytest's own directories."""
    with tempfile.TemporaryDirectory(prefix="carma-api-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def daemon(open_path: Path) -> Iterator[Daemon]:
    with running(open_path) as daemon:
        yield daemon


def submit(daemon: Daemon, **changes: object) -> int:
    status, out = daemon.call("POST", "/v1/jobs", JOB | changes)
    assert status == 201, out
    return int(out["id"])


def error(answer: tuple[int, dict[str, str]]) -> tuple[int, str]:
    status, out = answer
    assert set(out) == {"error", "hint", "code"}
    assert out["error"]
    return status, out["code"]


# -- submitting -------------------------------------------------------------------------------


def test_a_submitted_job_is_on_disk_when_its_id_is_told(daemon: Daemon) -> None:
    status, out = daemon.call("POST", "/v1/jobs", JOB)
    assert (status, out) == (
        201,
        {"schema": 1, "id": 1, "ids": [1], "label": "1", "warnings": []},
    )
    stored = daemon.store.job(1)
    assert stored is not None
    assert stored.spec.argv == tuple(JOB["argv"])
    assert (stored.spec.uid, stored.spec.user) == (os.geteuid(), user_name())
    assert stored.spec.name == "train.py"


def test_a_full_disk_takes_no_job(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(step: object) -> None:
        raise StoreFull("cannot write", "make room")

    with monkeypatch.context() as broken:
        broken.setattr(daemon.store, "commit", full)
        status, out = daemon.call("POST", "/v1/jobs", JOB)
    assert (status, out["code"], out["hint"]) == (503, "unavailable", "make room")
    assert daemon.call("GET", "/v1/jobs")[1]["jobs"] == []
    submit(daemon)


def test_an_array_becomes_tasks_with_labels(daemon: Daemon) -> None:
    status, out = daemon.call(
        "POST", "/v1/jobs", JOB | {"array": {"indices": [7, 0, 2], "limit": 2}}
    )
    assert (status, out["ids"], out["label"]) == (201, [2, 3, 4], "1")
    labels = [job["label"] for job in daemon.call("GET", "/v1/jobs")[1]["jobs"]]
    assert labels == ["1_0", "1_2", "1_7"]
    assert daemon.call("GET", "/v1/jobs/1_7")[1]["id"] == 4
    assert daemon.call("GET", "/v1/jobs/1_7")[1]["stdout"] == "/tmp/carma-1_7.out"
    assert error(daemon.call("GET", "/v1/jobs/1_3")) == (404, "not_found")
    for path in ("", "/why", "/metrics"):
        status, said = daemon.call("GET", f"/v1/jobs/1{path}")
        assert (status, said["code"]) == (404, "array")
        assert said["error"] == "1 is 3 jobs, not one"
        assert said["hint"] == "Name one of them, such as 1_0."


def sweep(tasks: int) -> dict[str, object]:
    """An array whose tasks differ, so that each is a job of its own."""
    return {"indices": [*range(tasks)], "params": {"seed": [str(n) for n in range(tasks)]}}


def test_a_large_sweep_comes_in_parts_and_others_in_between(daemon: Daemon) -> None:
    heard: list[tuple[int, int]] = []
    committed = daemon.service.tally.note

    def noted(step: Step) -> None:
        for event in step.events:
            if isinstance(event, Submitted):
                heard.append((event.first, len(event.specs)))
        committed(step)

    daemon.service.tally.note = noted  # type: ignore[method-assign]
    tasks = 10 * QUANTUM
    arrays = [
        threading.Thread(
            target=submit,
            args=(daemon,),
            kwargs={"held": True, "array": sweep(tasks)},
        )
        for _ in range(3)
    ]
    for thread in arrays:
        thread.start()
    for thread in arrays:
        thread.join()
    begins = [range(2 + n * (tasks + 1), (n + 1) * (tasks + 1), QUANTUM) for n in range(3)]
    assert sorted(heard) == [(first, QUANTUM) for its in begins for first in its]
    for its in begins:
        assert [first for first, _ in heard if first in its] == [*its]
    told = daemon.service.events.read(0, 100)[1]
    assert [(each.kind, each.count) for each in told] == [(Kind.SUBMITTED, tasks)] * 3
    events = daemon.service.events
    assert events.text(1, told[0], True) is events.text(1, told[0], True), "once for all streams"
    assert events.text(1, told[0], False) != events.text(1, told[0], True)


def test_a_sweep_that_finds_the_disk_full_says_how_far_it_came(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, room = daemon.store.commit, [True, True]

    def commit(step: Step) -> None:
        if any(isinstance(event, Submitted) for event in step.events):
            if not room:
                raise StoreFull("cannot write", "make room")
            room.pop()
        original(step)

    monkeypatch.setattr(daemon.store, "commit", commit)
    tasks = sweep(5 * QUANTUM)
    status, said = daemon.call("POST", "/v1/jobs", JOB | {"held": True, "array": tasks})
    queued = 2 * QUANTUM
    assert (status, said["error"]) == (
        503,
        f"only the first {queued} tasks of array 1 are queued: cannot write",
    )
    assert len(daemon.call("GET", "/v1/jobs")[1]["jobs"]) == queued
    assert daemon.service.tally.waiting(Owner(os.getuid(), user_name())).jobs == queued


def test_the_environment_arrives_and_what_is_exported_counts(daemon: Daemon) -> None:
    env = {"PATH": "/bin", "WANDB_API_KEY": "s3cret", "HF_TOKEN": "s3cret", "TMUX": "x"}
    submit(daemon, env=env, export={"HF_TOKEN": "meant"})
    stored = daemon.store.job(1)
    assert stored is not None
    whole = daemon.store.whole(stored.spec)
    assert dict(whole.env) == {"PATH": "/bin", "HF_TOKEN": "meant", "WANDB_API_KEY": "s3cret"}
    assert stored.spec.env == ()


NOT_WELL_FORMED = [
    {"argv": []},
    {"argv": ["a\0b"]},
    {"argv": "python"},
    {"argv": [1]},
    {"cwd": "relative"},
    {"cwd": "/tmp\0"},
    {"env": {"A=B": "x"}},
    {"env": {"A": "x\0"}},
    {"env": {"": "x"}},
    {"name": "\x1b[2J"},
    {"gpus": -1},
    {"gpus": -1},
    {"gpus": "1"},
    {"gpus": 1.5},
    {"memory_mib": -1},
    {"nice": 10**30},
    {"time_limit_s": -1},
    {"time_limit_s": 1e300},
    {"begin_at": "tomorrow"},
    {"begin_at": "2030-01-01T00:00:00"},
    {"begin_at": 1},
    {"begin_at": "9999-12-31T23:59:59-12:00"},  # no year that UTC can be written in
    {"begin_at": "0001-01-01T00:00:00+12:00"},
    {"warn": {"signum": 9, "before_s": 5}},
    {"warn": {"signum": 99, "before_s": 5}},
    {"array": {"indices": []}},
    {"array": {"indices": [1, 1]}},
    {"array": {"indices": [-1]}},
    {"array": {"indices": list(range(10_001))}},
    {"array": {"indices": [0], "limit": 0}},
    {"umask": "0o22"},
    {"umask": "8"},
    {"umask": "1777"},
    {"umask": 18},
    {"after": [{"job": "x"}]},
    {"after": [{"job": "1", "kind": "afterwards"}]},
    {"uid": 0},
    {"user": "root"},
    {"argv": ["\udc80"]},
]


def test_what_is_not_well_formed_is_refused(daemon: Daemon) -> None:
    for wrong in NOT_WELL_FORMED:
        answer = daemon.call("POST", "/v1/jobs", JOB | wrong)
        assert error(answer) == (422, "bad_request"), wrong
    assert daemon.call("GET", "/v1/jobs")[1]["jobs"] == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 4000])
def test_garbage_is_refused(daemon: Daemon, body: bytes) -> None:
    status, _ = error(daemon.call("POST", "/v1/jobs", body))
    assert status in (400, 413, 422)


@pytest.mark.parametrize("argv", [["x" * 10_000_000], ["x" * 2_000_000], ["x" * 131_072]])
def test_too_large_is_said_with_a_hint(daemon: Daemon, argv: list[str]) -> None:
    status, out = daemon.call("POST", "/v1/jobs", JOB | {"argv": argv})
    assert (status, out["code"]) == (413, "too_large")
    assert "file" in out["hint"]


def test_a_job_that_could_never_start_is_refused(daemon: Daemon) -> None:
    status, out = daemon.call("POST", "/v1/jobs", JOB | {"gpus": 4})
    assert (status, out["error"]) == (400, "the job wants 4 GPUs, and this server has 3")
    status, out = daemon.call("POST", "/v1/jobs", JOB | {"memory_mib": 40_961})
    assert (status, out["hint"]) == (400, "Ask for 40.0G or less.")
    warn = {"signum": 10, "before_s": 5}
    assert error(daemon.call("POST", "/v1/jobs", JOB | {"warn": warn})) == (400, "bad_request")
    limited = submit(daemon, warn=warn, time_limit_s=60)
    assert daemon.call("GET", f"/v1/jobs/{limited}")[1]["warn"] == warn


def test_a_job_that_its_users_quota_never_allows_is_refused(open_path: Path) -> None:
    with running(open_path, replace(ROOT_JOBS, limits=Limits(gpus_per_user=2))) as daemon:
        status, out = daemon.call("POST", "/v1/jobs", JOB | {"gpus": 3})
        assert (status, out["error"]) == (
            400,
            f"the job wants 3 GPUs, and {getpass.getuser()} may hold 2 at once",
        )
        submit(daemon, gpus=2)


def test_a_task_is_called_by_its_label_wherever_a_reason_names_it(daemon: Daemon) -> None:
    """Its plain id may be that of the whole array, and cancelling that cancels all of it."""
    array = submit(daemon, array={"indices": [4, 5, 6]}, exclusive=True)
    waits = submit(daemon, exclusive=True, memory_mib=1000)
    said = daemon.call("GET", f"/v1/jobs/{waits}/why")[1]
    details = {verdict["refused"][0]["detail"] for verdict in said["verdicts"]}
    assert details == {f"job {array}_{index}" for index in (4, 5, 6)}
    later = submit(daemon, after=[{"job": f"{array}_5"}])
    said = daemon.call("GET", f"/v1/jobs/{later}/why")[1]
    assert said["headline"] == f"waits: job {array}_5 must end first"
    assert said["reasons"][0]["text"] == f"job {array}_5 must end first"
    assert said["job"]["reason"] == f"(Dependency: job {array}_5)"
    settling = daemon.call("GET", "/v1/gpus")[1]["gpus"][0]
    assert f"job {array}_4" in settling["state_detail"]


def test_a_mig_instance_takes_no_job_of_several_gpus(daemon: Daemon) -> None:
    whole = a_gpu(0, 20_000)
    parts = tuple(a_gpu(n, 40_000, parent=whole.id) for n in (1, 2))
    event = Discovered(daemon.inbox.clock(), (whole, *parts))
    daemon.inbox.request(event).result(PATIENCE_S)
    submit(daemon, memory_mib=39_000, held=True)
    assert error(daemon.call("POST", "/v1/jobs", JOB | {"gpus": 2}))[0] == 400


def test_nobody_queues_more_than_the_limit(open_path: Path) -> None:
    limits = replace(ROOT_JOBS, limits=Limits(queued_per_user=5))
    with running(open_path, limits) as daemon:
        assert error(
            daemon.call("POST", "/v1/jobs", JOB | {"array": {"indices": list(range(6))}})
        ) == (409, "conflict")
        statuses: list[int] = []

        def one() -> None:
            statuses.append(daemon.call("POST", "/v1/jobs", JOB | {"held": True})[0])

        threads = [threading.Thread(target=one) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(daemon.call("GET", "/v1/jobs")[1]["jobs"]) == statuses.count(201) <= 5
        daemon.call("POST", "/v1/cancel", {"select": "all"})
        for _ in range(5):
            submit(daemon, held=True)
        assert daemon.call("POST", "/v1/jobs", JOB)[0] == 409


def test_dependencies_are_looked_up(daemon: Daemon) -> None:
    good, bad, live = (submit(daemon) for _ in range(3))
    daemon.exit(good)
    daemon.exit(bad, Exit(Cause.FAILURE, 1))

    def after(job: str, kind: str = "afterok") -> tuple[int, dict[str, object]]:
        body = JOB | {"after": [{"job": job, "kind": kind}], "held": True}
        status, out = daemon.call("POST", "/v1/jobs", body)
        return status, daemon.call("GET", f"/v1/jobs/{out['id']}")[1] if status == 201 else out

    assert after(str(good))[1]["after"] == []  # it has happened already
    assert after(str(bad), "afterany")[1]["after"] == []
    assert after(str(bad), "afternotok")[1]["after"] == []
    assert after(str(live))[1]["after"] == [{"job": live, "label": str(live), "kind": "afterok"}]
    assert after(str(bad))[0] == 400
    assert after(str(good), "afternotok")[0] == 400
    assert after("999")[0] == 400
    assert after(f"{live}_0")[0] == 400


def test_a_dependency_on_an_array_is_one_on_all_its_tasks(daemon: Daemon) -> None:
    array = submit(daemon, array={"indices": [1, 5]}, held=True)
    later = submit(daemon, after=[{"job": str(array)}], held=True)
    after = daemon.call("GET", f"/v1/jobs/{later}")[1]["after"]
    assert [one["job"] for one in after] == [array + 1, array + 2]
    last = submit(daemon, after=[{"job": f"{array}_5"}], held=True)
    after = daemon.call("GET", f"/v1/jobs/{last}")[1]["after"]
    assert [one["job"] for one in after] == [array + 2]
    no_array = JOB | {"after": [{"job": f"{array + 1}_7"}]}
    assert daemon.call("POST", "/v1/jobs", no_array)[0] == 400, "a task has no tasks"


def test_a_dry_run_judges_and_queues_nothing(daemon: Daemon) -> None:
    dry = JOB | {"dry_run": True, "memory_mib": 30_000}
    status, out = daemon.call("POST", "/v1/jobs", dry)
    assert (status, out["would_start"], len(out["chosen"])) == (200, True, 1)
    held = daemon.call("POST", "/v1/jobs", dry | {"held": True})[1]
    assert (held["would_start"], held["chosen"]) == (False, [])
    assert daemon.call("GET", "/v1/jobs")[1]["jobs"] == []
    for _ in range(3):
        submit(daemon, memory_mib=30_000)
    out = daemon.call("POST", "/v1/jobs", dry)[1]
    assert (out["would_start"], out["chosen"]) == (False, [])
    codes = {reason["code"] for verdict in out["verdicts"] for reason in verdict["refused"]}
    assert {"first_kernel", "memory"} & codes
    assert submit(daemon, held=True) == 4  # no id was spent


def test_odd_requests_are_warned_about(daemon: Daemon) -> None:
    status, out = daemon.call("POST", "/v1/jobs", JOB | {"begin_at": "2020-01-01T00:00:00Z"})
    assert status == 201
    assert "past" in out["warnings"][0]
    template = JOB | {"argv": ["train", "--batch={batch_size}"]}
    assert "--batch-size" in daemon.call("POST", "/v1/jobs", template)[1]["warnings"][0]
    assert not daemon.call("POST", "/v1/jobs", template | {"batch_size": 8})[1]["warnings"]


def test_what_a_job_says_of_its_training_is_kept(daemon: Daemon) -> None:
    id = submit(daemon, batch_size=64, amp=True, cold_start_s=300.0)
    out = daemon.call("GET", f"/v1/jobs/{id}")[1]
    told = ("batch_size", "amp", "cold_start_s", "accumulation")
    assert [out[name] for name in told] == [64, True, 300.0, 1]
    out = daemon.call("GET", f"/v1/jobs/{submit(daemon)}")[1]
    assert [out[name] for name in told] == [None, False, 0.0, 1]
    for wrong in ({"batch_size": 0}, {"batch_size": 2.5}, {"cold_start_s": -1.0}):
        assert daemon.call("POST", "/v1/jobs", JOB | wrong)[0] == 422


def test_an_estimate_says_where_the_job_would_fit(daemon: Daemon) -> None:
    submit(daemon, memory_mib=30_000)
    out = daemon.call("POST", "/v1/estimate", JOB | {"memory_mib": 20_000})[1]
    declared, guess = out["estimates"]
    assert (declared["source"], declared["mib"], declared["chosen"]) == ("declared", 20_000, True)
    assert declared["why"] is None
    assert (guess["low"], guess["high"], guess["chosen"]) == (8_000, 12_000, False)
    assert (guess["notes"], guess["parts"]) == (["a guess"], {"all": 9_000})
    assert sorted(one["fits"] for one in out["fits"]) == [False, True, True]
    assert sum(not verdict["refused"] for verdict in out["verdicts"]) == 2
    assert out["too_large"] is None


def test_an_estimate_is_explained_on_request(daemon: Daemon) -> None:
    assert daemon.call("POST", "/v1/estimate", JOB)[1]["explanation"] is None
    status, out = daemon.call("POST", "/v1/estimate?explain=true", JOB)
    assert status == 200
    found = out["explanation"]
    assert found["modules"] == [{"name": "blocks.*", "kind": "Linear", "count": 12, "mib": 900}]
    assert found["lines"] == [{"name": "train.py:12", "kind": "", "count": 0, "mib": 950}]
    half, moved = found["remedies"]
    assert (half["saved_mib"], half["exact"]) == (500, False)
    assert (moved["saved_mib"], moved["exact"]) == (200, True)
    first, fullest = found["moments"]
    assert (first["mark"], first["held_mib"]) == ("step1", 1_200)
    assert sum(fullest["in_use"].values()) == 2_700 and "cached" not in fullest["in_use"]


def test_who_leaves_abandons_the_estimate(daemon: Daemon) -> None:
    asked: list[Server] = []
    ended = threading.Event()

    def slow(spec: JobSpec, within_s: float | None, server: Server) -> tuple[list[Guess], None]:
        asked.append(server)
        until(server._is_over)  # type: ignore[attr-defined]
        ended.set()
        return [], None

    daemon.service.estimate = slow
    connection = Connection(daemon.path)
    connection.request("POST", "/v1/estimate", json.dumps(JOB), JSON)
    until(lambda: asked)
    connection.close()
    assert ended.wait(PATIENCE_S)


@needs_root
def test_long_estimates_leave_room_for_others(daemon: Daemon) -> None:
    begun, go_on = [], threading.Event()
    quick = daemon.service.estimate

    def estimate(spec: JobSpec, within_s: float | None, server: Server) -> Any:
        if within_s:
            begun.append(spec.uid)
            assert go_on.wait(PATIENCE_S)
        return quick(spec, within_s, server)

    daemon.service.estimate = estimate
    body = JOB | {"within_s": 600}
    with ThreadPoolExecutor() as others:
        answers = [
            others.submit(as_uid, uid, daemon.path, "POST", "/v1/estimate", body)
            for uid in (ADA, BOB)
        ]
        turns = daemon.service.turns
        until(lambda: begun and sum(turn.locked() for turn in list(turns.values())) == 2)
        status, _ = daemon.call("POST", "/v1/estimate", JOB)
        at_once = len(begun)
        go_on.set()
    assert (status, at_once, sorted(begun)) == (200, 1, [BOB, ADA])
    assert [answer.result()[0] for answer in answers] == [200, 200]


def test_where_no_estimate_is_chosen_nobody_knows_where_the_job_fits(daemon: Daemon) -> None:
    out = daemon.call("POST", "/v1/estimate", JOB)[1]
    declared, _ = out["estimates"]
    assert (declared["mib"], declared["why"]) == (None, "no --gpu-mem was given")
    assert [one["fits"] for one in out["fits"]] == [None] * 3


def test_estimators_are_held_against_what_was_measured(open_path: Path) -> None:
    settings = replace(ROOT_JOBS, monitor=Monitor(period_s=0.001))  # so that a moment teaches
    with running(open_path, settings) as daemon:
        id = submit(daemon, memory_mib=10_000)
        daemon.run_kernel(id, 12_000)
        time.sleep(0.01)
        daemon.exit(id)
        out = daemon.call("GET", "/v1/estimators")[1]
    (declared,) = [one for one in out["estimators"] if one["name"] == "declared"]
    assert declared == {
        "name": "declared",
        "jobs": 1,
        "bias_mib": -2_000,
        "p50_mib": 2_000,
        "p95_mib": 2_000,
        "early_p50_mib": None,
        "recent_p50_mib": 2_000,
        "untaught_p50_mib": 2_000,
        "under": 1.0,
    }
    assert out["jobs"] == 1
    assert {one["name"] for one in out["estimators"]} >= {"history", "trace"}, "unjudged so far"


def test_an_estimator_that_cannot_tell_what_it_learned_leaves_the_others(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: ContextOut = {"stack": "A100", "jobs": 3, "context_mib": 500}
    able = [
        SimpleNamespace(contexts=lambda runs, owner: 1 // 0),
        SimpleNamespace(contexts=lambda runs, owner: [learned]),
    ]
    monkeypatch.setattr("carmad.registry.estimators_that", lambda *asked: able)
    with running(open_path, ROOT_JOBS) as daemon:
        assert daemon.call("GET", "/v1/estimators")[1]["contexts"] == [learned]


# -- looking ----------------------------------------------------------------------------------


def test_a_job_is_told_from_submission_to_its_end(daemon: Daemon) -> None:
    id = submit(daemon, memory_mib=1000, time_limit_s=60, expected_s=30, stdout="out/%x-%j.log")
    daemon.run_kernel(id, 1234)
    out = daemon.call("GET", f"/v1/jobs/{id}")[1]
    assert (out["state"], out["code"], out["memory"]["used_mib"]) == ("running", "R", 1234)
    assert (out["memory"]["estimate_mib"], out["memory"]["estimate_source"]) == (1000, "declared")
    assert out["estimate"] == {"seconds": 0.0, "firm": True, "notes": [], "parts": {}}
    assert out["notes"] == ["uses 1234 MiB, more than the 1000 MiB of its --gpu-mem"]
    assert (out["time_limit_s"], out["expected_s"]) == (60, 30)
    assert out["gpus"][0]["first_kernel_at"] is not None
    assert out["stdout"] == out["stderr"] == f"/tmp/out/train.py-{id}.log"
    daemon.exit(id)
    out = daemon.call("GET", f"/v1/jobs/{id}")[1]
    assert (out["state"], out["code"], out["exit"]["code"]) == ("succeeded", "CD", 0)
    moves = [move["after"] for move in out["history"]]
    assert moves == ["pending", "queued", "starting", "running", "succeeded"]
    assert [job["id"] for job in daemon.call("GET", "/v1/history")[1]["jobs"]] == [id]
    total = daemon.call("GET", "/v1/stats")[1]["total"]
    assert (total["jobs"], total["succeeded"], total["oom"]) == (1, 1, 0)
    status = daemon.call("GET", "/v1/status")[1]
    assert [job["id"] for job in status["jobs"]] == [id]  # it ended just now


def test_an_oom_is_told_and_the_job_waits_in_the_recovery_queue(open_path: Path) -> None:
    settled_at_once = replace(ROOT_JOBS, monitor=Monitor(window_s=0.001))
    with running(open_path, settled_at_once, gpus=1) as daemon:
        daemon.run_kernel(submit(daemon))
        id = submit(daemon)
        daemon.sample()
        oom = Exit(Cause.GPU_OOM, 1, evidence="CUDA out of memory", tried_mib=9, free_mib=99)
        daemon.exit(id, oom)
        out = daemon.call("GET", f"/v1/jobs/{id}")[1]
        assert (out["state"], out["code"], out["recovering"]) == ("queued", "RQ", True)
        assert out["failures"][0]["fragmented"] is True
        assert out["exclusive"] is True
        assert (out["started_at"], out["mode"], out["advice"]) == (None, None, None)
        assert out["retry"] == "fragmented memory beside other jobs; retried alone"
        assert daemon.call("GET", "/v1/status")[1]["counts"]["recovering"] == 1


def test_what_helps_a_job_that_no_gpu_can_hold(daemon: Daemon) -> None:
    id = submit(daemon)
    daemon.run_kernel(id)
    daemon.exit(id, Exit(Cause.GPU_OOM, 1, evidence="CUDA out of memory"))
    out = daemon.call("GET", f"/v1/jobs/{id}/why")[1]
    assert out["job"]["state"] == "out_of_memory"
    assert out["remedies"] == [out["job"]["advice"]]
    assert "had its GPU to itself" in out["remedies"][0]


def test_why_names_each_gpus_reasons_and_what_would_help(open_path: Path) -> None:
    strict = replace(ROOT_JOBS, limits=Limits(backfill=0))
    with running(open_path, strict) as daemon:
        daemon.world.used_mib = dict.fromkeys(daemon.world.used_mib, 30_000)
        daemon.sample()
        id = submit(daemon, memory_mib=20_000)
        behind = submit(daemon)
        out = daemon.call("GET", f"/v1/jobs/{id}/why")[1]
        assert [v["refused"][0]["code"] for v in out["verdicts"]] == ["memory"] * 3
        assert (
            out["verdicts"][0]["refused"][0] | {"need": 20_000, "have": 10_960}
            == (out["verdicts"][0]["refused"][0])
        )
        assert out["remedies"] == []  # nobody knows that less would do
        assert (out["position"], out["policy"]) == (1, "magm")
        assert out["job"]["reason"] == "(GpuMemory: GPU0 10.7G free, need 19.5G)"
        out = daemon.call("GET", f"/v1/jobs/{behind}/why")[1]
        assert out["behind"] == out["ahead"][0] and out["behind"]["label"] == str(id)
        assert (out["position"], out["job"]["reason"]) == (2, "(Priority)")
        daemon.world.used_mib = dict.fromkeys(daemon.world.used_mib, 0)
        daemon.sample()
        assert daemon.call("GET", f"/v1/jobs/{id}/why")[1]["chosen"] != []


def test_why_says_which_gpus_stay_idle_for_the_head_of_the_line(open_path: Path) -> None:
    """Only where somebody behind it could use them, and nobody may overtake it."""
    strict = replace(ROOT_JOBS, limits=Limits(backfill=0))
    with running(open_path, strict) as daemon:
        submit(daemon, exclusive=True)
        head = submit(daemon, gpus=3)
        kept = "needs 3 GPUs; idle GPUs that are kept for it: 2 (limits.backfill)"
        out = daemon.call("GET", f"/v1/jobs/{head}/why")[1]
        assert out["headline"] == "waits: it wants 3 GPUs, and 2 could take it now"
        behind = submit(daemon)
        out = daemon.call("GET", f"/v1/jobs/{head}/why")[1]
        assert out["headline"] == f"waits: {kept}"
        out = daemon.call("GET", f"/v1/jobs/{behind}/why")[1]
        assert out["headline"] == f"waits: job {head} is before it in line and {kept}"


def test_why_knows_what_keeps_a_job_out_of_the_line(daemon: Daemon) -> None:
    first = submit(daemon)
    cases = {
        "held": {"held": True},
        "begin": {"begin_at": "2099-01-01T00:00:00Z"},
        "dependency": {"after": [{"job": str(first)}]},
    }
    for code, changes in cases.items():
        out = daemon.call("GET", f"/v1/jobs/{submit(daemon, **changes)}/why")[1]
        assert [reason["code"] for reason in out["reasons"]] == [code]
        assert re.match("waits: (it is held|it may not|job 1 must)", out["headline"])


def test_why_names_all_that_keeps_a_job_out_of_the_line(daemon: Daemon) -> None:
    first = submit(daemon)
    changes = {"held": True, "begin_at": "2099-01-01T00:00:00Z", "after": [{"job": str(first)}]}
    waits = submit(daemon, **changes)
    out = daemon.call("GET", f"/v1/jobs/{waits}/why")[1]
    assert [reason["code"] for reason in out["reasons"]] == ["held", "begin", "dependency"]
    assert out["headline"] == "waits: it is held"
    (ahead,) = out["ahead"]
    assert (ahead["id"], ahead["user"]) == (first, user_name())
    assert ahead["text"].startswith("has run for")


def test_why_follows_whom_a_job_waits_for_to_the_head_of_the_line(daemon: Daemon) -> None:
    submit(daemon, exclusive=True, time_limit_s=60.0)
    head = submit(daemon, gpus=3)
    second = submit(daemon)
    last = submit(daemon, after=[{"job": str(second)}])
    ahead = daemon.call("GET", f"/v1/jobs/{last}/why")[1]["ahead"]
    assert [one["id"] for one in ahead] == [second, head]
    assert ahead[0]["text"] == "waits for a GPU, as number 2 in line"
    assert ahead[1]["text"] == "is at the head of the line: it wants 3 GPUs, and 2 can take it now"
    assert daemon.call("GET", f"/v1/jobs/{head}/why")[1]["ahead"] == []


def test_why_gives_no_hope_to_a_job_that_does_not_fit(open_path: Path) -> None:
    """Though the GPU is also about to be judged again: who says so is mostly wrong."""
    with running(open_path, gpus=1) as daemon:
        large = submit(daemon, memory_mib=30_000)
        waits = submit(daemon, memory_mib=20_000)
        out = daemon.call("GET", f"/v1/jobs/{waits}/why")[1]
        refused = [reason["code"] for reason in out["verdicts"][0]["refused"]]
        assert refused == ["memory", "first_kernel"]
        assert out["remedies"] == [f"GPU 0 can take it when job {large} ends"]
        behind = submit(daemon, memory_mib=20_000)  # the other one is before it
        assert daemon.call("GET", f"/v1/jobs/{behind}/why")[1]["remedies"] == []
        small = submit(daemon, memory_mib=1000)
        daemon.call("POST", "/v1/cancel", {"select": str(waits)})
        assert daemon.call("GET", f"/v1/jobs/{small}/why")[1]["remedies"] == []


@pytest.mark.parametrize("has_begun", [True, False])
def test_why_a_job_on_a_gpu_that_failed_names_that_first(daemon: Daemon, has_begun: bool) -> None:
    id = submit(daemon)
    if has_begun:
        daemon.run_kernel(id)
    (gpu,) = daemon.call("GET", f"/v1/jobs/{id}")[1]["gpus"]
    daemon.world.fault[gpu["id"]] = "the GPU is lost: it has fallen off the bus"
    daemon.sample()
    out = daemon.call("GET", f"/v1/jobs/{id}/why")[1]
    failure = f"GPU {gpu['index']} failed: the GPU is lost: it has fallen off the bus; "
    running = "running" if has_begun else "starting: no kernel of it has been seen yet"
    assert out["headline"] == failure + running
    assert out["remedies"] == [f"to run it again on another GPU: carma requeue {id}"]
    daemon.exit(id, Exit(Cause.FAILURE, 1, evidence="CUDA error"))
    out = daemon.call("GET", f"/v1/jobs/{id}/why")[1]
    assert out["headline"] == f"failed with exit code 1: {failure}CUDA error"


@pytest.mark.parametrize(
    ("exit", "headline"),
    [
        (Exit(Cause.FAILURE, 3, evidence="no"), "failed with exit code 3: no"),
        (Exit(Cause.FAILURE, None, 11), "failed, ended by SIGSEGV"),
        (Exit(Cause.FAILURE, None, 40), "failed, ended by signal 40"),
    ],
)
def test_why_a_job_failed(daemon: Daemon, exit: Exit, headline: str) -> None:
    id = submit(daemon)
    daemon.exit(id, replace(exit, tail=("Traceback", "  no")))
    out = daemon.call("GET", f"/v1/jobs/{id}/why")[1]
    assert out["headline"] == headline
    assert out["tail"] == ["Traceback", "  no"]
    assert out["facts"][0].startswith("attempt 1 ran for")
    assert out["facts"][1:] == [f"its log: /tmp/carma-{id}.out"]


# -- updating


def updated(daemon: Daemon, select: object, **changes: object) -> tuple[bool, str]:
    status, out = daemon.call("POST", "/v1/update", {"select": str(select), **changes})
    assert status == 200, out
    (result,) = out["results"]
    return result["ok"], result["message"]


def test_a_waiting_job_gets_other_options(daemon: Daemon) -> None:
    first, id = submit(daemon, gpus=3, exclusive=True), submit(daemon)
    changes = {"time_limit_s": 60.0, "name": "n", "nice": 3, "begin_at": "2099-01-01T00:00:00.000Z"}
    told = updated(daemon, id, after=[{"job": str(first)}], **changes)
    assert told == (True, "updated: --time, --dependency, --begin, --nice, --job-name")
    out = daemon.call("GET", f"/v1/jobs/{id}")[1]
    assert {name: out[name] for name in changes} == changes
    codes = [one["code"] for one in daemon.call("GET", f"/v1/jobs/{id}/why")[1]["reasons"]]
    assert codes == ["begin", "dependency"]
    assert daemon.store.job(id).spec.name == "n"
    assert updated(daemon, id, nice=3) == (True, "is as it should be")
    assert updated(daemon, id, after=[], begin_at=None)[0]
    assert daemon.call("GET", f"/v1/jobs/{id}/why")[1]["reasons"][:1] != ["begin"]
    assert updated(daemon, first, after=[])[1] == "is as it should be"


def test_a_job_with_other_memory_is_estimated_anew(daemon: Daemon) -> None:
    submit(daemon, gpus=3, exclusive=True)
    id = submit(daemon, memory_mib=2000)
    assert daemon.call("GET", f"/v1/jobs/{id}")[1]["memory"]["estimate_mib"] == 2000
    assert updated(daemon, id, memory_mib=3000) == (True, "updated: --gpu-mem")
    until(lambda: daemon.call("GET", f"/v1/jobs/{id}")[1]["memory"]["estimate_mib"] == 3000)
    ok, message = updated(daemon, id, memory_mib=10**7)
    assert not ok and "this server has no GPU of that size" in message


def test_what_cannot_be_updated_is_told(daemon: Daemon) -> None:
    running, ended = submit(daemon, time_limit_s=3600.0), submit(daemon)
    daemon.exit(ended, Exit(Cause.SUCCESS, 0))
    waits = submit(daemon, held=True)
    later = submit(daemon, after=[{"job": str(waits)}])
    assert updated(daemon, running, nice=5) == (
        False,
        "is starting: it is too late to change --nice",
    )
    assert updated(daemon, running, time_limit_s=1800.0) == (True, "updated: --time")
    assert updated(daemon, ended, nice=5) == (False, "has already ended: succeeded")
    assert updated(daemon, waits, after=[{"job": str(later)}]) == (False, "would wait for itself")
    body = {"select": str(waits)}
    assert error(daemon.call("POST", "/v1/update", body)) == (400, "bad_request")
    assert error(daemon.call("POST", "/v1/update", body | {"gpus": 2})) == (422, "bad_request")
    assert error(daemon.call("POST", "/v1/update", body | {"nice": 10**6}))[0] == 422
    assert not updated(daemon, waits, deadline_at="2001-01-01T00:00:00Z")[0]


def test_all_waiting_tasks_of_an_array_are_updated(daemon: Daemon) -> None:
    first = submit(daemon, gpus=2, exclusive=True, array={"indices": [0, 1, 2]})
    results = daemon.call("POST", "/v1/update", {"select": str(first), "nice": 7})[1]["results"]
    assert {one["label"]: one["ok"] for one in results} == {"1_0": False, "1_[1-2]": True}
    assert updated(daemon, f"{first}_2", name="other")[0]
    names = [job["name"] for job in daemon.call("GET", "/v1/jobs")[1]["jobs"]]
    assert names == ["train.py", "train.py", "other"]


def test_a_job_that_starts_meanwhile_is_not_updated(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = submit(daemon, held=True)
    original = control.update

    def slow(job: Job, *rest: Any) -> Any:
        verdict = original(job, *rest)
        if not job.holds_gpus and job.held:  # judged by the API; the core sees it running
            daemon.call("POST", "/v1/release", {"select": str(id)})
        return verdict

    monkeypatch.setattr(control, "update", slow)
    assert updated(daemon, id, nice=1) == (False, "has started meanwhile")


@needs_root
def test_users_update_their_own_jobs_only(daemon: Daemon) -> None:
    def ada(path: str, **body: object) -> Any:
        return as_uid(ADA, daemon.path, "POST", path, body)

    id = ada("/v1/jobs", **JOB, time_limit_s=3600.0)[1]["id"]
    waits = ada("/v1/jobs", **JOB, held=True)[1]["id"]
    (result,) = ada("/v1/update", select=str(id), time_limit_s=7200.0)[1]["results"]
    assert (result["ok"], result["message"]) == (
        False,
        "is starting: only administrators can give it more time",
    )
    assert updated(daemon, id, time_limit_s=7200.0)[0]
    assert daemon.store.job(id).notes == ("root updated: --time",)
    assert ada("/v1/update", select=str(waits), time_limit_s=7200.0)[1]["results"][0]["ok"]
    assert ada("/v1/update", select=str(waits), nice=-1)[0] == 403
    assert as_uid(BOB, daemon.path, "POST", "/v1/update", {"select": str(id), "nice": 2})[0] == 403


@needs_root
def test_why_tells_of_others_jobs_only_what_everybody_sees(daemon: Daemon) -> None:
    submit(daemon, exclusive=True, time_limit_s=60.0)
    secret = {"name": "secret", "gpus": 3, "begin_at": "2001-01-01T00:00:00Z"}
    head = as_uid(BOB, daemon.path, "POST", "/v1/jobs", JOB | secret)[1]["id"]
    mine = as_uid(ADA, daemon.path, "POST", "/v1/jobs", JOB)[1]["id"]
    status, out = as_uid(ADA, daemon.path, "GET", f"/v1/jobs/{mine}/why")
    assert status == 200 and "secret" not in json.dumps(out)
    (ahead,) = out["ahead"]
    assert (ahead["id"], ahead["user"]) == (head, pwd.getpwuid(BOB).pw_name)
    assert ahead["text"] == "is at the head of the line: it wants 3 GPUs, and 2 can take it now"


def test_every_rule_has_its_words() -> None:
    source = ""
    for folder in ("carmad/core", "policies"):
        for module in (Path(__file__).parents[3] / folder).rglob("*.py"):
            source += module.read_text()
    codes = set(re.findall(r'Reason\(\s*"([a-z_]+)"', source))
    assert {"memory", "held", "mig_single", "affine"} <= codes
    assert codes <= set(wordings())
    for code in codes:
        reason = Reason(code, 2.0, 1.0, "GPUs", "job 3")
        assert phrase(reason)
        assert short(reason, "GPU1")
    assert phrase(Reason("busy", detail="job 3, job 4")).endswith("job 3, job 4 are there")
    alone = Reason("array_limit", 1, 1, "tasks")
    assert phrase(alone) == "one task of its array is running, which is its limit"
    assert phrase(Reason("few_idle", 1, 0, "GPUs")) == "no GPU that it could use is idle"
    assert phrase(Reason("my_rule", 2, 1, "MiB", "so")) == "my rule: needs 2 MiB, has 1 MiB (so)"


def test_gpus_tell_their_state(daemon: Daemon) -> None:
    id = submit(daemon)
    daemon.call("POST", "/v1/gpus/1/drain", {"reason": "the fan"})
    out = daemon.call("GET", "/v1/gpus")[1]
    assert [gpu["state"] for gpu in out["gpus"]] == ["settling", "drained", "ok"]
    assert out["gpus"][1]["state_detail"] == "the fan"
    assert [job["id"] for job in out["gpus"][0]["jobs"]] == [id]
    assert out["source"]["missing"] == [["sm_active", "it is a test"]]
    daemon.call("POST", f"/v1/gpus/{daemon.gpus[1].id}/resume")
    assert daemon.call("GET", "/v1/gpus")[1]["gpus"][1]["state"] == "ok"
    assert error(daemon.call("POST", "/v1/gpus/7/resume")) == (404, "not_found")


def test_the_daemon_tells_about_itself(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "late", list)  # other tests' threads in this process may be
    health = daemon.call("GET", "/v1/health")[1]
    assert (health["status"], health["troubles"]) == ("ok", [])
    config = daemon.call("GET", "/v1/config")[1]
    settings = config["settings"]
    assert settings["policy"] == "magm"
    assert settings["policies"]["lucid"]["sharing_capacity"] == 2, "a plugin's, as in the file"
    assert from_tree(settings, config["origins"]) == daemon.settings
    checks = {check["name"]: check for check in daemon.call("GET", "/v1/doctor")[1]["checks"]}
    assert checks["gpu 0"]["ok"] is True
    assert checks["telemetry: sm_active"]["ok"] is None
    me = daemon.call("GET", "/v1/status")[1]["me"]
    assert me == {"user": user_name(), "uid": os.geteuid(), "admin": True}


def test_waiting_ends_with_the_job(daemon: Daemon) -> None:
    id = submit(daemon)
    assert daemon.call("GET", f"/v1/jobs/{id}/wait?timeout_s=0")[1]["state"] == "starting"
    for wrong in ("-1", "1e9", "nan", "inf", "x", ""):
        assert daemon.call("GET", f"/v1/jobs/{id}/wait?timeout_s={wrong}")[0] == 422
    answers: list[dict[str, object]] = []

    def wait() -> None:
        answers.append(daemon.call("GET", f"/v1/jobs/{id}/wait?timeout_s=20")[1])

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    daemon.exit(id)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [answer["state"] for answer in answers] == ["succeeded"] * 5
    assert daemon.call("GET", f"/v1/jobs/{id}/wait")[1]["state"] == "succeeded"


def test_waiting_for_an_array_ends_with_its_last_task(daemon: Daemon) -> None:
    array = submit(daemon, gpus=0, array={"indices": [0, 1, 2]})
    answers: list[dict[str, object]] = []

    def wait() -> None:
        answers.append(daemon.call("GET", f"/v1/jobs/{array}/wait?timeout_s=30")[1])

    first, second, third = (job["id"] for job in daemon.call("GET", "/v1/jobs")[1]["jobs"])
    at_once = daemon.call("GET", f"/v1/jobs/{array}/wait?timeout_s=0")[1]
    assert (at_once["label"], at_once["ended_at"]) == (f"{array}_2", None)
    thread = threading.Thread(target=wait)
    thread.start()
    for task in (third, first, second):
        while third not in daemon.service.events._awaited and task == third:
            thread.join(0.01)
        assert not answers, "a task runs"
        daemon.exit(task, Exit(Cause.FAILURE, code=1) if task == first else None)
    thread.join(PATIENCE_S)
    assert [(each["label"], each["state"]) for each in answers] == [(f"{array}_0", "failed")]
    status, said = daemon.call("POST", "/v1/jobs", JOB | {"after": [{"job": str(array)}]})
    assert status == 400 and said["error"].startswith(f"job {array}_0 has already ended as failed")
    assert act(daemon, "requeue", array, all=True)[f"{array}_1"][0]
    assert act(daemon, "cancel", array)[f"{array}_1"][0]
    assert daemon.call("GET", f"/v1/jobs/{array}/wait")[1]["state"] == "cancelled"
    held = submit(daemon, held=True, array={"indices": [0, 1]})
    assert act(daemon, "cancel", held)
    assert daemon.call("GET", f"/v1/jobs/{held}/wait")[1]["label"] == f"{held}_1"


def test_who_waits_is_answered_when_the_daemon_stops(open_path: Path) -> None:
    answers: list[dict[str, object]] = []
    with running(open_path) as daemon:
        id = submit(daemon)

        def wait() -> None:
            answers.append(daemon.call("GET", f"/v1/jobs/{id}/wait?timeout_s=30")[1])

        thread = threading.Thread(target=wait)
        thread.start()
        while not daemon.service.events._awaited:
            thread.join(0.01)
    thread.join(PATIENCE_S)
    assert [answer["state"] for answer in answers] == ["starting"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "x" * 300}, "--job-name should have at most 256 characters"),
        ({"gpus": -1}, "--gpus should be greater than or equal to 0"),
        ({"cwd": None}, "cwd should be a valid string"),
        ({"no_such": 1}, "no_such is not known here"),
        ({"array": {"indices": [1, 1]}}, "array.indices: an index is there twice"),
        ({"name": "a\nb"}, "--job-name is empty or too long, or has a character that is not"),
    ],
)
def test_what_is_wrong_with_a_request_is_a_sentence(
    daemon: Daemon, wrong: dict[str, object], said: str
) -> None:
    status, out = daemon.call("POST", "/v1/jobs", JOB | wrong)
    assert status == 422 and out["error"].startswith(said)


def test_text_that_is_not_utf8_is_named(daemon: Daemon) -> None:
    body = json.dumps(JOB | {"name": "\udcff"}).encode()
    status, out = request(daemon.path, "POST", "/v1/jobs", body)
    assert (status, out["error"]) == (422, "--job-name is not valid UTF-8")


def test_listings_are_filtered(daemon: Daemon) -> None:
    done, live, held = submit(daemon), submit(daemon), submit(daemon, held=True)
    daemon.exit(done)

    def ids(query: str) -> list[int]:
        return [job["id"] for job in daemon.call("GET", f"/v1/jobs?{query}")[1]["jobs"]]

    assert ids("") == [live, held]
    assert ids("states=queued,starting") == [live, held]
    assert ids("states=cf") == [live]
    assert ids("states=succeeded") == [done]
    assert set(ids("since=2020-01-01T00:00:00Z")) == {done, live, held}
    assert ids("user=nobody") == []
    assert ids("select=last") == [held]
    assert ids("select=all") == [live, held]
    assert ids("select=1-2,99") == [done, live]
    assert ids("limit=1") == [live]
    assert ids("select=1-99999999999") == [done, live, held]
    submit(daemon, array={"indices": [0, 1]}, held=True)
    assert ids("select=last") == [5, 6]
    assert ids("select=3-4") == [held, 5, 6], "the array's own id is in the range"
    for wrong in ("states=x", "select=x", "select=5-3", "select=1;2"):
        assert daemon.call("GET", f"/v1/jobs?{wrong}")[0] == 400, wrong
    for wrong in ("since=yesterday", "limit=0", "limit=x", "limit=99999999999999999999"):
        assert daemon.call("GET", f"/v1/jobs?{wrong}")[0] == 422, wrong


def test_a_job_that_ends_while_it_is_listed_is_listed_once(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(daemon)
    search = daemon.store.search

    def later(*query: Any, **page: Any) -> tuple[list[Job], int]:
        daemon.exit(job)
        return search(*query, **page)

    monkeypatch.setattr(daemon.store, "search", later)
    listed = daemon.call("GET", "/v1/jobs?since=2020-01-01T00:00:00Z")[1]["jobs"]
    assert [(each["id"], each["state"]) for each in listed] == [(job, "succeeded")]


def test_selected_jobs_are_judged_outside_the_event_loop(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    cancel = control.cancel

    def noted(job: Job) -> control.Verdict:
        threads.add(threading.current_thread().name)
        return cancel(job)

    monkeypatch.setattr(control, "cancel", noted)
    submit(daemon, held=True)
    assert daemon.call("POST", "/v1/cancel", {"select": "all"})[0] == 200
    assert threads and "api" not in threads, threads


@pytest.mark.parametrize("label", ["0", "999999999999999", "1_9999999"])
def test_there_is_no_such_job(daemon: Daemon, label: str) -> None:
    for path in (f"/v1/jobs/{label}", f"/v1/jobs/{label}/why", f"/v1/jobs/{label}/wait"):
        assert error(daemon.call("GET", path)) == (404, "not_found")


@pytest.mark.parametrize("label", ["-1", "1.5", "x", "9" * 30, "1_", "1_2_3", "%00", "%2e%2e"])
def test_that_is_no_label(daemon: Daemon, label: str) -> None:
    assert daemon.call("GET", f"/v1/jobs/{label}")[0] in (400, 404)


def test_wrong_paths_and_methods(daemon: Daemon) -> None:
    assert error(daemon.call("GET", "/nowhere")) == (404, "not_found")
    assert daemon.call("GET", "/nowhere")[1]["error"] == "Not Found: GET /nowhere"
    assert error(daemon.call("DELETE", "/v1/jobs")) == (405, "bad_request")
    assert error(daemon.call("GET", "/v1/cancel")) == (405, "bad_request")


# -- acting -----------------------------------------------------------------------------------


def act(daemon: Daemon, what: str, select: object, **more: object) -> dict[str, tuple[bool, str]]:
    status, out = daemon.call("POST", f"/v1/{what}", {"select": str(select), **more})
    assert status == 200, out
    return {one["label"]: (one["ok"], one["message"]) for one in out["results"]}


def test_cancel_hold_release_requeue(daemon: Daemon) -> None:
    runs, waits = submit(daemon), submit(daemon, held=True)
    assert act(daemon, "hold", f"{runs},{waits}") == {
        "1": (False, "is starting: only a waiting job can be held"),
        "2": (True, "was already held"),
    }
    assert act(daemon, "release", waits) == {"2": (True, "released")}
    assert act(daemon, "cancel", f"{runs}-{waits},77") == {
        "1": (True, "is being stopped"),
        "2": (True, "is being stopped"),
        "77": (False, "there is no such job"),
    }
    for label in ("1", "2"):
        assert daemon.call("GET", f"/v1/jobs/{label}/wait")[1]["state"] == "cancelled"
    assert act(daemon, "cancel", "1") == {"1": (False, "has already ended: cancelled")}
    assert act(daemon, "requeue", "1") == {"1": (True, "requeued")}
    several = act(daemon, "requeue", "1,2")
    assert several["1"] == (False, "runs: to stop it and run it again, name it alone")
    assert several["2"] == (True, "requeued")
    assert act(daemon, "requeue", "1") == {"1": (True, "is being requeued")}
    assert error(daemon.call("POST", "/v1/requeue", {"select": "all"})) == (400, "bad_request")


def test_nothing_is_done_as_a_user_who_is_not_there_any_more(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, waits = submit(daemon), submit(daemon, held=True)
    daemon.exit(ended, Exit(Cause.FAILURE, 1))

    def gone(user: str, uid: int) -> Account:
        raise NoAccount(f"there is no {user}")

    monkeypatch.setattr(accounts, "account", gone)
    for what, job in (("release", waits), ("requeue", ended), ("update", waits)):
        more: dict[str, object] = {"nice": 3} if what == "update" else {}
        told = act(daemon, what, job, **more)
        assert told == {str(job): (False, f"is left as it is: there is no {user_name()}")}
    assert act(daemon, "cancel", waits) == {str(waits): (True, "cancelled")}


def test_whoever_has_the_uid_of_a_job_s_owner_later_is_not_its_owner(daemon: Daemon) -> None:
    id = submit(daemon, held=True)
    job = daemon.store.job(id)
    assert job is not None
    former = replace(job, spec=replace(job.spec, user="former"))
    peer = Peer(job.spec.uid, job.spec.gid, job.spec.user, admin=False)
    call = Call(daemon.service, peer, Share().turn(), 0)
    assert call.may_touch(job) and not call.may_touch(former)
    scene = run_async(daemon.service.scene())
    assert call.renderer(scene).sees(job) and not call.renderer(scene).sees(former)


def test_a_job_is_not_requeued_for_one_that_is_refused(daemon: Daemon) -> None:
    failed = submit(daemon)
    middle = submit(daemon, after=[{"job": str(failed)}])
    last = submit(daemon, after=[{"job": str(middle)}])
    daemon.exit(failed, Exit(Cause.FAILURE, 1))
    told = act(daemon, "requeue", f"{middle},{last}")
    assert [told[str(job)][0] for job in (middle, last)] == [False, False]
    told = act(daemon, "requeue", f"{failed},{middle},{last}")
    assert {words for _, words in told.values()} == {"requeued"}


@pytest.mark.parametrize(
    ("what", "message", "state"),
    [("cancel", "is being stopped", "cancelled"), ("hold", "held", "queued")],
)
def test_one_that_is_preempted_can_be_cancelled_and_held(
    tmp_path: Path, what: str, message: str, state: str
) -> None:
    preempted = a_job(
        1,
        state=JobState.STOPPING,
        stop=Cause.PREEMPTED,
        gpus=(a_gpu(0).id,),
        started_at=1.0,
    )
    with contextlib.closing(SqlStore.open(tmp_path / "carma.db")) as store:
        store.commit(Step((Tick(1.0),), (preempted,), (), ()))
    with running(tmp_path) as daemon:  # which does not have its processes: they end when we say so
        assert act(daemon, what, 1) == {"1": (True, message)}
        daemon.inbox.post(Exited(2.0, JobId(1), 1, Exit(Cause.FAILURE, signal=15)))
        daemon.inbox.ask(lambda core: None).result(PATIENCE_S)
        job = daemon.call("GET", "/v1/jobs/1")[1]
        assert (job["state"], job["gpus"]) == (state, job["gpus"] if what == "cancel" else [])
        assert not daemon.world.alive


def test_a_running_job_tells_of_its_steps(daemon: Daemon) -> None:
    runs, waits = submit(daemon), submit(daemon, held=True)
    status, out = daemon.call("POST", f"/v1/jobs/{runs}/step", {"seconds": 0.25})
    assert (status, out["id"]) == (200, runs)
    stored = daemon.store.job(runs)
    assert stored is not None and stored.steps == (StepTime(1, 0.25, daemon.gpus[0].name),)
    told = daemon.call("POST", f"/v1/jobs/{waits}/step", {"seconds": 0.25})
    assert error(told) == (409, "conflict")
    for seconds in (0.0, 5e-324, -1.0, "fast"):
        assert daemon.call("POST", f"/v1/jobs/{runs}/step", {"seconds": seconds})[0] == 422
    assert daemon.call("POST", "/v1/jobs/77/step", {"seconds": 0.25})[0] == 404


def test_a_job_that_shares_its_gpus_with_one_other_tells_how_much_that_slows_it(
    open_path: Path,
) -> None:
    measured = Profile(60.0, 1000, (Indicator("sm_active", 0.2, 0.0),))

    def profile(core: Scheduler) -> None:
        for job in list(core.state.ledger.jobs.values()):
            core.state.ledger.put(replace(job, profile=measured))

    settled_at_once = replace(ROOT_JOBS, monitor=Monitor(window_s=0.001))
    with running(open_path, settled_at_once, gpus=1) as daemon:

        def step(job: int, seconds: float) -> tuple[int, dict[str, Any]]:
            return daemon.call("POST", f"/v1/jobs/{job}/step", {"seconds": seconds})

        def beside() -> int:
            id = submit(daemon)
            daemon.sample()
            daemon.run_kernel(id)
            return id

        first = beside()
        assert step(first, 0.2)[0] == 200
        second = beside()
        told = step(first, 0.3)
        assert (told[0], told[1]["unused"]) == (200, f"job {first} has no profile")
        daemon.inbox.ask(profile).result(PATIENCE_S)
        told = step(second, 0.3)
        kind = daemon.gpus[0].name
        why = f"no step time of it alone on {kind} is known, to compare with"
        assert (told[0], told[1]["unused"]) == (200, why)
        told = step(first, 0.3)
        assert (told[0], told[1]["unused"]) == (200, "")
        stored = daemon.store.job(first)
        assert stored is not None and stored.steps == (StepTime(1, 0.2, daemon.gpus[0].name),)
        assert [(met.neighbour, met.ratio) for met in stored.company] == [
            (second, pytest.approx(1.5))
        ]
        beside()
        assert error(step(first, 0.4)) == (409, "conflict"), "which of the two slows it?"


def test_a_running_job_tells_what_its_steps_go_to(daemon: Daemon) -> None:
    runs = submit(daemon)
    stages = {"load_s": 0.01, "forward_s": 0.037, "backward_s": 0.076, "communication_s": 0.098}
    body = {"seconds": 0.25, "stages": stages | {"sync": "backward"}}
    assert daemon.call("POST", f"/v1/jobs/{runs}/step", body)[0] == 200
    kind = daemon.gpus[0].name
    stored = daemon.store.job(runs)
    assert stored is not None
    assert stored.stage_times == (StageTimes(0.01, 0.037, 0.076, 0.098, "backward", kind),)
    shown = daemon.call("GET", f"/v1/jobs/{runs}")[1]["stage_times"]
    assert shown == [stages | {"sync": "backward", "gpu": kind}]
    slower = stages | {"sync": "backward", "load_s": 0.02}
    status, out = daemon.call("POST", f"/v1/jobs/{runs}/step", {"seconds": 0.25, "stages": slower})
    assert (status, out["stage_times"]) == (200, [slower | {"gpu": kind}]), "what it just told"
    for wrong in ({"load_s": 0.1}, stages | {"load_s": -1.0}, stages | {"sync": "never"}):
        body = {"seconds": 0.25, "stages": wrong}
        assert daemon.call("POST", f"/v1/jobs/{runs}/step", body)[0] == 422


# -- deadlines and layouts --------------------------------------------------------------------


def ahead(seconds: float) -> str:
    return stamp(time.time() + seconds)


def test_a_deadline_is_foreseen_when_a_job_is_submitted_and_while_it_waits(
    daemon: Daemon,
) -> None:
    for _ in range(3):
        submit(daemon, expected_s=7200.0, exclusive=True)
    want = JOB | {"deadline_at": ahead(8400), "expected_s": 3600.0, "exclusive": True}
    status, out = daemon.call("POST", "/v1/jobs", want)
    assert status == 201
    assert out["outlook"]["text"] == (
        "predicted to miss its deadline by 40 min (would start in about 2.0 h)"
    )
    assert out["outlook"]["late_s"] == pytest.approx(2400, abs=60)
    shown = daemon.call("GET", f"/v1/jobs/{out['id']}")[1]
    assert shown["outlook"]["text"] == out["outlook"]["text"]
    assert shown["deadline_at"] == want["deadline_at"]
    why = daemon.call("GET", f"/v1/jobs/{out['id']}/why")[1]
    assert why["job"]["outlook"]["text"] == out["outlook"]["text"]
    unknown = daemon.call("POST", "/v1/jobs", JOB | {"deadline_at": ahead(8400)})[1]["outlook"]
    assert unknown["text"].endswith("not known how long it runs: give --expect")
    assert unknown["late_s"] is None


def test_outlooks_are_computed_outside_the_event_loop(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They walk the whole line, for which everybody else would have to wait."""
    threads = []

    def noted(job: Job, scene: Scene) -> OutlookOut | None:
        threads.append(threading.current_thread().name)
        return outlook_out(job, scene)

    for module in (intake, jobs_routes):
        monkeypatch.setattr(module, "outlook_out", noted)
    want = {"deadline_at": ahead(3600)}
    job = submit(daemon, **want)
    assert daemon.call("POST", "/v1/jobs", JOB | want | {"dry_run": True})[0] == 200
    assert daemon.call("GET", f"/v1/jobs/{job}")[0] == 200
    assert daemon.call("GET", f"/v1/jobs/{job}/why")[0] == 200
    assert len(threads) == 4
    assert all(name.startswith("api-worker") for name in threads), threads


def test_the_predictor_is_asked_before_the_job_is_in_line(daemon: Daemon) -> None:
    class Hours:
        name = "hours"

        def predict(self, *_: object) -> Prediction:
            return Prediction(7200.0, "hours")

    class Broken(Hours):
        def predict(self, *_: object) -> Prediction:
            raise RuntimeError

    def foreseen(predictor: object) -> str:
        daemon.inbox.ask(lambda core: setattr(core.state, "predictor", predictor)).result(
            PATIENCE_S
        )
        want = JOB | {"deadline_at": ahead(3600)}
        return daemon.call("POST", "/v1/jobs", want)[1]["outlook"]["text"]

    assert "predicted to miss its deadline by 60 min" in foreseen(Hours())
    assert "not known how long it runs" in foreseen(Broken())


def test_a_dry_run_knows_what_the_job_itself_would(daemon: Daemon) -> None:
    seen = []

    class Looking:
        name = "looking"

        def order(self, job: Job) -> float:
            return 0.0

        def plan(self, view: View) -> tuple[Placement, ...]:
            seen.extend(view.queue)
            return ()

    daemon.inbox.ask(lambda core: setattr(core.state.deciding, "policy", Looking())).result(
        PATIENCE_S
    )
    times = {"load_s": 0.0, "forward_s": 0.1, "backward_s": 0.2}
    want = JOB | {"deadline_at": ahead(3600), "expected_s": 7200.0, "stage_times": [times]}
    out = daemon.call("POST", "/v1/jobs", want | {"dry_run": True})[1]
    assert out["outlook"]["text"] == "predicted to miss its deadline by 60 min (could start now)"
    id = submit(daemon, **want)
    real = daemon.inbox.ask(lambda core: core.jobs[id]).result(PATIENCE_S)
    assert seen[0].id == 0 and real.stage_times and real.group
    assert (seen[0].stage_times, seen[0].group) == (real.stage_times, real.group)
    assert "outlook" not in daemon.call("POST", "/v1/jobs", JOB | {"dry_run": True})[1]


def test_whether_a_deadline_was_met_is_told_of_those_that_succeeded(daemon: Daemon) -> None:
    late: list[float | None] = []
    for exit in (None, Exit(Cause.FAILURE, 1)):
        id = submit(daemon, deadline_at=ahead(3600))
        daemon.exit(id, exit)
        shown = daemon.call("GET", f"/v1/jobs/{id}")[1]
        assert shown["outlook"] is None
        late.append(shown["late_s"])
    assert late[0] == pytest.approx(-3600, abs=60)
    assert late[1] is None


def test_a_deadline_that_is_over_is_refused(daemon: Daemon) -> None:
    status, out = daemon.call("POST", "/v1/jobs", JOB | {"deadline_at": ahead(-3600)})
    assert (status, out["error"]) == (400, "the deadline was 60 min ago")
    assert "--deadline 8h" in out["hint"]
    late = {"deadline_at": ahead(3600), "begin_at": ahead(7200)}
    notes = daemon.call("POST", "/v1/jobs", JOB | late)[1]["warnings"]
    assert notes == ["it may begin only after its deadline"]


def test_a_layout_and_stage_times_are_kept(daemon: Daemon) -> None:
    kind = daemon.gpus[0].name
    stages = [{"replicas": 1, "forward_s": 0.02}, {"replicas": 2}]
    times = {"load_s": 0.01, "forward_s": 0.02, "backward_s": 0.03}
    id = submit(
        daemon,
        gpus=3,
        layout={"stages": stages, "allreduce": "tree"},
        stage_times=[times, times | {"gpu": "a100"}],
        watch_stages=True,
    )
    stored = daemon.store.job(id)
    assert stored is not None
    assert stored.spec.layout == Layout((Stage(1, 0.02), Stage(2)), "tree")
    assert stored.spec.stage_times == (
        StageTimes(0.01, 0.02, 0.03),
        StageTimes(0.01, 0.02, 0.03, gpu=kind),
    )
    assert stored.spec.watch_stages
    shown = daemon.call("GET", f"/v1/jobs/{id}")[1]
    assert shown["layout"]["stages"][0]["forward_s"] == 0.02
    assert [one["gpu"] for one in shown["stage_times"]] == ["", kind]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": {"stages": [{"replicas": 3}]}}, "needs 3 GPUs, but it asks for 1"),
        ({"stage_times": ["H100"]}, "this server has no GPU that matches 'H100'"),
        (
            {"stage_times": ["A100", "NVIDIA A100-PCIE-40GB"]},
            "A100-PCIE-40GB are given twice",
        ),
        ({"stage_times": ["", ""]}, "for any GPU are given twice"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(
    daemon: Daemon, changes: dict[str, list[str]], message: str
) -> None:
    times = {"load_s": 0.01, "forward_s": 0.02, "backward_s": 0.03}
    if "stage_times" in changes:
        changes = {"stage_times": [times | {"gpu": gpu} for gpu in changes["stage_times"]]}  # type: ignore[misc]
    status, out = daemon.call("POST", "/v1/jobs", JOB | changes)
    assert status == 400
    assert message in out["error"]


def test_an_array_is_selected_whole_or_in_part(daemon: Daemon) -> None:
    array = submit(daemon, array={"indices": [1, 2, 3, 9]}, held=True)
    assert set(act(daemon, "hold", f"{array}_[1-2]")) == {"1_[1-2]"}
    assert set(act(daemon, "cancel", f"{array}_9")) == {"1_9"}
    assert set(act(daemon, "cancel", array)) == {"1_[1-3]", "1_9"}
    assert set(act(daemon, "requeue", f"{array}_[3,9]")) == {"1_3", "1_9"}
    assert set(act(daemon, "requeue", f"{array}_2")) == {"1_2"}
    states = {
        job["label"]: job["state"] for job in daemon.call("GET", "/v1/jobs?select=1")[1]["jobs"]
    }
    assert states.pop("1_1") == "cancelled" and states.keys() == {"1_2", "1_3", "1_9"}


def test_nothing_selected_is_an_error(daemon: Daemon) -> None:
    for which in ("all", "last", "5", "5-8", "3_1"):
        assert error(daemon.call("POST", "/v1/cancel", {"select": which})) == (404, "not_found")
    assert error(daemon.call("POST", "/v1/cancel", {"select": "DROP"})) == (422, "bad_request")
    assert error(daemon.call("POST", "/v1/cancel", {})) == (422, "bad_request")


def test_selections() -> None:
    chosen = parse_selection("1, 5-8,40_2,41_[1-2,7]")
    assert chosen.ids == {1}
    assert chosen.ranges == (range(5, 9),)
    named = [bool([*chosen.parts(a_job(n))]) for n in (1, 4, 5, 8, 9)]
    assert named == [True, False, True, True, False]
    far = a_job(10**14)
    assert [*parse_selection("1-999999999999999").parts(far)] == [far]
    for wrong in ("", ",", "1,,2", "1-", "-1", "1_[", "1_[]", "1_[3-1]", "8-5", "1_2-3", "٣"):
        with pytest.raises(CarmaError):
            parse_selection(wrong)


# -- who asks ---------------------------------------------------------------------------------


class Favours(SubmissionCheck):
    """The site lets the jobs of its teachers go first."""

    def check(self, spec: JobSpec) -> Checked:
        return Checked(replace(spec, nice=-5))


@needs_root
def test_a_check_of_submissions_may_give_what_users_may_not_ask_for(daemon: Daemon) -> None:
    daemon.service.checks = (Favours(),)
    status, out = as_uid(ADA, daemon.path, "POST", "/v1/jobs", JOB)
    assert (status, daemon.call("GET", f"/v1/jobs/{out['id']}")[1]["nice"]) == (201, -5)
    asked = as_uid(ADA, daemon.path, "POST", "/v1/jobs", JOB | {"nice": -1})
    assert error(asked) == (403, "forbidden")


@needs_root
def test_everybody_touches_only_what_is_theirs(daemon: Daemon) -> None:
    mine = submit(daemon, env={"A": "private"})

    def ada(method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        answer: tuple[int, dict[str, object]] = as_uid(ADA, daemon.path, method, path, body)
        return answer

    status, _ = ada("POST", "/v1/jobs", JOB)
    assert status == 201
    stored = daemon.store.job(2)
    assert stored is not None
    assert (stored.spec.uid, stored.spec.gid, stored.spec.user) == (ADA, ADA, "nobody")

    seen = {job["id"]: job for job in ada("GET", "/v1/jobs")[1]["jobs"]}  # type: ignore[index]
    assert seen[mine]["name"] == "-"
    assert not {"argv", "cwd", "stdout", "exit", "env"} & set(seen[mine])
    assert seen[2]["argv"] == JOB["argv"]

    for path in (f"/v1/jobs/{mine}", f"/v1/jobs/{mine}/why", f"/v1/jobs/{mine}/wait"):
        assert error(ada("GET", path)) == (403, "not_yours")
    for what in ("cancel", "hold", "release", "requeue"):
        assert error(ada("POST", f"/v1/{what}", {"select": str(mine)})) == (403, "not_yours")
    after = JOB | {"after": [{"job": str(mine)}]}
    assert error(ada("POST", "/v1/jobs", after)) == (403, "not_yours")
    assert error(ada("POST", "/v1/jobs", JOB | {"nice": -1})) == (403, "forbidden")
    assert error(ada("POST", "/v1/gpus/0/drain", {"reason": "x"})) == (403, "forbidden")
    assert error(ada("POST", "/v1/cancel", {"select": "all", "user": "root"})) == (
        403,
        "forbidden",
    )
    for path in ("/v1/history?user=root", "/v1/stats?user=root"):
        assert error(ada("GET", path)) == (403, "forbidden")

    results = ada("POST", "/v1/cancel", {"select": f"{mine},2"})[1]["results"]
    assert [(one["id"], one["ok"]) for one in results] == [(mine, False), (2, True)]  # type: ignore[attr-defined]
    submit(daemon)
    assert ada("POST", "/v1/cancel", {"select": "all"})[0] in (200, 404)
    assert daemon.call("GET", f"/v1/jobs/{mine}")[1]["state"] == "starting"
    daemon.exit(mine)
    assert mine not in [job["id"] for job in ada("GET", "/v1/history")[1]["jobs"]]  # type: ignore[index]
    assert mine not in [job["id"] for job in ada("GET", "/v1/status")[1]["jobs"]]  # type: ignore[index]


@needs_root
def test_an_admin_touches_everything(daemon: Daemon) -> None:
    for uid in (ADA, BOB):
        assert as_uid(uid, daemon.path, "POST", "/v1/jobs", JOB)[0] == 201
    assert daemon.call("GET", "/v1/jobs/1")[1]["argv"] == JOB["argv"]
    users = [job["user"] for job in daemon.call("GET", "/v1/jobs")[1]["jobs"]]
    assert users == ["nobody", "daemon"]
    assert error(daemon.call("POST", "/v1/cancel", {"select": "all"})) == (404, "not_found")
    assert list(act(daemon, "cancel", "all", user="nobody")) == ["1"]
    assert list(act(daemon, "cancel", "2")) == ["2"]


@needs_root
def test_a_uid_without_a_name_may_look_but_not_submit(daemon: Daemon) -> None:
    status, out = as_uid(NAMELESS, daemon.path, "POST", "/v1/jobs", JOB)
    assert (status, out["code"]) == (403, "forbidden")
    assert "no name" in out["error"]
    assert as_uid(NAMELESS, daemon.path, "GET", "/v1/status")[1]["me"]["user"] == "uid 54321"


@needs_root
def test_root_submits_only_where_that_is_allowed(open_path: Path) -> None:
    with running(open_path, Settings()) as daemon:
        status, out = daemon.call("POST", "/v1/jobs", JOB)
        assert (status, out["code"]) == (403, "forbidden")
        assert "root_jobs" in out["hint"]
        assert as_uid(ADA, daemon.path, "POST", "/v1/jobs", JOB)[0] == 201


@needs_root
def test_a_users_own_daemon_runs_only_their_jobs(daemon: Daemon) -> None:
    daemon.service.uid = ADA
    assert error(daemon.call("POST", "/v1/jobs", JOB)) == (403, "forbidden")
    assert as_uid(ADA, daemon.path, "POST", "/v1/jobs", JOB)[0] == 201


def test_members_of_the_admin_group_are_admins() -> None:
    async def peer(group: str) -> bool:
        return (await Peers(group).peer(Credentials(1, 1))).admin

    assert run_async(peer(grp.getgrgid(1).gr_name)) is True
    assert run_async(peer("no-such-group")) is False


def test_without_a_socket_nobody_is_trusted(daemon: Daemon) -> None:
    async def ask() -> int:
        transport = httpx.ASGITransport(daemon.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://carma") as client:
            return (await client.get("/v1/health", headers={"x-uid": "0"})).status_code

    assert run_async(ask()) == 403


# -- connections ------------------------------------------------------------------------------


def connect(daemon: Daemon) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE_S)
    sock.connect(daemon.path)
    return sock


def test_stalled_clients_do_not_keep_others_waiting(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_WITHIN_S", 0.2)
    monkeypatch.setattr(bounds, "BODY_WITHIN_S", 0.2)
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: c\r\nContent-Type: application/json\r\n"
    silent, half, slow = (connect(daemon) for _ in range(3))
    half.sendall(head)
    slow.sendall(head + b"Content-Length: 100\r\n\r\n{")
    gone = connect(daemon)
    gone.sendall(head + b"Content-Length: 100\r\n\r\n{")
    gone.close()
    assert submit(daemon) == 1
    assert silent.recv(100) == b""
    assert half.recv(100) == b""
    assert b" 408 " in slow.recv(1000)
    assert submit(daemon) == 2


def test_an_answer_that_nobody_reads_is_not_kept(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "READ_WITHIN_S", 0.2)
    assert (
        daemon.call("POST", "/v1/jobs", JOB | {"array": {"indices": list(range(3000))}})[0] == 201
    )
    ask = b"GET /v1/jobs HTTP/1.1\r\nHost: c\r\n\r\n"
    stuck, patient = connect(daemon), connect(daemon)
    stuck.sendall(ask)
    patient.sendall(ask)
    whole = 0
    while chunk := patient.recv(1 << 16):
        whole += len(chunk)
        if chunk.endswith(b"]}"):
            break
    cut = select.poll()
    cut.register(stuck, select.POLLRDHUP)
    assert cut.poll(1000 * PATIENCE_S), "the daemon still waits for it"
    part = 0
    with contextlib.suppress(ConnectionError):
        while chunk := stuck.recv(1 << 16):
            part += len(chunk)
    assert part < whole


def test_a_request_before_the_answer_to_the_last_is_refused(daemon: Daemon) -> None:
    eager = connect(daemon)
    eager.sendall(b"GET /v1/health HTTP/1.1\r\nHost: c\r\n\r\n" * 1000)
    raw = b""
    with contextlib.suppress(ConnectionError):
        while chunk := eager.recv(1 << 16):
            raw += chunk
    assert raw.startswith(b"HTTP/1.1 400")
    assert submit(daemon) == 1


def test_an_endless_head_or_body_is_cut_off(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = connect(daemon)
    with pytest.raises(OSError):
        for _ in range(1000):
            endless.sendall(b"GET / HTTP/1.1\r\n" if _ == 0 else b"x: " + b"y" * 4096 + b"\r\n")
    monkeypatch.setattr(bounds, "MAX_DISCARDED", 1 << 20)
    monkeypatch.setattr(bounds, "MAX_BODY", 1 << 19)
    body = connect(daemon)
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n"
    body.sendall(head)
    with pytest.raises(OSError):
        while True:
            body.sendall(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
    assert submit(daemon) == 1


def test_one_user_cannot_take_all_connections(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PER_USER", 3)
    monkeypatch.setattr(daemon.server._uvicorn.config.http.counted, "_free", ())  # root as others
    open_ones = [connect(daemon) for _ in range(3)]
    refused = connect(daemon)
    raw = b""
    while chunk := refused.recv(1000):
        raw += chunk
    assert b" 503 " in raw
    assert b"too many connections" in raw
    for sock in open_ones:
        sock.close()
    until(lambda: request_ok(daemon), "the connections to be seen closed")
    assert submit(daemon) == 1


def request_ok(daemon: Daemon) -> bool:
    sock = connect(daemon)
    try:
        sock.sendall(b"GET /v1/health HTTP/1.0\r\n\r\n")  # a refused one may be closed already
        return b" 200 " in sock.recv(100)
    except OSError:
        return False
    finally:
        sock.close()


def test_requests_on_one_connection(daemon: Daemon) -> None:
    sock = connect(daemon)
    ask = b"GET /v1/health HTTP/1.1\r\nHost: c\r\n\r\n"
    for _ in range(3):
        sock.sendall(ask)
        raw = b""
        while not raw.endswith(b"}"):
            raw += sock.recv(4096)
        assert raw.startswith(b"HTTP/1.1 200")
    sock.sendall(b"\x00\x01garbage\r\n\r\n")
    assert b" 400 " in sock.recv(4096)


def test_jobs_submitted_at_once_all_get_their_own_ids(daemon: Daemon) -> None:
    ids: list[int] = []

    def several() -> None:
        for _ in range(10):
            ids.append(submit(daemon, held=True))

    threads = [threading.Thread(target=several) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids) == list(range(1, 81))
    assert {job.id for job in daemon.store.jobs(ids)} == set(ids)


def test_a_failing_route_says_so_and_the_rest_goes_on(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError("a bug")

    with monkeypatch.context() as bug:
        bug.setattr(daemon.store, "transitions", broken)
        submit(daemon)
        assert error(request(daemon.path, "GET", "/v1/jobs/1", None)) == (500, "internal")
    assert daemon.call("GET", "/v1/jobs/1")[0] == 200


def test_preconditions_shown_are_those_of_the_policy(open_path: Path) -> None:
    settings = replace(
        ROOT_JOBS,
        access=Access(root_jobs=True),
        collocation=Collocation(mps=True),
        policies={"magm": Preconditions(min_free_mib=7)},
    )
    with running(open_path, settings) as daemon:
        thresholds = daemon.call("GET", "/v1/gpus")[1]["thresholds"]
        assert thresholds["preconditions"]["min_free_mib"] == 7
        assert daemon.call("GET", "/v1/status")[1]["server"]["mps"] is True


def test_an_array_may_not_fill_the_disk_with_its_words(daemon: Daemon) -> None:
    env = {f"V{n}": "x" * 10_000 for n in range(90)}
    many = {"env": env, "array": {"indices": list(range(1000))}}
    assert daemon.call("POST", "/v1/jobs", JOB | many)[0] == 201  # they share their environment
    status, answer = daemon.call("POST", "/v1/jobs", JOB | many | {"argv": ["x" * 100_000]})
    assert (status, answer["code"]) == (409, "conflict")
    assert "at most 32 MiB are allowed" in answer["error"]


def test_nobody_queues_more_bytes_than_the_limit(open_path: Path) -> None:
    limits = replace(ROOT_JOBS, limits=Limits(queued_mib_per_user=2))
    with running(open_path, limits) as daemon:
        for number in range(2):
            submit(daemon, env={f"V{number}": "x" * 100_000}, held=True)
            submit(daemon, env={f"V{number}": "x" * 100_000}, held=True)  # the same one
        array = {"array": {"indices": list(range(20))}, "held": True}
        submit(daemon, argv=["x" * 60_000], **array)
        refused = JOB | {"argv": ["x" * 60_000], "held": True} | array
        status, answer = daemon.call("POST", "/v1/jobs", refused)
        assert (status, answer["code"]) == (409, "conflict")
        assert "at most 2 MiB are allowed" in answer["error"]
        assert "share one environment" in answer["hint"]
        assert error(daemon.call("POST", "/v1/jobs", JOB | {"argv": ["x"] * 10_001})) == (
            422,
            "bad_request",
        )
        daemon.call("POST", "/v1/cancel", {"select": "all"})
        assert daemon.call("POST", "/v1/jobs", refused)[0] == 201
        again = {"select": "1,2,3,4,25,26,27,28"}
        assert daemon.call("POST", "/v1/cancel", {"select": "all"})[0] == 200
        assert daemon.call("POST", "/v1/requeue", again)[0] == 200


def test_an_array_may_not_wait_for_too_many(daemon: Daemon) -> None:
    array = {"indices": list(range(400))}
    first = daemon.call("POST", "/v1/jobs", JOB | {"array": array})[1]["id"]
    after = [{"job": str(first), "kind": "afterok"}] * 20  # said twenty times, meant once
    one = daemon.call("POST", "/v1/jobs", JOB | {"after": after})[1]["id"]
    assert len(daemon.call("GET", f"/v1/jobs/{one}")[1]["after"]) == 400
    assert daemon.call("POST", "/v1/jobs", JOB | {"after": after, "array": array})[0] == 413
