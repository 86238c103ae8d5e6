"""Asks for an estimate where there is no daemon: a process of the user's (`carmad.api.alone`), and
starts that when it is needed. Where the user has no private directory for its socket, it is this
one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from carmad.errors import CarmaError
from carmad.paths import HOME, OWN, python, user_runtime_dir

if TYPE_CHECKING:
    from typing import Any

    from carmad.api.guesses import EstimatesOut

START_WITHIN_S = 10.0
LOOK_S = 0.01
_started: list[subprocess.Popen[bytes]] = []  # nobody waits for it


def estimate(body: dict[str, Any], explain: bool) -> EstimatesOut:
    """The answer of `/v1/estimate` to `body`. Raises CarmaError."""
    connection = _connect()
    if connection is None:
        from contextlib import closing

        from carmad.api.guesses import Alone

        with closing(Alone()) as alone:
            return alone.estimate(body, explain)
    with connection:
        connection.sendall(json.dumps({"body": body, "explain": explain}).encode())
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while part := connection.recv(1 << 16):
            said += part
    if not said:
        raise CarmaError("the process that estimates was ended", "try again")
    answer: Any = json.loads(said)
    if "error" in answer:
        raise CarmaError(answer["error"], answer["hint"])
    estimates: EstimatesOut = answer
    return estimates


def _connect() -> socket.socket | None:
    """A connection to the process, which may be new; None if it cannot be."""
    folder = _private_folder()
    if folder is None:
        return None
    path = folder / f"estimates-{_fingerprint()}"
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except OSError:
            connection.close()
        if not _started or _started[-1].poll() is not None:
            argv = [*python("carmad.api.alone"), str(path)]
            try:
                _started.append(_start(argv))
            except OSError:
                return None
        time.sleep(LOOK_S)
    return None


def _start(argv: list[str]) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(
        argv, cwd=HOME, stdin=null, stdout=null, stderr=null, start_new_session=True
    )


def _private_folder() -> Path | None:
    """The user's runtime directory, made if need be; None if others could write there."""
    folder = Path(user_runtime_dir())
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_own = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if is_own and folder.is_dir() and not folder.is_symlink() else None


def _fingerprint() -> str:
    """Of what would run: this Python and this code, and its plugins."""
    found = [sys.executable, sys.version]
    for package in (Path(HOME, "carmad"), Path(OWN, "estimators")):
        for path in sorted(package.rglob("*.py")):
            status = path.stat()
            found.append(f"{path} {status.st_mtime_ns} {status.st_size}")
    return f"{zlib.crc32(chr(10).join(found).encode('utf-8', 'surrogateescape')):08x}"
