"""Failures while jobs run: of the daemon at any moment, supervisors, the machine, the disk."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.store.database import StoreFull
from carmad.store.sql import SqlStore
from tests.daemon import NO_KERNELS, UNREACHABLE, Carmad, Json, running, train, until
from tests.storm import GPUS, SUSPENDS, UUIDS, Storm

DISK_MIB = 16
SEED = int(os.environ.get("STORM_SEED", time.time_ns() % 1_000_000))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS, **SUSPENDS, **UUIDS) as carmad:
        yield carmad


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Carmad]:
    """A daemon that has not been started."""
    carmad = Carmad(tmp_path, f"{GPUS}xA100-40GB", **NO_KERNELS, **UUIDS)
    yield carmad
    carmad.clear_away()


# -- kill -9 of the daemon


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.long)])
def test_kills_lose_no_job_and_start_none_twice(port: Carmad, kills: int) -> None:
    storm = Storm(port, SEED)
    try:
        storm.rage(kills=kills)
        storm.settle()
        port.stop()
        storm.check()
        assert kills < 50 or storm.ended_while_down, "the storm missed a case"
    except BaseException:
        print(f"STORM_SEED={SEED} after {storm.kills} kills; the daemons' log: {port.log}")
        print(port.log.read_text()[-8000:])
        raise


def die_after(port: Carmad, commits: int) -> None:
    """Gives a daemon one job, and lets it die right after a commit."""
    port.start(crash_after=commits, wait=False)
    accepted = False
    while port.alive:
        with contextlib.suppress(*UNREACHABLE):
            accepted = accepted or bool(port.sh("echo once >> begun; exit 7", memory_mib=1000))
        time.sleep(0.02)


# In the life of one job: its submission, its start, its end.
@pytest.mark.parametrize("commits", [1, 2, 3])
def test_what_a_commit_owes_is_done_after_a_crash(port: Carmad, commits: int) -> None:
    die_after(port, commits)
    port.start()
    job = port.ended(1)
    assert (job["exit"]["code"], job["attempt"]) == (7, 1)
    assert (port.work / "begun").read_text() == "once\n"


@pytest.mark.parametrize(("commits", "state"), [(1, "pending"), (2, "starting")])
def test_a_daemon_that_forgets_what_is_owed_would_be_noticed(
    port: Carmad, commits: int, state: str
) -> None:
    """Shows that the tests above fail if `Engine.restore` performs no actions."""
    die_after(port, commits)
    port.start(forgetful=True)
    assert port.ended(port.sh("exit 0"))["state"] == "succeeded"
    assert port.job(1)["state"] == state
    assert not (port.work / "begun").exists()


def test_jobs_go_on_while_the_daemon_is_stopped_and_are_adopted(daemon: Carmad) -> None:
    outlives = daemon.sh("while [ ! -e go ]; do sleep 0.05; done; echo over; exit 42")
    ends = daemon.sh("while [ ! -e go ]; do sleep 0.05; done; echo over; kill -9 $$")
    to_stop = daemon.sh("exec sleep 1000")
    for job in (outlives, ends, to_stop):
        daemon.supervisor(job)
    daemon.stop()
    (daemon.work / "go").touch()
    daemon.await_output(ends, "over")
    daemon.start()
    daemon.cancel(to_stop)
    assert daemon.ended(ends)["exit"]["signal"] == 9
    assert daemon.ended(outlives)["exit"]["code"] == 42
    assert daemon.ended(to_stop)["state"] == "cancelled"
    assert [daemon.job(job)["attempt"] for job in (outlives, ends, to_stop)] == [1, 1, 1]


# -- the supervisors, and the machine

STAYS = "echo up $CARMA_RESTART_COUNT; setsid sleep 1000 & sleep 1000"
SHORT_THE_SECOND_TIME = "echo up $CARMA_RESTART_COUNT; [ $CARMA_RESTART_COUNT = 1 ] || sleep 1000"


def power_cut(daemon: Carmad, *jobs: int) -> None:
    """As close as possible: all of CARMA is gone at once, but the jobs' processes stay."""
    supervisors = [daemon.supervisor(job) for job in jobs]
    daemon.kill()
    for pid in supervisors:
        os.kill(pid, signal.SIGKILL)


def test_a_reboot_requeues_what_it_ended_but_only_once(daemon: Carmad) -> None:
    again = daemon.sh(SHORT_THE_SECOND_TIME)
    never = daemon.sh(STAYS, requeue=False)
    twice = daemon.sh(STAYS)
    for job in (again, never, twice):
        daemon.await_output(job, "up 0")
    power_cut(daemon, again, never, twice)
    assert daemon.processes()
    daemon.start()

    job = daemon.ended(again)
    assert (job["state"], job["attempt"]) == ("succeeded", 2)
    assert [failure["cause"] for failure in job["failures"]] == ["lost"]
    assert re.findall("^up .*", daemon.output(again), re.MULTILINE) == ["up 0", "up 1"]
    job = daemon.ended(never)
    assert (job["state"], job["attempt"], job["exit"]["cause"]) == ("failed", 1, "lost")
    assert "supervisor" in job["exit"]["evidence"]

    daemon.await_output(twice, "up 1")
    os.kill(daemon.supervisor(twice, attempt=2), signal.SIGKILL)
    job = daemon.ended(twice)
    assert (job["state"], job["attempt"], job["exit"]["cause"]) == ("failed", 2, "lost")
    assert not daemon.processes()


def test_a_power_cut_in_the_middle_of_a_launch(daemon: Carmad) -> None:
    """Its supervisor recorded its start and no more: whether it did anything is not known."""
    job = daemon.sh("echo up; sleep 1000")
    daemon.await_output(job, "up")
    power_cut(daemon, job)
    (daemon.attempt(job) / "control").unlink()
    (daemon.attempt(job) / "launch").write_bytes(b"")
    (daemon.attempt(job) / "tail").write_bytes(b"\xff\xfe torn")
    (daemon.attempt(job) / "exit").write_text('{"code": ')
    daemon.start()
    daemon.await_state(job, "starting")
    until(lambda: daemon.job(job)["attempt"] == 2, "the second attempt")
    assert daemon.output(job).splitlines()[0] == "up"


def test_a_killed_supervisor_takes_its_job_along_and_nobody_else(daemon: Carmad) -> None:
    bystander = daemon.sh("echo up; while [ ! -e go ]; do sleep 0.05; done; exit 5")
    victim = daemon.sh(STAYS, requeue=False)
    for job in (bystander, victim):
        daemon.await_output(job, "up")
    left = daemon.processes()
    os.kill(daemon.supervisor(victim), signal.SIGKILL)
    assert daemon.ended(victim)["exit"]["cause"] == "lost"
    assert len(daemon.processes()) < len(left)
    (daemon.work / "go").touch()
    assert daemon.ended(bystander)["exit"]["code"] == 5
    assert not daemon.processes()


# -- the GPUs


def test_a_gpu_that_vanishes_takes_no_job_and_the_others_go_on(tmp_path: Path) -> None:
    with running(tmp_path, "2xA100-40GB") as daemon:
        doomed = daemon.submit(*train(seconds=1000, warmup=0.1), exclusive=True)
        fine = daemon.submit(*train(seconds=2, warmup=0.1), exclusive=True)
        gpu = daemon.await_state(doomed, "running")["gpus"][0]["index"]
        daemon.cards()[gpu].set_lost(True)
        job = daemon.ended(doomed)
        assert (job["state"], job["exit"]["cause"]) == ("failed", "failure")
        assert "CUDA error" in job["exit"]["evidence"]
        until(lambda: daemon.gpus()[gpu]["state"] == "faulty", "the GPU to be told faulty")
        assert daemon.gpus()[gpu]["state_detail"] == "GPU is lost"

        waits = daemon.submit("true", gpus=2)
        until(lambda: daemon.why(waits)["verdicts"], "a decision")
        codes = {
            verdict["gpu"]["index"]: [reason["code"] for reason in verdict["refused"]]
            for verdict in daemon.why(waits)["verdicts"]
        }
        assert codes[gpu] == ["fault", "drained"]
        daemon.cancel(waits)
        assert daemon.ended(fine)["state"] == "succeeded"
        after = daemon.ended(daemon.submit("true"))
        assert [used["index"] for used in after["gpus"]] == [1 - gpu]

        # It comes back, and takes jobs once somebody has had a look at it.
        daemon.cards()[gpu].set_lost(False)
        until(lambda: daemon.gpus()[gpu]["state"] == "drained", "the GPU to be back")
        daemon.post(f"/v1/gpus/{gpu}/resume", {})
        assert daemon.ended(daemon.submit("true", gpus=2))["state"] == "succeeded"


# -- the disk


@contextlib.contextmanager
def small_file_system(disk: Path) -> Iterator[Path]:
    disk.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "none", str(disk)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system for the state directory."""
    with small_file_system(tmp_path / "state") as disk:
        yield disk


@pytest.fixture
def small_disk_for_jobs(tmp_path: Path) -> Iterator[Path]:
    """One for the attempts' directories only: the database has space, but launches have none."""
    with small_file_system(tmp_path / "state/jobs") as disk:
        yield disk


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def test_a_backup_without_room_leaves_nothing(small_disk: Path) -> None:
    """Also not what SQLite keeps beside a file while it is written."""
    store = SqlStore.open(small_disk / "carma.db")
    ballast = small_disk / "ballast"
    folder = small_disk / "backups"
    try:
        folder.mkdir()
        for room in range(0, os.statvfs(small_disk).f_bavail, 4):  # blocks
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free_bytes(small_disk, less=room))
            try:
                store.backup(keep=1)
                break
            except StoreFull:
                assert list(folder.iterdir()) == [], room
            finally:
                ballast.unlink()
        assert len(list(folder.iterdir())) == 1
    finally:
        store.close()


def free_bytes(disk: Path, less: int) -> int:
    about = os.statvfs(disk)
    return max(1, about.f_bavail - less) * about.f_bsize


def test_a_full_disk_takes_no_job_and_loses_none(small_disk: Path, daemon: Carmad) -> None:
    goes_on = daemon.sh("echo up; while [ ! -e go ]; do sleep 0.05; done; echo over; exit 9")
    daemon.await_output(goes_on, "up")
    ballast = fill(small_disk)

    status, out = until(lambda: refused(daemon), "a full disk to be noticed")
    assert status == 503
    assert "carma.db" in out["error"]
    assert "Free space" in out["hint"]
    told = daemon.carma("submit", "true", rc=1)
    assert "Free space" in told and "Traceback" not in told
    (daemon.work / "go").touch()
    daemon.await_output(goes_on, "over")
    assert daemon.get("/v1/health")["status"] == "ok"
    assert daemon.job(goes_on)["state"] == "starting"

    ballast.unlink()
    assert daemon.ended(goes_on)["exit"]["code"] == 9
    assert daemon.ended(daemon.sh("exit 4"))["exit"]["code"] == 4


def refused(daemon: Carmad) -> tuple[int, Json] | None:
    """SQLite has some space left in its existing blocks."""
    status, out = daemon.call("POST", "/v1/jobs", daemon.submission("true", held=True))
    return (status, out) if status >= 400 else None


def test_a_full_disk_does_not_fail_the_jobs_that_wait(
    small_disk_for_jobs: Path, daemon: Carmad
) -> None:
    ballast = fill(small_disk_for_jobs)
    jobs = [daemon.sh("exit 5") for _ in range(2)]
    to_cancel = daemon.sh("echo up >> begun")
    until(lambda: "No space left" in daemon.log.read_text(), "a launch without room")
    daemon.await_state(to_cancel, "starting")
    daemon.cancel(to_cancel)
    assert daemon.ended(to_cancel)["state"] == "cancelled"
    ballast.unlink()
    for job in jobs:
        assert daemon.ended(job)["exit"]["code"] == 5
    assert "No space left" in str(daemon.job(jobs[0])["notes"])
    assert not (daemon.work / "begun").exists()


def test_what_happens_on_a_full_disk_is_recorded_once_there_is_room(
    small_disk: Path, daemon: Carmad
) -> None:
    """Ends of attempts that could not be committed, and a daemon that is killed meanwhile."""
    ends = daemon.sh("echo up; while [ ! -e go ]; do sleep 0.05; done; exit 6")
    killed = daemon.sh("echo up; sleep 1000", requeue=False)
    for job in (ends, killed):
        daemon.await_output(job, "up")
    ballast = fill(small_disk)
    until(lambda: refused(daemon), "a full disk to be noticed")
    os.kill(daemon.supervisor(killed), signal.SIGKILL)
    (daemon.work / "go").touch()
    until(lambda: "cannot record events" in daemon.log.read_text(), "an end not recorded")
    daemon.kill()
    daemon.start()
    assert refused(daemon)
    ballast.unlink()
    assert daemon.ended(ends)["exit"]["code"] == 6
    assert daemon.ended(killed)["exit"]["cause"] == "lost"


def test_a_daemon_that_may_write_nothing_goes_on_when_it_may(daemon: Carmad) -> None:
    """The same without a separate file system; its log and attempts' files fail as well."""
    goes_on = daemon.sh("echo up; while [ ! -e go ]; do sleep 0.05; done; exit 9")
    daemon.await_output(goes_on, "up")
    free = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, free[1]))
    told = refused(daemon)
    assert told and told[0] == 503 and "Free space" in told[1]["hint"]
    (daemon.work / "go").touch()
    until(lambda: (daemon.attempt(goes_on) / "exit").exists(), "the job to end")
    for _ in range(3):
        assert refused(daemon)
    assert daemon.job(goes_on)["state"] == "starting"
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, free)
    assert daemon.ended(goes_on)["exit"]["code"] == 9
    assert daemon.ended(daemon.sh("exit 4"))["exit"]["code"] == 4
