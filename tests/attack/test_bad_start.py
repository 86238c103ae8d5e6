"""Bad conditions at startup, and how the daemon handles them."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carmad.daemon.main import EX_CONFIG
from carmad.store.sql import SqlStore
from tests.carmad.gpu.test_nvml import A, gpu
from tests.daemon import CARMAD, NO_KERNELS, Carmad, run_carmad, running, until
from tests.fake_nvml import nvml_library

__all__ = ["nvml_library"]

IDLE = "memory 81920 500 0"
NOT_LOADED = "9"  # NVML_ERROR_DRIVER_NOT_LOADED


class Driver:
    """A fake NVIDIA driver for daemons: installed, loaded, and removed again."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._library = library
        self._lib = folder / "lib"
        self._lib.mkdir()
        self._world = folder / "world"

    @property
    def env(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self._lib), "FAKE_NVML_WORLD": str(self._world)}

    def install(self) -> None:
        (self._lib / self._library.name).symlink_to(self._library)

    def show(self, *lines: str) -> None:
        draft = self._world.with_suffix(".new")
        draft.write_text("\n".join(lines) + "\n")
        draft.replace(self._world)


@pytest.fixture
def driver(nvml_library: Path, tmp_path: Path) -> Driver:
    return Driver(nvml_library, tmp_path)


@contextmanager
def on_real_gpus(folder: Path, **settings: str) -> Iterator[Carmad]:
    """A daemon that believes it is using the real NVML."""
    daemon = Carmad(folder, **NO_KERNELS, CARMA_ACCESS__ROOT_JOBS="true", **settings)
    daemon.argv = daemon.argv[2:]  # without --emulated
    try:
        daemon.start_cold()
        yield daemon
    finally:
        daemon.clear_away()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS) as carmad:
        yield carmad


def patch(daemon: Carmad, *statements: str) -> None:
    """Change the database of a daemon that is not running."""
    with sqlite3.connect(daemon.state / "carma.db") as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def check(daemon: Carmad, name: str) -> list[str]:
    """The check of this name in doctor's output."""
    found = daemon.get("/v1/doctor")["checks"]
    return [f"{each['detail']} {each['hint']}" for each in found if each["name"] == name]


def troubles(daemon: Carmad) -> list[str]:
    found: list[str] = daemon.get("/v1/status")["server"]["troubles"]
    return found


# -- the driver comes late


def test_the_queue_is_served_while_the_driver_is_missing(driver: Driver, tmp_path: Path) -> None:
    why = "libnvidia-ml.so.1 is not installed"
    with on_real_gpus(tmp_path, **driver.env) as daemon:
        waits, given_up = daemon.sh("echo ran", gpus=1), daemon.sh("true", gpus=2)
        until(lambda: daemon.job(waits)["state"] == "queued", "the job to join the line")
        assert why in daemon.why(waits)["headline"]
        assert daemon.job(waits)["reason"] == "(GpusUnread)"
        assert [why in trouble for trouble in troubles(daemon)] == [True]
        assert why in daemon.carma("status").splitlines()[0]
        assert why in daemon.carma("daemon", "status", rc=0)
        checks = daemon.get("/v1/doctor")["checks"]
        (told,) = [check for check in checks if check["name"] == "gpus"]
        assert (told["ok"], why in told["detail"]) == (False, True)
        daemon.cancel(given_up)
        assert daemon.ended(given_up)["state"] == "cancelled"

        driver.show(gpu(A, IDLE))
        driver.install()
        assert daemon.ended(waits)["state"] == "succeeded"
        assert daemon.output(waits) == "ran\n"
        assert troubles(daemon) == []
        assert daemon.log.read_text().count("cannot be read yet") == 1


def test_a_job_that_runs_on_a_gpu_that_cannot_be_read_yet_goes_on(
    driver: Driver, tmp_path: Path
) -> None:
    driver.install()
    driver.show(gpu(A, IDLE))
    with on_real_gpus(tmp_path, **driver.env) as daemon:
        os.mkfifo(daemon.work / "fifo")
        runs = daemon.sh("echo up; read go < fifo; exit 3", exclusive=True)
        daemon.await_output(runs, "up")
        daemon.kill()
        driver.show(f"init {NOT_LOADED}")
        daemon.start_cold()
        assert ["not loaded" in trouble for trouble in troubles(daemon)] == [True]
        waits = daemon.sh("true")
        until(lambda: daemon.job(waits)["state"] == "queued", "the job to join the line")
        driver.show(gpu(A, IDLE))
        until(lambda: not troubles(daemon), "the GPU to be found")
        assert [each["id"] for each in daemon.gpus()[0]["jobs"]] == [runs]
        assert daemon.job(waits)["state"] == "queued"
        (daemon.work / "fifo").write_text("go\n")
        assert daemon.ended(runs)["exit"]["code"] == 3
        assert daemon.ended(waits)["state"] == "succeeded"


def test_an_end_is_told_while_the_gpus_cannot_be_read(driver: Driver, tmp_path: Path) -> None:
    driver.install()
    driver.show(gpu(A, IDLE))
    with on_real_gpus(tmp_path, **driver.env) as daemon:
        runs = daemon.sh("sleep 1000")
        daemon.await_state(runs, "starting", "running")
        daemon.supervisor(runs)
        daemon.kill()
        driver.show(f"init {NOT_LOADED}")
        daemon.start_cold()
        daemon.cancel(runs)
        assert daemon.ended(runs)["state"] == "cancelled"


def test_a_source_that_there_is_not_is_still_refused(tmp_path: Path) -> None:
    daemon = Carmad(tmp_path, CARMA_MONITOR__SOURCE="rocm")
    daemon.argv = daemon.argv[2:]
    daemon.start(wait=False)
    assert daemon.await_death()
    assert "no telemetry source is called 'rocm'" in daemon.log.read_text()


# -- rows that cannot be read

BODIES = {
    "torn": "body = substr(body, 1, 40)",
    "no text": "body = x'7b22ff00c3'",
    "of another job": "body = replace(body, '\"id\":', '\"id\":7')",
    "of another shape": """body = '{"id": 1}'""",
}


def harmed(daemon: Carmad, *jobs: int) -> None:
    """Damages the row of each in another way."""
    for job, harm in zip(jobs, BODIES.values(), strict=True):
        patch(daemon, f"UPDATE jobs SET {harm} WHERE id = {job}")


def test_bad_rows_of_ended_jobs_are_failed_jobs_with_a_note(daemon: Carmad) -> None:
    *bad, good = [daemon.sh("true") for _ in (*BODIES, "good")]
    for job in (*bad, good):
        daemon.ended(job)
    daemon.stop()
    harmed(daemon, *bad)
    patch(
        daemon,
        "UPDATE decisions SET body = '{'",
        "UPDATE transitions SET after = 'nowhere' WHERE after = 'queued'",
        "INSERT INTO drains VALUES ('GPU-x', 'dust', 'root', 'yesterday')",
    )
    daemon.start()
    states = {job["id"]: job["state"] for job in daemon.get("/v1/history?attempts=true")["jobs"]}
    assert states == dict.fromkeys(bad, "failed") | {good: "succeeded"}
    assert [move["after"] for move in daemon.job(good)["history"]][-1] == "succeeded"
    assert daemon.get("/v1/stats")["total"]["jobs"] == len(bad) + 1
    assert daemon.why(good)["past"] == []
    told, log = check(daemon, "damage"), daemon.log.read_text()
    assert any("the drain of GPU GPU-x" in line for line in told)
    for job in bad:
        assert any("damaged" in note for note in daemon.job(job)["notes"])
        assert any(line.startswith(f"job {job} in the database cannot be read") for line in told)
        assert log.count(f"job {job} in the database cannot be read") == 1
    assert "Traceback" not in log
    assert daemon.ended(daemon.sh("true"))["state"] == "succeeded"


def test_bad_rows_of_jobs_that_wait_end_those_jobs_and_no_other(daemon: Carmad) -> None:
    *bad, good = [daemon.sh("true", held=True) for _ in (*BODIES, "good")]
    follows = [daemon.sh("true", after=[{"job": str(job), "kind": "afterok"}]) for job in bad]
    daemon.stop()
    harmed(daemon, *bad)
    daemon.start()
    told = check(daemon, "damage")
    for job, after in zip(bad, follows, strict=True):
        ended = daemon.ended(job)
        assert ended["state"] == "cancelled"
        assert "its record in the database was damaged" in ended["exit"]["evidence"]
        assert daemon.ended(after)["state"] == "cancelled"
        assert any(line.startswith(f"job {job} in") for line in told)
        assert not daemon.attempt(job).exists()
    daemon.post("/v1/release", {"select": str(good)})
    assert daemon.ended(good)["state"] == "succeeded"
    daemon.stop()
    daemon.start()  # and it is on record
    assert [daemon.job(job)["state"] for job in bad] == ["cancelled"] * len(bad)
    assert not check(daemon, "damage")


def test_a_bad_row_of_a_job_that_runs_frees_no_gpu_before_its_end(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as daemon:
        os.mkfifo(daemon.work / "fifo")
        runs = daemon.sh("echo up; read go < fifo; exit 3", exclusive=True)
        daemon.await_output(runs, "up")
        waits = daemon.sh("true", exclusive=True)
        daemon.kill()
        patch(daemon, f"UPDATE jobs SET body = 'gone' WHERE id = {runs}")
        daemon.start()
        assert [each["id"] for each in daemon.gpus()[0]["jobs"]] == [runs]
        assert daemon.job(waits)["state"] in ("pending", "queued")
        assert any("damaged" in note for note in daemon.job(runs)["notes"])
        (daemon.work / "fifo").write_text("go\n")
        ended = daemon.ended(runs)
        assert (ended["state"], ended["exit"]["code"]) == ("failed", 3)
        assert daemon.ended(waits)["state"] == "succeeded"
        daemon.stop()
        daemon.start()  # and it is on record
        assert daemon.job(runs)["state"] == "failed"


def test_a_state_that_there_is_not_keeps_no_job_from_its_turn(daemon: Carmad) -> None:
    waits = daemon.sh("true", held=True)
    daemon.stop()
    patch(daemon, f"UPDATE jobs SET state = 'nowhere' WHERE id = {waits}")
    daemon.start()
    daemon.post("/v1/release", {"select": str(waits)})
    assert daemon.ended(waits)["state"] == "succeeded"


# -- a database that is gone, or older than what is beside it


def refused(daemon: Carmad) -> str:
    """Asserts that carmad does not start, and that retrying would not help; returns its output."""
    said = len(daemon.log.read_text()) if daemon.log.exists() else 0
    ran = run_carmad(*daemon.argv)
    assert ran.returncode == EX_CONFIG, ran
    assert "Traceback" not in ran.stderr
    return ran.stderr + (daemon.log.read_text()[said:] if daemon.log.exists() else "")


def back_up(daemon: Carmad) -> Path:
    store = SqlStore.open(daemon.state / "carma.db")
    try:
        return store.backup(7)
    finally:
        store.close()


@pytest.mark.parametrize("empty", [False, True], ids=["deleted", "emptied"])
def test_a_database_that_is_gone_is_not_begun_anew(daemon: Carmad, empty: bool) -> None:
    waits = daemon.sh("true", held=True)
    daemon.stop()
    backup, database = back_up(daemon), daemon.state / "carma.db"
    (backup.parent / "carma-29991231T000000.000000Z.db").write_bytes(b"half-written")
    whole = database.read_bytes()
    database.write_bytes(b"") if empty else database.unlink()
    said = refused(daemon)
    assert "missing or empty" in said
    assert f"cp -p {backup} {database}" in said
    assert f"mv {backup.parent} {backup.parent}.old" in said
    assert not empty or database.read_bytes() == b""
    database.write_bytes(whole)
    daemon.start()
    assert daemon.job(waits)["state"] in ("pending", "queued")


def test_a_log_without_its_database_is_not_thrown_away(daemon: Carmad) -> None:
    daemon.sh("true", held=True)
    daemon.kill()
    database, log = daemon.state / "carma.db", daemon.state / "carma.db-wal"
    kept, held = database.read_bytes(), log.read_bytes()
    assert held
    database.unlink()
    assert f"its log {log} is still there" in refused(daemon)
    assert log.read_bytes() == held
    database.write_bytes(kept)
    daemon.start()
    assert len(daemon.get("/v1/jobs")["jobs"]) == 1


def test_no_id_is_given_twice_after_an_old_backup_was_put_back(daemon: Carmad) -> None:
    first = daemon.sh("true", held=True)
    daemon.stop()
    old = back_up(daemon)
    daemon.start()
    gone = daemon.ended(daemon.sh("true"))["id"]  # leaves no record
    runs = daemon.sh("echo up; sleep 1000")
    daemon.await_output(runs, "up")
    daemon.stop()
    copy = old.read_bytes()
    old.unlink()
    (daemon.state / "carma.db").write_bytes(copy)
    daemon.start()
    new = daemon.sh("echo new")
    assert new > runs > gone > first
    assert daemon.ended(new)["state"] == "succeeded"
    assert daemon.output(new) == "new\n"
    (told,) = check(daemon, "records")
    assert f"{runs}.1 belongs to no job in the database" in told
    assert f"new ids start at {runs + 1}" in daemon.log.read_text()

    # And of jobs that left no record, newer backups know.
    daemon.stop()
    back_up(daemon)
    (daemon.state / "carma.db").write_bytes(copy)
    daemon.start()
    assert daemon.sh("true") > new


def test_a_folder_that_no_job_can_have_made_is_ignored_and_named(daemon: Carmad) -> None:
    jobs = daemon.state / "jobs"
    daemon.stop()
    names = {"99999999999999999999.1", "007.1", "x", "٣.1", "99.2.3"}
    for name in names:
        (jobs / name).mkdir()
    daemon.start()
    assert daemon.ended(daemon.sh("true"))["id"] == 1
    told = check(daemon, "records")
    assert {
        name for name in names if any(f"{jobs}/{name} is not a record" in t for t in told)
    } == names


# -- settings, folders and disks


def test_wrong_settings_are_not_tried_again_and_other_troubles_are(tmp_path: Path) -> None:
    daemon = Carmad(tmp_path)
    toml = tmp_path / "carma.toml"
    daemon.argv += ["--config", str(toml)]
    assert "cannot read" in refused(daemon)
    toml.write_bytes(b'policy = "\xff"')
    assert str(toml) in refused(daemon)
    toml.write_text('policy = "nonesuch"')
    assert "nonesuch" in refused(daemon)
    toml.write_text("")
    shutil.rmtree(daemon.state)
    daemon.state.write_text("a file where the state directory is to be")
    ran = run_carmad(*daemon.argv)
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, False), ran


def test_who_waits_for_a_daemon_that_cannot_start_is_told(tmp_path: Path) -> None:
    """As under systemd, which starts carmad for every client, again and again."""
    daemon = Carmad(tmp_path)
    daemon.argv += ["--config", str(tmp_path / "none.toml")]
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(daemon.socket)
        listener.listen()
        client.connect(daemon.socket)
        client.sendall(b"GET /v1/health HTTP/1.0\r\n\r\n")
        pid = os.fork()
        if pid == 0:
            os.dup2(listener.fileno(), 3)
            env = daemon.env | {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
            os.execve(CARMAD[0], [*CARMAD, *daemon.argv], env)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EX_CONFIG
        answer = client.recv(1 << 16)
    assert b" 503 " in answer and b"carmad cannot start, and has done nothing" in answer


def test_a_journal_and_models_that_are_in_the_way_keep_no_daemon_from_starting(
    daemon: Carmad,
) -> None:
    daemon.stop()
    shutil.rmtree(daemon.state / "journal", ignore_errors=True)
    (daemon.state / "journal").write_text("a file")
    models = daemon.state / "models"
    models.mkdir()
    (models / "half.new").mkdir()
    (models / "folder.json").mkdir()
    (models / "torn.json").write_text('{"kind"')
    (daemon.state / "backups").write_text("a file")
    (daemon.state / "trial").write_text("a file")
    daemon.start()
    assert daemon.ended(daemon.sh("true"))["state"] == "succeeded"


def test_a_torn_card_is_waited_for_and_named(daemon: Carmad) -> None:
    daemon.stop()
    (card, *_) = sorted((daemon.state / "emulated").iterdir())
    whole = card.read_bytes()
    card.write_bytes(whole[:10])
    daemon.start()
    assert "cannot read emulated cards" in troubles(daemon)[0]
    card.write_bytes(whole)
    until(lambda: not troubles(daemon), "the cards to be found")
