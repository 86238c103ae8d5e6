"""The supervisor with real processes: exact exits, nothing left behind, never started twice."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from carmad.attempt import process_tree, supervisor
from carmad.attempt.environment import ATTEMPT_VARIABLE
from carmad.attempt.proc import handles, unkillable
from tests.attempts import Bench, a_cgroup, in_a_unit, is_gone, until
from tests.waiting import PATIENCE_S

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def nobody() -> Iterator[tuple[Bench, pwd.struct_passwd]]:
    """A bench with an accessible working directory that belongs to the user nobody."""
    user = pwd.getpwnam("nobody")
    state = Path(tempfile.mkdtemp(prefix="carma-test-"))
    state.chmod(0o755)
    bench = Bench(state)
    os.chown(bench.cwd, user.pw_uid, user.pw_gid)
    yield bench, user
    shutil.rmtree(state)


def identity(user: pwd.struct_passwd) -> dict[str, object]:
    return {"user": user.pw_name, "uid": user.pw_uid, "gid": user.pw_gid}


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_the_exit_code_is_exact(bench: Bench, code: int) -> None:
    end = bench.run("sh", "-c", f"exit {code}")
    assert (end["code"], end["signal"], end["error"]) == (code, None, "")
    assert not end["stopped"]
    assert end["started_at"] <= end["ended_at"]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGPIPE", "SIGUSR1"])
def test_the_signal_is_exact(bench: Bench, name: str) -> None:
    end = bench.run("sh", "-c", f"kill -{name[3:]} $$")
    assert (end["code"], end["signal"]) == (None, getattr(signal, name))


def test_python_may_go_away_while_the_job_runs(bench: Bench) -> None:
    """As in an upgrade: the supervisor must already have loaded what it needs at the end."""
    gone = (
        "import os, sys\n"
        "class Gone:\n"
        "    def find_spec(*_):\n"
        "        if os.path.exists('gone'): raise ImportError('upgraded')\n"
        "sys.meta_path.insert(0, Gone)\n"
    )
    job = bench.job("sh", "-c", f"sleep 0.5; touch {bench.state}/jobs/1.1/gone")
    bench.launcher._forks.start = lambda _: None  # type: ignore[method-assign]
    directory = bench.directory(bench.launch(job))
    *interpreter, program, where = supervisor.command(str(directory))
    subprocess.run([*interpreter, gone + program, where], check=True)
    assert bench.ended(job)["code"] == 0


def test_every_argument_arrives_as_it_was_given(bench: Bench) -> None:
    words = ["two words", "", "line\nbreak", "-n", "$HOME `id`", "ünïcödé", "\udcff", "\"quoted'"]
    show = "import os, sys; print([os.fsencode(a).hex() for a in sys.argv[1:]])"
    assert bench.run(sys.executable, "-c", show, *words)["code"] == 0
    assert bench.lines() == [str([os.fsencode(word).hex() for word in words])]


def test_the_job_starts_clean(bench: Bench) -> None:
    """Its own session, default signals, nothing blocked, no open files, empty stdin."""
    program = (
        "import os\n"
        "print(os.getsid(0) == os.getpid(), os.read(0, 1))\n"
        "print(sorted(os.listdir('/proc/self/fd'))[:-1])\n"
        "for line in open('/proc/self/status'):\n"
        "    if line.startswith(('SigBlk', 'SigIgn')): print(line.split()[1])\n"
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        bench.run("/bin/sh", "-c", f'exec {shlex.quote(sys.executable)} -c "$0"', program)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    own, fds, blocked, ignored = bench.lines()
    assert own == "True b''"
    assert fds == "['0', '1', '2']"
    assert int(blocked, 16) == 0
    # Python, which runs the check, ignores these two itself. 32 and 33 are the C library's own:
    # it lets nobody set them, and `make` starts its children with them ignored.
    asked = int(ignored, 16) & ~(0b11 << 31)
    assert asked == 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1


def test_the_environment_is_what_was_written_and_no_more(bench: Bench) -> None:
    bench.run("env", "-0", env=(("GREETING", "a\nb=c"), ("PATH", "/usr/bin:/bin")))
    found = dict(item.split("=", 1) for item in "\n".join(bench.lines()).split("\0") if item)
    assert found["GREETING"] == "a\nb=c"
    assert found["CARMA_JOB_ID"] == "1"
    assert found["CARMA_ATTEMPT_DIR"] == str(bench.state / "jobs/1.1")
    assert "PYTEST_CURRENT_TEST" not in found


def test_logs_are_appended_to_and_their_ends_kept(bench: Bench) -> None:
    (bench.cwd / "carma-1.out").write_text("before\n")
    job = bench.launch(bench.job("sh", "-c", "echo out; echo err >&2", stderr="err"))
    bench.ended(job)
    before, blank, title, out = bench.lines()
    assert (before, blank, out) == ("before", "", "out")
    assert re.fullmatch(r"=== carma job 1, attempt 1, [-0-9T:]{19}[+-]\d{4} ===", title)
    assert bench.lines("err") == ["err"], "a log that was empty has nothing else"
    assert (bench.directory(job) / supervisor.TAIL).read_text() == "out\nerr\n"


@pytest.mark.parametrize("stderr", [None, "err"])
def test_the_tail_is_of_this_attempt_alone(bench: Bench, stderr: str | None) -> None:
    """And of this job alone, if another has the same log."""
    say = ("sh", "-c", "echo CUDA error: out of memory >&2; exit 1")
    bench.ended(bench.launch(bench.job(*say, stdout="log", stderr=stderr)))
    bench.ended(bench.launch(bench.job(*say, stdout="log", stderr=stderr, id=2)))
    silent = bench.launch(bench.job("false", stdout="log", stderr=stderr, attempt=2))
    bench.ended(silent)
    assert not (bench.directory(silent) / supervisor.TAIL).exists()
    other = bench.launch(bench.job("echo", "mine", stdout="log", stderr=stderr, attempt=3))
    bench.ended(other)
    assert (bench.directory(other) / supervisor.TAIL).read_text() == "mine\n"


def test_the_tail_of_a_log_that_the_job_writes_anew_is_all_of_it(bench: Bench) -> None:
    (bench.cwd / "carma-1.out").write_text("before\n" * 100)
    job = bench.launch(bench.job("sh", "-c", "echo anew > carma-1.out"))
    bench.ended(job)
    assert (bench.directory(job) / supervisor.TAIL).read_text() == "anew\n"


@pytest.mark.parametrize("stderr", [None, "/dev/null"])
@pytest.mark.parametrize("how", ["rm -f {}", "mv {} away", "mv {} away; echo other > {}", ": > {}"])
def test_the_tail_is_of_what_the_job_wrote_whatever_became_of_the_log(
    bench: Bench, how: str, stderr: str | None
) -> None:
    log = "carma-1.out"
    (bench.cwd / log).write_text("before\n" * 100)
    script = f"echo a lot; {how.format(log, log)}; echo CUDA out of memory; exit 1"
    job = bench.launch(bench.job("sh", "-c", script, stderr=stderr))
    bench.ended(job)
    lines = (bench.directory(job) / supervisor.TAIL).read_text().strip("\0").splitlines()
    assert lines == ["a lot", "CUDA out of memory"][how.startswith(":") :]


def test_when_the_main_process_ended_is_recorded(bench: Bench) -> None:
    """Its leftovers may live longer."""
    lives_on = "trap 'sleep 0.3; exit' TERM; while :; do sleep 0.05; done"
    end = bench.run("sh", "-c", f'setsid sh -c "{lives_on}" & exit 5', stderr=QUIET)
    assert 0 < end["main_ended_boot_s"] < end["ended_boot_s"]


def test_the_tail_is_bounded_and_a_log_that_is_no_file_is_left_alone(bench: Bench) -> None:
    job = bench.launch(bench.job("sh", "-c", "yes | head -c 1000000", stderr="/dev/null"))
    bench.ended(job)
    assert (bench.directory(job) / supervisor.TAIL).stat().st_size == supervisor.TAIL_BYTES


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("no-such-command-here",), "no-such-command-here: command not found"),
        (("./plain",), "./plain: Permission denied"),
        (("./empty",), "./empty: Exec format error"),
        (("echo", "x" * 10_000_000), "echo: Argument list too long"),
    ],
)
def test_a_command_that_cannot_run(bench: Bench, argv: tuple[str, ...], words: str) -> None:
    (bench.cwd / "plain").touch()
    (bench.cwd / "empty").touch(mode=0o755)
    end = bench.run(*argv)
    assert words in end["error"]
    assert end["hint"]


@pytest.mark.parametrize(
    ("limits", "well"),
    [
        ({"nofile": 0}, False),
        ({"as": 1}, False),
        ({"fsize": 0}, False),
        ({"as": 0, "data": 0, "nofile": 0, "stack": 0, "fsize": 0}, False),
        ({"stack": -1, "nofile": (1 << 63) - 1}, True),
    ],
)
def test_limits_that_no_program_can_live_with_end_the_job_alone(
    bench: Bench, limits: dict[str, int], well: bool
) -> None:
    found = bench.run("sh", "-c", "echo hi", limits=tuple(limits.items()))
    assert (found["code"] == 0) is well and not found["left"]
    found = bench.run("no-such-command-here", limits=tuple(limits.items()), id=2)
    assert "command not found" in found["error"]


def test_a_working_directory_that_is_gone(bench: Bench) -> None:
    job = bench.job("true")
    bench.cwd.rmdir()
    end = bench.ended(bench.launch(job))
    assert "cannot enter the working directory" in end["error"]
    assert end["hint"]


def test_a_log_in_a_directory_that_is_not_there(bench: Bench) -> None:
    end = bench.run("true", stdout="missing/%j.out")
    assert "cannot open the log file" in end["error"]
    assert not (bench.cwd / "missing").exists()


# A shell says on stderr which of its children a signal ended.
QUIET = "/dev/null"
STUBBORN = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.1; done"


def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(bench: Bench) -> None:
    job = bench.launch(bench.job("sh", "-c", STUBBORN))
    until(bench.lines, "the job to speak")
    bench.launcher.stop(job, 0.2)
    bench.launcher.stop(job, 60.0)  # a repeat cannot prolong it
    end = bench.ended(job)
    assert (end["signal"], end["stopped"]) == (signal.SIGKILL, True)


@as_root
@pytest.mark.parametrize("stopped", [False, True])
def test_what_another_daemon_started_for_the_job_ends_with_it(bench: Bench, stopped: bool) -> None:
    """As Docker's does, if the job's mark is passed on."""
    job = bench.launch(bench.job("sh", "-c", "echo up; until [ -e go ]; do sleep 0.05; done"))
    until(bench.lines, "the job to speak")
    theirs = {**os.environ, ATTEMPT_VARIABLE: str(bench.directory(job))}
    contained = ["unshare", "--pid", "--fork", "--kill-child"]
    stranger = subprocess.Popen(
        [*contained, "sh", "-c", STUBBORN], env=theirs, stdout=subprocess.DEVNULL
    )
    others = {**os.environ, ATTEMPT_VARIABLE: str(bench.directory(job)) + "1"}
    neighbour = subprocess.Popen(["sleep", "600"], env=others)
    submitted = subprocess.Popen(["sleep", "600"], env=theirs)  # as by sbatch or at
    try:
        (shell,) = until(lambda: psutil.Process(stranger.pid).children(), "its container")
        until(lambda: handles(shell.pid, signal.SIGTERM, "SigIgn"), "it to ignore SIGTERM")
        if stopped:
            bench.launcher.stop(job, 0.2)
        else:
            (bench.cwd / "go").touch()
        bench.ended(job)
        stranger.wait(PATIENCE_S)  # it would not end of itself
        assert (neighbour.poll(), submitted.poll()) == (None, None)
    finally:
        for process in (stranger, neighbour, submitted):
            process.kill()
            process.wait()


@as_root
def test_what_another_daemon_starts_again_and_again_keeps_no_job(bench: Bench) -> None:
    """As Docker's does with `--restart=always`. Its memory is then somebody else's."""
    job = bench.launch(bench.job("sh", "-c", "echo up; until [ -e go ]; do sleep 0.05; done"))
    until(bench.lines, "the job to speak")
    mark = f"{ATTEMPT_VARIABLE}={bench.directory(job)}"
    again = f"while :; do unshare --pid --fork --kill-child env {mark} sleep 600; done"
    docker = subprocess.Popen(["sh", "-c", again], start_new_session=True)
    try:
        until(lambda: psutil.Process(docker.pid).children(recursive=True)[1:], "its container")
        (bench.cwd / "go").touch()
        assert bench.ended(job)["code"] == 0
    finally:
        os.killpg(docker.pid, signal.SIGKILL)
        docker.wait()


def test_a_job_may_use_its_grace(bench: Bench) -> None:
    job = bench.launch(
        bench.job(
            "sh",
            "-c",
            "trap 'echo saved; exit 3' TERM; echo up; while :; do sleep 0.05; done",
            stderr=QUIET,
        )
    )
    until(bench.lines, "the job to speak")
    bench.launcher.stop(job, 60.0)
    end = bench.ended(job)
    assert (end["code"], end["stopped"]) == (3, True)
    assert bench.lines() == ["up", "saved"]


def test_a_stopped_process_still_gets_its_sigterm(bench: Bench) -> None:
    job = bench.launch(bench.job("sh", "-c", "echo $$; kill -STOP $$; sleep 60"))
    pid = int(until(bench.lines, "the job to speak")[0])
    until(lambda: "\nState:\tT" in Path(f"/proc/{pid}/status").read_text(), "the job to stop")
    bench.launcher.stop(job, 60.0)
    assert bench.ended(job)["signal"] == signal.SIGTERM


ESCAPEE = """
import os, signal, time
for _ in range(2):
    if os.fork():
        os._exit(0) if _ else time.sleep(EXIT_AFTER)
        os._exit(7)
    os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.closerange(0, 3)
os.open("escaped", os.O_WRONLY | os.O_CREAT)
os.write(0, b"%d" % os.getpid())
os.rename("escaped", "escapee")
time.sleep(600)
"""


def test_a_daemonised_child_dies_with_the_main_process(bench: Bench) -> None:
    program = ESCAPEE.replace("EXIT_AFTER", "0.3")
    job = bench.launch(bench.job(sys.executable, "-c", program))
    escapee = bench.cwd / "escapee"
    pid = until(lambda: escapee.exists() and escapee.read_text().strip(), "the child to escape")
    bench.launcher.stop(job, 0.5)  # shortens the five seconds that leftovers have
    end = bench.ended(job)
    assert is_gone(int(pid))
    assert end["code"] in (7, None)


def test_the_exit_waits_for_leftovers(bench: Bench) -> None:
    """They get a SIGTERM and some seconds; the exit is still that of the main process."""
    leftover = "trap 'sleep 0.3; echo leftover done; exit' TERM; while :; do sleep 0.05; done"
    end = bench.run("sh", "-c", f'setsid sh -c "{leftover}" & sleep 0.3; exit 5', stderr=QUIET)
    assert (end["code"], end["stopped"]) == (5, False)
    assert bench.lines() == ["leftover done"]


def test_processes_that_a_script_leaves_in_the_background_are_counted(bench: Bench) -> None:
    """Those that became daemons, as a logger's may, are not: nobody waits for them."""
    daemon = "setsid sh -c 'touch up; sleep 600' & until [ -e up ]; do sleep 0.05; done"
    end = bench.run("sh", "-c", f"sleep 600 & sleep 600 & {daemon}", stderr=QUIET)
    assert (end["code"], end["background"]) == (0, 2)
    assert bench.run("sh", "-c", "sleep 0 & wait", attempt=2)["background"] == 0


def test_helpers_have_a_moment_to_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(process_tree.time, "monotonic", lambda: now)
    monkeypatch.setattr(process_tree, "send", lambda *_: None)
    tree = process_tree.Tree(0, None)
    monkeypatch.setattr(tree, "everyone", lambda: {os.getpid(): 0})
    tree.status = 0
    tree._end_rest()
    assert tree.press() == process_tree.HELPERS_END_S
    now += process_tree.HELPERS_END_S / 2
    tree._end_rest()
    assert tree.press() == process_tree.HELPERS_END_S / 2, "still none was told to end"
    now += process_tree.HELPERS_END_S / 2
    tree._end_rest()
    assert tree.press() == process_tree.LEFTOVER_GRACE_S


def test_a_whole_tree_of_stubborn_processes_is_killed(bench: Bench) -> None:
    program = f'for i in 1 2 3; do setsid sh -c "{STUBBORN}" & done; {STUBBORN}'.replace(
        "$$; while", "\\$\\$; while", 1
    )
    job = bench.launch(bench.job("sh", "-c", program))
    until(lambda: len(bench.lines()) == 4, "all four to speak")
    bench.launcher.stop(job, 0.0)
    bench.ended(job)
    assert all(is_gone(int(pid)) for pid in bench.lines())


def test_a_process_that_keeps_forking_is_killed(bench: Bench) -> None:
    program = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
    )
    job = bench.launch(bench.job(sys.executable, "-c", program))
    until(bench.lines, "the job to speak")
    bench.launcher.stop(job, 0.0)
    bench.ended(job)


def test_a_signal_reaches_those_that_catch_it(bench: Bench) -> None:
    """The job script's shell does not catch it, and would die of it."""
    python = (
        "import signal, sys\n"
        "signal.signal(signal.SIGUSR2, lambda *_: (print('caught'), sys.exit(0)))\n"
        "print('up\\n', end='')\n"  # at once: a job's output is not buffered
        "signal.pause()\n"
    )
    script = f'{shlex.quote(sys.executable)} -c "$0"; echo "then $?"; exit 4'
    job = bench.launch(bench.job("bash", "-c", script, python))
    until(bench.lines, "the job to speak")
    assert bench.launcher.signal(job, signal.SIGUSR2)
    assert bench.ended(job)["code"] == 4
    assert bench.lines() == ["up", "caught", "then 0"]


def test_a_signal_that_nobody_catches_reaches_everyone(bench: Bench) -> None:
    job = bench.launch(bench.job("sh", "-c", "echo up; sleep 60; true"))
    until(bench.lines, "the job to speak")
    assert bench.launcher.signal(job, signal.SIGUSR1)
    end = bench.ended(job)
    assert (end["signal"], end["stopped"]) == (signal.SIGUSR1, False)


def test_nonsense_on_the_control_fifo_changes_nothing(bench: Bench) -> None:
    job = bench.launch(bench.job("sh", "-c", "echo up; sleep 0.5; exit 6"))
    until(bench.lines, "the job to speak")
    control = bench.directory(job) / supervisor.CONTROL
    control.write_bytes(b"stop\nstop soon\nsignal -1\nsignal 99\n\xff\0\n\nst")
    assert bench.ended(job)["code"] == 6


def test_a_stop_before_the_start_is_not_lost(bench: Bench) -> None:
    job = bench.launch(bench.job("sleep", "600"))  # it may have started by then
    bench.launcher.stop(job, 0.0)
    end = bench.ended(job)
    assert end["stopped"]
    assert end["signal"] or end["code"] == 0


def test_sigterm_to_the_supervisor_ends_the_job_with_grace(bench: Bench) -> None:
    job = bench.launch(bench.job("sh", "-c", STUBBORN))
    until(bench.lines, "the job to speak")
    pid = bench.started(job)["pid"]
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(pid, signum)
    end = bench.ended(job)
    assert (end["signal"], end["stopped"], end["interrupted"]) == (signal.SIGKILL, False, True)


def test_an_attempt_is_started_once_however_many_supervisors_race(bench: Bench) -> None:
    job = bench.job("sh", "-c", "echo ran; sleep 0.2")
    directory = bench.directory(job)
    bench.launch(job)
    program = supervisor.command(str(directory))
    racers = [subprocess.Popen(program) for _ in range(5)]
    for racer in racers:
        assert racer.wait(PATIENCE_S) == 0
    bench.ended(job)
    assert subprocess.run(program, check=False).returncode == 0  # nor after its end
    assert bench.lines() == ["ran"]


def test_an_attempt_whose_supervisor_was_killed_is_not_started_again(bench: Bench) -> None:
    job = bench.launch(bench.job("sh", "-c", "echo $$; exec sleep 600"))
    (pid,) = until(bench.lines, "the job to speak")
    os.kill(bench.started(job)["pid"], signal.SIGKILL)
    until(lambda: is_gone(int(pid)), "the job to end with it")
    program = supervisor.command(str(bench.directory(job)))
    # The lock went with its holder; `started` is what stands in the way.
    assert subprocess.run(program, check=False, timeout=PATIENCE_S).returncode == 0
    assert bench.lines() == [pid]
    assert not (bench.directory(job) / supervisor.EXIT).exists()


def test_the_exit_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = iter([OSError(28, "No space left on device")] * 2)
    naps: list[float] = []

    def write(name: str, data: bytes) -> None:
        for error in full:
            raise error
        (tmp_path / name).write_bytes(data)

    monkeypatch.setattr(supervisor, "write_durably", write)
    monkeypatch.setattr(supervisor.time, "sleep", naps.append)
    supervisor.keep("exit", b"{}")
    assert (tmp_path / "exit").read_bytes() == b"{}"
    assert naps == [1.0, 1.0]


@as_root
def test_a_job_runs_as_its_user_and_nothing_more(nobody: tuple[Bench, pwd.struct_passwd]) -> None:
    bench, user = nobody
    show = (
        "import os, json; print(json.dumps([os.getresuid(), os.getresgid(), os.getgroups(),"
        " os.environ['HOME'], os.environ['USER']]))"
    )
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or "python3"
    end = bench.run(python, "-c", show, **identity(user))
    assert end["error"] == ""
    uids, gids, groups, home, name = json.loads("".join(bench.lines()))
    assert uids == [user.pw_uid] * 3
    assert gids == [user.pw_gid] * 3
    assert groups == os.getgrouplist(user.pw_name, user.pw_gid)
    assert (home, name) == (user.pw_dir, "nobody")
    assert (bench.cwd / "carma-1.out").stat().st_uid == user.pw_uid


@as_root
def test_logs_are_opened_with_the_users_rights(nobody: tuple[Bench, pwd.struct_passwd]) -> None:
    bench, user = nobody
    secret = bench.state / "secret"
    secret.write_text("root's own\n")
    secret.chmod(0o600)
    (bench.cwd / "link").symlink_to(secret)
    end = bench.run("echo", "overwritten", stdout="link", **identity(user))
    assert "cannot open the log file" in end["error"]
    assert "Permission denied" in end["error"]
    assert secret.read_text() == "root's own\n"


@as_root
def test_the_tail_is_read_with_the_users_rights(nobody: tuple[Bench, pwd.struct_passwd]) -> None:
    bench, user = nobody
    secret = bench.state / "secret"
    secret.write_text("root's own\n")
    secret.chmod(0o600)
    swap = f"echo mine; rm carma-1.out; ln -s {secret} carma-1.out"
    job = bench.launch(bench.job("sh", "-c", swap, **identity(user)))
    end = bench.ended(job)
    assert (end["code"], end["error"]) == (0, "")
    assert (bench.directory(job) / supervisor.TAIL).read_text() == "mine\n"


@as_root
def test_a_working_directory_the_user_may_not_enter(
    nobody: tuple[Bench, pwd.struct_passwd],
) -> None:
    bench, user = nobody
    bench.cwd.chmod(0o700)
    os.chown(bench.cwd, 0, 0)
    end = bench.run("true", **identity(user))
    assert "cannot enter the working directory" in end["error"]
    assert "Permission denied" in end["error"]


@as_root
def test_the_attempt_is_none_of_the_users_business(
    nobody: tuple[Bench, pwd.struct_passwd],
) -> None:
    bench, user = nobody
    look = f"ls {bench.state}/jobs; cat {bench.state}/jobs/1.1/launch; echo > {bench.state}/jobs/x"
    bench.run("sh", "-c", f"({look}) 2>&1 | grep -c 'ermission denied'", **identity(user))
    assert bench.lines() == ["3"]


@as_root
def test_a_unit_of_its_own_lets_the_kernel_kill_the_job(bench: Bench) -> None:
    """As under systemd: job and supervisor are in cgroups below the unit's, and the job is killed
    through its own."""
    with in_a_unit(bench, "sh", "-c", f"cat /proc/self/cgroup; {STUBBORN}") as (job, unit):
        until(lambda: bench.lines()[1:], "the job to speak")
        assert any(line.endswith(f"{unit.name}/job") for line in bench.lines())
        started = bench.started(job)
        assert (unit / "supervisors/cgroup.procs").read_text().split() == [str(started["pid"])]
        assert started["cgroup"] == str(unit)
        bench.launcher.stop(job, 0.0)
        assert bench.ended(job)["signal"] == signal.SIGKILL


@as_root
def test_a_cgroup_that_systemd_removed_before_the_job_was_in_it_is_made_again() -> None:
    """As when the fork server is killed while it starts a job."""
    code = "import sys; from carmad.attempt.cgroup import *; enter(*eval(sys.argv[1])); input()"
    with a_cgroup() as group:
        own = group / "carma-job-1-1"
        asked = str(own), {"cgroup.max.depth": "7"}
        command = [sys.executable, "-c", code, repr(asked)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as job:
            until(lambda: own.exists() and (own / "cgroup.procs").read_text(), "it to be entered")
            assert (own / "cgroup.procs").read_text().split() == [str(job.pid)]
            assert (own / "cgroup.max.depth").read_text().split() == ["7"]


@as_root
def test_files_in_memory_end_the_job_and_not_its_supervisor(bench: Bench) -> None:
    file = f"/dev/shm/carma-test-{os.getpid()}"
    fill = f"until [ -e go ]; do sleep 0.05; done; exec dd if=/dev/zero of={file} bs=1M count=500"
    try:
        with in_a_unit(bench, "sh", "-c", fill, host_memory_mib=64) as (job, unit):
            bench.started(job)
            if not (unit / "job/memory.max").exists():
                pytest.skip("cgroup v2 has no memory controller here")
            assert (unit / "job/memory.max").read_text().strip() == str(64 << 20)
            (bench.cwd / "go").touch()
            end = bench.ended(job)
    finally:
        Path(file).unlink(missing_ok=True)
    assert end["signal"] == signal.SIGKILL
    assert min(end["host_oom_kills"], end["over_limit"]) >= 1
    assert 32 << 20 < end["shared_bytes"] <= 64 << 20


@as_root
def test_the_supervisor_is_the_last_to_be_killed_for_memory(bench: Bench) -> None:
    usual = Path(supervisor.OOM_SCORE).read_text().strip()
    lower = subprocess.run(["sh", "-c", f"echo -900 > {supervisor.OOM_SCORE}"], check=False)
    say = "cat /proc/self/oom_score_adj; until [ -e go ]; do sleep 0.05; done"
    job = bench.launch(bench.job("sh", "-c", say))
    (score,) = until(bench.lines, "the job to speak")
    supervisors = Path(f"/proc/{bench.started(job)['pid']}/oom_score_adj").read_text().strip()
    (bench.cwd / "go").touch()
    bench.ended(job)
    assert score == usual
    if lower.returncode != 0:
        pytest.skip("root may not lower a score here (CAP_SYS_RESOURCE)")
    assert supervisors == supervisor.KILLED_LAST.decode()


def test_what_waits_in_the_kernel_does_not_keep_the_attempt_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a dead file server, where not even SIGKILL helps. It is not the end of what can run."""
    tree = process_tree.Tree(1, None)
    stuck: set[int] = set()
    monkeypatch.setattr(process_tree, "KILLED_WITHIN_S", 0.0)
    monkeypatch.setattr(process_tree, "descendants", lambda _: {1: 5, 2: 6})
    monkeypatch.setattr(process_tree, "unkillable", stuck.__contains__)
    monkeypatch.setattr(process_tree.os, "waitpid", lambda *_: (0, 0))
    assert not tree.reap(), "nobody has killed it"
    monkeypatch.setattr(process_tree, "send", lambda *_: None)
    tree.end(0.0)
    assert not tree.reap()
    stuck.add(1)
    assert not tree.reap()
    stuck.add(2)
    assert tree.reap()
    assert (tree.status, tree.left) == (signal.SIGKILL, 2)


def test_a_container_s_engine_is_not_signalled_while_it_makes_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its conmon has become the supervisor's child before there is a program: killed there, it
    leaves a container that cannot start, and its volume."""
    main, conmon, program = 1, 2, 3
    pids = {main: None, conmon: None}
    asked: set[int] = set()
    tree = process_tree.Tree(main, None, contained=True)
    monkeypatch.setattr(process_tree, "descendants", lambda _: dict.fromkeys(pids, 5))
    monkeypatch.setattr(process_tree, "pid_in_container", pids.get)
    monkeypatch.setattr(process_tree, "process_stat", lambda pid: (os.getpid(), 5))
    monkeypatch.setattr(process_tree, "send", lambda pid, *_: asked.add(pid))
    tree.end(30.0)
    assert asked == {main}
    asked.clear()
    pids[program] = 2  # in its container
    tree.signal(signal.SIGUSR1)
    assert asked == {program}
    del pids[program]
    tree.status = 0
    tree.press()
    assert asked == {program, main, conmon}, "what is left of the engine once main has ended"


def test_a_process_is_unkillable_only_once_it_was_killed(bench: Bench) -> None:
    orphan = "import os, time; print(os.fork() or os._exit(0), flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", orphan], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        until(lambda: unkillable(child), "the child to be a zombie")
        assert not unkillable(parent.pid)
        parent.kill()
    assert unkillable(parent.pid), "it is gone"
