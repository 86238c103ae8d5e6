"""The kernel makes the state's file system read-only, as after an error of the disk: jobs can be
stopped, nobody is told that something was stored that was not, and the log says why."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.daemon import doctor
from tests.daemon import NO_KERNELS, running, until


class Disk:
    """An ext4 file system of its own, in a file."""

    def __init__(self, folder: Path) -> None:
        self.image, self.where = folder / "image", folder / "state"
        self.where.mkdir()
        with self.image.open("wb") as file:
            file.truncate(64 << 20)
        self._run("mkfs.ext4", "-q", str(self.image))
        self.mount()

    def mount(self) -> None:
        self._run("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.where))
        source = self._run("findmnt", "-no", "SOURCE", str(self.where))
        self._fault = Path("/sys/fs/ext4") / Path(source.strip()).name / "trigger_fs_error"

    def fail(self) -> None:
        self._fault.write_text("a test")

    def repair(self) -> None:
        """In a copy: the mount namespaces of other tests' containers may still hold the file
        system, and whoever mounts the same file again gets it as it is, read-only."""
        self.unmount()
        os.sync()
        self.image = shutil.copyfile(self.image, self.image.with_name("repaired"))
        subprocess.run(["fsck.ext4", "-fy", str(self.image)], capture_output=True)
        self.mount()

    def unmount(self) -> None:
        self._run("umount", str(self.where))

    def _run(self, *argv: str) -> str:
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("no file system can be made here")
    try:
        disk = Disk(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error.stderr.strip()}")
    yield disk
    disk.unmount()


def test_jobs_are_stopped_and_nothing_is_said_to_be_stored(tmp_path: Path, disk: Disk) -> None:
    with running(tmp_path, **NO_KERNELS) as daemon:
        one, short = (
            daemon.sh("echo up; exec sleep 1000", time_limit_s=limit_s) for limit_s in (None, 3)
        )
        for job in (one, short):
            daemon.await_output(job, "up")
        held = daemon.sh("true", held=True)
        disk.fail()
        status, out = daemon.call("POST", "/v1/jobs", daemon.submission("true"))
        assert status == 503 and "read-only" in out["hint"]
        assert daemon.call("POST", "/v1/cancel", {"select": str(held)})[0] == 503
        assert "is being stopped" in daemon.carma("cancel", str(one))
        until(lambda: not daemon.processes(), "both to end, one by its limit")
        found = {each["name"]: each for each in daemon.get("/v1/doctor")["checks"]}
        assert found["disk"]["ok"] is False and "cannot be written" in found["disk"]["detail"]
        until(lambda: "cannot record events" in daemon.log.read_text(), "the log to say so")
        assert daemon.alive
        # A file system with such an error is repaired while nobody uses it.
        daemon.clear_away()
        until(lambda: not daemon.supervisors(), "all to be gone")
        disk.repair()
        shutil.rmtree(daemon.state / "emulated")  # the emulated GPUs were on that disk, too
        daemon.start()
        daemon.await_state(held, "queued")  # it was stored before, perhaps as pending
        for job in (one, short):  # their ends were never on disk: they were lost, and run again
            daemon.cancel(job)
            assert daemon.ended(job)["state"] in ("cancelled", "timed_out")
        assert daemon.ended(daemon.sh("true"))["state"] == "succeeded"
        daemon.clear_away()


def test_the_doctor_tries_to_write(tmp_path: Path) -> None:
    *_, fine = doctor._state(tmp_path)
    assert "free for" in fine["detail"]
    *_, gone = doctor._state(tmp_path / "gone")
    assert gone["ok"] is False
