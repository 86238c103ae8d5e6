"""The stream of events: what it tells whom, where it begins, and what it costs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import a_job
from carmad.api import events as kept
from carmad.core.gpus.gpu import Condition, ProcessUse
from carmad.core.happenings import Happening, Kind
from carmad.core.jobs.attempt import Cause, Exit
from carmad.core.jobs.states import JobState
from carmad.core.messages import DrainRequested, Sampled
from cli.client import events
from cli.commands.events import line
from tests import api_server
from tests.api_server import as_user
from tests.attack.users import HOSTILE, needs_root
from tests.daemon import CARMA, NO_KERNELS, Carmad, running, until
from tests.waiting import PATIENCE_S


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[api_server.Daemon]:
    with api_server.running(tmp_path) as served:
        monkeypatch.setenv("CARMA_SOCKET", served.path)
        yield served


def submitted(daemon: api_server.Daemon, **fields: object) -> int:
    body = {"argv": ["train"], "cwd": "/", "name": "train", **fields}
    status, out = daemon.call("POST", "/v1/jobs", body)
    assert status == 201, out
    return int(out["id"])


def told(stream: Iterator[Any], until_event: str) -> list[Any]:
    found = []
    for event in stream:
        found.append(event)
        if event["event"] == until_event:
            break
    return found


def kinds(found: list[Any]) -> list[str]:
    return [event["event"] for event in found]


def test_a_job_from_its_submission_to_its_end(daemon: api_server.Daemon) -> None:
    stream = events()
    assert next(stream)["event"] == "watching"
    id = submitted(daemon)
    daemon.run_kernel(id)
    daemon.exit(id, Exit(Cause.FAILURE, 3, evidence="ValueError: x\x1b[31m"))
    found = told(stream, "ended")
    assert kinds(found) == ["submitted", "started", "running", "ended"]
    assert {event["job"]["id"] for event in found} == {id}
    assert found[1]["text"].startswith("started on GPU ")
    assert (found[-1]["cause"], found[-1]["job"]["code"]) == ("failure", "F")
    assert found[-1]["text"] == "failed, exit code 3: ValueError: x\x1b[31m"
    shown = line(found[-1])
    assert f"job {id} train (" in shown and "\x1b" not in shown


def test_holding_requeueing_and_draining(daemon: api_server.Daemon) -> None:
    stream = events()
    next(stream)
    id = submitted(daemon, held=True)
    daemon.call("POST", "/v1/release", {"select": str(id)})
    daemon.exit(id, Exit(Cause.GPU_OOM, 1))
    found = told(stream, "ended")
    assert kinds(found) == ["submitted", "released", "started", "ended"]
    daemon.call("POST", "/v1/requeue", {"select": str(id)})
    assert kinds(told(stream, "started")) == ["requeued", "started"]
    gpu = daemon.gpus[0].id
    for reason in ("dust", None):
        event = DrainRequested(daemon.inbox.clock(), gpu, reason, "ann")
        daemon.inbox.request(event).result(PATIENCE_S)
    drained, resumed = told(stream, "resumed")
    assert drained["text"] == "drained: by ann: dust"
    assert drained["gpu"] == {"id": gpu, "index": 0}
    assert resumed["text"] == "resumed by ann"


def test_a_lost_gpu_is_told_once_and_when_it_is_back(daemon: api_server.Daemon) -> None:
    stream = events()
    next(stream)
    sample = daemon.world.read_gpus().samples[0]
    for fault in ("Xid 79", "Xid 79", None):
        now = daemon.inbox.clock()
        event = Sampled(now, (replace(sample, at=now, fault=fault),))
        daemon.inbox.request(event).result(PATIENCE_S)
    lost, back = told(stream, "gpu_back")
    assert (lost["event"], lost["text"], back["event"]) == ("gpu_lost", "lost: Xid 79", "gpu_back")


def test_a_condition_of_a_gpu_is_told_again_only_after_an_hour_without_it(
    daemon: api_server.Daemon,
) -> None:
    stream = events()
    next(stream)
    sample, start = daemon.world.read_gpus().samples[0], daemon.inbox.clock()
    hot, ill = Condition("slowed", "it is hot"), Condition("sram_errors", "errors", drains=True)
    for after_s, conditions in ((0, (hot,)), (60, ()), (120, (hot, ill)), (4000, (hot,))):
        at = start + after_s
        event = Sampled(at, (replace(sample, at=at, conditions=conditions),))
        daemon.inbox.request(event).result(PATIENCE_S)
    found = [next(stream) for _ in range(3)]
    assert {each["event"] for each in found} == {"warned"}
    assert [each["text"] for each in found] == [
        "works, but it is hot",
        "works, but errors",
        "works, but it is hot",
    ]


def test_a_process_of_no_job_is_told_once_it_has_been_there_for_a_while(
    daemon: api_server.Daemon,
) -> None:
    stream = events()
    next(stream)
    sample = daemon.world.read_gpus().samples[0]
    now = daemon.inbox.clock()
    theirs = (ProcessUse(7, 5120, user="bob"), ProcessUse(8, 10, user="bob"))
    for after in (0.0, 10.0, 31.0, 32.0):
        at = now + after
        event = Sampled(at, (replace(sample, at=at, processes=theirs),))
        daemon.inbox.request(event).result(PATIENCE_S)
    assert next(stream)["text"] == "external process 7 of bob holds 5.0G"
    submitted(daemon, held=True)
    assert next(stream)["event"] == "submitted"


def test_an_array_is_submitted_as_one(daemon: api_server.Daemon) -> None:
    stream = events()
    next(stream)
    id = submitted(daemon, array={"indices": [0, 1, 2]}, held=True)
    event = next(stream)
    assert (event["event"], event["count"], event["text"]) == ("submitted", 3, "submitted, 3 tasks")
    assert f"job {id} train" in line(event)


def test_a_stream_of_chosen_jobs_ends_with_them(daemon: api_server.Daemon) -> None:
    first, second = submitted(daemon, held=True), submitted(daemon, held=True)
    stream = events(select=str(second))
    next(stream)
    daemon.call("POST", "/v1/cancel", {"select": f"{first},{second}"})
    found = list(stream)
    assert [(event["job"]["id"], event["event"]) for event in found] == [(second, "ended")]
    assert kinds(list(events(select=str(second)))) == ["watching"]


def test_a_client_goes_on_where_it_stopped(daemon: api_server.Daemon) -> None:
    started = next(events())["at"]
    for _ in range(3):
        submitted(daemon, held=True)
    stream = events(since=started)
    found = [next(stream) for _ in range(4)]
    status, answer = streamed(daemon.path, found[2]["id"], 2)
    assert status == 200
    assert kinds(answer) == ["watching", "submitted"]
    assert answer[1] == found[3]
    _, strange = streamed(daemon.path, "1-2", 3)
    assert kinds(strange) == ["watching", "missed", "submitted"], "it has forgotten nothing else"


def streamed(path: str, last: str, count: int, query: str = "") -> tuple[int, list[Any]]:
    """The first `count` events after that one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(path)
        resume = f"Last-Event-ID: {last}\r\n" if last else ""
        connection.sendall(f"GET /v1/events{query} HTTP/1.1\r\nHost: c\r\n{resume}\r\n".encode())
        answer = connection.makefile("rb")
        status = int(answer.readline().split()[1])
        data = (line[6:] for line in answer if line.startswith(b"data: "))
        return status, [json.loads(next(data)) for _ in range(count)]


def test_who_is_too_slow_is_told_so(daemon: api_server.Daemon) -> None:
    known = daemon.service.events
    stream = events()
    next(stream)
    place = known.place
    _flood(known)
    known.wake()
    missed = next(stream)
    assert missed["event"] == "missed"
    assert known.after(missed["id"]) == place + 5
    assert next(stream)["event"] == "held"


def test_a_stream_ends_even_if_its_jobs_end_is_forgotten(
    daemon: api_server.Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = daemon.service.events
    id = submitted(daemon, held=True)
    stream = events(select=str(id))
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(known, "_call", lambda tell: None)
        daemon.call("POST", "/v1/cancel", {"select": str(id)})
        _flood(known)
    known.wake()
    assert kinds(list(stream)) == ["missed"]


def _flood(known: kept.Events) -> None:
    """With more happenings of another job than are kept."""
    job = a_job(99, state=JobState.QUEUED)
    with known._lock:
        known._latest.extend(Happening(1.0, Kind.HELD, job) for _ in range(kept.KEPT + 5))
        known._count += kept.KEPT + 5


def test_streams_are_limited_per_user_and_hold_no_turn(
    daemon: api_server.Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = daemon.service.events
    streams = [events() for _ in range(3)]
    for stream in streams:
        next(stream)
    until(lambda: known._streams[os.getuid()] == 3)
    monkeypatch.setattr(kept, "STREAMS_PER_USER", 3)
    status, out = daemon.call("GET", "/v1/events")
    assert (status, out["code"]) == (429, "too_many")
    for stream in streams:
        stream.close()
    until(lambda: not known._streams and not known._news, "the server to notice")


@needs_root
def test_of_others_one_sees_what_a_listing_shows() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with api_server.running(Path(folder)) as daemon:
            expect_an_outline(daemon)


def expect_an_outline(daemon: api_server.Daemon) -> None:
    id = submitted(daemon, name="secret", held=True)

    def theirs() -> Any:
        _, found = streamed(daemon.path, "", 3, "?since=2020-01-01T00:00:00Z")
        return found

    daemon.call("POST", "/v1/cancel", {"select": str(id)})
    *_, made, ended = as_user(HOSTILE[0], theirs)
    assert (made["job"]["id"], made["job"]["name"]) == (id, "-")
    assert "secret" not in json.dumps([made, ended])
    assert "cause" not in ended and ended["text"] == "cancelled"


# -- with a real daemon


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS) as carmad:
        yield carmad


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_watch_goes_on_after_a_restart(real: Carmad, tmp_path: Path, how: str) -> None:
    blocker = real.sh("sleep 60", exclusive=True, gpus=3)
    real.await_state(blocker, "starting")
    id = real.sh("true", held=True)
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        watching = subprocess.Popen(
            [*CARMA, "status", "--follow", str(id)],
            env=real.env | {"CARMA_SOCKET": real.socket},
            stdout=stdout,
            stderr=stderr,
        )
    try:
        until(lambda: _toggled(real, id) and out.read_text(), "it to watch")
        getattr(real, how)()
        until(lambda: "waiting for it to come back" in err.read_text(), "it to notice")
        real.start()
        real.cancel(blocker)
        real.post("/v1/release", {"select": str(id)})
        assert watching.wait(PATIENCE_S) == 0
    finally:
        watching.kill()
    assert f"job {id} sh" in out.read_text()
    assert out.read_text().rstrip().endswith("succeeded")
    assert "some events are missing" in err.read_text()


def _toggled(real: Carmad, id: int) -> bool:
    """It says nothing before something happens."""
    for verb in ("release", "hold"):
        real.post(f"/v1/{verb}", {"select": str(id)})
    return True


def test_wait_any_returns_with_the_first(real: Carmad) -> None:
    slow, quick = real.sh("sleep 60"), real.sh("exit 7")
    said = real.carma("wait", "--any", str(slow), str(quick), rc=7)
    assert said == f"job {quick}: failed\n"
    assert real.carma("wait", "--any", f"{slow}-{quick}", rc=7) == said, "it had ended before"
    real.cancel(slow)


def test_watch_prints_json_for_programs(real: Carmad) -> None:
    id = real.sh("true")
    real.ended(id)
    lines = real.carma("status", "--follow", str(id), "--json", "--since", "1h").splitlines()
    assert [json.loads(each)["event"] for each in lines][:2] == ["watching", "submitted"]
    assert json.loads(lines[-1])["event"] == "ended"
