"""Jobs that recur: the guide's lines as cron runs them."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
