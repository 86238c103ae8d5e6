"""What the kernel refuses carmad in a booted machine, by its sandbox or otherwise, and why.

A refusal that nobody knows of is a part of CARMA that does not work where it is installed: a
sandbox that made all cgroups read-only once had suspended jobs run on.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.daemon.booted import Machine
from carmad.attempt.cgroup import MOUNTS

UNIT = "system.slice/carmad.service"
REFUSED = re.compile(r"= -1 (?:EROFS|EPERM|EACCES) ")
LOOK_S = 0.01
STRACE = ("strace", "-f", "-Z", "-y", "-qq", "-s", "200", "-e", "signal=none")

# What is refused, and why that is as it should be.
EXPLAINED = {
    r"/__pycache__[/\"]": "Python keeps no compiled code where only packages may write",
    r"^setsockopt\(.*, SO_(SND|RCV)BUFFORCE,": "systemctl and systemd-run ask for larger buffers",
    r"^socket\(AF_INET, SOCK_STREAM": "a trial's script, which `test_booted` has try",
    # Where these tests run in a container, systemd itself has less than all rights.
    r"^prlimit64\(0, RLIMIT_NOFILE, {.*}, NULL\)": "systemd, before it executes carmad",
    r"^write\(.*/oom_score_adj>, \"-500\\n\"": "likewise",
    r"^prctl\(PR_SET_MM, PR_SET_MM_ARG_START,": "likewise",
}


@contextlib.contextmanager
def recorded(machine: Machine) -> Iterator[None]:
    """Fails at the end if the kernel has refused carmad, or a process that it has started in its
    unit, anything that is not explained. What it does before it is seen, in its first hundredth of
    a second, is not recorded. Without strace, nothing is."""
    if shutil.which("strace") is None:
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(machine, over))
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    records = list(machine.folder.glob("refused.*"))
    assert not records or any(path.stat().st_size for path in records), "strace records nothing"
    found = {line for path in records for line in _refused(path)}
    assert not found, "\n".join(["the kernel refuses carmad:", *sorted(found)])


def _watch(machine: Machine, over: threading.Event) -> None:
    """Have each process that systemd starts in the unit traced, with all that it starts."""
    traced: dict[int, subprocess.Popen[bytes]] = {}
    while not over.wait(LOOK_S):
        for pid in _started(machine.pid1):
            if pid not in traced:
                to = machine.folder / f"refused.{len(traced)}"
                traced[pid] = subprocess.Popen(
                    [*STRACE, "-o", to, "-p", str(pid)], stderr=subprocess.DEVNULL
                )
    for process in traced.values():
        process.terminate()
        process.wait()


def _started(pid1: int) -> list[int]:
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid1}/cgroup").read_text().rpartition("0::")[2].split("\n")[0]
        for mount in MOUNTS:
            procs = Path(mount + line).parent / UNIT / "cgroup.procs"
            if procs.exists():
                return [pid for pid in map(int, procs.read_text().split()) if _parent(pid) == pid1]
    return []


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _refused(path: Path) -> Iterator[str]:
    for line in path.read_text(errors="replace").splitlines():
        call = line.partition(" ")[2].strip()
        if REFUSED.search(call) and not any(re.search(each, call) for each in EXPLAINED):
            yield call
