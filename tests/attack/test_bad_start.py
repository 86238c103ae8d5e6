"""A bad day begins: what a daemon finds when it starts, and what it makes of that."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, Carmad, running, until
from tests.fake_nvml import nvml_library
from tests.test_nvml import A, gpu

__all__ = ["nvml_library"]

IDLE = "memory 81920 500 0"
NOT_LOADED = "9"  # NVML_ERROR_DRIVER_NOT_LOADED


class Driver:
    """A fake of NVIDIA's, for daemons: installed, loaded, and taken away again."""

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
    """A daemon that asks NVML, as far as it can tell."""
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
    """Change the database of a daemon that does not run."""
    with sqlite3.connect(daemon.state / "carma.db") as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def check(daemon: Carmad, name: str) -> list[str]:
    """What doctor says under that name."""
    found = daemon.get("/v1/doctor")["checks"]
    return [f"{each['detail']} {each['hint']}" for each in found if each["name"] == name]


def troubles(daemon: Carmad) -> list[str]:
    found: list[str] = daemon.get("/v1/status")["server"]["troubles"]
    return found


# -- the driver comes late


@pytest.mark.parametrize("installed", [False, True], ids=["not installed", "not loaded"])
def test_the_queue_is_served_while_the_driver_is_missing(
    installed: bool, driver: Driver, tmp_path: Path
) -> None:
    why = "not loaded" if installed else "libnvidia-ml.so.1 is not installed"
    driver.show(f"init {NOT_LOADED}")
    if installed:
        driver.install()
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
        if not installed:
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
        runs = daemon.sh("echo up; read go < fifo; exit 3", exclusive=True)
        os.mkfifo(daemon.work / "fifo")
        daemon.await_output(runs, "up")
        daemon.kill()
        driver.show(f"init {NOT_LOADED}")
        daemon.start_cold()
        assert troubles(daemon) != []
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


@pytest.mark.parametrize("harm", BODIES.values(), ids=BODIES)
def test_a_bad_row_of_an_ended_job_is_left_out_and_named(daemon: Carmad, harm: str) -> None:
    bad, good = daemon.sh("true"), daemon.sh("true")
    daemon.ended(bad), daemon.ended(good)
    daemon.stop()
    patch(
        daemon,
        f"UPDATE jobs SET {harm} WHERE id = {bad}",
        "UPDATE decisions SET body = '{'",
        "UPDATE transitions SET after = 'nowhere' WHERE after = 'queued'",
        "UPDATE events SET body = 'no'",
        "INSERT INTO drains VALUES ('GPU-x', 'dust', 'root', 'yesterday')",
        "INSERT INTO samples (at, gpu, sm_active) VALUES (1.5, 'GPU-x', 'much')",
    )
    daemon.start()
    assert [job["id"] for job in daemon.get("/v1/history")["jobs"]] == [good]
    assert daemon.get("/v1/history?attempts=true")["jobs"] != []
    assert [job["id"] for job in daemon.get("/v1/status")["jobs"]] == [good]
    assert [move["after"] for move in daemon.job(good)["history"]][-1] == "succeeded"
    assert daemon.get("/v1/stats")["total"]["jobs"] == 2
    assert daemon.why(good)["past"] == []
    status, out = daemon.call("GET", f"/v1/jobs/{bad}")
    assert (status, f"job {bad} is damaged" in out["error"]) == (400, True)
    told = check(daemon, "damage")
    assert any(line.startswith(f"job {bad} cannot be read") for line in told)
    assert any("the drain of GPU GPU-x" in line for line in told)
    log = daemon.log.read_text()
    assert log.count(f"job {bad} cannot be read") == 1
    assert "Traceback" not in log
    assert daemon.ended(daemon.sh("true"))["state"] == "succeeded"


@pytest.mark.parametrize("harm", BODIES.values(), ids=BODIES)
def test_a_bad_row_of_a_job_that_waits_ends_that_job_and_no_other(
    daemon: Carmad, harm: str
) -> None:
    bad, good = daemon.sh("true", held=True), daemon.sh("true", held=True)
    follows = daemon.sh("true", after=[{"job": str(bad), "kind": "afterok"}])
    daemon.stop()
    patch(daemon, f"UPDATE jobs SET {harm} WHERE id = {bad}")
    daemon.start()
    ended = daemon.ended(bad)
    assert ended["state"] == "cancelled"
    assert "its record in the database was damaged" in ended["exit"]["evidence"]
    assert daemon.ended(follows)["state"] == "cancelled"
    (told,) = check(daemon, "damage")
    aside = daemon.state / "set-aside" / f"job-{bad}.json"
    assert str(aside) in told
    assert aside.stat().st_mode & 0o777 == 0o600
    assert json.loads(aside.read_text())["row"]["id"] == bad
    daemon.post("/v1/release", {"select": str(good)})
    assert daemon.ended(good)["state"] == "succeeded"
    assert not daemon.attempt(bad).exists()


def test_a_bad_row_of_a_job_that_runs_frees_no_gpu_before_its_end(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as daemon:
        runs = daemon.sh("echo up; read go < fifo; exit 3", exclusive=True)
        os.mkfifo(daemon.work / "fifo")
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
