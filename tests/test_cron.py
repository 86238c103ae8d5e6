"""Recurring jobs: when they are due, and what becomes of them, through the command line."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tzlocal import reload_localzone

from carmad.cron.crontab import Crontab, Entry
from carmad.cron.schedule import next_time
from carmad.errors import CarmaError
from cli.commands.cron import read_crontab
from cli.problems import Usage
from tests.daemon import NO_KERNELS, Carmad, running, until

DAY_S = 86_400.0


@contextlib.contextmanager
def in_copenhagen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Copenhagen")
    time.tzset()
    reload_localzone()
    next_time.cache_clear()
    try:
        yield
    finally:
        monkeypatch.undo()
        time.tzset()
        reload_localzone()
        next_time.cache_clear()


@pytest.mark.parametrize(
    ("schedule", "after", "times"),
    [
        ("*/20 * * * *", "2026-11-28 10:20:00", ["11-28 10:40", "11-28 11:00"]),
        ("30 2 * * mon-fri", "2026-11-27 02:30:00", ["11-30 02:30", "12-01 02:30"]),
        ("0 0 * * 0", "2026-11-28 00:00:00", ["11-29 00:00", "12-06 00:00"]),
        ("0 0 * * 7", "2026-11-28 00:00:00", ["11-29 00:00", "12-06 00:00"]),
        ("0 0 * * 5-7", "2026-11-26 12:00:00", ["11-27 00:00", "11-28 00:00", "11-29 00:00"]),
        ("0 0 * * 5-7/2", "2026-11-26 12:00:00", ["11-27 00:00", "11-29 00:00"]),
        ("0 0 1 * mon", "2026-11-28 00:00:00", ["11-30 00:00", "12-01 00:00", "12-07 00:00"]),
        ("0 0 29 2 *", "2026-11-28 00:00:00", ["02-29 00:00"]),
        ("0 7 17 * */3", "2026-12-25 11:55:00", ["01-17 07:00", "02-17 07:00"]),  # both, as in cron
        ("52 1-21/2 8 7-8/2 *", "2026-01-01 00:00:00", ["07-08 01:52", "07-08 03:52"]),
        ("0 */30 * * *", "2026-01-01 00:00:00", ["01-02 00:00"]),
        ("@daily", "2026-11-28 10:00:00", ["11-29 00:00", "11-30 00:00"]),
        ("0 12 25 DEC *", "2026-11-28 10:00:00", ["12-25 12:00"]),
        ("30 2 * * *", "2026-10-24 03:00:00", ["10-25 02:30", "10-26 02:30"]),  # 2:30 comes twice
        (
            "*/30 * * * *",
            "2026-10-25 01:30:00",
            ["10-25 02:00", "10-25 02:30", "10-25 02:00", "10-25 02:30", "10-25 03:00"],
        ),
        ("@hourly", "2026-10-25 01:30:00", ["10-25 02:00", "10-25 02:00", "10-25 03:00"]),
        ("30 2 * * *", "2026-03-28 12:00:00", ["03-29 03:00", "03-30 02:30"]),  # it does not come
    ],
)
def test_when_an_entry_is_due(
    schedule: str, after: str, times: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_copenhagen(monkeypatch):
        at = datetime.fromisoformat(after).timestamp()
        found = []
        for _ in times:
            at = next_time(schedule, at)
            found.append(f"{datetime.fromtimestamp(at):%m-%d %H:%M}")
        assert found == times


def test_what_is_no_schedule_or_never_comes_is_refused() -> None:
    for schedule in (
        "* * * *",
        "60 * * * *",
        "* * * * 8",
        "* * * * sat-mon",
        "@often",
        "a * * * *",
    ):
        with pytest.raises(CarmaError, match="is no schedule"):
            next_time(schedule, 0.0)


def test_a_crontab_is_read_as_cron_and_scrontab_do() -> None:
    text = """
# mine
GREETING="hello world"
#SCRON --gpus 2 --time 1:00:00
#SCRON --name nightly   # a remark
0 2 * * *   echo "$GREETING" \\
  and more
@hourly true
"""
    read = read_crontab(text)
    first, second = read["entries"]
    assert (first["schedule"], first["command"]) == ("0 2 * * *", 'echo "$GREETING" and more')
    job = first["job"]
    assert job["argv"] == ["/bin/sh", "-c", 'echo "$GREETING" and more']
    assert (job["gpus"], job["time_limit_s"], job["name"]) == (2, 3600.0, "nightly")
    assert (job["cwd"], job["notify"]) == (str(Path.home()), "fail")
    assert job["export"]["GREETING"] == "hello world"
    assert (second["schedule"], second["job"]["gpus"], second["job"]["name"]) == (
        "@hourly",
        1,
        "true",
    )
    assert read["text"] == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n* * * * *", "line 2: not five fields and a command"),
        ("#SCRON --gpus 2\n", "no command follows the last #SCRON line"),
        ("#SCRON --name 'x\n* * * * * true", "line 2: these options cannot be read"),
        ("#SCRON --time soon\n* * * * * true", "line 2: "),
    ],
)
def test_a_mistake_in_a_crontab_is_reported_with_its_line(text: str, words: str) -> None:
    with pytest.raises(Usage) as error:
        read_crontab(text)
    assert error.value.message.startswith(words)


def test_an_entry_that_stays_keeps_what_became_of_it() -> None:
    old = Crontab(0, 0, "x", (Entry("@daily", "a", {"v": 1}, 5.0), Entry("@daily", "b", {}, 5.0)))
    old = old.change(0, ran_at=7.0, first=3)
    new = old.edit(0, "y", (Entry("@daily", "a", {"v": 2}, 9.0), Entry("@daily", "c", {}, 9.0)))
    assert [(e.command, e.ran_at, e.checked_at) for e in new.entries] == [
        ("a", 7.0, 5.0),
        ("c", None, 9.0),
    ]
    assert new.entries[0].job == {"v": 2}
    assert Crontab.loads(new.dumps()) == new


def listed(carmad: Carmad) -> list[Any]:
    entries: list[Any] = carmad.get("/v1/cron")["entries"]
    return entries


def change_while_down(carmad: Carmad, at: int, **changes: object) -> None:
    """As if carmad had been down since then."""
    carmad.stop()
    with contextlib.closing(sqlite3.connect(carmad.state / "carma.db")) as database, database:
        (body,) = database.execute("SELECT body FROM crontabs").fetchone()
        crontab = Crontab.loads(body).change(at, **changes)
        database.execute("UPDATE crontabs SET body = ?", (crontab.dumps(),))
    carmad.start()


def test_recurring_jobs_from_the_command_line(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as carmad:
        assert "has no recurring jobs" in carmad.carma("cron")
        out = tmp_path / "out"
        wait = tmp_path / "wait"
        table = tmp_path / "table"
        table.write_text(
            f"#SCRON --gpus 0 --name nightly -o {tmp_path}/%x.log\n"
            f"0 3 * * * echo once >> {out}; while [ -e {wait} ]; do sleep 0.1; done\n"
        )
        assert "0 3 * * *" in carmad.carma("cron", str(table))
        assert carmad.carma("cron", "--list") == table.read_text()
        (entry,) = listed(carmad)
        assert (entry["job"], entry["state"], entry["skipped"]) == (None, None, 0)
        assert entry["next_at"] is not None

        wait.touch()
        change_while_down(carmad, 0, checked_at=time.time() - 3 * DAY_S)  # three were missed
        until(lambda: out.exists(), "the run that was missed")
        (entry,) = listed(carmad)
        job = carmad.job(entry["job"])
        assert (job["name"], job["state"], job["notify"]) == ("nightly", "running", "fail")

        change_while_down(carmad, 0, checked_at=time.time() - DAY_S)
        until(lambda: listed(carmad)[0]["skipped"] == 1, "that it is left out")
        assert out.read_text() == "once\n", "one at a time"
        wait.unlink()
        carmad.ended(entry["job"])
        until(lambda: listed(carmad)[0]["state"] == "succeeded", "the end in the list")
        assert "succeeded" in carmad.carma("cron")

        change_while_down(carmad, 0, checked_at=time.time() - DAY_S)
        until(lambda: listed(carmad)[0]["job"] != entry["job"], "the next run")
        carmad.ended(listed(carmad)[0]["job"])
        assert out.read_text() == "once\nonce\n"
        assert listed(carmad)[0]["skipped"] == 0

        carmad.carma("cron", "--remove")
        assert listed(carmad) == []
        assert "one thing at a time" in carmad.carma("cron", "--list", "--remove", rc=None)


def test_a_run_that_a_killed_daemon_had_begun_is_neither_lost_nor_doubled(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as carmad:
        before = time.time()
        command = f"echo once >> {tmp_path}/out"
        job = {"argv": ["/bin/sh", "-c", command], "cwd": str(tmp_path), "gpus": 0}
        entry = {"schedule": "0 3 * * *", "command": command, "job": job}
        carmad.post("/v1/cron", {"text": "t", "entries": [entry]})
        change_while_down(carmad, 0, starting=True, ran_at=before)  # killed before it was submitted
        until(lambda: listed(carmad)[0]["job"] is not None, "the run")
        first = listed(carmad)[0]["job"]
        carmad.ended(first)
        change_while_down(carmad, 0, starting=True, first=None, ran_at=before)  # and just after
        until(lambda: listed(carmad)[0]["job"] is not None, "the run to be found")
        assert listed(carmad)[0]["job"] == first
        assert (tmp_path / "out").read_text() == "once\n"


def test_what_cannot_be_submitted_is_said_in_the_list(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as carmad:
        job = {"argv": ["true"], "cwd": str(tmp_path), "gpus": 1, "memory_mib": 100}
        entry = {"schedule": "@daily", "command": "true", "job": job}
        for wrong, words in (
            ({"schedule": "daily"}, "is no schedule"),
            ({"job": job | {"gpus": 9}}, "9"),
            ({"job": job | {"held": True}}, "a recurring job has no held"),
        ):
            status, answer = carmad.call(
                "POST", "/v1/cron", {"text": "t", "entries": [entry | wrong]}
            )
            assert status in (400, 409) and words in answer["error"], answer
        carmad.post("/v1/cron", {"text": "t", "entries": [entry]})
        too_many = {**job, "gpus": 9}
        change_while_down(carmad, 0, checked_at=time.time() - 2 * DAY_S, job=too_many)
        until(lambda: listed(carmad)[0]["refused"] is not None, "the refusal")
        assert "refused:" in carmad.carma("cron")
        assert listed(carmad)[0]["job"] is None


def test_a_crontab_may_have_many_entries_but_not_fill_the_disk(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as carmad:

        def edit(env_bytes: int) -> tuple[int, Any]:
            job = {"argv": ["true"], "cwd": str(tmp_path), "env": {"LONG": "x" * env_bytes}}
            entries = [
                {"schedule": "@daily", "command": f"true {n}", "job": job} for n in range(30)
            ]
            return carmad.call("POST", "/v1/cron", {"text": "t", "entries": entries})

        status, answer = edit(8_000)  # as of a shell with modules and conda
        assert (status, len(answer["entries"])) == (200, 30), answer
        status, answer = edit(40_000)
        assert status == 413 and "more than 1 MiB" in answer["error"], answer
        assert len(listed(carmad)) == 30


def test_an_editor_changes_it_and_a_mistake_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as carmad:
        editor = tmp_path / "editor"
        editor.write_text('#!/bin/sh\necho "$LINE" >> "$1"\n')
        editor.chmod(0o755)
        carmad.env |= {"EDITOR": str(editor), "VISUAL": "", "TMPDIR": str(tmp_path)}
        carmad.env["LINE"] = "@daily true"
        assert "@daily" in carmad.carma("cron", "--edit")
        carmad.env["LINE"] = "@daily"
        said = carmad.carma("cron", "--edit", rc=None)
        (kept,) = tmp_path.glob("crontab.*")
        assert "not five fields" in said and str(kept) in said
        assert kept.read_text().endswith("@daily true\n@daily\n")
        assert len(listed(carmad)) == 1
        carmad.env["EDITOR"] = "false"
        assert "nothing is changed" in carmad.carma("cron", "--edit", rc=None)
        me = carmad.get("/v1/status")["me"]["user"]
        assert json.loads(carmad.carma("cron", "--json"))["user"] == me


def test_entries_that_differ_in_their_options_alone_keep_their_own_secrets() -> None:
    jobs = [{"export": {"HF_TOKEN": value}} for value in ("one", "two")]
    entries = tuple(Entry("@daily", "train", job, checked_at=0) for job in (*jobs, {"env": {}}))
    whole = Crontab(1000, 1000, "", entries)
    bare, secrets = whole.split()
    assert "one" not in bare.dumps() and Crontab.loads(bare.dumps(), secrets) == whole
