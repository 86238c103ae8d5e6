"""`carma run` and `carma shell` on a pseudo-terminal, with a real daemon on emulated GPUs."""

from __future__ import annotations

import ctypes
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from cli import app, interactive, main, verbs
from tests.api_server import as_uid
from tests.attack.users import HOSTILE, needs_root
from tests.daemon import CARMA, NO_KERNELS, Carmad, running, train, until
from tests.terminal import heed_signals
from tests.waiting import PATIENCE_S


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


class Terminal:
    """A command that leads a session on a terminal of its own; `said` is all that it shows."""

    def __init__(self, daemon: Carmad, *words: str, **env: str) -> None:
        self.said = ""
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            heed_signals()
            os.chdir(daemon.work)
            own = {"CARMA_SOCKET": daemon.socket, "PS1": "ready> ", "HOME": str(daemon.work)}
            os.execvpe(words[0], words, daemon.env | own | env)

    def types(self, text: str) -> None:
        os.write(self._end, text.encode())

    def read(self) -> str:
        while select.select([self._end], [], [], 0.02)[0]:
            try:
                more = os.read(self._end, 4096)
            except OSError:  # nobody has the other end any more
                break
            if not more:
                break
            self.said += more.decode(errors="replace")
        return self.said

    def shows(self, text: str) -> None:
        until(lambda: text in self.read(), f"{text!r}, not {self.said!r}")

    def ended(self) -> int:
        code = -1

        def over() -> bool:
            nonlocal code
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if pid else -1
            return pid != 0

        until(over, f"the end; so far {self.said!r}")
        return code

    def close(self) -> None:
        os.close(self._end)


def run(daemon: Carmad, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    """`carma run`, away from any terminal."""
    return subprocess.run(
        [*CARMA, "run", *words],
        env=daemon.env | {"CARMA_SOCKET": daemon.socket},
        cwd=daemon.work,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        **options,  # type: ignore[call-overload]
    )


def test_a_command_that_wants_no_gpu_runs_at_once(daemon: Carmad) -> None:
    done = run(daemon, "--gpus", "0", "sh", "-c", "echo gpus: $CUDA_VISIBLE_DEVICES; exit 3")
    assert (done.returncode, done.stdout) == (3, "gpus:\n")
    assert "runs on CPUs alone" in done.stderr
    assert daemon.ended(1)["exit"]["code"] == 3
    assert "/proc" not in daemon.carma("why", "1") + daemon.carma("show", "1"), "no file to read"
    assert "at its terminal" in daemon.carma("show", "1")


def test_a_warning_is_for_the_command_and_ends_no_wait(daemon: Carmad) -> None:
    """As Slurm's --signal=USR1@60, which goes to `carma run` as well."""
    alone = daemon.sh("exec sleep 1000", exclusive=True)
    daemon.supervisor(alone)
    script = "trap 'echo saved; exit 7' USR1; echo up; while :; do sleep 0.05; done"
    runs = subprocess.Popen(
        [*CARMA, "run", "sh", "-c", script],
        env=daemon.env | {"CARMA_SOCKET": daemon.socket},
        cwd=daemon.work,
        stdout=subprocess.PIPE,
        text=True,
    )
    until(lambda: daemon.call("GET", f"/v1/jobs/{alone + 1}")[0] == 200, "it to be in line")
    runs.send_signal(signal.SIGUSR1)
    daemon.cancel(alone)
    assert runs.stdout
    assert runs.stdout.readline() == "up\n"
    runs.send_signal(signal.SIGUSR1)
    assert runs.stdout.readline() == "saved\n"
    assert runs.wait(PATIENCE_S) == 7


@pytest.mark.parametrize("script", ["exec sleep 1000", "trap 'exit 130' INT; sleep 1000"])
def test_ctrl_c_cancels_the_job(daemon: Carmad, script: str) -> None:
    """It was FAILED, as if the program had a fault."""
    terminal = Terminal(daemon, *CARMA, "run", "sh", "-c", f"echo begun; {script}")
    try:
        terminal.shows("begun")
        terminal.types("\x03")
        assert terminal.ended() in (130, -signal.SIGINT)
    finally:
        terminal.close()
    until(lambda: daemon.job(1)["state"] == "cancelled", "its end")
    assert "interrupted with Ctrl-C" in daemon.carma("why", "1")


def test_a_choice_of_gpus_by_the_shell_is_not_ignored_in_silence(daemon: Carmad) -> None:
    daemon.env["CUDA_VISIBLE_DEVICES"] = "1"
    ran = run(daemon, "--", "sh", "-c", "echo gpus: $CUDA_VISIBLE_DEVICES")
    assert ran.stdout == "gpus: 0\n"
    assert "CUDA_VISIBLE_DEVICES=1 has no effect" in ran.stderr and "`--on 1`" in ran.stderr


def test_a_command_runs_here_and_its_end_is_the_jobs(daemon: Carmad) -> None:
    """Its streams and its environment are this process's, its GPU is CARMA's choice."""
    script = "read line; echo $line $SECRET_TOKEN $CUDA_VISIBLE_DEVICES $CARMA_JOB_ID; exit 7"
    daemon.env["SECRET_TOKEN"] = "kept"
    ran = run(daemon, "sh", "-c", script, input="hello\n")
    assert (ran.returncode, ran.stdout) == (7, "hello kept 0 1\n"), ran
    assert "job 1 runs on GPU 0" in ran.stderr
    job = daemon.job(1)
    assert (job["state"], job["exit"]["code"], job["interactive"]) == ("failed", 7, True)
    assert run(daemon, "-Q", "true").stderr == ""
    assert daemon.job(2)["state"] == "succeeded"
    assert run(daemon, "sh", "-c", "kill -9 $$").returncode == 137
    assert daemon.job(3)["exit"]["signal"] == 9
    assert run(daemon, "no-such-program").returncode == 127
    assert daemon.job(4)["state"] == "failed"
    assert not list((daemon.work).glob("carma-*.out"))
    assert "terminal" in daemon.carma("logs", "1", rc=1)
    assert "terminal" in daemon.carma("requeue", "1", rc=1)


def test_a_debugger_and_what_a_shell_starts_are_the_job(daemon: Carmad) -> None:
    """pdb prompts here; the GPU processes of a shell's children are known as the job's, also those
    that leave its session; all of it ends with the shell."""
    shell = Terminal(daemon, *CARMA, "shell", "--gpu-mem", "9G", SHELL="/bin/sh")
    shell.shows("ready> ")
    (daemon.work / "buggy.py").write_text("answer = 6 * 7\nbreakpoint()\n")
    shell.types(f"{shlex.quote(sys.executable)} buggy.py\n")
    shell.shows("(Pdb)")
    shell.types("p 'it is', answer\n")
    shell.shows("('it is', 42)")
    shell.types("q\n")
    words = shlex.join(train(memory_mib=3000, seconds=600, warmup=0))
    shell.types(f"setsid {words} >/dev/null 2>&1 &\n")

    def known() -> bool:
        (gpu,) = daemon.gpus()
        return bool(daemon.job(1)["memory"]["used_mib"]) and not gpu["outsiders"]

    until(known, "the process on the GPU to be known as the job's")
    assert daemon.job(1)["state"] in ("starting", "running")
    shell.types("exit 3\n")
    assert shell.ended() == 3
    assert daemon.ended(1)["exit"]["code"] == 3
    assert daemon.processes() == []
    assert daemon.job(1)["memory"]["peak_mib"] >= 700


def test_what_a_shell_took_last_time_is_not_kept_for_the_next(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", CARMA_ESTIMATOR="history", **NO_KERNELS) as daemon:
        words = shlex.join(train(memory_mib=3000, seconds=0.5, warmup=0))
        for id in (1, 2):
            shell = Terminal(daemon, *CARMA, "shell", SHELL="/bin/sh")
            shell.shows("ready> ")
            shell.types(f"{words}; exit\n")
            shell.ended()
            assert daemon.ended(id)["memory"]["estimate_mib"] is None
            assert daemon.job(id)["memory"]["peak_mib"] > 500


def test_who_waits_is_told_why_and_may_leave(daemon: Carmad) -> None:
    holds = daemon.sh("exec sleep 1000", exclusive=True)
    daemon.await_state(holds, "starting")
    waits = Terminal(daemon, *CARMA, "run", "echo", "here")
    waits.shows("place 1 in line")
    assert f"job {holds}" in waits.said
    waits.types("\x03")
    assert waits.ended() == 130
    assert daemon.ended(2)["state"] == "cancelled"
    again = Terminal(daemon, *CARMA, "run", "echo", "here")
    again.shows("place 1 in line")
    daemon.kill()
    daemon.start()
    daemon.cancel(holds)
    assert again.ended() == 0
    assert "here" in again.said


def test_a_job_at_a_terminal_is_stopped_from_elsewhere(daemon: Carmad) -> None:
    """A shell ignores SIGTERM there."""
    shell = Terminal(daemon, *CARMA, "shell", SHELL="/bin/sh")
    shell.shows("ready> ")
    daemon.cancel(1)
    shell.ended()
    assert daemon.ended(1)["state"] == "cancelled"
    limited = run(daemon, "-t", "0:01", "sleep", "1000")
    assert limited.returncode == 143
    assert "timed out" in limited.stderr
    assert daemon.ended(2)["state"] == "timed_out"


def test_a_job_at_a_terminal_goes_on_without_its_daemon(daemon: Carmad) -> None:
    job = Terminal(daemon, *CARMA, "run", "sh", "-c", "echo up; read line; exit 9")
    job.shows("up")
    daemon.kill()
    daemon.start()
    assert daemon.job(1)["state"] == "starting"
    assert len(daemon.gpus()[0]["jobs"]) == 1
    job.types("\n")
    assert job.ended() == 9
    assert daemon.ended(1)["exit"]["code"] == 9
    job = Terminal(daemon, *CARMA, "run", "sh", "-c", "echo up; read line; exit 9")
    job.shows("up")
    daemon.kill()
    job.types("\n")
    assert job.ended() == 9
    daemon.start()
    assert daemon.ended(2)["exit"]["code"] == 9


def test_a_terminal_that_closes_takes_its_job_along(daemon: Carmad) -> None:
    job = Terminal(daemon, *CARMA, "run", "sh", "-c", "echo up; sleep 1000")
    job.shows("up")
    job.close()
    assert daemon.ended(1)["exit"]["signal"] == signal.SIGHUP
    os.waitpid(job.pid, 0)


def test_gpus_that_nobody_takes_go_to_others(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", CARMA_INTERACTIVE__TAKE_S="0.2", **NO_KERNELS) as daemon:
        holds = daemon.sh("exec sleep 1000", exclusive=True)
        dead = Terminal(daemon, *CARMA, "run", "--exclusive", "echo", "never")
        dead.shows("place 1 in line")
        os.kill(dead.pid, signal.SIGKILL)
        dead.ended()
        after = daemon.sh("true")
        daemon.cancel(holds)
        job = daemon.ended(2)
        assert (job["state"], job["exit"]["cause"]) == ("cancelled", "cancelled")
        assert "nobody at its terminal took its GPUs" in job["exit"]["evidence"]
        assert daemon.ended(after)["state"] == "succeeded"


@needs_root
def test_only_a_process_of_the_jobs_user_can_take_it_and_root_can_end_that() -> None:
    nobody, other = HOSTILE[:2]
    folder = Path(tempfile.mkdtemp(prefix="carma-test-"))
    folder.chmod(0o755)
    try:
        with running(folder, "1xA100-40GB", **NO_KERNELS) as daemon:
            body = daemon.submission("sleep", "1000", interactive=True, cwd="/")
            assert as_uid(nobody, daemon.socket, "POST", "/v1/jobs", body)[0] == 201
            daemon.await_state(1, "starting")
            assert as_uid(other, daemon.socket, "POST", "/v1/jobs/1/take", {})[0] == 403
            assert daemon.call("POST", "/v1/jobs/1/take", {})[0] == 403
            pid = os.fork()
            if pid == 0:
                try:  # whatever happens, this copy of the test goes no further
                    os.setresgid(nobody, nobody, nobody)
                    os.setresuid(nobody, nobody, nobody)
                    _, taken = daemon.call("POST", "/v1/jobs/1/take", {})
                    env = {name: value for name, value in taken["env"].items() if value is not None}
                    os.execvpe("sleep", taken["argv"], env)
                finally:
                    os._exit(1)
            daemon.supervisor(1)
            status, out = as_uid(nobody, daemon.socket, "POST", "/v1/jobs/1/take", {})
            assert (status, "no GPUs to take" in out["error"]) == (400, True)
            daemon.cancel(1)
            ended = daemon.ended(1)
            assert (ended["state"], ended["exit"]["signal"]) == ("cancelled", signal.SIGTERM)
            assert os.waitpid(pid, 0)[1] == signal.SIGTERM
    finally:
        shutil.rmtree(folder)


def test_whose_client_is_killed_runs_on_and_is_followed(daemon: Carmad) -> None:
    """Only its exit code may be missed then."""
    script = "trap '' HUP; echo up; while [ ! -e go ]; do sleep 0.05; done; touch gone"
    job = Terminal(daemon, *CARMA, "run", "sh", "-c", script)
    job.shows("up")
    os.kill(job.pid, signal.SIGKILL)
    job.ended()
    assert daemon.job(1)["state"] == "starting"
    (daemon.work / "go").touch()
    exit = daemon.ended(1)["exit"]
    assert (daemon.work / "gone").exists()
    assert exit["code"] == 0 or "not known" in exit["evidence"]


def test_ctrl_z_and_fg_work_as_ever(daemon: Carmad) -> None:
    shell = Terminal(daemon, "/bin/bash", "--norc", "-i")
    shell.shows("ready> ")
    carma = " ".join(CARMA)
    shell.types(f"{carma} run sh -c 'echo up; read line; echo got $line'\n")
    shell.shows("\nup")
    shell.types("\x1a")
    shell.shows("Stopped")
    until(lambda: shell.read().count("ready> ") == 2, "the shell, which may not hear before")
    shell.types("echo in $((20 + 1))\n")
    shell.shows("in 21")
    shell.types("fg\n")
    shell.types("word\n")
    shell.shows("got word")
    shell.types("exit\n")
    shell.ended()
    assert daemon.ended(1)["state"] == "succeeded"


def test_what_is_ignored_is_named_as_by_submit(daemon: Carmad) -> None:
    ran = run(daemon, "--partition", "gpu", "--mail-type", "END", "true")
    assert ran.returncode == 0
    assert "ignored: --partition=gpu" in ran.stderr
    assert "--mail-type is ignored" in ran.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--array", "0-3", "true"], "use carma submit"),
        (["-o", "log", "true"], "redirect the output"),
        (["--requeue", "true"], "start it again"),
        (["-H", "true"], "use carma submit"),
        (["--param", "lr=1,2", "true"], "use carma submit"),
        ([], "see `carma run --help`"),
    ],
)
def test_what_makes_no_sense_here_is_refused_with_a_hint(
    daemon: Carmad, words: list[str], hint: str
) -> None:
    ran = run(daemon, *words, input="")
    assert ran.returncode == 2
    assert hint in ran.stderr


def test_what_is_to_run_once_is_never_run_again(daemon: Carmad) -> None:
    for job, words in enumerate(([], ["--no-requeue"]), 1):
        assert run(daemon, *words, "true", stdin=subprocess.DEVNULL).returncode == 0
        assert daemon.ended(job)["requeue"] is (not words)


def test_a_shell_in_a_running_job_has_its_gpus_and_ends_with_it(daemon: Carmad) -> None:
    """What runs there counts as the job's, whatever session it is in."""
    script = "export INSIDE=1; while [ ! -e go ]; do sleep 0.05; done; exit 4"
    id = daemon.sh(script, export={"GREETING": "hello"}, memory_mib=9000)
    daemon.supervisor(id)
    shell = Terminal(daemon, *CARMA, "attach", str(id), SHELL="/bin/sh", TERM="dumb")
    shell.shows("# " if os.geteuid() == 0 else "$ ")
    shell.types("echo [$GREETING $TERM $CUDA_VISIBLE_DEVICES]\n")
    shell.shows("[hello dumb 0]")
    shell.types(f"setsid {' '.join(train(memory_mib=3000, seconds=600, warmup=0))} &\n")
    until(lambda: daemon.job(id)["memory"]["used_mib"], "its memory")
    assert not daemon.gpus()[0]["outsiders"]
    (daemon.work / "go").touch()
    shell.ended()
    ended = daemon.ended(id)
    assert (ended["state"], ended["exit"]["code"]) == ("failed", 4)
    assert daemon.processes() == []


def test_a_command_in_a_running_job(daemon: Carmad) -> None:
    id = daemon.sh("exec sleep 1000", export={"GREETING": "hello"})
    daemon.supervisor(id)
    said = daemon.carma("attach", str(id), "--", "sh", "-c", "echo $GREETING; pwd; exit 3", rc=3)
    assert said.split() == ["hello", str(daemon.work)]
    assert "command not found" in daemon.carma("attach", "last", "no-such", rc=1)
    assert "missing argument" in daemon.carma("attach", rc=2)
    inside = Terminal(daemon, *CARMA, "attach", "1", "sleep", "1000")
    until(lambda: Path(f"/proc/{inside.pid}/comm").read_text() == "sleep\n", "it to join")
    daemon.cancel(id)
    assert inside.ended() == -signal.SIGTERM
    assert daemon.ended(id)["state"] == "cancelled"
    assert "is not running" in daemon.carma("attach", "1", "true", rc=1)


def test_an_idle_job_is_ended_and_its_terminal_told(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", CARMA_INTERACTIVE__IDLE_S="1", **NO_KERNELS) as daemon:
        ran = run(daemon, "sleep", "1000")
        assert ran.returncode == 143
        assert "it had not used its GPUs for" in ran.stderr
        assert "timed out" in ran.stderr


@needs_root
def test_away_from_a_terminal_it_is_run_again_for_any_user() -> None:
    """The supervisor reads why it failed as the user, from the memory of the user's process."""
    folder = Path(tempfile.mkdtemp(prefix="carma-test-"))
    folder.chmod(0o755)
    try:
        with running(folder, "1xA100-40GB", **NO_KERNELS) as daemon:
            daemon.work.chmod(0o777)
            beside = daemon.submit(*train(memory_mib=3000, seconds=600), memory_mib=3000)
            daemon.await_state(beside, "starting", "running")
            oom = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB"
            script = f"[ -e tried ] && exit 0; touch tried; echo '{oom}' >&2; exit 1"
            app.load(verbs.OWN["run"])  # that user may not read modules
            pid = os.fork()
            if pid == 0:
                _run_as(HOSTILE[0], daemon, "--gpu-mem", "3G", "--", "sh", "-c", script)
            until((daemon.work / "tried").exists, "the first attempt")
            daemon.cancel(beside)
            status = os.waitpid(pid, 0)[1]
            said = (daemon.work / "err").read_text()
            assert status == 0 and f"is run again: {oom}" in said, said
            job = daemon.ended(beside + 1)
            assert (job["attempt"], job["failures"][0]["cause"]) == (2, "gpu_oom")
    finally:
        shutil.rmtree(folder)


def _run_as(uid: int, daemon: Carmad, *words: str) -> NoReturn:
    """`carma run` in this process: the tests' Python may not be executable for that user."""
    code = 99
    try:
        os.chdir(daemon.work)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open("err", os.O_WRONLY | os.O_CREAT), 2)
        sys.stdin, sys.stderr = os.fdopen(0), os.fdopen(2, "w")
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as after an exec
        os.environ["CARMA_SOCKET"] = daemon.socket
        code = main.run(["run", *words])
    finally:
        os._exit(code)


def test_a_suspended_job_resumes_when_somebody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    typed, asked, said = [5.0], list[str](), list[str]()
    job = {"label": "7", "state": "suspended", "held": True, "notes": []}
    monkeypatch.setattr(interactive, "_typed_at", lambda: typed[0])
    monkeypatch.setattr(interactive.client, "get", lambda *_: job)
    monkeypatch.setattr(interactive.client, "post", lambda path, _: asked.append(path))
    news = interactive.News("7", [], said.append)
    assert news() == news() == interactive.USE_S and not asked, "an old key wakes nobody"
    typed[0] = 13.0
    news()
    assert asked == ["/v1/resume"]
    assert said == ["job 7 resumes, as you type, when there is a GPU for it"]
