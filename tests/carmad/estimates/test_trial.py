"""Trials as a job's user: their results, time limits, and that nothing is left."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carma_testing import a_spec
from carmad.attempt.launcher import Copies
from carmad.core.jobs.spec import JobSpec, Script
from carmad.core.ports import Trial
from carmad.estimates import attendant
from carmad.estimates import experience as trial_module
from carmad.estimates.attendant import NICE
from carmad.estimates.experience import MOST_ANSWER_BYTES, TAIL_BYTES, try_program
from tests.waiting import PATIENCE_S, until

ROOT = os.geteuid() == 0
ENOUGH_S = PATIENCE_S


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that any user may write to."""
    with tempfile.TemporaryDirectory(prefix="carma-trial-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def mine(cwd: Path | str = "/", **changes: object) -> JobSpec:
    me = pwd.getpwuid(os.getuid())
    return a_spec(user=me.pw_name, uid=me.pw_uid, gid=me.pw_gid, cwd=str(cwd), **changes)


def never() -> bool:
    return False


def bash(words: str, spec: JobSpec | None = None, within_s: float = ENOUGH_S) -> Trial:
    return try_program(spec or mine(), ("bash", "-c", words), within_s, never)


def python(words: str, within_s: float = ENOUGH_S) -> Trial:
    return try_program(mine(), (sys.executable, "-c", words), within_s, never)


def late(words: str) -> Trial:
    """Of what says `begun` and then goes on for ever: with enough time to begin, which a busy
    machine may take long for."""
    for within_s in (0.5, 5.0, ENOUGH_S):
        if "begun" in (done := bash(words, within_s=within_s)).output:
            break
    return done


def test_a_job_script_is_tried_as_it_was_submitted(folder: Path) -> None:
    """And told of as if the original had been."""
    other = pwd.getpwnam("nobody") if ROOT else pwd.getpwuid(os.getuid())
    (folder / "job.sh").write_text("exit 9")
    path = str(folder / "job.sh")
    script = Script("", 0, 1, 'echo "{\\"at\\": \\"$0\\"}" >&3; echo "$0: cannot"; exit 3')
    words = {"uid": other.pw_uid, "gid": other.pw_gid, "user": other.pw_name}
    spec = replace(mine(folder, argv=("sh", path), script=script), **words)
    copies = Copies(folder / "scripts")
    done = try_program(spec, ("sh", path), ENOUGH_S, never, copies=copies)
    assert (done.code, json.loads(done.answer)) == (3, {"at": path}), done
    assert done.output == f"{path}: cannot\n"
    assert not list((folder / "scripts").iterdir())


def gone(pid_file: Path) -> bool:
    """Whether the process that wrote its id there has ended; an orphaned zombie has."""
    return not Path(f"/proc/{pid_file.read_text().strip()}").exists()


def test_what_it_answers_prints_and_ends_with() -> None:
    done = bash("echo out; echo err >&2; echo answer >&3; exit 3")
    assert done == Trial(b"answer\n", "out\nerr\n", code=3)
    assert bash("kill -9 $$") == Trial(b"", "", signal=9)


def test_it_has_the_jobs_directory_and_environment_and_no_gpu(folder: Path) -> None:
    spec = mine(folder, env=(("MINE", "1"),), memory_mib=9)
    words = 'echo "$PWD $MINE [$CUDA_VISIBLE_DEVICES] $CUDA_DEVICE_ORDER"; pwd; read -r line; nice'
    done = bash(words, spec)
    nice = min(19, os.nice(0) + NICE)
    assert done.output == f"{folder} 1 [] PCI_BUS_ID\n{folder}\n{nice}\n"
    assert not os.environ.get("MINE")


def test_a_daemon_of_low_priority_can_try_a_program() -> None:
    """With `nice -n 19 carma daemon start`, for one: without root, no process raises its own."""
    words = f"import os; os.nice(15); from {__name__} import bash; print(bash('nice'))"
    repository = Path(__file__).parents[3]
    command = [sys.executable, "-c", words]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=repository)
    assert shown.stdout == repr(Trial(b"", "19\n", code=0)) + "\n", shown.stderr


def test_its_files_are_made_as_its_owners_umask_says() -> None:
    assert bash("umask", mine(umask=0o027)).output == "0027\n"


def test_it_has_no_other_file_than_it_should() -> None:
    held = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        done = bash("exec ls /proc/self/fd")  # and the one that ls reads it by
    finally:
        os.close(held)
    assert done.output.split() == ["0", "1", "2", "3", "4"]


@pytest.mark.skipif(not ROOT, reason="becomes another user")
def test_it_is_the_jobs_user() -> None:
    them = pwd.getpwnam("nobody")
    spec = a_spec(user="nobody", uid=them.pw_uid, gid=them.pw_gid, cwd="/")
    done = bash("id -u; id -g; id -G; echo $HOME; echo fine >&3", spec)
    groups = " ".join(map(str, os.getgrouplist("nobody", them.pw_gid)))
    assert done.output.splitlines() == [
        str(them.pw_uid),
        str(them.pw_gid),
        groups,
        them.pw_dir,
    ]
    assert done.answer == b"fine\n"


def test_a_user_that_the_daemon_cannot_become(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    done = bash("true", a_spec(user="ada", uid=1000))
    assert done == Trial(b"", "", error="this daemon cannot run jobs as ada")


@pytest.mark.parametrize(
    ("spec", "argv", "why"),
    [
        (mine("/nonexistent"), ("true",), "cannot enter the working directory /nonexistent"),
        (mine(), ("no-such-program",), "cannot run no-such-program: command not found"),
        (mine(), ("a\0b",), "a NUL character"),
        (mine(), (), "no command"),
        (mine(conda_env="none", env=(("CONDA_EXE", "/none"),)), ("true",), "conda was not found"),
    ],
)
def test_why_it_could_not_be_started(spec: JobSpec, argv: tuple[str, ...], why: str) -> None:
    done = try_program(spec, argv, ENOUGH_S, never)
    assert why in done.error and "\n" not in done.error
    assert (done.answer, done.code, done.signal, done.timed_out) == (b"", None, None, False)


def test_what_is_late_is_killed_even_if_it_does_not_want_to() -> None:
    done = late("trap '' TERM INT; echo begun; while :; do sleep 1000; done")
    assert done == Trial(b"", "begun\n", timed_out=True)


DAEMON = """
import os, signal, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for fd in range(3): os.close(fd)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(10000)
"""


def a_daemon(pid_file: Path) -> str:
    """A bash command that starts a process detached by two forks, and waits for it."""
    started = f"{shlex.quote(sys.executable)} -c '{DAEMON}' {pid_file}"
    return f"{started}; until [ -s {pid_file} ]; do sleep 0.01; done"


def test_a_daemon_that_it_leaves_behind_is_killed(folder: Path) -> None:
    done = bash(a_daemon(folder / "pid"))
    assert (done.code, done.timed_out) == (0, False)
    assert gone(folder / "pid")


def test_a_daemon_that_it_started_is_killed_at_the_deadline(folder: Path) -> None:
    done = late(f"{a_daemon(folder / 'pid')}; echo begun; sleep 10000")
    assert done.timed_out
    until(lambda: gone(folder / "pid"))


def test_what_outlives_it_may_tidy_up(folder: Path) -> None:
    """As a process that removes its scratch files."""
    (folder / "scratch").touch()
    (folder / "watch").write_text(
        f"trap '' TERM; echo begun; while kill -0 $PPID; do sleep 0.01; done; rm {folder}/scratch"
    )
    done = late(f"bash {folder}/watch & trap '' TERM; sleep 10000")
    assert done.timed_out
    until(lambda: not (folder / "scratch").exists(), "it to tidy up")


def test_megabytes_of_output_are_drained_and_their_end_is_kept() -> None:
    done = bash("yes | head -c 20000000; echo the end")
    assert done.code == 0
    assert len(done.output) == TAIL_BYTES
    assert done.output.endswith("y\nthe end\n")


def test_output_that_is_no_text() -> None:
    assert bash(r"printf '\377ok'").output == "\ufffdok"


def test_an_answer_of_the_largest_size_and_one_over_it() -> None:
    words = "import os, sys; f = os.fdopen(3, 'wb'); f.write(b'x' * {}); f.close()"
    assert len(python(words.format(MOST_ANSWER_BYTES)).answer) == MOST_ANSWER_BYTES
    done = python(words.format(MOST_ANSWER_BYTES + (1 << 20)))
    assert done.answer == b""
    assert "exceeded 8 MiB" in done.error


def test_one_that_closes_everything_is_awaited_all_the_same(folder: Path) -> None:
    done = bash(f"exec 0<&- 1>&- 2>&- 3>&-; sleep 0.2; touch {folder}/done; exit 5")
    assert done == Trial(b"", "", code=5)
    assert (folder / "done").exists()


def test_one_that_nobody_waits_for_is_ended(folder: Path) -> None:
    words = f"echo $$ > {folder}/new; mv {folder}/new {folder}/pid; exec sleep 10000"
    done = try_program(mine(), ("bash", "-c", words), 3600.0, (folder / "pid").exists)
    assert done.error == "nobody waits for it any more"
    until(lambda: gone(folder / "pid"))


def test_one_that_nobody_waits_for_is_not_begun(folder: Path) -> None:
    done = try_program(mine(), ("touch", f"{folder}/begun"), ENOUGH_S, lambda: True)
    assert done.error == "nobody waits for it any more"
    assert not any(folder.iterdir())


def test_an_attendant_that_is_late_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(trial_module, "GRACE_S", 0.0)
    monkeypatch.setattr(trial_module, "KILLED_WITHIN_S", 0.1)
    begun = attended_by(monkeypatch, "sleep", "600")
    assert bash("true", within_s=0.1).timed_out
    assert begun[0].poll() is None
    begun[0].kill()
    begun[0].wait()


def test_an_attendant_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    attended_by(monkeypatch, sys.executable, "-c", "raise AttributeError('broken')")
    assert bash("true").error == "the trial failed: AttributeError: broken"
    attended_by(monkeypatch, "/no/such/python")
    assert "cannot start a process: No such file" in bash("true").error


def attended_by(monkeypatch: pytest.MonkeyPatch, *argv: str) -> list[subprocess.Popen[bytes]]:
    """Have this run instead of the attendant. Returns what was begun so."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(_: object, **how: Any) -> subprocess.Popen[bytes]:
        begun.append(Popen(argv, **how))
        return begun[-1]

    Popen = subprocess.Popen
    stand_in = SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(trial_module, "subprocess", stand_in)
    return begun


@pytest.mark.skipif(not ROOT, reason="has it to itself as root only")
def test_what_it_leaves_in_shared_memory_goes_with_it() -> None:
    """And it cannot access what is there."""
    name = f"carma-test-{os.getpid()}"
    mine_there = Path("/dev/shm") / f"{name}-mine"
    mine_there.touch()
    try:
        done = bash(f"ls /dev/shm; echo x > /dev/shm/{name}; cat /dev/shm/{name}")
        assert (done.code, done.output) == (0, "x\n")
        assert not (Path("/dev/shm") / name).exists()
    finally:
        mine_there.unlink()


def test_what_it_takes_with_all_that_it_started() -> None:
    """A single process is limited individually, several by their total."""
    one = "dd if=/dev/zero of=/dev/null bs={}M count=1000000"
    alone = try_program(mine(), ("bash", "-c", one.format(300)), ENOUGH_S, never, 200)
    assert alone.code or alone.beyond
    words = " & ".join([one.format(120)] * 3) + " & wait"
    together = try_program(mine(), ("bash", "-c", words), ENOUGH_S, never, 200)
    assert together.beyond == "it used more than 200 MiB of memory, with all that it started"
    assert try_program(mine(), ("bash", "-c", one.format(120)), 1.0, never, 200).timed_out


def test_what_is_shared_counts_once() -> None:
    """As after a fork, like a data loader's workers."""
    words = (
        "import os, time; data = bytearray(120 << 20); pids = [os.fork() for _ in range(3)];"
        "time.sleep(1); 0 in pids or os.waitpid(pids[0], 0)"
    )
    done = try_program(mine(), (sys.executable, "-c", words), ENOUGH_S, never, 300)
    assert (done.code, done.beyond) == (0, "")


def test_a_trial_that_is_about_to_begin_keeps_its_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no process yet when another trial cleans up after earlier ones."""
    monkeypatch.setattr(attendant, "write_file", lambda path, data: None)
    monkeypatch.setattr(attendant, "tell_kernel", lambda path, data: None)
    left = tmp_path / "trial-9"
    left.mkdir()
    first = attendant.make_cgroup(str(tmp_path), "1", 1 << 20)
    second = attendant.make_cgroup(str(tmp_path), "2", 1 << 20)
    assert first and second
    assert sorted(map(str, tmp_path.iterdir())) == [first, second]
    attendant.remove_cgroup(first)
    attendant.remove_cgroup(second)
    assert not list(tmp_path.iterdir())
