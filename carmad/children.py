"""What a child process answers, or that it does not: whoever asks one must not wait for ever."""

from __future__ import annotations

import contextlib
import subprocess

ENDED_WITHIN_S = 0.5  # after a SIGKILL; one that waits in the kernel is left


def hear(child: subprocess.Popen[bytes], within_s: float) -> bytes:
    """What it writes to its standard output until it ends. Raises subprocess.TimeoutExpired, with
    what it has written, if that takes longer; then it is killed."""
    try:
        return child.communicate(timeout=within_s)[0]
    finally:
        child.kill()
        if child.stdout is not None:
            child.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(ENDED_WITHIN_S)
