"""What an honest user does inside, as programs of their own.

    python -m benchmarks.daemon.siege.honest ask COUNT     submissions, and looks at the status
    python -m benchmarks.daemon.siege.honest work LEDGER   short jobs, until standard input ends

It uses plain HTTP on the socket. `ask` prints how long each request took, and beside them how long
a process that has nothing to do with CARMA took for a fixed piece of work: what the machine alone
costs. The jobs are held, and cancelled at the end, untimed. `work` keeps a few jobs going, on GPUs
and without: each writes to LEDGER when it starts and when it ends; the ids that carmad gave are in
LEDGER.given.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.daemon.booted import SOCKET
from benchmarks.daemon.http import request
from carmad.core.jobs.states import ENDED, JobState

# Together they stay below the 20 requests per second that a user has in the long run.
PAUSE_S = 0.15  # between two pairs of requests
LOOK_S = 0.5
LONGEST_S = 20.0  # that a request is waited for
ALL_WITHIN_S = 60.0  # whoever waits so long need not ask on
AT_ONCE = 2  # jobs of a kind
CONTROL = 150_000  # steps of a loop: some milliseconds, as a request takes
LIVE = ",".join(state.value for state in JobState if state not in ENDED)
KINDS: tuple[dict[str, object], ...] = ({"gpus": 0}, {"gpus": 1, "memory_mib": 1000})
SCRIPT = 'echo "start $CARMA_JOB_ID" >> "$0"; sleep 0.5; echo "end $CARMA_JOB_ID" >> "$0"'
UNREACHABLE = (OSError, ValueError, IndexError)


def exchange(method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Raises one of UNREACHABLE if there is no whole answer."""
    sent = request(method, path, b"" if body is None else json.dumps(body).encode())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LONGEST_S)
        connect(connection)
        connection.sendall(sent)
        answer = b""
        while chunk := connection.recv(1 << 20):
            answer += chunk
    head, _, said = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(said)


def connect(connection: socket.socket) -> None:
    """The kernel refuses at once while too many wait to be accepted: so again, as `carma` does."""
    until = time.monotonic() + LONGEST_S
    while True:
        try:
            return connection.connect(SOCKET)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(0.01)


def job(*argv: str, **fields: object) -> dict[str, object]:
    env = {"PATH": "/usr/bin:/bin"}
    return {"argv": argv, "cwd": "/tmp", "env": env, "stdout": "/dev/null", **fields}


def ask(count: int) -> dict[str, list[float]]:
    """Milliseconds of each. A request that was refused or lost counts as if it had taken for ever:
    as long as this would wait."""
    taken: dict[str, list[float]] = {"submit": [], "status": [], "control": []}
    requests = {
        "submit": ("POST", "/v1/jobs", job("/bin/true", held=True, gpus=0)),
        "status": ("GET", "/v1/status", None),
    }
    held = []
    control = worker()
    until = time.monotonic() + ALL_WITHIN_S
    while len(taken["status"]) < count and time.monotonic() < until:
        for what, call in requests.items():
            begun = time.perf_counter()
            try:
                status, said = exchange(*call)
                fine = status < 300
                if fine and what == "submit":
                    held.append(str(said["id"]))
            except UNREACHABLE:
                fine = False
            taken[what].append((time.perf_counter() - begun) * 1000 if fine else LONGEST_S * 1000)
        begun = time.perf_counter()
        control.sendall(b".")
        control.recv(1)
        taken["control"].append((time.perf_counter() - begun) * 1000)
        time.sleep(PAUSE_S)
    with contextlib.suppress(*UNREACHABLE):
        exchange("POST", "/v1/cancel", {"select": ",".join(held)})
    return taken


def worker() -> socket.socket:
    """To a process that does the same work whenever a byte arrives, and then answers."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        while theirs.recv(1):
            sum(range(CONTROL))
            theirs.sendall(b".")
        os._exit(0)
    theirs.close()
    return ours


class Work:
    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._live: dict[int, int] = {}  # the kind of each job

    def go_on(self) -> None:
        """As carmad tells it: a job that it lists no more has ended."""
        states = "pending,queued,starting,running,stopping"
        listed = exchange(
            "GET", f"/v1/jobs?user={pwd.getpwuid(os.getuid()).pw_name}&states={states}"
        )[1]["jobs"]
        for id in self._live.keys() - {one["id"] for one in listed}:
            del self._live[id]
        for kind, fields in enumerate(KINDS):
            while list(self._live.values()).count(kind) < AT_ONCE:
                argv = "/bin/sh", "-c", SCRIPT, str(self._ledger)
                status, said = exchange(
                    "POST", "/v1/jobs", job(*argv, name="siege-works", **fields)
                )
                if status >= 300:
                    break
                self._live[said["id"]] = kind
                with self._ledger.with_suffix(".given").open("a") as given:
                    print(said["id"], kind, file=given)

    def until_told(self) -> None:
        while not select.select([sys.stdin], [], [], LOOK_S)[0]:
            with contextlib.suppress(*UNREACHABLE, KeyError):
                self.go_on()


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        print(json.dumps(ask(int(sys.argv[2]))))
    else:
        Work(Path(sys.argv[2])).until_told()
