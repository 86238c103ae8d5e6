"""`carma daemon …`: running carmad, in the background or the foreground, and installing it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from carmad import paths
from carmad.paths import python
from cli import client, output
from cli.app import Json, option
from cli.problems import Problem, Unreachable
from cli.text import span

START_S = 30.0
STOP_S = 60.0
LOOK_S = 0.1
TAIL_LINES = 15


Socket = Annotated[
    Path | None, option("--socket", metavar="PATH", help="path of the daemon's socket")
]
Emulated = Annotated[
    str | None,
    option("--emulated", metavar="SPEC", help="emulate these GPUs: 3xA100-40GB"),
]
StateDir = Annotated[
    Path | None,
    option("--state-dir", metavar="PATH", help="directory for the database and job records"),
]
Config = Annotated[Path | None, option("--config", metavar="PATH", help="settings file")]
LogFile = Annotated[Path | None, option("--log-file", metavar="PATH", help="log file")]


def daemon_start(
    emulated: Emulated = None,
    state_dir: StateDir = None,
    socket: Socket = None,
    config: Config = None,
    log_file: LogFile = None,
) -> int:
    where = _listen_at(socket or Path(paths.daemon_socket()))
    if health := _health():
        raise Problem(
            f"carmad is already running at {where}, process {health['pid']}",
            "stop it with `carma daemon stop`",
        )
    log = log_file or Path(state_dir or paths.state_dir()) / "carmad.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if os.geteuid() == 0 else 0o700)
    words = [*python("carmad.daemon.main"), "--socket", str(where)]
    for flag, path in (("state-dir", state_dir), ("config", config), ("log-file", log)):
        words += [] if path is None else [f"--{flag}", str(path.absolute())]
    with log.open("ab") as out:
        before = out.tell()
        process = subprocess.Popen(
            words if emulated is None else [*words, "--emulated", emulated],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
        )
    health = _await_health(process, log, before)
    print(_summary(health, where, log))
    _tell_troubles(health)
    if health.get("troubles") and emulated is None:
        print(
            "hint: on a machine without GPUs: carma daemon stop, then"
            " carma daemon start --emulated 3xA100-40GB",
            file=sys.stderr,
        )
    return 0


def daemon_stop(socket: Socket = None) -> int:
    import psutil

    where = _listen_at(socket)
    health = client.get("/v1/health")
    try:
        os.kill(health["pid"], signal.SIGTERM)
    except PermissionError:
        hint = "ask its owner; for the system daemon: sudo systemctl stop carmad"
        raise Denied(f"you may not stop the carmad at {where}", hint) from None
    deadline = time.monotonic() + STOP_S
    while psutil.pid_exists(health["pid"]):
        if time.monotonic() > deadline:
            raise Problem(f"carmad, process {health['pid']}, has not stopped in {STOP_S:.0f} s")
        time.sleep(LOOK_S)
    print(f"carmad, process {health['pid']}, has stopped")
    return 0


def daemon_status(socket: Socket = None, json: Json = False) -> int:
    where = _listen_at(socket)
    health = client.get("/v1/health")
    if json:
        output.print_json(health)
        return 0
    print(
        f"carmad {health['version']} runs as process {health['pid']} at {where}:"
        f" policy {health['policy']}, up {span(health['uptime_s'])}"
    )
    _tell_troubles(health)
    return 0


def daemon_install(
    root: Annotated[
        Path, option("--root", metavar="PATH", help="install under this directory (default /)")
    ] = Path("/"),
) -> int:
    from carmad.daemon import service

    for path in service.install(root):
        print(path)
    output.note("now: systemd-sysusers && systemctl daemon-reload && systemctl enable --now carmad")
    return 0


class Denied(Problem):
    exit_code = 4
    code = "forbidden"


def _listen_at(socket: Path | None) -> Path:
    """The socket, which this process also uses from now on."""
    if socket is not None:
        os.environ["CARMA_SOCKET"] = str(socket.absolute())
    return Path(paths.socket_path())


def _health() -> Any:
    """None if no daemon listens."""
    try:
        return client.get("/v1/health", within_s=5.0)
    except Unreachable:
        return None


def _await_health(process: subprocess.Popen[bytes], log: Path, before: int) -> Any:
    """`before`: the size of the log when it started."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if (code := process.poll()) is not None:
            raise Problem(f"carmad did not start: it exited with {code}", _tail(log, before))
        if health := _health():
            return health
        time.sleep(LOOK_S)
    process.terminate()
    raise Problem(
        f"carmad has not answered in {START_S:.0f} s, and was stopped", _tail(log, before)
    )


def _tail(log: Path, before: int) -> str:
    lines = log.read_bytes()[before:].decode(errors="replace").splitlines()[-TAIL_LINES:]
    return "\n".join([f"the end of {log}:", *lines])


def _summary(health: dict[str, Any], where: Path, log: Path) -> str:
    line = f"carmad {health['version']} runs as process {health['pid']} at {where}; log: {log}"
    if str(where) in (paths.SYSTEM_SOCKET, paths.user_runtime_dir() + "/carmad.sock"):
        return line
    return f"{line}\nfor other commands: export CARMA_SOCKET={where}"


def _tell_troubles(health: dict[str, Any]) -> None:
    for trouble in health.get("troubles", ()):  # an older carmad does not send it
        print(f"but {trouble}")
