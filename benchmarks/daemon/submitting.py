"""Submissions: an acknowledged durable submit over the socket, the whole `carma submit` process,
and submissions while a large array is cancelled.

The eight GPUs are held by exclusive jobs, so that what is submitted waits: only the submission is
measured. `carma submit` is run against `python -c pass`, turn by turn.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.daemon.carmad import GPUS, SLEEPER, Daemon, plain_environment
from benchmarks.daemon.http import ask, request
from benchmarks.harness import Row, fsync_ms, milliseconds, of_runs, percentile

GROUP = "durable submit"
WARM_UP = 30
ONE_BY_ONE = 200
CLIENTS = 8
EACH = 50
RUNS = 3
CALL = tuple[str, bytes]  # the socket's path, and the request

CANCEL = "cancel of 5,000 waiting tasks"
TASKS = 5_000
CANCELS = 3
PAUSE_S = 0.01  # between two submissions

COMMAND = "carma submit"
PAIRS = 31
CARMA = str(Path(sys.executable).parent / "carma")


def measure() -> list[Row]:
    synced = statistics.median(fsync_ms() for _ in range(100))
    rows = [Row(GROUP, "fsync of 4 KiB, for scale: p50", synced, "ms")]
    with Daemon() as daemon:
        for _ in range(GPUS):
            daemon.run(SLEEPER, exclusive=True)
        daemon.run(["/bin/true"])  # stands first in line, and waits for as long as we measure
        body = json.dumps(daemon.request(["/bin/true"])).encode()
        one, many = (
            (daemon.socket, request("POST", "/v1/jobs", body, version=version))
            for version in ("1.0", "1.1")
        )
        for what, loop, call in (
            ("1 keep-alive client", keep_alive, many),
            ("1 client, a connection each (as `carma`)", reconnecting, one),
        ):
            loop(call, WARM_UP)
            runs = [loop(call, ONE_BY_ONE) for _ in range(RUNS)]
            medians = [statistics.median(run) for run in runs]
            rows.append(of_runs(GROUP, f"{what}: p50", medians, "ms", bound=5))
            highest = [percentile(run, 0.99) for run in runs]
            rows.append(of_runs(GROUP, f"{what}: p99", highest, "ms"))
        for what, loop, call in (
            ("8 keep-alive client processes", keep_alive, many),
            ("8 client processes, a connection each", reconnecting, one),
        ):
            rates = [throughput(loop, call) for _ in range(RUNS)]
            rows.append(of_runs(GROUP, what, rates, "/s", bound=300, least=True))
        live = len(daemon.get("/v1/jobs", states="queued")["jobs"])
    rows.append(Row(GROUP, "jobs in line when this ended", live, "", note=f"{len(body)} B each"))
    return rows


def keep_alive(call: CALL, times: int) -> list[float]:
    """Milliseconds of each of `times` submissions over one connection."""
    path, sent = call
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        return [milliseconds(lambda: submit(connection, sent)) for _ in range(times)]


def reconnecting(call: CALL, times: int) -> list[float]:
    return [milliseconds(lambda: ask(*call)) for _ in range(times)]


def submit(connection: socket.socket, sent: bytes) -> None:
    connection.sendall(sent)
    answer = connection.recv(65536)
    while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
        answer += connection.recv(65536)
    if b" 201 " not in answer[:16]:
        raise SystemExit(f"carmad refused: {answer!r:.500}")


def throughput(loop: Callable[[CALL, int], list[float]], call: CALL) -> float:
    """Submissions per second of all clients together, from the first one's start to the end."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(CLIENTS + 1)
    clients = [context.Process(target=client, args=(start, loop, call)) for _ in range(CLIENTS)]
    for each in clients:
        each.start()
    start.wait()
    begun = time.perf_counter()
    for each in clients:
        each.join()
    if any(each.exitcode for each in clients):
        raise SystemExit("a client failed")
    return CLIENTS * EACH / (time.perf_counter() - begun)


def client(start: Barrier, loop: Callable[[CALL, int], list[float]], call: CALL) -> None:
    start.wait()
    loop(call, EACH)


def measure_cancel() -> list[Row]:
    took: list[float] = []
    longest: list[float] = []
    with Daemon() as daemon:
        daemon.run(SLEEPER, gpus=8, exclusive=True)
        for _ in range(CANCELS):
            array = daemon.run(SLEEPER, memory_mib=1000, array={"indices": list(range(TASKS))})
            daemon.await_queued(array + TASKS - 1)
            stop = threading.Event()
            waits: list[float] = []
            others = threading.Thread(target=_submit_on, args=(daemon, stop, waits))
            others.start()
            begun = time.perf_counter()
            daemon.post("/v1/cancel", {"select": str(array)})
            took.append(time.perf_counter() - begun)
            stop.set()
            others.join()
            longest.append(max(waits) * 1000)
    return [
        of_runs(CANCEL, "until it is answered", took, "s", bound=0.3),
        of_runs(CANCEL, "longest submission meanwhile", longest, "ms", bound=50),
    ]


def _submit_on(daemon: Daemon, stop: threading.Event, waits: list[float]) -> None:
    """One after the other; how long each took is added to `waits`, in seconds."""
    while not stop.is_set():
        begun = time.perf_counter()
        daemon.run(SLEEPER, memory_mib=1000)
        waits.append(time.perf_counter() - begun)
        time.sleep(PAUSE_S)


def measure_command() -> list[Row]:
    with Daemon() as daemon:
        for _ in range(GPUS):
            daemon.run(SLEEPER, exclusive=True)
        env = plain_environment() | {"CARMA_SOCKET": daemon.socket}
        submit = [CARMA, "submit", "--output", "/dev/null", "--", "/bin/true"]
        nothing = [sys.executable, "-c", "pass"]
        for _ in range(3):  # writes the bytecode that an installation comes with
            run_ms(submit, env)
        ours, pythons = [], []
        for _ in range(PAIRS):
            pythons.append(run_ms(nothing, env))
            ours.append(run_ms(submit, env))
    ratios = sorted(one / other for one, other in zip(ours, pythons, strict=True))
    quartiles = (ratios[PAIRS // 4], ratios[3 * PAIRS // 4])
    note = f"median of {PAIRS} pairs; runs: quartiles"
    ratio = statistics.median(ratios)
    return [
        Row(COMMAND, "`python -c pass`", statistics.median(pythons), "ms"),
        Row(COMMAND, "`carma submit`", statistics.median(ours), "ms"),
        Row(COMMAND, "ratio", ratio, "×", bound=6, spread=quartiles, note=note),
    ]


def run_ms(words: list[str], env: dict[str, str]) -> float:
    return milliseconds(
        lambda: subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL)
    )
