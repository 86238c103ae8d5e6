"""`--unless-running`: nothing is submitted while a job of that name waits or runs."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from carmad.api import intake
from carmad.api.call import Call
from carmad.api.requests import Submission, SubmitIn
from carmad.http import connections
from tests import api_server
from tests.api_server import Daemon
from tests.daemon import CARMA, NO_KERNELS, Carmad
from tests.daemon import running as carmad_running

JOB: dict[str, Any] = {"argv": ["true"], "cwd": "/"}
NIGHTLY = JOB | {"unless_running": "nightly"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with api_server.running(tmp_path) as its:
        yield its


def submit(daemon: Daemon, **more: object) -> tuple[int, Any]:
    return daemon.call("POST", "/v1/jobs", NIGHTLY | more)


def test_a_job_gets_the_name_and_keeps_it_until_it_has_ended(daemon: Daemon) -> None:
    status, made = submit(daemon)
    assert status == 201
    assert daemon.call("GET", "/v1/jobs/1")[1]["name"] == "nightly"
    refused = (409, "nothing is submitted: job 1, nightly, has not ended")
    for more in ({}, {"dry_run": True}, {"name": "nightly"}, {"array": {"indices": [1, 2]}}):
        status, said = submit(daemon, **more)
        assert (status, said["error"], said["code"]) == (*refused, "running")
    assert submit(daemon, unless_running="hourly")[0] == 201
    daemon.exit(made["id"])
    status, made = submit(daemon)
    assert (status, made["id"]) == (201, 3), "no id was used for what was not submitted"


def test_it_counts_whoever_has_the_name_waiting_held_or_as_an_array(daemon: Daemon) -> None:
    daemon.call("POST", "/v1/jobs", JOB | {"name": "nightly", "held": True})
    assert submit(daemon)[0] == 409
    daemon.call("POST", "/v1/cancel", {"select": "1"})
    status, made = submit(daemon, array={"indices": [0, 7]}, held=True)
    assert (status, len(made["ids"])) == (201, 2)
    daemon.call("POST", "/v1/cancel", {"select": f"{made['id']}_0"})
    assert submit(daemon)[0] == 409, "a task is left"
    daemon.call("POST", "/v1/update", {"select": str(made["id"]), "name": "another"})
    assert submit(daemon)[0] == 201


def test_an_estimate_may_be_asked_for_while_it_runs(daemon: Daemon) -> None:
    assert submit(daemon, held=True)[0] == 201
    assert daemon.call("POST", "/v1/estimate", NIGHTLY)[0] == 200
    assert submit(daemon, dry_run=True)[0] == 409


def test_another_name_is_an_error(daemon: Daemon) -> None:
    status, said = submit(daemon, name="daily")
    assert status == 400 and "two names" in said["error"]
    assert submit(daemon, unless_running="")[0] == 422
    assert submit(daemon, unless_running="a\0b")[0] == 422


def test_of_many_at_once_one_is_submitted(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    original = intake.read

    async def read(call: Call, body: SubmitIn) -> Submission:
        asked = await original(call, body)
        for _ in range(200):  # others look meanwhile, if they may
            await asyncio.sleep(0)
        return asked

    monkeypatch.setattr(intake, "read", read)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: submit(daemon, held=True)[0], range(8)))
    assert sorted(found) == [201, *[409] * 7]


def test_a_name_is_a_users_own(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert submit(daemon, held=True)[0] == 201
    daemon.app.state.peers._known.clear()
    monkeypatch.setattr(connections, "user_of", lambda uid: ("another", True))
    assert submit(daemon, held=True)[0] == 201


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with carmad_running(tmp_path_factory.mktemp("carmad"), "1xA100-40GB", **NO_KERNELS) as its:
        yield its


def say(carmad: Carmad, *words: str) -> tuple[str, str]:
    env = carmad.env | {"CARMA_SOCKET": carmad.socket}
    ran = subprocess.run(
        [*CARMA, *words], env=env, cwd=carmad.work, capture_output=True, text=True, check=True
    )
    return ran.stdout, ran.stderr


def test_the_command_says_so_and_succeeds(carmad: Carmad) -> None:
    words = ["submit", "--gpus", "0", "--unless-running", "nightly", "--hold", "true"]
    assert "Submitted batch job 1" in carmad.carma(*words)
    told = "carma: nothing is submitted: job 1, nightly, has not ended\n"
    assert say(carmad, *words) == ("", told)
    assert say(carmad, "submit", "-Q", *words[1:]) == ("", ""), "cron mails whatever is said"
    assert '"code": "running"' in carmad.carma("submit", "--json", *words[1:])
    assert say(carmad, "submit", "--dry-run", *words[1:]) == ("", told)
    said = carmad.carma("submit", "--name", "daily", *words[1:], rc=1)
    assert "two names" in said
    assert "--unless-running is not for `carma run`" in carmad.carma(
        "run", *words[1:5], "true", rc=2
    )
    carmad.carma("cancel", "1")
