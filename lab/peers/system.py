"""A queue on this machine, as its own programs are used; and how long a command of it takes."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import psutil

from benchmarks.daemon.carmad import memory_mb, plain_environment
from carmad.attempt.proc import own_environment

START_S = 30.0
STOP_S = 10.0
SHORT = ["/bin/sleep", "0"]
LONG = ["/bin/sleep", "3600"]


@dataclass(frozen=True, slots=True)
class Taken:
    """Of one process, with the children it waited for."""

    wall_ms: float
    cpu_ms: float


class Lacking(Exception):
    """The program has nothing for that."""


class System(ABC):
    """A context: its daemons run in it, in a folder of their own, and nothing is left of them."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]  # programs
    OPTIONS: ClassVar[Mapping[str, str]]  # of a submission: gpus, time, array, sweep
    # Commands: here (at the terminal), inside (a {job}; the command follows), limit (root to one
    # GPU), reserve (all GPUs for nobody), why (a {job} waits). One that it lacks is left out.
    COMMANDS: ClassVar[Mapping[str, str]]
    EXIT: ClassVar[str]  # a pattern of the exit code in what `show` prints

    def __init__(self, gpus: int = 0) -> None:
        """`gpus`: that are there, but compute nothing; 0: what the timings want."""
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
        return [
            process
            for process in psutil.process_iter()
            if own_environment(process.pid).get("HOME") == str(self.folder)
        ]

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
        """Of a submission. An option that the program does not know is its to refuse."""
        forms = ((self.OPTIONS[name], value) for name, value in wishes.items())
        return [word for form, value in forms for word in form.format(value).split()]

    def block(self) -> None:
        """Let what is submitted as `queued` wait."""
        self.submit(LONG)

    @abstractmethod
    def verbs(self) -> Mapping[str, list[str]]:
        """The commands by what they are for. {job}: a queued job, another each time."""

    def number(self, printed: str) -> str:
        """The job's id in what a submission printed."""
        return printed.split()[-1]

    def rss_mb(self) -> float:
        return sum(memory_mb(daemon.pid, "status", "VmRSS:") for daemon in self._daemons)

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
        """Jobs that wait."""
        return [self.submit(LONG, queued=True) for _ in range(count)]

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

    def started_ms(self) -> float:
        """From the submission to the first instruction of the job's program."""
        stamp = self.folder / "stamp"
        stamp.unlink(missing_ok=True)
        begun = time.time_ns()
        self.submit(["/bin/sh", "-c", f"date +%s%N > {stamp}"])
        wait_for(lambda: stamp.exists() and stamp.read_text().endswith("\n"), "the job's start")
        return (int(stamp.read_text()) - begun) / 1e6


def wait_for(holds: Callable[[], bool], what: str, within_s: float = START_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: nothing in {within_s:g} s")
        time.sleep(0.02)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(STOP_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
