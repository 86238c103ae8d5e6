"""The socket at which the daemon listens, unless systemd gives it one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from carmad.errors import CarmaError

PROBE_S = 5.0


def listen(path: str) -> socket.socket:
    """A new socket at `path`. Raises CarmaError if another daemon answers there."""
    if _answers(path):
        raise CarmaError(f"another carmad answers at {path}", "stop it first: carma daemon stop")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mode = 0o755 if os.geteuid() == 0 else 0o700
    try:
        Path(path).parent.mkdir(mode=mode, parents=True, exist_ok=True)
        if Path(path).is_socket():  # a dead daemon's; never remove anything else
            Path(path).unlink()
        listener.bind(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise CarmaError(f"cannot listen at {path}: {why}", "choose --socket") from error
    # Anybody may connect to root's: the kernel identifies them.
    Path(path).chmod(0o666 if os.geteuid() == 0 else 0o600)
    return listener


def _answers(path: str) -> bool:
    """Whether somebody listens there, even if too busy or not permitting us."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(path)
        except (TimeoutError, BlockingIOError, PermissionError):
            return True
        except OSError:
            return False
        return True
