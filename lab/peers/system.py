"""A queue on this machine, as its own programs are used; and how long a command of it takes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import psutil

from benchmarks.daemon.carmad import memory_mb, plain_environment
from carmad.attempt.proc import own_environment

START_S = 30.0
STOP_S = 10.0
LOOK_S = 0.005
SHORT = ["/bin/sleep", "0"]
LONG = ["/bin/sleep", "3600"]
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Taken:
    """Of one process, with the children it waited for."""

    wall_ms: float
    cpu_ms: float


class Lacking(Exception):
    """The program has nothing for that."""


class System(ABC):
    """A context: its daemons run in it, in a folder of their own, and nothing is left of them."""

    name: ClassVar[str]  # and, after a comma, what is not its default
    needs: ClassVar[tuple[str, ...]]  # programs
    VERSION: ClassVar[tuple[str, ...]]  # the command that prints it
    tuned: ClassVar[bool] = False  # differs from another only in how it starts jobs
    folds: ClassVar[bool] = True  # lists an array in another way than as many jobs
    OPTIONS: ClassVar[Mapping[str, str]]  # of a submission: gpus, time, array, sweep, kind
    # Commands: here (at the terminal), inside (a {job}; the command follows), limit (root to one
    # GPU), reserve (all GPUs for nobody), why (a {job} waits), cron (a crontab in {file}), allow
    # (nobody to book), book (by nobody), past (failed jobs named {word}). One that it lacks is left
    # out.
    COMMANDS: ClassVar[Mapping[str, str]]
    EXIT: ClassVar[str]  # a pattern of the exit code in what `show` prints

    def __init__(self, gpus: int) -> None:
        """`gpus`: that are there, but compute nothing."""
        self.gpus = gpus
        self.folder = Path(tempfile.mkdtemp(prefix="carma-peers-"))
        self.folder.chmod(0o755)
        self.out = self.folder / "out"  # of the jobs of all users
        self.out.mkdir()
        self.out.chmod(0o1777)
        self.env = plain_environment() | self._user(pwd.getpwuid(os.getuid()).pw_name)
        self.start_s = 0.0  # until the daemon answered
        self._daemons: list[subprocess.Popen[bytes]] = []

    @classmethod
    def missing(cls) -> str:
        """The program that is not installed; "" if all are."""
        return next((program for program in cls.needs if shutil.which(program) is None), "")

    @classmethod
    def title(cls) -> str:
        """Its name with its version."""
        found = subprocess.run(cls.VERSION, capture_output=True, text=True, check=True).stdout
        version = re.search(r"\d+(\.\d+)+", found)
        name, comma, variant = cls.name.partition(",")
        return f"{name} {version[0] if version else '?'}{comma}{variant}"

    def __enter__(self) -> Self:
        try:
            begun = time.monotonic()
            self.start()
            self.start_s = time.monotonic() - begun
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            for daemon in reversed(self._daemons):
                _end(daemon)
            left = self.processes()
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=STOP_S)
            shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self) -> list[psutil.Process]:
        """Its daemons, and whatever was started by them or by its commands."""
        every = {process.pid: process for process in psutil.process_iter(["ppid"])}
        its = {pid for pid in every if self.owns(pid)}
        while more := {pid for pid, each in every.items() if each.info["ppid"] in its} - its:
            its |= more
        return [every[pid] for pid in its]

    def owns(self, pid: int) -> bool:
        """The parent of such a process, or its parent, may be all that shows it."""
        return own_environment(pid).get("HOME") == str(self.folder)

    @abstractmethod
    def start(self) -> None:
        """Returns when it answers."""

    def stop(self) -> None:  # noqa: B027 - most need nothing but the end of their processes
        """End its jobs in its own way."""

    @abstractmethod
    def submission(
        self, command: list[str], queued: bool = False, options: Sequence[str] = ()
    ) -> list[str]:
        """`queued`: it must wait for something that does not come."""

    def options(self, **wishes: object) -> list[str]:
        """Of a submission. An option that the program does not know is its to refuse. Raises
        Lacking if there is none even by its documentation."""
        if lacking := wishes.keys() - self.OPTIONS.keys():
            raise Lacking(f"it has no option for that ({', '.join(lacking)})")
        forms = ((self.OPTIONS[name], value) for name, value in wishes.items())
        return [word for form, value in forms for word in form.format(value).split()]

    def block(self) -> None:
        """Let what is submitted as `queued` wait."""
        for _ in range(self.gpus):
            self.submit(LONG, options=self.options(gpus=1))

    @abstractmethod
    def verbs(self) -> Mapping[str, list[str]]:
        """The commands by what they are for. {job}: a queued job, another each time."""

    def number(self, printed: str) -> str:
        """The job's id in what a submission printed."""
        return printed.split()[-1]

    def pss_mb(self) -> float:
        """Of all its processes; memory that processes share counts in parts."""
        total = 0.0
        for process in self.processes():
            with contextlib.suppress(OSError, ValueError):  # it has ended
                total += memory_mb(process.pid, "smaps_rollup", "Pss:")
        return total

    def cpu_s(self) -> float:
        """Processor time of all its processes so far; also of all that this process waited for."""
        daemons = [daemon.pid for daemon in self._daemons]
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if child.status() == psutil.STATUS_ZOMBIE and child.pid not in daemons:
                    os.waitpid(child.pid, os.WNOHANG)
        waited = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = waited.ru_utime + waited.ru_stime
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    # -- for all of them

    def daemon(self, *words: str) -> None:
        log = (self.folder / f"{Path(words[0]).name}.log").open("ab")
        self._daemons.append(
            subprocess.Popen(
                words,
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )

    def restart(self, *words: str) -> None:
        """That daemon, after SIGKILL."""
        killed = next(one for one in self._daemons if one.args == words)
        killed.kill()
        killed.wait()
        self._daemons.remove(killed)
        self.daemon(*words)

    def answers(self, *words: str, within_s: float = START_S) -> None:
        """Wait until the command succeeds."""

        def tried() -> bool:
            found = subprocess.run(words, env=self.env, capture_output=True, check=False)
            return found.returncode == 0

        wait_for(tried, f"{self.name}: {words[0]}", within_s)

    def submit(self, command: list[str], queued: bool = False, options: Sequence[str] = ()) -> str:
        return self.number(self.says(self.submission(command, queued, options)))

    def says(self, words: Sequence[str], **more: Any) -> str:
        """What a command prints. Raises CalledProcessError."""
        found = subprocess.run(
            words,
            env=self.env | more.pop("env", {}),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=START_S,
            **more,
        )
        return found.stdout

    def command(self, name: str, **blanks: str) -> list[str]:
        """Raises Lacking."""
        if name not in self.COMMANDS:
            raise Lacking("no such command")
        return [word.format(**blanks) for word in shlex.split(self.COMMANDS[name])]

    def exit_code(self, job: str) -> int | None:
        """None: it does not tell."""
        try:
            shown = self.says([word.replace("{job}", job) for word in self.verbs()["show"]])
        except subprocess.CalledProcessError:
            return None
        found = re.search(self.EXIT, shown)
        return int(found[1]) if found else None

    def says_to(self, user: str, words: list[str]) -> str:
        """The same, of a command of another user's; only root can."""
        entry = pwd.getpwnam(user)
        its = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        return self.says(words, env=self._user(user), **its)

    def _user(self, name: str) -> dict[str, str]:
        return {"HOME": str(self.folder), "USER": name, "LOGNAME": name}

    @abstractmethod
    def crash(self) -> None:
        """Kill the daemon that keeps the queue, and start it again."""

    def fill(self, count: int) -> list[str]:
        """Jobs that wait, each with another command."""
        with ThreadPoolExecutor(4) as pool:
            words = ([LONG[0], f"{3600 + n}"] for n in range(count))
            return list(pool.map(lambda command: self.submit(command, queued=True), words))

    def fill_array(self, count: int) -> list[str]:
        """Jobs that wait, as tasks of one array; the ids by which all can be cancelled."""
        return [self.submit(LONG, queued=True, options=self.options(array=f"1-{count}"))]

    def clear(self, jobs: Sequence[str]) -> None:
        """Cancel what waits."""
        words = [word for word in self.verbs()["cancel"] if word != "{job}"]
        with contextlib.suppress(subprocess.CalledProcessError):  # some were cancelled before
            self.run([*words, *jobs])

    def submit_many(self, command: list[str], count: int) -> float:
        """At once, as it does that best, of one GPU each; the processor time of its client."""
        options = self.options(gpus=1, array=f"1-{count}")
        return self.run(self.submission(command, options=options)).cpu_ms

    def run(self, words: list[str]) -> Taken:
        """Raises CalledProcessError."""
        begun = time.perf_counter()
        with subprocess.Popen(
            words,
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words)
        wall_ms = (time.perf_counter() - begun) * 1000
        return Taken(wall_ms, (used.ru_utime + used.ru_stime) * 1000)

    def started_ms(self, python: bool) -> float:
        """From the submission to the first instruction of the job's program, in Python or sh."""
        stamp = self.folder / "stamp"
        stamp.unlink(missing_ok=True)
        script = self.folder / "t.py"
        script.write_text(
            f"import time\nopen({str(stamp)!r}, 'w').write(f'{{time.time_ns()}}\\n')\n"
        )
        shell = ["/bin/sh", "-c", f"date +%s%N > {stamp}"]
        command = [sys.executable, str(script)] if python else shell
        begun = time.time_ns()
        self.submit(command, options=self.plain())
        wait_for(lambda: stamp.exists() and stamp.read_text().endswith("\n"), "the job's start")
        return (int(stamp.read_text()) - begun) / 1e6

    def plain(self) -> list[str]:
        """The options of a job of one GPU that has no wishes."""
        return self.options(gpus=1)

    def slot(self) -> list[str]:
        """The options of one of many short jobs."""
        return self.options(gpus=1)


def adopt() -> None:
    """Become the parent of orphans: of whatever a system's processes leave behind."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def python_ms() -> float:
    """The unit of all times: the start of the interpreter that CARMA and the jobs use."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=plain_environment(), check=True)
    return (time.perf_counter() - begun) * 1000


def wait_for(holds: Callable[[], bool], what: str, within_s: float = START_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: nothing in {within_s:g} s")
        time.sleep(LOOK_S)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(STOP_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
