"""Shares and limits, through the command line and a real daemon."""

from __future__ import annotations

import getpass
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.store import journal
from lab.replay import reproduce
from tests.api_server import as_uid
from tests.attack.users import needs_root
from tests.daemon import NO_KERNELS, Carmad, running, until

ME = getpass.getuser()


@pytest.fixture
def carmad(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, "2xA100-40GB", **NO_KERNELS) as daemon:
        yield daemon


def share_of(daemon: Carmad, user: str) -> dict[str, object]:
    users = json.loads(daemon.carma("share", "--json"))["users"]
    return next(each for each in users if each["user"] == user)


def test_limits_and_shares_survive_a_restart_and_a_replay(carmad: Carmad) -> None:
    first = carmad.sh("sleep 600")
    carmad.await_state(first, "starting", "running")
    said = carmad.carma("limit", ME, "--gpus", "1", "--gpu-hours", "100/week")
    assert "1 of 1" in said and "of 100 per week" in said
    second = carmad.sh("true")
    until(lambda: f"{ME} holds 1 GPUs of 1 allowed" in carmad.carma("why", str(second)))
    assert carmad.carma("submit", "-G", "2", "true", rc=1).startswith(
        f"carma: the job wants 2 GPUs, and {ME} may hold 1 at once"
    )
    assert share_of(carmad, ME)["gpus"] == 1.0
    carmad.stop()
    assert all(reproduce(each).first is None for each in journal.segments(carmad.state / "journal"))
    carmad.start()
    assert share_of(carmad, ME)["gpus"] == 1.0
    assert "holds 1 GPUs of 1" in carmad.carma("why", str(second))
    assert carmad.carma("limit", ME, "--clear").count(ME) >= 3  # now, and two changes
    carmad.ended(second)
    assert ME in carmad.carma("share")


def test_what_nobody_has_set_is_of_the_settings(carmad: Carmad) -> None:
    assert "None" not in carmad.carma("share")
    (default,) = (each.split() for each in carmad.carma("limit").splitlines()[1:])
    assert default == ["default", "-", "-", "10000", "-", "settings", "-"]


def test_gpu_hours_and_waiting_jobs_are_limited(carmad: Carmad) -> None:
    carmad.carma("limit", "default", "--gpu-hours", "0.0001/day", "--jobs", "1")
    carmad.ended(carmad.sh("sleep 0.5"))
    waits = carmad.sh("true")
    carmad.await_state(waits, "queued")
    why = carmad.carma("why", str(waits))
    assert f"{ME} has used" in why and "of 0.0001 GPU-h per day" in why
    assert "may start from" in why
    assert "at most 1 are allowed" in carmad.carma("submit", "true", rc=1)
    listed = carmad.carma("limit")
    assert listed.splitlines()[1].split()[:5] == ["default", "-", "0.0001", "per", "day"]


def test_a_limit_that_makes_no_sense_is_refused(carmad: Carmad) -> None:
    for words, wrong in (
        (("nobody-there", "--gpus", "1"), "no user 'nobody-there'"),
        (("@nobody-there", "--gpus", "1"), "no group 'nobody-there'"),
        (("@root", "--jobs", "1"), "a group has no limit of waiting jobs"),
        (("default", "--gpu-hours", "9"), "try 100/week"),
        (("default", "--gpus", "1", "--clear"), "--clear takes no other option"),
        (("--gpus", "1"), "whose limit?"),
    ):
        assert wrong in carmad.carma("limit", *words, rc=None), words


def test_urgent_jobs_go_first_until_their_budget_is_spent(tmp_path: Path) -> None:
    with running(
        tmp_path, "1xA100-40GB", **NO_KERNELS, CARMA_FAIRNESS__URGENT_GPU_HOURS="0.0001"
    ) as daemon:
        first = daemon.sh("sleep 600", exclusive=True)
        daemon.await_state(first, "starting", "running")
        waits, urgent = daemon.sh("true"), daemon.sh("sleep 0.5", urgent=True)
        daemon.await_state(waits, "queued")
        assert "urgent" in daemon.carma("show", str(urgent))
        assert f"job {urgent} goes first: it is urgent" in daemon.carma("why", str(waits))
        daemon.cancel(first)
        assert daemon.ended(urgent)["started_at"] < daemon.ended(waits)["started_at"]
        refused = daemon.carma("submit", "--urgent", "true", rc=1)
        assert "and 0.0001 are allowed" in refused and "without --urgent" in refused
        assert share_of(daemon, ME)["urgent_gpu_hours"] is not None


@needs_root
def test_only_administrators_set_limits_and_users_are_limited_each() -> None:
    folder = Path(tempfile.mkdtemp(prefix="carma-test-"))
    folder.chmod(0o755)
    try:
        with running(folder, "4xA100-40GB", **NO_KERNELS) as daemon:
            _two_users(daemon)
    finally:
        shutil.rmtree(folder)


def _two_users(daemon: Carmad) -> None:
    def call(
        uid: int, method: str, path: str, body: object = None
    ) -> tuple[int, dict[str, object]]:
        answer: tuple[int, dict[str, object]] = as_uid(uid, daemon.socket, method, path, body)
        return answer

    def submit(uid: int) -> int:
        body = daemon.submission("/bin/sleep", "600", cwd="/", stdout="/dev/null")
        status, out = call(uid, "POST", "/v1/jobs", body)
        assert status == 201, out
        return int(str(out["id"]))

    nobody, bin_ = 65534, 2
    status, out = call(nobody, "POST", "/v1/limits", {"subject": "bin", "gpus": 0})
    assert (status, out["code"]) == (403, "forbidden")
    assert call(nobody, "GET", "/v1/limits")[0] == call(nobody, "GET", "/v1/share")[0] == 200
    ahead = daemon.submission("/bin/true", cwd="/", nice=-1)
    assert call(nobody, "POST", "/v1/jobs", ahead)[0] == 403  # nobody overtakes everybody for free
    daemon.carma("limit", "bin", "--gpus", "1")
    assert call(nobody, "GET", "/v1/limits/bin")[1]["changes"] == []
    jobs = [submit(bin_), submit(bin_), submit(nobody), submit(nobody)]
    for id in (jobs[0], jobs[2], jobs[3]):
        daemon.await_state(id, "starting", "running")
    daemon.await_state(jobs[1], "queued")
    assert daemon.job(jobs[1])["reason"].startswith("(Quota")
    assert {share_of(daemon, "bin")["gpus"], share_of(daemon, "nobody")["gpus"]} == {1.0, 2.0}
