"""`carma daemon …`: running carmad, in the background or the foreground, and installing it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from carmad import paths
from cli import client, output
from cli.app import Json, group
from cli.problems import Problem, Unreachable
from cli.text import span

START_S = 30.0
STOP_S = 60.0
LOOK_S = 0.1
TAIL_LINES = 15

daemon = group()

Emulated = Annotated[
    str | None,
    typer.Option("--emulated", metavar="SPEC", help="Emulate these GPUs: 3xA100-40GB."),
]
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="Directory for the database and job records.")
]
Socket = Annotated[Path | None, typer.Option("--socket", help="Path of the daemon's socket.")]
Config = Annotated[Path | None, typer.Option("--config", help="Settings file.")]
LogFile = Annotated[Path | None, typer.Option("--log-file", help="Log file.")]


@daemon.command()
def start(
    emulated: Emulated = None,
    state_dir: StateDir = None,
    socket: Socket = None,
    config: Config = None,
    log_file: LogFile = None,
) -> None:
    """Start a daemon for your own jobs, in the background."""
    where = _listen_at(socket or Path(paths.daemon_socket()))
    if health := _health():
        raise Problem(
            f"carmad is already running at {where}, process {health['pid']}",
            "stop it with `carma daemon stop`",
        )
    log = log_file or Path(state_dir or paths.state_dir()) / "carmad.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if os.geteuid() == 0 else 0o700)
    with log.open("ab") as out:
        before = out.tell()
        process = subprocess.Popen(
            _command(emulated, state_dir, where, config, log),
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


@daemon.command()
def run(
    emulated: Emulated = None,
    state_dir: StateDir = None,
    socket: Socket = None,
    config: Config = None,
    log_file: LogFile = None,
) -> None:
    """Run the daemon in the foreground."""
    words = _command(emulated, state_dir, socket or Path(paths.daemon_socket()), config, log_file)
    sys.stdout.flush()
    os.execv(words[0], words)


@daemon.command()
def stop(socket: Socket = None) -> None:
    """Stop the daemon. Running jobs continue; the next daemon takes them over."""
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


@daemon.command()
def status(socket: Socket = None, json: Json = False) -> None:
    """Show whether the daemon is running, and where."""
    where = _listen_at(socket)
    health = client.get("/v1/health")
    if json:
        output.print_json(health)
        return
    print(
        f"carmad {health['version']} runs as process {health['pid']} at {where}:"
        f" policy {health['policy']}, up {span(health['uptime_s'])}"
    )
    _tell_troubles(health)


@daemon.command()
def install(
    root: Annotated[Path, typer.Option(help="Install under this directory.")] = Path("/"),
) -> None:
    """Install the systemd units of carmad. For root."""
    from carmad.daemon import service

    for path in service.install(root):
        print(path)
    output.note("now: systemd-sysusers && systemctl daemon-reload && systemctl enable --now carmad")


class Denied(Problem):
    exit_code = 4
    code = "forbidden"


@daemon.command()
def replay(
    segments: Annotated[
        list[Path], typer.Argument(metavar="SEGMENT…", help="Files from STATE/journal.")
    ],
) -> None:
    """Replay a daemon's journal, and check that every decision comes out the same."""
    from carmad.sim import shadow

    differs = False
    for segment in segments:
        made = shadow.reproduce(segment)
        print(f"{segment.name}: {made.decisions} decisions of {made.policy} in {made.steps} steps")
        if first := made.first:
            differs = True
            told = first.error or f"{first.made!r:.500}"
            print(f"  at {first.at:.3f} (step {first.step}) not {first.recorded!r:.500} but {told}")
    if differs:
        raise Problem("the decisions differ", "CARMA or a plugin may have been a different version")


def _listen_at(socket: Path | None) -> Path:
    """The socket, which this process also uses from now on."""
    if socket is not None:
        os.environ["CARMA_SOCKET"] = str(socket.absolute())
    return Path(paths.socket_path())


def _command(
    emulated: str | None,
    state_dir: Path | None,
    socket: Path,
    config: Path | None,
    log_file: Path | None,
) -> list[str]:
    words = [sys.executable, "-P", "-m", "carmad.daemon.main", "--socket", str(socket)]
    for flag, path in (("state-dir", state_dir), ("config", config), ("log-file", log_file)):
        if path is not None:
            words += [f"--{flag}", str(path.absolute())]
    if emulated is not None:
        words += ["--emulated", emulated]
    return words


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
