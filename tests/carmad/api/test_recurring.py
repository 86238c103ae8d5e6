"""Jobs that recur: the guide's lines as cron runs them, and what is left of `carma cron`."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.commands.cron import lines

from carmad.http import connections
from carmad.store import tables
from carmad.store.sql import SqlStore
from tests import api_server
from tests.daemon import CARMA, NO_KERNELS, ROOT, Carmad, running
from tests.schema import undo_accounts
from tests.waiting import PATIENCE_S

GUIDE = (ROOT / "docs/guides/recurring.md").read_text(encoding="utf-8")
INSTALLED = "/opt/carma/bin"


@pytest.fixture
def carmad(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as its:
        yield its


def as_cron(
    carmad: Carmad, line: str, path: str = "/usr/bin:/bin"
) -> subprocess.CompletedProcess[str]:
    """The command of a line, with what cron gives it. The socket is only for a carmad of a test's
    own."""
    its = {"HOME": str(carmad.work), "LOGNAME": pwd.getpwuid(os.getuid()).pw_name}
    its |= {"SHELL": "/bin/sh", "PATH": path, "CARMA_SOCKET": carmad.socket}
    command = re.sub(r"^(@\w+|(\S+\s+){5})\s*", "", line).replace("\\%", "%")
    words = ["env", "-i", *(f"{name}={value}" for name, value in its.items()), "sh", "-c", command]
    return subprocess.run(
        words, cwd=carmad.work, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.DOTALL)


def a_home(carmad: Carmad) -> None:
    """What the guide's lines name."""
    bin = carmad.work / "project/venv/bin"
    bin.mkdir(parents=True)
    (bin / "python").symlink_to(sys.executable)
    (carmad.work / "project/evaluate.py").write_text("print('evaluated')\n")
    (carmad.work / "project/sync.sh").write_text('echo "to $TARGET"\n')
    (carmad.work / ".profile").write_text("export TARGET=there\n")


def test_the_guides_crontab_works_as_cron_runs_it(carmad: Carmad) -> None:
    a_home(carmad)
    (block,) = blocks("crontab")
    setting, *entries = block.splitlines()
    assert setting == f"PATH={INSTALLED}:/usr/bin:/bin"
    path = setting.removeprefix("PATH=").replace(INSTALLED, str(Path(CARMA[0]).parent))
    nightly, hourly, reboot = entries
    logs = {}
    for line, folder in ((nightly, "project"), (hourly, ""), (reboot, "project")):
        ran = as_cron(carmad, line, path)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", ""), "or cron mails it"
        id = carmad.get("/v1/jobs?select=last")["jobs"][0]["id"]
        assert carmad.ended(id)["state"] == "succeeded"
        logs[line] = (carmad.work / folder / f"carma-{id}.out").read_text()
    assert logs == {nightly: "evaluated\n", hourly: "to there\n", reboot: "evaluated\n"}


def test_two_lines_of_a_name_submit_one_job(carmad: Carmad) -> None:
    a_home(carmad)
    (block,) = blocks("crontab")
    line = block.splitlines()[1].replace("submit", "submit --hold")
    path = f"{Path(CARMA[0]).parent}:/usr/bin:/bin"
    for _ in range(2):
        assert as_cron(carmad, line, path).returncode == 0
    assert [job["name"] for job in carmad.get("/v1/jobs")["jobs"]] == ["nightly"]
    ran = as_cron(carmad, line.replace(" -Q", ""), path)
    assert (ran.returncode, ran.stderr) == (
        0,
        "carma: nothing is submitted: job 1, nightly, has not ended\n",
    )


def test_the_guides_timer_submits_the_same(carmad: Carmad, tmp_path: Path) -> None:
    a_home(carmad)
    service, timer = blocks("ini")
    assert "Persistent=true" in timer and "WorkingDirectory=%h/project" in service
    command = service.partition("ExecStart=")[2].strip()
    line = f"* * * * * cd project && {command.replace(INSTALLED, str(Path(CARMA[0]).parent))}"
    assert as_cron(carmad, line).returncode == 0
    assert carmad.ended(1)["state"] == "succeeded"


# -- what is left of `carma cron`

EARLIER = """\
# mine
GREETING="hello world"
#SCRON --gpus 0 --time 1:00:00
#SCRON --name nightly   # a remark
0 2 * * mon-fri   echo "$GREETING" $(date +%F) \\
  and more
@hourly python a.py
#SCRON --gpus 0 --notify end
@daily python b.py --name a
"""


def test_entries_become_lines_of_a_crontab() -> None:
    found = "".join(lines(EARLIER, "/opt/carma/bin/carma"))
    submit = "/opt/carma/bin/carma submit -Q --unless-running"
    echo = """'echo "$GREETING" $(date +\\%F) and more'"""
    assert found.splitlines() == [
        "# mine",
        'GREETING="hello world"',
        f"0 2 * * mon-fri  {submit} nightly --gpus 0 --time 1:00:00 --name nightly --wrap {echo}",
        f"@hourly  {submit} a.py --wrap 'python a.py'",
        f"@daily  {submit} b.py --gpus 0 --notify end --wrap 'python b.py --name a'",
    ]


def test_entries_of_one_name_get_two_and_what_cannot_be_read_stays() -> None:
    text = "#SCRON --name n\n@daily a\n#SCRON --name n\n@daily b\n#SCRON --time soon\n@daily c\n"
    one, two, bad = lines(text, "carma")
    assert "--unless-running n --name n --wrap" in one
    assert "--unless-running n-2 --name n --name n-2 --wrap" in two
    assert bad.startswith("# cannot be read (") and bad.endswith("--time soon @daily c\n")


def of_an_earlier_build(path: Path, *rows: tuple[int, object]) -> None:
    """A database that had crontabs, by uid alone."""
    undo_accounts(path)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE crontabs")
        database.execute("CREATE TABLE crontabs (uid INTEGER PRIMARY KEY, body TEXT NOT NULL)")
        for uid, body in rows:
            text = body if isinstance(body, str) else json.dumps(body)
            database.execute("INSERT INTO crontabs VALUES (?, ?)", (uid, text))
        database.execute("UPDATE alembic_version SET version_num = '0002'")


def entry(first: int | None = None) -> dict[str, object]:
    job = {"argv": ["/bin/sh", "-c", "true"], "cwd": "/", "env": {"HF_HOME": "/private"}}
    return {"schedule": "@daily", "command": "true", "job": job, "checked_at": 0.0, "first": first}


def test_an_upgrade_keeps_the_text_for_its_account_alone(carmad: Carmad) -> None:
    me = os.getuid()
    mine = carmad.post("/v1/jobs", {"argv": ["true"], "cwd": "/", "gpus": 0})["id"]
    carmad.ended(mine)
    carmad.stop()
    path = carmad.state / "carma.db"
    of_an_earlier_build(
        path,
        (me, {"uid": me, "gid": me, "text": EARLIER, "entries": [entry(mine)]}),
        (2, {"uid": 2, "gid": 2, "text": "@daily two\n", "entries": [entry()]}),
        (3, "{"),
        (4_000_000, {"uid": 4_000_000, "gid": 0, "text": "@daily nobody\n", "entries": []}),
    )
    carmad.start()
    name = pwd.getpwuid(me).pw_name
    assert carmad.get("/v1/cron") == {"schema": 1, "user": name, "text": EARLIER}
    assert carmad.call("POST", "/v1/cron", {"text": "", "entries": []})[0] == 405
    ran = subprocess.run(
        [*CARMA, "cron"],
        env=carmad.env | {"CARMA_SOCKET": carmad.socket},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "carma cron runs nothing any more" in ran.stderr
    assert ran.stdout.startswith("# Your entries of `carma cron`")
    line = next(line for line in ran.stdout.splitlines() if "nightly" in line)
    assert shlex.split(line)[5].endswith("carma")
    assert as_cron(carmad, line.replace("submit", "submit --wait")).returncode == 0
    said = carmad.carma("cron", "--remove", "--user", "x", rc=2)
    assert "runs nothing any more" in said
    (check,) = (one for one in carmad.get("/v1/doctor")["checks"] if one["name"] == "crontabs")
    two = pwd.getpwuid(2).pw_name
    assert sorted([name, two]) == check["detail"].rpartition(": ")[2].split(", ")
    carmad.stop()
    with contextlib.closing(sqlite3.connect(path)) as database:
        kept = database.execute("SELECT user, uid, text FROM crontabs ORDER BY uid").fetchall()
    assert kept == [(name, me, EARLIER), (two, 2, "@daily two\n")]
    assert not any("/private" in row[2] for row in kept)


def test_an_upgrade_survives_damaged_crontabs(tmp_path: Path) -> None:
    me, path = os.getuid(), tmp_path / "carma.db"
    SqlStore.open(path).close()
    body = {"uid": me, "gid": me, "text": "@daily mine\n", "entries": [entry(1 << 70), entry(5)]}
    odd = [None, ["@daily"], 7]
    of_an_earlier_build(
        path,
        (me, body),
        *((2 + n, body | {"text": text}) for n, text in enumerate(odd)),
        *((10 + n, text) for n, text in enumerate(["", "[]", "7", '{"text": "x"}'])),
        (1 << 62, body),
    )
    with contextlib.closing(SqlStore.open(path)) as store:
        assert store.crontabs() == [pwd.getpwuid(me).pw_name]


def test_who_has_the_uid_or_the_name_alone_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        contextlib.closing(SqlStore.open(tmp_path / "carma.db")) as store,
        store._transaction() as connection,
    ):
        for uid, text in ((os.getuid(), "@daily mine\n"), (4_000_000, "@daily other\n")):
            row = {"user": "ada", "uid": uid, "text": text}
            connection.execute(tables.CRONTABS.insert(), [row])
    with api_server.running(tmp_path) as daemon:
        for user, text in (("eve", ""), ("ada", "@daily mine\n")):
            monkeypatch.setattr(connections, "user_of", lambda uid, user=user: (user, True))
            daemon.app.state.peers._known.clear()
            assert daemon.call("GET", "/v1/cron")[1]["text"] == text


def status_of(daemon: api_server.Daemon, verb: str, target: str) -> int:
    """Without the answer's body: a stream of events has no end."""
    connection = api_server.Connection(daemon.path)
    with contextlib.closing(connection):
        body = b"{}" if verb == "POST" else None
        connection.request(verb, target, body, {"content-type": "application/json"})
        return connection.getresponse().status


def test_no_nul_in_a_target_makes_the_daemon_fail(tmp_path: Path) -> None:
    """Where C reads a name, a NUL ends it: look-ups in the user database raise ValueError."""
    with api_server.running(tmp_path) as daemon:
        assert status_of(daemon, "GET", "/v1/cron?user=%00") == 200, "it was a 500"
        paths = daemon.call("GET", "/v1/openapi.json")[1]["paths"]
        for path, verbs in paths.items():
            where, known = re.sub(r"\{\w+\}", "%00", path), re.sub(r"\{\w+\}", "1", path)
            for verb, its in verbs.items():
                query = [one["name"] for one in its.get("parameters", ()) if one["in"] == "query"]
                for target in (where, *(f"{known}?{name}=%00" for name in query)):
                    assert status_of(daemon, verb.upper(), target) < 500, target
