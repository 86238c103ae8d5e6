"""What a look at a long queue costs: `carma status`, `queue` and `why` while 10,000 jobs wait.

A daemon finds them in its database: the tasks of one array, or as many jobs of their own. Each
client asks over a connection of its own and reads the answer without looking at it, to take
little of the cores that it shares with the daemon.
"""

from __future__ import annotations

import os
import pwd
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from benchmarks.daemon import http, server
from benchmarks.daemon.carmad import SLEEPER, Daemon
from benchmarks.harness import Report, Row, main, milliseconds, of_rows, of_runs
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import ArrayTask

QUEUED = 10_000
QUEUES = {"one array of 10,000": True, "10,000 separate jobs": False}
ONE_BY_ONE = 15
POLLING, POLL_S, POLLED_S = 6, 2.0, 20.0  # `carma top` asks every two seconds
CROWD, EACH = 40, 3
BOUND_MS = 50.0
IDLE_S = 10.0
FRESH, FRESH_S = 9_990, 15.0  # an array's limit is 10,000 with what waits already


def measure(name: str = "listing") -> Report:
    """`name`: of the result files."""
    rows = [row for queue, array in QUEUES.items() for row in _queue(queue, array)]
    return of_rows("Long queues", [*rows, *_fresh()], name=name)


def _fresh() -> list[Row]:
    """While the daemon takes in the estimates of all that was just submitted."""
    name = f"an array of {FRESH:,} just submitted"
    with (
        tempfile.TemporaryDirectory(prefix="carma-bench-") as directory,
        Daemon(Path(directory)) as daemon,
    ):
        array = {"indices": list(range(FRESH)), "limit": None}
        until = time.monotonic() + FRESH_S
        submitted = milliseconds(lambda: daemon.run(SLEEPER, memory_mib=30_000, array=array))
        taken = []
        while time.monotonic() < until:
            taken.append(_get_ms(daemon, "/v1/status"))
            time.sleep(0.35)
    return [
        Row(name, "submission", submitted, "ms"),
        of_runs(name, "status: 1 client, p50", taken, "ms"),
        Row(name, "status: 1 client, worst", max(taken), "ms"),
    ]


def _queue(name: str, array: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="carma-bench-") as directory:
        server.write_waiting(Path(directory), list(_jobs(Path(directory), array)))
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
            rows.append(_cancel(daemon, name))
            before = daemon.rss_mb()
            rows += [
                _poll(daemon, name, "status", "/v1/status", bound=20.0),
                _poll(daemon, name, "every job", "/v1/jobs", bound=None),
                _at_once(daemon, name, "status", "/v1/status", EACH),
                Row(name, "RSS: idle", idle, "MB"),
                Row(name, "RSS: after one of each", before, "MB"),
                Row(name, "RSS: most, with 40 × status", daemon.peak_mb(), "MB", bound=250.0),
                _at_once(daemon, name, "every job", "/v1/jobs", 1),
                Row(name, "RSS: most, with 40 × every job", daemon.peak_mb(), "MB"),
            ]
            return rows


def _jobs(directory: Path, array: bool) -> Iterator[Job]:
    """They need more memory than is free beside the eight that run, so they stay in line."""
    me = pwd.getpwuid(os.getuid())
    for number in range(1, QUEUED + 1):
        job = server.job(number)
        spec = replace(
            job.spec,
            user=me.pw_name,
            uid=me.pw_uid,
            gid=me.pw_gid,
            array=ArrayTask(JobId(1), number, 4) if array else None,
            argv=tuple(SLEEPER),
            cwd=str(directory),
            memory_mib=30_000,
        )
        yield replace(job, spec=spec, submitted_at=time.time() - QUEUED + number)


def _one(
    daemon: Daemon, name: str, what: str, path: str, bound: float | None, pause_s: float
) -> Row:
    size = len(http.get(daemon.socket, path))
    taken = []
    for _ in range(ONE_BY_ONE):
        taken.append(_get_ms(daemon, path))
        time.sleep(pause_s)
    note = f"{size / 1000:,.0f} kB"
    return of_runs(name, f"{what}: 1 client, p50", taken, "ms", bound=bound, note=note)


def _cancel(daemon: Daemon, name: str) -> Row:
    taken = [
        milliseconds(partial(daemon.post, "/v1/cancel", {"select": str(job)}))
        for job in range(QUEUED - ONE_BY_ONE, QUEUED)
    ]
    return of_runs(name, "cancel, one job: p50", taken, "ms")


def _poll(daemon: Daemon, name: str, what: str, path: str, bound: float | None) -> Row:
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
            spent = _get_ms(daemon, path)
            if taken is not None:
                taken.append(spent)
            time.sleep(max(0.0, POLL_S - spent / 1000))

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
    def ask(_: int) -> list[float]:
        return [_get_ms(daemon, path) for _ in range(each)]

    with ThreadPoolExecutor(CROWD) as pool:
        taken = list(chain.from_iterable(pool.map(ask, range(CROWD))))
    note = f"slowest {max(taken):,.0f} ms"
    return of_runs(name, f"{what}: {CROWD} clients at once, p50", taken, "ms", note=note)


def _get_ms(daemon: Daemon, path: str) -> float:
    return milliseconds(lambda: http.get(daemon.socket, path))


if __name__ == "__main__":
    main("listing", measure)
