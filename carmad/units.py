"""Transient systemd units: what runs in one outlives carmad's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from carmad.errors import CarmaError
from carmad.paths import FIND

WITHIN_S = 30.0  # how long systemd may take to answer


def available() -> bool:
    """Whether this process may ask systemd for units."""
    if not Path("/run/systemd/system").is_dir() or shutil.which("systemd-run") is None:
        return False
    if os.geteuid() == 0:
        return True
    return (Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")) / "systemd/private").exists()


def manager() -> list[str]:
    """The option that names the user's own systemd, unless this is root."""
    return ["--user"] if os.geteuid() != 0 else []


def program(module: str) -> list[str]:
    """The command that runs `main` of one of CARMA's modules, in an isolated Python."""
    return [sys.executable, "-I", "-c", f"{FIND}; from {module} import main; main()"]


def start(
    unit: str,
    description: str,
    properties: Mapping[str, str],
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
) -> str:
    """Run `argv` in a unit in carma.slice. Returns "" or, if it was not started, systemd's words.

    Raises subprocess.TimeoutExpired if there is no answer, which does not mean that it has not
    been started.
    """
    always = {"OOMPolicy": "continue", "TasksMax": "infinity", "LimitMEMLOCK": "infinity"}
    asked = subprocess.run(
        [
            "systemd-run",
            *manager(),
            "--quiet",
            "--collect",
            f"--unit={unit}",
            "--slice=carma.slice",
            f"--description={description}",
            *(f"--property={key}={value}" for key, value in (always | {**properties}).items()),
            *(f"--setenv={name}={value}" for name, value in (env or {}).items()),
            *argv,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=WITHIN_S,
    )
    said = asked.stderr.strip()
    return "" if asked.returncode == 0 else said or f"it exited with {asked.returncode}"


def run(
    unit: str,
    description: str,
    properties: Mapping[str, str],
    argv: Sequence[str],
    *,
    in_unit: bool,
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes] | None:
    """Run one of the daemon's own helpers: in a unit, outside the daemon's sandbox, or as a child,
    which is returned. `stdin`, `stderr`: this process's descriptors. Raises CarmaError."""
    if not in_unit:
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,
        )
    streams = {"StandardInput": stdin, "StandardError": stderr}
    ours = {name: f"file:/proc/{os.getpid()}/fd/{fd}" for name, fd in streams.items() if fd >= 0}
    if said := start(unit, description, {**properties, **ours}, argv):
        raise CarmaError(f"systemd did not start the unit: {said:.300}")
    return None
