"""No process of root's looks into a process of a user's in a way that it can be kept waiting by.

Here by the kernel's word, in whatever carmad and its supervisors start; `tests/audit.py` listens to
carmad's Python in the whole suite, when that runs as root.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator

import pytest

from carmad.attempt.proc import process_stat
from carmad.gpu.card import Card, paths
from cli.main import run
from tests.attack.test_paths import STRACE, User, a_folder, of_roots
from tests.daemon import NO_KERNELS, Carmad, until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs jobs of another user than carmad's"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="no strace"),
]

LOOK = re.compile(
    r'^(\d+) .*"/proc/(\d+)/(?:task/\d+/)?'
    r"(?:environ|cmdline|maps|smaps\w*|numa_maps|map_files|cwd|exe|fd|fdinfo)\b"
)
DISPOSABLE = re.compile(r"^(\d+) +execve\(.*carmad\.attempt\.marks\b", re.MULTILINE)


def lives_of_jobs(user: User) -> None:
    """Jobs that run, are lost, time out, leave processes behind, are adopted and at a terminal."""
    daemon = user.daemon
    ran = user.submit("/bin/sh", "-c", "setsid sleep 1000 & exit 3", memory_mib=100)
    late = user.submit("sleep", "1000", memory_mib=100, time_limit_s=0.5)
    lost = user.submit("sleep", "1000", memory_mib=100, requeue=False)
    os.kill(daemon.supervisor(lost), signal.SIGKILL)
    outside = _forked(user, lambda: _use_gpus(daemon))
    try:
        until(
            lambda: any(one["pid"] == outside for gpu in daemon.gpus() for one in gpu["outsiders"]),
            "the process to be seen on a GPU",
        )
        adopted = user.call("POST", "/v1/adopt", {"pid": outside})["id"]
        user.call("POST", "/v1/cancel", {"select": str(adopted)})
    except BaseException:
        os.kill(outside, signal.SIGKILL)
        raise
    finally:
        os.waitpid(outside, 0)
    daemon.ended(adopted)
    at_terminal = _forked(user, lambda: _run(daemon))
    assert os.waitpid(at_terminal, 0)[1] == 0
    for job in (ran, late, lost):
        daemon.ended(job)


def _forked(user: User, do: Callable[[], int]) -> int:
    """The pid of a process of the user's. It cannot be one of their programs: CARMA's Python may be
    out of their reach."""
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(user.uid, user.uid, user.uid)
        os.setresuid(user.uid, user.uid, user.uid)
        try:
            os._exit(do())
        except BaseException:  # noqa: BLE001 - this process is not to become a test
            traceback.print_exc()
        os._exit(1)
    return pid


def _use_gpus(daemon: Carmad) -> int:
    for path in paths(str(daemon.state / "emulated")):
        card = Card(path)
        card.attach()
        card.allocate(1000)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pause()
    return 0


def _run(daemon: Carmad) -> int:
    """`carma run`."""
    os.chdir("/")
    os.environ.clear()
    os.environ.update({"CARMA_SOCKET": daemon.socket, "HOME": "/", "PATH": "/usr/bin:/bin"})
    return run(["run", "--quiet", "--gpu-mem", "1G", "/bin/true"])


@pytest.fixture(scope="module")
def trace() -> Iterator[str]:
    with a_folder() as folder:
        traced = folder / "traced"
        daemon = Carmad(folder, **NO_KERNELS)
        try:
            daemon.start_cold(*STRACE, "-s", "400", "-o", str(traced))
            lives_of_jobs(User(daemon))
            daemon.stop()
        finally:
            daemon.clear_away()
        yield traced.read_text(errors="replace")


def looks(trace: str) -> list[str]:
    """What processes of root's, but for the disposable ones, looked at of processes that are not
    known to be root's: themselves, and this one and its parents."""
    disposable = {found[1] for found in DISPOSABLE.finditer(trace)}
    known, pid = set[str](), os.getpid()
    while pid and (stat := process_stat(pid)):
        known.add(str(pid))
        pid = stat[0]
    return [
        line
        for line in of_roots(trace, "/proc/")
        if (found := LOOK.match(line))
        and found[2] not in known | {found[1]}
        and found[1] not in disposable
    ]


@pytest.mark.long
def test_no_process_of_roots_looks_where_a_user_can_keep_it_waiting(trace: str) -> None:
    assert re.search(r'"/proc/\d+/stat"', trace)  # it does see what they do
    assert looks(trace) == []


def test_such_a_look_would_be_noticed() -> None:
    looked = '12 openat(AT_FDCWD, "/proc/34/environ", O_RDONLY) = 3\n'
    become = "12 setresuid(5, 5, 5) = 0\n"
    alone = '12 execve("/p", ["/p", "from carmad.attempt.marks import main"], []) = 0\n'
    assert looks(looked) == [looked.strip()]
    assert looks(become + looked) == []
    assert looks(alone + looked) == []
    assert looks(looked.replace("34", "12")) == []
