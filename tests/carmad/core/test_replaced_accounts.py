"""An account is a name and a uid together: whoever gets one of them later inherits nothing."""

from __future__ import annotations

import contextlib
import json
import pwd
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carmad.api.wire import stamp
from carmad.config import Access, Limits, Settings
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.spec import Owner
from carmad.core.scheduler import Scheduler
from carmad.http.connections import Peer
from tests import api_server
from tests.api_server import Daemon
from tests.attempts import until

ADA, NAMESAKE, HEIR = Owner(1001, "ada"), Owner(1002, "ada"), Owner(1001, "bob")
JOB: dict[str, Any] = {"argv": ["python", "train.py"], "cwd": "/work", "memory_mib": 1000}
SETTINGS = Settings(access=Access(root_jobs=True), limits=Limits(queued_per_user=2))


class Accounts:
    """Who asks the daemon, and the user database."""

    def __init__(self, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
        self.daemon = daemon
        self.caller = ADA
        self.uids = {"ada": ADA.uid}
        daemon.service.uid = 0  # it runs everybody's jobs
        monkeypatch.setattr(daemon.app.state.peers, "_look_up", self._look_up)
        monkeypatch.setattr(pwd, "getpwnam", self._getpwnam)

    def replace(self, by: Owner) -> None:
        """The account is deleted, and another one has its name or its uid."""
        self.uids = {by.user: by.uid}
        self.caller = by

    def call(self, method: str, path: str, body: object = None, admin: bool = False) -> Any:
        self.admin = admin
        self.daemon.app.state.peers._known.clear()
        return self.daemon.call(method, path, body)

    def submit(self, **more: object) -> int:
        status, made = self.call("POST", "/v1/jobs", JOB | more)
        assert status == 201, made
        id: int = made["id"]
        return id

    def _look_up(self, credentials: object) -> Peer:
        uid, user = (1, "admin") if self.admin else self.caller
        return Peer(uid, uid, user, admin=self.admin)

    def _getpwnam(self, name: str) -> Any:
        return SimpleNamespace(pw_uid=self.uids[name])  # or KeyError


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    with api_server.running(tmp_path, SETTINGS, gpus=2) as daemon:
        yield Accounts(daemon, monkeypatch)


def ended(accounts: Accounts) -> int:
    id = accounts.submit()
    accounts.daemon.run_kernel(id)
    accounts.daemon.exit(id, Exit(Cause.SUCCESS, 0))
    return id


newcomers = pytest.mark.parametrize("newcomer", [NAMESAKE, HEIR], ids=["name", "uid"])


@newcomers
def test_nothing_of_past_jobs_is_read(accounts: Accounts, newcomer: Owner) -> None:
    id = ended(accounts)
    assert accounts.call("GET", "/v1/stats")[1]["total"]["jobs"] == 1
    accounts.replace(newcomer)
    past = accounts.call("GET", "/v1/history?count=true")[1]
    assert (past["jobs"], past["more"]) == ([], 0)
    assert accounts.call("GET", "/v1/stats")[1]["total"]["jobs"] == 0
    assert [row["user"] for row in accounts.call("GET", "/v1/report")[1]["users"]] == [""]
    assert accounts.call("GET", "/v1/jobs?select=last")[1]["jobs"] == []
    assert accounts.call("GET", "/v1/status")[1]["jobs"] == []
    for about in ("", "/why"):
        assert accounts.call("GET", f"/v1/jobs/{id}{about}")[0] == 403


@newcomers
def test_a_booking_is_not_inherited(accounts: Accounts, newcomer: Owner) -> None:
    accounts.call("POST", "/v1/limits", {"subject": "ada", "booking": 10}, admin=True)
    now = stamp(accounts.daemon.inbox.clock())
    wish = {"gpus": 2, "starts_at": now, "lasts_s": 3600, "book": True}
    status, made = accounts.call("POST", "/v1/reservations", wish)
    assert status == 200, made
    (booked,) = made["reservations"]
    assert made["booking"][0]["gpu_hours_booked"] == pytest.approx(2, rel=0.1)
    mine = accounts.submit()
    accounts.daemon._launched(mine)
    accounts.replace(newcomer)
    seen = accounts.call("GET", "/v1/reservations")[1]
    assert seen["booking"] == [], "not even the right to book"
    assert accounts.call("POST", "/v1/reservations", wish)[0] == 403
    assert accounts.call("POST", f"/v1/reservations/{booked['id']}/cancel", {})[0] == 403
    theirs = accounts.submit()
    until(lambda: reasons(accounts, theirs) == {"reservation"}, "the newcomer's job to be kept out")


def reasons(accounts: Accounts, id: int) -> set[str]:
    """Why the job may not have a GPU, of each."""
    made = accounts.daemon.inbox.ask(lambda core: core.snapshot(0.0).decisions).result(9)
    verdicts = made[JobId(id)].placement.verdicts if JobId(id) in made else ()
    return {each.refused[0].code for each in verdicts}


@newcomers
def test_a_limit_is_not_inherited_and_can_be_set_anew(accounts: Accounts, newcomer: Owner) -> None:
    accounts.call("POST", "/v1/limits", {"subject": "ada", "gpus": 1, "jobs": 7}, admin=True)
    assert accounts.call("POST", "/v1/jobs", JOB | {"gpus": 2})[0] == 400
    accounts.replace(newcomer)
    accounts.submit(gpus=2)
    (default, known) = accounts.call("GET", "/v1/limits")[1]["limits"]
    assert (default["subject"], default["uid"]) == ("default", None)
    assert (known["subject"], known["uid"], known["gpus"]) == (*reversed(ADA), 1)
    its = accounts.call("GET", f"/v1/limits/{newcomer.user}")[1]["limit"]
    assert (its["gpus"], its["jobs"], its["set_by"]) == (None, 2, None)
    accounts.call("POST", "/v1/limits", {"subject": newcomer.user, "gpus": 1}, admin=True)
    its = accounts.call("GET", f"/v1/limits/{newcomer.user}")[1]["limit"]
    assert (its["gpus"], its["jobs"], its["set_by"]) == (1, 2, "admin"), "of the old one, nothing"
    assert accounts.call("POST", "/v1/jobs", JOB | {"gpus": 2})[0] == 400


@newcomers
def test_what_was_held_and_waits_does_not_count(accounts: Accounts, newcomer: Owner) -> None:
    accounts.call("POST", "/v1/limits", {"subject": "default", "gpus": 1, "jobs": 2}, admin=True)
    accounts.daemon._launched(accounts.submit())
    accounts.submit(held=True)
    accounts.submit(held=True)
    assert accounts.call("POST", "/v1/jobs", JOB)[0] == 409, "two wait already"
    accounts.replace(newcomer)
    accounts.daemon._launched(accounts.submit(exclusive=True))


@newcomers
def test_what_was_used_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newcomer: Owner
) -> None:
    with api_server.running(tmp_path, SETTINGS) as daemon:
        accounts = Accounts(daemon, monkeypatch)
        accounts.submit(held=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "carma.db")) as database, database:
        (body,) = database.execute("SELECT body FROM accounts").fetchone()
        used = json.dumps(json.loads(body) | {"used_s": 360_000.0})
        database.execute("UPDATE accounts SET body = ?", (used,))
    (tmp_path / "carmad.sock").unlink()
    with api_server.running(tmp_path, SETTINGS) as daemon:
        accounts = Accounts(daemon, monkeypatch)
        daemon.inbox._next_id = 2
        accounts.replace(newcomer)
        accounts.submit(held=True)
        rows = accounts.call("GET", "/v1/share")[1]["users"]
        found = sorted((row["user"], round(row["gpu_hours"]), row["waiting"]) for row in rows)
        assert found == sorted([("ada", 100, 1), (newcomer.user, 0, 1)])


@newcomers
def test_nothing_learned_is_inherited(accounts: Accounts, newcomer: Owner) -> None:
    ended(accounts)
    again = accounts.submit(held=True)
    accounts.replace(newcomer)
    theirs = accounts.submit(held=True)

    def look(core: Scheduler) -> list[tuple[bool, bool]]:
        jobs, its = (core.jobs[JobId(id)] for id in (again, theirs)), core.state.history
        return [(bool(its.by_group.of(j.group)), bool(its.by_user.of(j.spec.owner))) for j in jobs]

    assert accounts.daemon.inbox.ask(look).result(9) == [(True, True), (False, False)]


def test_a_name_that_another_account_has_names_the_new_one_for_administrators(
    accounts: Accounts,
) -> None:
    """They see both, as they ask by name."""
    first = ended(accounts)
    accounts.replace(NAMESAKE)
    second = ended(accounts)
    past = accounts.call("GET", "/v1/history?user=ada", admin=True)[1]["jobs"]
    assert [job["id"] for job in past] == [second, first]
