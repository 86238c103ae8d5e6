"""Invalid state that a daemon may find at startup, and broken plugins. See also test_api."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carmad.store.damage import NOTE
from carmad.store.database import SCHEMA
from tests.daemon import NO_KERNELS, Carmad, run_carmad, running, until
from tests.waiting import PATIENCE_S

EMULATED = ("--emulated", "1xA100-40GB")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS) as carmad:
        yield carmad


def assert_refused(folder: Path, *argv: str, error: str, hint: str = "", **env: str) -> None:
    """carmad does not start, and says why and what to do about it."""
    where = ("--state-dir", str(folder / "state"), "--socket", str(folder / "sock"))
    ran = run_carmad(*EMULATED, *where, *argv, **env)
    assert ran.returncode in (1, 78), ran
    assert ran.stderr.startswith("carmad: ") and error in ran.stderr, ran.stderr
    assert hint in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


# -- the database


def rubbish(database: Path) -> None:
    database.write_bytes(b"This is not a database, whatever its name may say. " * 200)


def torn(database: Path) -> None:
    """The header is intact, but the pages after it are not."""
    content = bytearray(database.read_bytes())
    content[4096:] = bytes(255 for _ in content[4096:])
    database.write_bytes(content)


def from_the_future(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()


def of_something_else(database: Path) -> None:
    database.unlink()
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE photos (name)")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


@pytest.mark.parametrize(
    ("harm", "error", "hint"),
    [
        (rubbish, "is damaged", "There is no backup. To start with an empty one"),
        (torn, "is damaged", "There is no backup. To start with an empty one"),
        (from_the_future, "a newer version of CARMA", "To start afresh"),
        (of_something_else, "is a database, but not of CARMA", "Keep it elsewhere: mv "),
    ],
)
def test_a_database_that_cannot_be_used(
    daemon: Carmad, harm: Callable[[Path], None], error: str, hint: str
) -> None:
    daemon.stop()
    database = daemon.state / "carma.db"
    harm(database)
    before = database.read_bytes()
    assert_refused(daemon.folder, *daemon.argv, error=error, hint=hint)
    assert database.read_bytes() == before


def test_ended_jobs_with_damaged_records_have_failed_and_cannot_be_requeued(
    daemon: Carmad,
) -> None:
    first = daemon.sh("exit 3")
    daemon.ended(first)
    array = daemon.submit("true", held=True, array={"indices": [0, 1, 2, 3, 4]})
    daemon.cancel(array)
    daemon.stop()
    with sqlite3.connect(daemon.state / "carma.db") as connection:
        connection.execute("UPDATE jobs SET body = 'gone'")
    connection.close()
    daemon.start()
    found = daemon.job(first)
    assert found["state"] == "failed" and NOTE in found["notes"]
    assert daemon.job(first)["exit"]["evidence"] == NOTE
    (out,) = daemon.post("/v1/requeue", {"select": str(first)})["results"]
    assert not out["ok"] and NOTE in out["message"]
    assert daemon.call("GET", f"/v1/jobs/{array}_2")[0] == 404
    assert daemon.get("/v1/health")["status"] == "ok"
    assert daemon.ended(daemon.sh("exit 4"))["exit"]["code"] == 4


# -- another daemon, and files that are in the way


def test_two_daemons_do_not_share_a_state_directory_or_a_socket(daemon: Carmad) -> None:
    elsewhere = daemon.folder / "elsewhere"
    open_by = "another process has"
    assert_refused(
        daemon.folder, *daemon.argv, "--socket", str(elsewhere), error=open_by, hint="fuser"
    )
    assert not elsewhere.exists()
    answers = ("--state-dir", str(elsewhere))
    hint = "carma daemon stop"
    assert_refused(daemon.folder, *daemon.argv, *answers, error="another carmad answers", hint=hint)
    assert daemon.ended(daemon.sh("exit 3"))["exit"]["code"] == 3


def test_a_socket_that_nobody_listens_at_is_replaced(daemon: Carmad) -> None:
    daemon.kill()
    assert Path(daemon.socket).is_socket()
    daemon.start()
    daemon.stop()
    daemon.start()
    assert daemon.get("/v1/health")["status"] == "ok"


@pytest.mark.parametrize("name", ["state", "state/jobs", "state/emulated", "state/carma.db"])
def test_a_path_that_is_something_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if name == "state/carma.db":
        path.mkdir()
    else:
        path.write_text("in the way")
    assert_refused(tmp_path, error=str(path))


def test_a_socket_and_a_log_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = str(tmp_path / "file" / "x")
    assert_refused(tmp_path, "--socket", below, error=below)
    precious = tmp_path / "precious"
    precious.write_text("keep")
    assert_refused(tmp_path, "--socket", str(precious), error="Address already in use")
    assert precious.read_text() == "keep"
    assert_refused(tmp_path, "--log-file", below, error=below)
    assert_refused(tmp_path, "--socket", str(tmp_path / ("x" * 200)), error="x" * 200)


@pytest.mark.parametrize(
    ("env", "error", "hint"),
    [
        ({"CARMA_POLICY": "nonsense"}, "no 'nonsense' among the installed policies", "magm"),
        ({"CARMA_MONITOR__PERIOD_S": "soon"}, "CARMA_MONITOR__PERIOD_S", "default is 1.0"),
        ({"CARMA_MONITOR__PERIODS": "1"}, "is not a setting", "Did you mean"),
    ],
)
def test_settings_that_mean_nothing(
    tmp_path: Path, env: dict[str, str], error: str, hint: str
) -> None:
    assert_refused(tmp_path, error=error, hint=hint, **env)


def test_emulated_gpus_that_do_not_exist(tmp_path: Path) -> None:
    assert_refused(tmp_path, "--emulated", "3xB1000", error="no such emulated GPU", hint="kinds")


def test_strangers_among_the_attempts_are_left_alone(daemon: Carmad) -> None:
    job = daemon.sh("echo up; while [ ! -e go ]; do sleep 0.05; done; exit 8")
    daemon.await_output(job, "up")
    daemon.kill()
    strangers = [daemon.state / "jobs" / name for name in ("77.1", "x.y", "lost+found", "2.x")]
    for stranger in strangers:
        stranger.mkdir()
        (stranger / "exit").write_text('{"code": 0}')
    daemon.start()
    (daemon.work / "go").touch()
    assert daemon.ended(job)["exit"]["code"] == 8
    assert all(stranger.exists() for stranger in strangers)
    assert daemon.call("GET", "/v1/jobs/77")[0] == 404


# -- plugins

WILD = '''
import time
from carmad.plugin import Placement

class Wild:
    """Does what the first job in line is called."""
    name = "wild"

    def order(self, job):
        return 0.0

    def plan(self, view):
        head = view.queue[0]
        match head.spec.name:
            case "raises":
                raise RuntimeError("a bug in a policy")
            case "nonsense":
                return 42
            case "unknown":
                return (Placement(head.id, ("GPU-of-my-dreams",)),)
            case "greedy":
                return (Placement(head.id, tuple(gpu.id for gpu in view.gpus)),)
            case "drained":
                return (Placement(head.id, (view.gpus[0].id,)),)
            case "hangs":
                time.sleep(1000)
        return tuple(Placement(job.id, (view.gpus[-1].id,)) for job in view.queue)

def wild(settings):
    return Wild()

def broken(settings):
    raise KeyError("no such thing")
'''


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A directory with a package of policies, as installed by pip."""
    folder = tmp_path / "packages"
    about = folder / "wild-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "wild.py").write_text(WILD)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wild\nVersion: 1.0\n")
    names = "wild = wild:wild\nbroken = wild:broken\nabsent = nowhere:absent\n"
    (about / "entry_points.txt").write_text(f"[carma.policies]\n{names}")
    return folder


def test_a_policy_that_misbehaves_is_told_of_and_stops_nobody_else(
    tmp_path: Path, packages: Path
) -> None:
    carmad = Carmad(tmp_path, CARMA_POLICY="wild", PYTHONPATH=str(packages), **NO_KERNELS)
    try:
        carmad.start()
        assert carmad.ended(carmad.sh("exit 3", name="good"))["exit"]["code"] == 3
        carmad.post("/v1/gpus/0/drain", {"reason": "a new fan"})
        for name, told in (
            ("raises", "it raised RuntimeError('a bug in a policy')"),
            ("nonsense", "TypeError"),
            ("unknown", "it chose GPU-of-my-dreams"),
            ("greedy", "it chose GPU-e0000000"),
            ("drained", "is drained: a new fan"),
            ("hangs", "no plan within 2 s"),
        ):
            refused(carmad, name, told)
        # It has not come back, and does not keep anything else from being done.
        refused(carmad, "good", "still has not answered")
        carmad.stop()
    finally:
        carmad.clear_away()


def refused(carmad: Carmad, name: str, told: str) -> None:
    job = carmad.submit("true", name=name)
    until(lambda: told in str(carmad.why(job)), f"{told!r} of {name}: {carmad.why(job)}")
    carmad.await_state(job, "queued")
    assert carmad.get("/v1/health")["policy"] == "wild"
    carmad.cancel(job)


@pytest.mark.parametrize("policy", ["broken", "absent"])
def test_a_policy_that_cannot_be_loaded(tmp_path: Path, packages: Path, policy: str) -> None:
    assert_refused(
        tmp_path,
        error=f"'{policy}' of policies cannot be loaded",
        hint="are its dependencies installed? docs/guides/packages.md lists those of CARMA's own",
        CARMA_POLICY=policy,
        PYTHONPATH=str(packages),
    )


def test_nothing_is_loaded_from_the_directory_it_is_started_in(tmp_path: Path) -> None:
    """Root may start the daemon from a user's directory."""
    (tmp_path / "fastapi.py").write_text("open('loaded', 'w')\nraise SystemExit(42)\n")
    carmad = Path(sys.executable).with_name("carmad")
    where = ["--state-dir", str(tmp_path / "state"), "--socket", str(tmp_path / "sock")]
    started = subprocess.run(
        [carmad, "--emulated", "3xB1000", *where],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (started.returncode, (tmp_path / "loaded").exists()) == (1, False), started.stderr
