"""Jobs that recur: the guide's lines as cron runs them."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import api_server
from tests.daemon import CARMA, NO_KERNELS, ROOT, Carmad, running
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
        paths = daemon.call("GET", "/v1/openapi.json")[1]["paths"]
        for path, verbs in paths.items():
            where, known = re.sub(r"\{\w+\}", "%00", path), re.sub(r"\{\w+\}", "1", path)
            for verb, its in verbs.items():
                query = [one["name"] for one in its.get("parameters", ()) if one["in"] == "query"]
                for target in (where, *(f"{known}?{name}=%00" for name in query)):
                    assert status_of(daemon, verb.upper(), target) < 500, target
