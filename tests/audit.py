"""Notices when CARMA's own code, as root, opens what a process can keep from being read.

Whoever reads another process's environment, command line or memory map waits for that process's
memory, which it can lock for as long as it likes; and what its working directory, its program and
its files are on may never answer. `python -m benchmarks.daemon.siege` has such a process. Only a
process of its own that nobody needs may do it: `carmad.attempt.marks`, run alone. `fdinfo` is no
such file: the kernel has a file's position itself, and asks no file system for it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from benchmarks import ROOT

CARMA = tuple(f"{ROOT}/{name}/" for name in ("carmad", "cli", "carma_client", "extras", "recovery"))
OF_A_PROCESS = re.compile(
    r"/proc/(\d+)/(?:task/\d+/)?(?:environ|cmdline|maps|smaps\w*|numa_maps|map_files|cwd|exe|fd)\b"
)
EVENTS = frozenset({"open", "os.listdir", "os.scandir", "os.chdir"})
REPORT = "AUDIT_REPORT"  # the file's path, in the environment


def listen() -> None:
    """From now on, in this process and those that it forks."""
    if report := os.environ.get(REPORT):
        to = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        sys.addaudithook(lambda event, args: _heard(to, event, args))


def _heard(to: int, event: str, args: tuple[object, ...]) -> None:
    if event not in EVENTS or not args or not isinstance(args[0], str | bytes | os.PathLike):
        return
    found = OF_A_PROCESS.match(os.fsdecode(args[0]))
    if found is None or found[1] == str(os.getpid()) or os.geteuid() != 0:
        return
    if _a_users(found[1]) and (by := _by()):
        os.write(to, f"{by} opens {found[0]}\n".encode())


def _a_users(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid != 0
    except OSError:
        return False


def _by() -> str:
    """The innermost line of CARMA's on the stack; "" if a test alone does it."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(CARMA):
            return f"{frame.f_code.co_filename.removeprefix(f'{ROOT}/')}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
