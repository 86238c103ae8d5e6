"""A user chooses what a trial runs: a bomb there must not affect anything else."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.estimates.attendant import MOST_TASKS
from tests.api_server import as_uid
from tests.daemon import NO_KERNELS, Carmad, Json, running, until

MORE = MOST_TASKS + 90  # than there may be; it stops there by itself

# What is named python is run as the job's Python.
BOMB = f"""#!/bin/sh
i=0
while [ $i -lt {MORE} ]; do
    i=$((i + 1))
    sleep 1000 &
    echo $i >> count
done
wait
"""
HOG = """#!/bin/sh
for i in 1 2 3 4 5 6; do
    dd if=/dev/zero of=/dev/null bs=400M count=1000000 &
done
wait
"""
LEAVES = "#!/bin/sh\nipcmk -M 1048576 -Q -S 1 > made\n"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Carmad]:
    folder = Path(tempfile.mkdtemp(prefix="carma-test-"))
    folder.chmod(0o755)
    bounds = {"CARMA_ESTIMATION__HOST_MEMORY_MIB": "64", "CARMA_ESTIMATION__WITHIN_S": "20"}
    try:
        with running(folder, **NO_KERNELS, **bounds) as carmad:
            yield carmad
    finally:
        shutil.rmtree(folder)


def users() -> list[int]:
    """The second one has no processes of other tests: all of a user's count, and the end of one
    makes room for another."""
    return [0, pwd.getpwnam("sync").pw_uid] if os.geteuid() == 0 else [os.getuid()]


@pytest.fixture(params=users(), ids=lambda uid: f"uid{uid}")
def tried(daemon: Carmad, request: pytest.FixtureRequest) -> Iterator[Tried]:
    home = daemon.folder / f"home{request.param}"
    home.mkdir(exist_ok=True)
    os.chown(home, request.param, -1)
    yield Tried(daemon, request.param, home)


class Tried:
    def __init__(self, daemon: Carmad, uid: int, home: Path) -> None:
        self.daemon, self.uid, self.home = daemon, uid, home

    def __call__(self, program: str) -> str:
        """Why a program that poses as Python got no estimate."""
        (self.home / "python").write_text(program)
        (self.home / "python").chmod(0o755)
        body = self.daemon.submission("./python", "train.py", cwd=str(self.home))
        if os.geteuid() == 0:
            status, out = as_uid(self.uid, self.daemon.socket, "POST", "/v1/estimate", body)
        else:
            status, out = self.daemon.call("POST", "/v1/estimate", body)
        assert status == 200, out
        (trace,) = [one for one in out["estimates"] if one["source"] == "trace"]
        return str(trace["why"])

    def left(self) -> list[Path]:
        """Processes left in its directory."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if (entry / "cwd").readlink() == self.home:
                        found.append(entry)
                except OSError:
                    continue
        return found

    def answers(self) -> Json:
        """Whether the daemon answers, and can start processes and threads."""
        job = self.daemon.sh("echo fine")
        self.daemon.ended(job)
        assert self.daemon.output(job) == "fine\n"
        return self.daemon.get("/v1/status")


def test_a_fork_bomb_has_so_many_processes_and_leaves_none(tried: Tried) -> None:
    tried(BOMB)
    until(lambda: not tried.left(), "the bomb to be gone")
    assert tried.uid == 0 or int((tried.home / "count").read_text().split()[-1]) <= MOST_TASKS
    assert tried.answers()


def test_processes_that_take_too_much_memory_together_are_ended(tried: Tried) -> None:
    assert tried(HOG) == "it used more than 2112 MiB of memory, with all that it started"
    assert not tried.left()
    assert tried.answers()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a trial a namespace")
def test_shared_memory_without_a_file_goes_with_its_trial(tried: Tried) -> None:
    def held() -> list[int]:
        kinds = ("shm", "msg", "sem")
        return [len(Path("/proc/sysvipc", kind).read_text().splitlines()) for kind in kinds]

    before = held()
    tried(LEAVES)
    assert (tried.home / "made").read_text().count("id:") == 3
    assert held() == before
