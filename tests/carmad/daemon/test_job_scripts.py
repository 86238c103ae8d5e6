"""Job scripts are copied at submission: what runs, where the copy is, and who can read it."""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.api_server import as_uid
from tests.attack.users import HOSTILE, needs_root
from tests.daemon import NO_KERNELS, OVER, Carmad, running, until

SCRIPT = """#!/bin/sh
#CARMA --output said-%j
echo "first version, run as $0 with $1"
test -x "$0" && echo executable
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Carmad]:
    folder = Path(tempfile.mkdtemp(prefix="carma-test-"))
    folder.chmod(0o755)
    try:
        with running(folder, **NO_KERNELS) as carmad:
            yield carmad
    finally:
        shutil.rmtree(folder)


def written(daemon: Carmad, text: str = SCRIPT) -> Path:
    path = daemon.work / "job.sh"
    path.write_text(text)
    return path


def copies(daemon: Carmad) -> list[str]:
    return [path.name for path in (daemon.state / "scripts").glob("*")]


def said(daemon: Carmad, id: int) -> str:
    return (daemon.work / f"said-{id}").read_text()


def test_a_job_runs_what_was_submitted(daemon: Carmad) -> None:
    path = written(daemon)
    id = int(daemon.carma("submit", "--parsable", "--hold", "job.sh", "x y"))
    path.unlink()
    assert "copied at submission" in daemon.carma("show", str(id))
    assert str(path) in daemon.carma("show", str(id))
    daemon.carma("release", str(id))
    assert daemon.ended(id)["state"] == "succeeded"
    copy = f"{daemon.state}/scripts/job{id}"
    assert said(daemon, id) == f"first version, run as {copy} with x y\nexecutable\n"
    until(lambda: not copies(daemon), "the copy to be removed")

    daemon.carma("requeue", str(id))
    daemon.carma("wait", str(id))
    assert said(daemon, id).count("first version") == 2, "requeued, it is still the copy"


def test_the_next_daemon_and_all_tasks_of_an_array_have_the_copy(daemon: Carmad) -> None:
    path = written(daemon, "#!/bin/sh\necho task $CARMA_ARRAY_TASK_ID >>done\n")
    label = daemon.carma("submit", "--parsable", "--hold", "-a", "0-2", "job.sh").strip()
    path.write_text("#!/bin/sh\nexit 7\n")
    daemon.kill()
    daemon.start()
    daemon.carma("release", label)
    daemon.carma("wait", label)
    assert sorted((daemon.work / "done").read_text().split("\n")[:3]) == [
        "task 0",
        "task 1",
        "task 2",
    ]


def test_a_script_that_is_not_copied_runs_as_it_is_by_then(daemon: Carmad) -> None:
    path = written(daemon)
    id = int(daemon.carma("submit", "--parsable", "--no-copy", "--hold", "job.sh"))
    path.write_text('#!/bin/sh\necho "later version, run as $0"\n')
    daemon.carma("release", str(id))
    daemon.ended(id)
    assert said(daemon, id) == f"later version, run as {path}\n"


def test_a_larger_script_is_refused(daemon: Carmad) -> None:
    body = daemon.submission("/bin/sh", "x", script={"word": 1, "text": "#" * ((1 << 20) + 1)})
    assert daemon.call("POST", "/v1/jobs", body)[0] in (400, 413, 422)
    body["script"] = {"word": 1, "text": "ü" * (1 << 19) + "#"}
    status, out = daemon.call("POST", "/v1/jobs", body)
    assert (status, out["error"]) == (413, "the job script is larger than 1 MiB")
    body["script"] = {"word": 2, "text": ""}
    assert daemon.call("POST", "/v1/jobs", body)[0] == 400


@needs_root
def test_nobody_else_can_read_a_copy_and_its_user_cannot_change_it(daemon: Carmad) -> None:
    uid = pwd.getpwnam("nobody").pw_uid
    text = """
        grep -q secret "$0" && test -x "$0" || exit 3
        { echo more >>"$0"; } 2>/dev/null && exit 4
        chmod 700 "$0" 2>/dev/null && exit 5
        ls "${0%/*}" 2>/dev/null && exit 6
        exec sleep 60 # secret
    """
    body = daemon.submission("/bin/sh", "/no/such/script", script={"word": 1, "text": text})
    body |= {"cwd": "/tmp", "stdout": "/dev/null", "gpus": 1}
    status, out = as_uid(uid, daemon.socket, "POST", "/v1/jobs", body)
    assert status < 300, out
    id = out["id"]
    copy = f"{daemon.state}/scripts/job{id}"
    until(lambda: daemon.job(id)["state"] in OVER or _runs(daemon, "sleep"), "its checks")
    assert daemon.job(id)["exit"] is None
    for other in (other for other in HOSTILE if other != uid):
        assert not _can_read(copy, other)
    assert _can_read(copy, uid)
    daemon.cancel(id)
    assert daemon.ended(id)["state"] == "cancelled"


def _runs(daemon: Carmad, program: str) -> bool:
    for pid in daemon.processes():
        with suppress(OSError):  # it has ended meanwhile
            if Path(f"/proc/{pid}/comm").read_text().strip() == program:
                return True
    return False


def _can_read(path: str, uid: int) -> bool:
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with open(path, "rb") as file:  # noqa: PTH123
                file.read()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def test_equal_scripts_are_stored_once_and_read_for_an_estimate(tmp_path: Path) -> None:
    with running(tmp_path, **NO_KERNELS, CARMA_ESTIMATOR="trace") as daemon:
        id = daemon.submit("/bin/sh", "/no/such", script={"word": 1, "text": SCRIPT}, held=True)
        until(lambda: daemon.job(id)["notes"], "its estimate")
        (note,) = daemon.job(id)["notes"]
        assert "a sh script" in note and "cannot read" not in note
        written(daemon)
        for _ in range(3):
            daemon.carma("submit", "--hold", "job.sh")
        daemon.stop()
        with closing(sqlite3.connect(daemon.state / "carma.db")) as connection:
            rows = connection.execute("SELECT bytes, body FROM scripts").fetchall()
        assert rows == [(len(SCRIPT), SCRIPT)]


def test_a_script_without_module_gets_advice(daemon: Carmad) -> None:
    written(daemon, "#!/bin/bash\nset -e\nmodule load cuda\n")
    id = int(daemon.carma("submit", "--parsable", "job.sh"))
    assert daemon.ended(id)["exit"]["code"] == 127
    assert "#!/bin/bash -l" in daemon.carma("why", str(id))
