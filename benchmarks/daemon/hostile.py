"""Three users attack the daemon, and a fourth submits; to be run as root.

The fourth's latencies are compared with those of the same run before the attack. `carma submit` is
timed from where Python has started, in a process of its own. The attackers, and whatever else the
machine does, take processor time of the same cores: a process that does nothing shows how much.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.daemon.carmad import Daemon, plain_environment
from benchmarks.daemon.http import Hostile, ask, request
from benchmarks.harness import Report, Row, fsync_ms, main, milliseconds, of_rows, percentile
from cli.main import run

HOSTILE = (65534, 1, 2)
HONEST = 3
QUIET_S = 20.0
ATTACK_S = 60.0
PAUSE_S = 0.15  # of the honest user, between two jobs
GROUP = "honest user"

Latencies = dict[str, list[float]]  # ms, by what was asked


def measure(seconds: float = ATTACK_S) -> Report:
    if os.geteuid() != 0:
        sys.exit("only root can be several users")
    with Daemon() as daemon:
        daemon.directory.chmod(0o711)
        quiet = as_user(HONEST, lambda: honest(daemon.socket, QUIET_S))
        at_rest, disk = daemon.rss_mb(), disk_mb(daemon.directory)
        answers: list[Counter[str]] = []
        attackers = [
            threading.Thread(
                target=lambda kind=kind, uid=uid: answers.append(
                    Counter(as_user(uid, lambda: hostile(daemon.socket, kind, seconds)))
                )
            )
            for kind, uid in enumerate(HOSTILE)
        ]
        for each in attackers:
            each.start()
        time.sleep(1.0)
        attacked = as_user(HONEST, lambda: honest(daemon.socket, seconds - 2.0))
        for each in attackers:
            each.join()
        rows = [
            *(row for what in quiet for row in latencies(what, quiet[what], attacked[what])),
            Row("daemon", "RSS before", at_rest, "MB"),
            Row("daemon", "RSS at its highest", daemon.peak_mb(), "MB", bound=250),
            Row("daemon", "disk taken", disk_mb(daemon.directory) - disk, "MB"),
        ]
    for what, times in sorted(sum(answers, Counter()).items()):
        rows.append(Row("attacks, and their answers", what, times, ""))
    title = f"{len(HOSTILE)} hostile users, and an honest one"
    return of_rows(title, rows, kept=seconds == ATTACK_S)


def latencies(what: str, quiet: list[float], attacked: list[float]) -> list[Row]:
    bound = 250.0 if "submit" in what else None
    return [
        row
        for q in (0.5, 0.99)
        for row in (
            Row(GROUP, f"{what}, p{q * 100:.0f}: before", percentile(quiet, q), "ms"),
            Row(
                GROUP,
                f"{what}, p{q * 100:.0f}: attacked",
                percentile(attacked, q),
                "ms",
                bound=bound if q > 0.5 else None,
                note=f"of {len(attacked)}, the longest {max(attacked):.0f} ms",
            ),
        )
    ]


def as_user(uid: int, do: Callable[[], Any]) -> Any:
    """What `do` returns, in a process of that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        with os.fdopen(writer, "w") as pipe:
            json.dump(do(), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said)


def hostile(path: str, kind: int, seconds: float) -> dict[str, int]:
    attacker = Hostile(path, time.monotonic() + seconds)
    attacker.attack(kind)
    return dict(attacker.answers)


def honest(path: str, seconds: float) -> Latencies:
    """Latencies of the request alone, of the command, and, for scale, of what needs no daemon or no
    disk."""
    os.environ.update({"CARMA_SOCKET": path, "HOME": "/"})
    body = {"argv": ["/bin/true"], "cwd": "/tmp", "env": plain_environment(), "held": True}
    sent = request("POST", "/v1/jobs", json.dumps(body).encode())
    command = ["submit", "--hold", "--quiet", "--chdir", "/tmp", "--", "/bin/true"]
    asked: dict[str, Callable[[], object]] = {
        "the request of `carma submit`": lambda: ask(path, sent),
        "`carma submit`": lambda: in_fork(lambda: run(command)),
        "`GET /v1/health`, which writes nothing": lambda: ask(path, request("GET", "/v1/health")),
        "a process that does nothing": lambda: in_fork(lambda: 0),
        "fsync of 4 KiB": fsync_ms,
    }
    taken: Latencies = {what: [] for what in asked}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for what, do in asked.items():
            taken[what].append(milliseconds(do))
        time.sleep(PAUSE_S)
    return taken


def in_fork(do: Callable[[], int]) -> None:
    child = os.fork()
    if child == 0:
        os._exit(do())
    if os.waitpid(child, 0)[1]:
        raise SystemExit("carma submit failed")


def disk_mb(directory: Path) -> float:
    files = (path for path in directory.rglob("*") if path.is_file())
    return sum(path.stat().st_blocks * 512 for path in files) / 1e6


if __name__ == "__main__":
    main("hostile", measure)
