"""A long queue, and many who list it at once: the answers and their cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from carmad.api.rows import FIRST_ROWS, OWN_ROWS
from tests.daemon import Carmad, running, until

TASKS = 3000
CLIENTS = 8


def rss_mib(daemon: Carmad) -> float:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_many_who_look_at_thousands_of_jobs_share_the_work(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        env = {f"V{n}": "some value of ordinary length " * 2 for n in range(40)}
        indices = {"indices": list(range(TASKS))}
        body = daemon.submission("true", memory_mib=1000, held=True, array=indices) | {"env": env}
        first = daemon.post("/v1/jobs", body)["id"]
        until(lambda: len(daemon.get("/v1/jobs?states=queued")["jobs"]) == TASKS, "all to queue")
        before = rss_mib(daemon)
        with ThreadPoolExecutor(CLIENTS) as pool:
            seen = list(pool.map(daemon.get, ["/v1/status"] * CLIENTS))
            everyone = list(pool.map(daemon.get, ["/v1/jobs"] * CLIENTS))
        assert {len(out["jobs"]) for out in seen} == {1}
        assert seen[0]["jobs"][0]["label"] == f"{first}_[0-{TASKS - 1}]"
        assert {len(out["jobs"]) for out in everyone} == {TASKS}
        assert rss_mib(daemon) - before < 64

        line = daemon.carma("queue").splitlines()
        assert len(line) == 2 and f"{first}_[0-{TASKS - 1}]" in line[1]
        assert len(daemon.carma("queue", "-r").splitlines()) == TASKS + 1
        said = daemon.carma("cancel", f"{first}_[7-8%4]")
        assert said == f"job {first}_[7-8]: cancelled\n"
        assert f"{first}_[0-6,9-{TASKS - 1}]" in daemon.carma("status")
        assert len(seen[0]["jobs"]) <= FIRST_ROWS + OWN_ROWS
