"""This release takes over the state of every earlier one, including running jobs."""

from __future__ import annotations

import os
import pwd
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, Carmad, until
from tests.releases.make import GPUS, HERE, ROOT

ME = pwd.getpwuid(os.getuid())


def unpack(release: Path, daemon: Carmad) -> None:
    """The state directory as that release left it, with its supervisors running."""
    daemon.state.mkdir(mode=0o711)
    with zipfile.ZipFile(release) as kept:
        for name in kept.namelist():
            text = kept.read(name).decode().replace(ROOT, str(daemon.folder))
            if name == "dump.sql":
                make_database(daemon.state / "carma.db", text)
                continue
            path = (daemon.folder if name.startswith("code/") else daemon.state) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(as_me(text))
    os.mkfifo(daemon.work / "fifo")
    (code,) = (daemon.folder / "code").rglob("supervisor.py")
    module = ".".join(code.relative_to(daemon.folder / "code").with_suffix("").parts)
    for launch in (daemon.state / "jobs").glob("*/launch"):
        os.mkfifo(launch.with_name("control"))
        start = f"import sys; sys.path.insert(0, {str(daemon.folder / 'code')!r})"
        run = f"import {module} as its; its.main()"
        subprocess.Popen(
            [sys.executable, "-S", "-c", f"{start}; {run}", str(launch.parent)],
            stdin=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )


def make_database(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(as_me(sql))
    connection.close()
    path.chmod(0o600)


def as_me(text: str) -> str:
    """Where the tests do not run as root, nobody else's jobs can."""
    if ME.pw_uid == 0:
        return text
    ids = f'"user":"{ME.pw_name}","uid":{ME.pw_uid},"gid":{ME.pw_gid}'
    text = text.replace('"user":"root","uid":0,"gid":0', ids).replace("'root'", f"'{ME.pw_name}'")
    groups = f"uid={ME.pw_uid}\0gid={ME.pw_gid}\0groups={ME.pw_gid}\0"
    return text.replace("uid=0\0gid=0\0groups=0\0", groups)


@pytest.mark.parametrize("release", sorted(HERE.glob("*.zip")), ids=lambda path: path.stem)
def test_its_jobs_are_taken_over_and_end_as_they_should(release: Path, tmp_path: Path) -> None:
    daemon = Carmad(tmp_path, f"{len(GPUS)}xA100-40GB", **NO_KERNELS)
    try:
        unpack(release, daemon)
        (daemon.work / "carma-11.out").touch()
        until(lambda: "up" in daemon.output(11) and "up" in daemon.output(12), "its jobs to run")
        daemon.start()
        by_name: dict[str, list[int]] = {}
        # In this order: a job that ends in between is in both.
        for job in daemon.get("/v1/jobs")["jobs"] + daemon.get("/v1/history?limit=100")["jobs"]:
            by_name.setdefault(job["name"], []).append(job["id"])
        jobs = {name: sorted(set(ids)) for name, ids in by_name.items()}
        assert sum(map(len, jobs.values())) == 12, jobs

        ended = {name: daemon.job(jobs[name][0]) for name in ("succeeded", "failed", "cancelled")}
        assert {name: job["state"] for name, job in ended.items()} == {n: n for n in ended}
        assert ended["failed"]["exit"]["code"] == 3
        assert ended["succeeded"]["memory"]["peak_mib"] == 900
        assert daemon.why(jobs["succeeded"][0])["chosen"] == [GPUS[0]]
        (drained,) = [gpu for gpu in daemon.gpus() if gpu["state"] == "drained"]
        assert (drained["id"], drained["state_detail"]) == (GPUS[3], "fan swap")

        (running,) = jobs["running"]
        assert daemon.job(running)["gpus"][0]["id"] == GPUS[1]
        (daemon.work / "fifo").write_text("go\n")
        over = daemon.ended(running)
        assert (over["state"], over["exit"]["code"], over["attempt"]) == ("failed", 3, 1)
        assert daemon.ended(jobs["stopping"][0])["state"] == "cancelled"
        for name in ("starting", "queued", "pending", "tried-again", "task"):
            for id in jobs[name]:
                assert daemon.ended(id)["state"] == "succeeded", daemon.job(id)
        for name in ("starting", "queued", "pending", "tried-again"):  # with its own environment
            assert daemon.output(jobs[name][0]) == f"{name}\n"
        (held,) = jobs["held"]
        assert daemon.job(held)["held"]
        daemon.post("/v1/release", {"select": str(held)})
        assert daemon.ended(held)["state"] == "succeeded"
        assert daemon.output(held) == "held\n"
        assert daemon.sh("true") == 13

        daemon.stop()
        daemon.start()
        assert daemon.job(running)["state"] == "failed"
        assert "Traceback" not in daemon.log.read_text()
    finally:
        daemon.clear_away()
