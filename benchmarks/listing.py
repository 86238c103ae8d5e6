"""What a look at a long queue costs: `carma status`, `queue` and `why` while 10,000 jobs wait.

A daemon finds them in its database: the tasks of one array, or as many jobs of their own. Each
client asks over a connection of its own and reads the answer without looking at it, to take
little of the cores that it shares with the daemon. `python -m benchmarks.listing` keeps the
result in `results/listing.md`.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import server
from benchmarks.daemon import SLEEPER, Daemon
from benchmarks.rows import RESULTS, Row, circumstances, of_runs, summary, table
from carmad.core.messages import Step, Tick
from carmad.core.types import ArrayTask, Job, JobId
from carmad.store.sql import SqlStore

QUEUED = 10_000
QUEUES = {"one array of 10,000": True, "10,000 separate jobs": False}
ONE_BY_ONE = 15
POLLING, POLL_S, POLLED_S = 6, 2.0, 20.0  # `carma top` asks every two seconds
CROWD, EACH = 40, 3
BOUND_MS = 50.0
IDLE_S = 10.0
FRESH, FRESH_S = 9_990, 15.0  # an array's limit is 10,000 with what waits already


def measure() -> list[Row]:
    rows = [row for name, array in QUEUES.items() for row in _queue(name, array)]
    return [*rows, *_fresh()]


def _fresh() -> list[Row]:
    """While the daemon takes in the estimates of all that was just submitted."""
    name = f"an array of {FRESH:,} just submitted"
    with (
        tempfile.TemporaryDirectory(prefix="carma-bench-") as directory,
        Daemon(Path(directory)) as daemon,
    ):
        array = {"indices": list(range(FRESH)), "limit": None}
        begun = time.perf_counter()
        daemon.run(SLEEPER, memory_mib=30_000, array=array)
        submitted = (time.perf_counter() - begun) * 1000
        taken = []
        while (time.perf_counter() - begun) < FRESH_S:
            asked = time.perf_counter()
            _get(daemon.socket, "/v1/status")
            taken.append((time.perf_counter() - asked) * 1000)
            time.sleep(0.35)
    return [
        Row(name, "submission", submitted, "ms"),
        of_runs(name, "status: 1 client, p50", taken, "ms"),
        Row(name, "status: 1 client, worst", max(taken), "ms"),
    ]


def _queue(name: str, array: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="carma-bench-") as directory:
        _write(Path(directory), array)
        with Daemon(Path(directory)) as daemon:
            time.sleep(IDLE_S)
            idle = daemon.rss_mb()
            middle = f"1_{QUEUED // 2}" if array else str(QUEUED // 2)
            asked = [
                ("status", "/v1/status", BOUND_MS, 0.1),
                ("status, each after another step", "/v1/status", BOUND_MS, 1.05),
                ("show, a job in the middle", f"/v1/jobs/{middle}", BOUND_MS, 0.1),
                ("why, a job in the middle", f"/v1/jobs/{middle}/why", BOUND_MS, 0.1),
                ("every job", "/v1/jobs", None, 0.1),
                ("every job, each after another step", "/v1/jobs", None, 1.05),
            ]
            rows = [_one(daemon, name, *each) for each in asked]
            rows.append(_cancelled(daemon, name))
            before = daemon.rss_mb()
            rows += [
                _polled(daemon, name, "status", "/v1/status", bound=20.0),
                _polled(daemon, name, "every job", "/v1/jobs", bound=None),
                _at_once(daemon, name, "status", "/v1/status", EACH),
                Row(name, "RSS: idle", idle, "MB"),
                Row(name, "RSS: after one of each", before, "MB"),
                Row(name, "RSS: most, with 40 × status", daemon.peak_mb(), "MB", bound=250.0),
                _at_once(daemon, name, "every job", "/v1/jobs", 1),
                Row(name, "RSS: most, with 40 × every job", daemon.peak_mb(), "MB"),
            ]
            return rows


def _write(directory: Path, array: bool) -> None:
    """Of more memory than is free beside the eight that run: so they stay in line."""
    me = pwd.getpwuid(os.getuid())
    store = SqlStore.open(directory / "carma.db")
    try:
        jobs = []
        for number in range(1, QUEUED + 1):
            job = server.job(number)
            task = ArrayTask(JobId(1), number, 4) if array else None
            spec = replace(
                job.spec,
                user=me.pw_name,
                uid=me.pw_uid,
                gid=me.pw_gid,
                array=task,
                argv=tuple(SLEEPER),
                cwd=str(directory),
                memory_mib=30_000,
            )
            now = time.time()
            jobs.append(replace(job, spec=spec, submitted_at=now - QUEUED + number))
        for first in range(0, QUEUED, 1000):
            some: Sequence[Job] = jobs[first : first + 1000]
            store.commit(Step((Tick(server.BEGUN),), tuple(some), (), ()))
    finally:
        store.close()


def _one(
    daemon: Daemon, name: str, what: str, path: str, bound: float | None, pause_s: float
) -> Row:
    size = len(_get(daemon.socket, path))
    taken = []
    for _ in range(ONE_BY_ONE):
        begun = time.perf_counter()
        _get(daemon.socket, path)
        taken.append((time.perf_counter() - begun) * 1000)
        time.sleep(pause_s)
    note = f"{size / 1000:,.0f} kB"
    return of_runs(name, f"{what}: 1 client, p50", taken, "ms", bound=bound, note=note)


def _cancelled(daemon: Daemon, name: str) -> Row:
    taken = []
    for job in range(QUEUED - ONE_BY_ONE, QUEUED):
        begun = time.perf_counter()
        daemon.post("/v1/cancel", {"select": str(job)})
        taken.append((time.perf_counter() - begun) * 1000)
    return of_runs(name, "cancel, one job: p50", taken, "ms")


def _polled(daemon: Daemon, name: str, what: str, path: str, bound: float | None) -> Row:
    """Share of a core that six clients keep busy, above what the daemon takes for itself."""
    alone = _share(daemon, [])
    clients = [(path, n * POLL_S / POLLING) for n in range(POLLING)]
    taken: list[float] = []
    share = _share(daemon, clients, taken)
    note = f"idle {alone:.0f} %; p50 {statistics.median(taken):,.0f} ms"
    return Row(name, f"{what}: 6 clients, each 2 s", share, "% of a core", bound=bound, note=note)


def _share(
    daemon: Daemon, clients: Sequence[tuple[str, float]], taken: list[float] | None = None
) -> float:
    until = time.monotonic() + POLLED_S

    def poll(path: str, after_s: float) -> None:
        time.sleep(after_s)
        while time.monotonic() < until:
            begun = time.monotonic()
            _get(daemon.socket, path)
            spent = time.monotonic() - begun
            if taken is not None:
                taken.append(spent * 1000)
            time.sleep(max(0.0, POLL_S - spent))

    threads = [threading.Thread(target=poll, args=client) for client in clients]
    begun, cpu = time.monotonic(), daemon.cpu_s()
    for thread in threads:
        thread.start()
    time.sleep(POLLED_S)
    share = (daemon.cpu_s() - cpu) / (time.monotonic() - begun) * 100
    for thread in threads:
        thread.join()
    return share


def _at_once(daemon: Daemon, name: str, what: str, path: str, each: int) -> Row:
    taken: list[float] = []

    def ask() -> None:
        for _ in range(each):
            begun = time.perf_counter()
            _get(daemon.socket, path)
            taken.append((time.perf_counter() - begun) * 1000)

    threads = [threading.Thread(target=ask) for _ in range(CROWD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    note = f"slowest {max(taken):,.0f} ms"
    return of_runs(name, f"{what}: {CROWD} clients at once, p50", taken, "ms", note=note)


def _get(path: str, target: str) -> bytes:
    """As `carma` asks: HTTP/1.0, until the daemon closes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(f"GET {target} HTTP/1.0\r\nHost: carma\r\n\r\n".encode())
        chunks = []
        while chunk := connection.recv(1 << 20):
            chunks.append(chunk)
    answer = b"".join(chunks)
    if b" 200 " not in answer[:16]:
        raise SystemExit(f"carmad refused: {answer!r:.500}")
    return answer


def main(file: str = "listing") -> None:
    facts = circumstances()
    rows = measure()
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    text = "\n".join(["# Long queues", "", *lines, "", table(rows), "", summary(rows), ""])
    print(text)
    (RESULTS / f"{file}.md").write_text(text)
    measured = [{"group": r.group, "what": r.what, "value": r.value, "unit": r.unit} for r in rows]
    (RESULTS / f"{file}.json").write_text(
        json.dumps({"facts": facts, "rows": measured}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
