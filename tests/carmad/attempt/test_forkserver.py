"""Processes from the fork server: as if each had been started alone, whatever is killed when."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.attempt import forks as forks_module
from carmad.attempt import supervisor
from carmad.attempt.forks import Forks
from carmad.attempt.launcher import SOCKET, Launcher, NotNow
from carmad.attempt.proc import process_stat
from carmad.attempt.starting import program
from carmad.core.jobs.job import Job
from tests.attempts import Bench, is_gone, until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

# What a new process gets from who starts it. Numbers of processes and of memory differ.
LOOK = """
    grep -E "^(Umask|State|Uid|Gid|Groups|Sig[PBIC]|Shd|Cap|NoNew|Seccomp|Cpus_allowed|Mems_)" \
        /proc/self/status
    cat /proc/self/limits /proc/self/oom_score_adj /proc/self/cgroup /proc/self/environ
    cut -d " " -f 18,19,40,41 /proc/self/stat
    for fd in /proc/$$/fd/*; do echo "${fd##*/} $(readlink $fd | tr -d 0-9)"; done
    pwd; ps -o pid=,sid=,pgid= $$ | awk '{ print $1 == $2, $1 == $3 }'
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for pid in servers(tmp_path):
        os.kill(pid, signal.SIGKILL)


def servers(state: Path) -> list[int]:
    """The fork servers of this state directory, the oldest first; without children that have only
    just been forked, and have no name of their own yet."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        stat = process_stat(int(folder.name))
        if stat and words[-1:] == [os.fsencode(state / SOCKET)]:
            found.append((stat[1], int(folder.name), stat[0]))
    pids = {pid for _, pid, _ in found}
    return [pid for _, pid, parent in sorted(found) if parent not in pids]


def server(bench: Bench) -> int:
    (pid,) = servers(bench.state)
    return pid


def connect(bench: Bench) -> socket.socket:
    """To its server, whichever code that has."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.connect(str(bench.state / SOCKET))
    assert found.recv(64)
    return found


def waiting(bench: Bench, id: int = 1) -> Job:
    """A job that says that it has begun, and ends when there is a file `go`."""
    script = f"echo up >> up{id}; until [ -e go ]; do sleep 0.02; done; exit 7"
    job = bench.launch(bench.job("sh", "-c", script, id=id))
    until(lambda: bench.lines(f"up{id}"), "the job to begin")
    return job


# -- what is started, is started as it should be

CLOSES = """
import os, sys
from carmad.attempt import forkserver
close, asked = os.closerange, []
os.closerange = lambda low, high: (asked.append(high - low), close(low, high))
def look():
    found = sorted(os.listdir("/proc/self/fd"))
    os.write(2, f"{max(asked) < 200} {found}".encode())
forkserver.supervisor.main = look
os.dup2(0, 100)
forkserver._supervise(sys.argv[1], os.open(sys.argv[1] + "/log", os.O_WRONLY | os.O_CREAT))
"""


def test_files_are_closed_one_by_one_only_as_far_as_there_are_any(tmp_path: Path) -> None:
    """In a container, as many as a billion may be open; a Python built for an old C library tries
    each, which takes a minute."""
    subprocess.run([sys.executable, "-c", CLOSES, str(tmp_path)], check=True)
    assert (tmp_path / "log").read_text() == "True ['0', '1', '2', '3']", "3 is the look's own"


def test_a_job_cannot_tell_it_from_a_program_of_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/the/daemons")
    forked = bench.job("sh", "-c", LOOK, stdout="said", name="same")
    assert bench.ended(bench.launch(forked))["code"] == 0
    said = (bench.cwd / "said").read_bytes()
    (bench.cwd / "said").unlink()

    def run_alone(directory: Path) -> None:
        argv = supervisor.command(str(directory))
        null, log = subprocess.DEVNULL, (directory / "supervisor.log").open("ab")
        with log:
            subprocess.Popen(
                argv, stdin=null, stdout=null, stderr=log, cwd="/", start_new_session=True
            )

    bench.launcher.release(forked.id)
    monkeypatch.setattr(bench.launcher._forks, "start", run_alone)
    assert bench.ended(bench.launch(forked))["code"] == 0
    assert said.count(b"\n") > 30
    assert b"/the/daemons" not in said
    assert said.splitlines() == (bench.cwd / "said").read_bytes().splitlines()


def test_a_supervisor_has_nothing_of_the_servers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither its sockets nor another job's files; and it says whose it is. The server says
    nothing: the daemon's log is for what an administrator should know."""
    monkeypatch.delenv("TZ", raising=False)
    first, second = waiting(bench), waiting(bench, id=2)
    pid = bench.started(second)["pid"]
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    assert not [link for link in links if link.startswith("socket:")], links
    assert not [link for link in links if str(bench.directory(first)) in link], links
    assert Path(f"/proc/{pid}/comm").read_text() == "carma:2.1\n"
    assert capfd.readouterr().err == ""
    shown = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert shown == [b"carma:2.1", os.fsencode(bench.directory(second))]
    assert Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0") == b""
    (bench.cwd / "go").touch()
    assert bench.ended(first)["code"] == bench.ended(second)["code"] == 7


def test_it_takes_little_memory(bench: Bench) -> None:
    waiting(bench)
    for pid in (server(bench), bench.started(bench.job("", id=1))["pid"]):
        found = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
        assert found and int(found[1]) < 8 * 1024, found
    (bench.cwd / "go").touch()


# -- its life


def test_no_zombie_stays_and_it_ends_when_it_is_not_needed(bench: Bench) -> None:
    for id in range(1, 6):
        bench.ended(bench.launch(bench.job("true", id=id)))
    pid = server(bench)
    until(lambda: not Path(f"/proc/{pid}/task/{pid}/children").read_text(), "all to be reaped")
    job = waiting(bench, id=9)
    bench.launcher = Launcher(bench.state, systemd=False, kill_grace_s=0.3)  # the old one is gone
    time.sleep(0.1)
    assert servers(bench.state) == [pid], "it has a child"
    (bench.cwd / "go").touch()
    assert bench.ended(job)["code"] == 7
    until(lambda: not servers(bench.state), "it to end")
    assert not (bench.state / SOCKET).exists()


def test_the_next_daemon_finds_it(bench: Bench) -> None:
    waiting(bench)
    pid = server(bench)
    bench.launcher = Launcher(bench.state, systemd=False, kill_grace_s=0.3)
    assert bench.run("true", id=2)["code"] == 0
    assert servers(bench.state) == [pid]
    (bench.cwd / "go").touch()


def test_each_state_directory_has_its_own(bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / ("long" * 30)  # longer than the path of a socket may be
    other.mkdir()
    second = Bench(other)
    first, theirs = waiting(bench), waiting(second)
    assert len(servers(bench.state) + servers(other)) == 2
    os.kill(servers(other)[0], signal.SIGKILL)
    for each in (bench, second):
        (each.cwd / "go").touch()
    assert bench.ended(first)["code"] == second.ended(theirs)["code"] == 7


def test_one_of_another_version_gets_no_new_jobs_and_keeps_its_own(
    bench: Bench, tmp_path: Path
) -> None:
    old = tmp_path / "old" / "carmad"
    shutil.copytree(Path(supervisor.__file__).parents[1], old, ignore=shutil.ignore_patterns("api"))
    *python, code = program("carmad.attempt.forkserver")
    theirs = [*python, code.replace(str(Path(supervisor.__file__).parents[2]), str(old.parent))]
    subprocess.Popen([*theirs, str(bench.state / SOCKET)], start_new_session=True)
    until((bench.state / SOCKET).exists, "the old one to listen")
    before = server(bench)
    as_before = Forks(bench.state / SOCKET)
    as_before._connection = connect(bench)
    bench.launcher._forks.start = lambda _: None  # type: ignore[method-assign]
    script = "echo up >> up; until [ -e go ]; do sleep 0.02; done; exit 7"
    job = bench.launch(bench.job("sh", "-c", script))
    as_before.start(bench.directory(job))
    until(lambda: bench.lines("up"), "the job to begin")
    del as_before

    bench.launcher = Launcher(bench.state, systemd=False, kill_grace_s=0.3)
    assert bench.run("true", id=2)["code"] == 0
    assert servers(bench.state)[0] == before
    assert len(servers(bench.state)) == 2
    assert process_stat(bench.started(job)["pid"])[0] == before  # type: ignore[index]
    (bench.cwd / "go").touch()
    assert bench.ended(job)["code"] == 7
    until(lambda: is_gone(before), "the old one to end")
    assert bench.run("true", id=3)["code"] == 0, "it has not taken the new one's socket along"


@as_root
def test_nobody_else_is_served(bench: Bench) -> None:
    """Not even where the socket's mode would allow it."""
    waiting(bench)
    path = bench.state / SOCKET
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o777)
    for folder in (bench.state, *bench.state.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o711)
    connect = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        "os.setuid(int(sys.argv[2])); s.connect(sys.argv[1]); print(s.recv(64))"
    )

    def run_as(uid: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-I", "-S", "-c", connect, str(path), uid]
        return subprocess.run(words, capture_output=True, text=True)

    theirs, mine = run_as("65534"), run_as("0")
    assert theirs.stdout == "b''\n" or "ConnectionReset" in theirs.stderr, theirs
    assert re.fullmatch(r"b'[0-9a-f]{8}'\n", mine.stdout), mine
    (bench.cwd / "go").touch()


# -- killed and stopped


def test_a_kill_does_not_concern_running_jobs(bench: Bench) -> None:
    job = waiting(bench)
    pid = server(bench)
    os.kill(pid, signal.SIGKILL)
    assert bench.run("true", id=2)["code"] == 0
    assert pid not in servers(bench.state)
    (bench.cwd / "go").touch()
    assert bench.ended(job)["code"] == 7


def test_a_request_that_a_kill_left_unanswered_is_repeated(bench: Bench) -> None:
    waiting(bench)
    pid = server(bench)
    os.kill(pid, signal.SIGSTOP)
    job = bench.job("sh", "-c", "echo ran >> ran", id=2)
    launch = threading.Thread(target=bench.launch, args=(job,))
    launch.start()
    time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    launch.join()
    assert bench.ended(job)["code"] == 0
    assert bench.lines("ran") == ["ran"]
    (bench.cwd / "go").touch()


def test_kills_at_any_time_neither_lose_nor_double_a_job(bench: Bench) -> None:
    calm, dice = threading.Event(), random.Random(13)

    def kill_again_and_again() -> None:
        while not calm.wait(dice.uniform(0.0, 0.2)):
            for pid in servers(bench.state):
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_again_and_again)
    killer.start()
    jobs = [bench.job("sh", "-c", f"echo {id} >> ran", id=id) for id in range(1, 21)]
    try:
        for job in jobs:
            while not bench.launcher.has_begun(job):
                try:
                    bench.launch(job)
                except NotNow:  # the daemon tries again, too
                    continue
                until(lambda: bench.launcher.has_begun(job), "it to begin")  # noqa: B023
    finally:
        calm.set()
        killer.join()
    assert {bench.ended(job)["code"] for job in jobs} == {0}
    assert sorted(map(int, bench.lines("ran"))) == list(range(1, 21))


def test_one_that_hangs_keeps_nobody_waiting_for_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = waiting(bench)
    pid = server(bench)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(forks_module, "ANSWER_WITHIN_S", 0.2)
    bench.launcher._forks._connection.settimeout(0.2)  # type: ignore[union-attr]
    job = bench.job("sh", "-c", "echo ran >> ran; exec sleep 600", id=2)
    begun = time.monotonic()
    with pytest.raises(NotNow, match="the fork server does not answer"):
        bench.launch(job)
    assert time.monotonic() - begun < 2.0
    bench.launcher.stop(runs, 0.0)
    assert bench.ended(runs)["stopped"]
    bench.launch(job)  # another server is started
    until(lambda: bench.lines("ran"), "it to begin")
    os.kill(pid, signal.SIGCONT)  # now it does what it was asked
    until(lambda: is_gone(pid), "it to end")
    bench.launcher.stop(job, 0.0)
    assert bench.ended(job)["stopped"]
    assert bench.lines("ran") == ["ran"]


def test_where_no_process_can_be_started_a_launch_is_postponed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bench.launcher._forks, "_spawn", lambda _: None)
        patch.setattr(forks_module, "START_WITHIN_S", 0.1)
        with pytest.raises(NotNow, match="does not answer"):
            bench.launch(bench.job("true"))
    assert bench.run("true")["code"] == 0


def test_a_client_that_says_nothing_holds_nobody_up(bench: Bench) -> None:
    waiting(bench)
    silent = [connect(bench) for _ in range(5)]
    assert bench.run("true", id=2)["code"] == 0
    for each in silent:
        each.shutdown(socket.SHUT_RDWR)
        each.close()
    assert bench.run("true", id=3)["code"] == 0
    (bench.cwd / "go").touch()
