"""The besieged machine: who is there, what they start, and what is watched meanwhile."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.daemon.booted import OVER, SOCKET, Machine, boot
from benchmarks.daemon.siege import honest, stuck
from benchmarks.harness import PATIENCE_S, until
from carma_client import Problem
from carma_client.transport import Daemon
from carmad.attempt import exits

HONEST, HOSTILE = "ada", ("bob", "eve", "mal")
USERS = {name: 61_001 + n for n, name in enumerate((HONEST, *HOSTILE))}
SETTINGS = {
    "CARMA_MONITOR__PERIOD_S": "0.5",
    "CARMA_MONITOR__WINDOW_S": "1",
    "CARMA_MONITOR__FIRST_KERNEL_TIMEOUT_S": "0.2",  # the jobs are shell scripts
    "CARMA_LIMITS__KILL_GRACE_S": "1",
    "CARMA_RETENTION__BACKUPS": "0",
    "CARMA_HOST__CPUS": "1000",  # jobs without a GPU count one each, and none is to wait for that
}
STATE = "/var/lib/carma"
CARDS = f"{STATE}/emulated"
LOOK_S = 0.5
ANSWERED_WITHIN_S = 20.0
GONE_WITHIN_S = 30.0
CANCELLED_AT_ONCE = 1000
HANGS_S = 0.5  # a read of a process's environment that takes so long


@dataclass
class Stuck:
    """A process that no signal ends, and whose memory nobody can look into."""

    folder: str  # on the file system in which it is stuck
    pid: int  # inside


@dataclass
class Asked:
    """How long the honest user's requests took, by kind, in ms; and for how much of that time
    carmad's threads were ready and had no processor, as a sum over threads."""

    latencies: dict[str, list[float]]
    in_line: float


@dataclass
class Seen:
    """What was noticed of the daemon while watching."""

    stale_s: float = 0.0  # the longest that a GPU had no reading
    unnoticed_s: float = 0.0  # the longest that carmad took a job to be running that had ended


@dataclass
class Field:
    machine: Machine
    seen: Seen = field(default_factory=Seen)
    _numbers: Iterator[int] = field(default_factory=count)
    _held: dict[str, list[int]] = field(default_factory=dict)  # processes that are stuck there

    def __post_init__(self) -> None:
        self.root = Daemon(self.inside(SOCKET))
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def inside(self, path: str) -> str:
        """The machine's file, from here."""
        return f"/proc/{self.machine.pid1}/root{path}"

    # who does what

    def program(self, module: str, *words: object) -> list[str]:
        return [sys.executable, "-m", f"benchmarks.daemon.siege.{module}", *map(str, words)]

    def slice(self, user: str) -> str:
        """Where logind puts what the user starts, so that users share the processors; "": root."""
        return f"user-{self.machine.users[user]}.slice" if user else "system.slice"

    def as_user(self, user: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Run a program as from a login, with this process's own input and output."""
        who = [f"--uid={user}", f"--gid={user}", f"--slice={self.slice(user)}"]
        scope = ["systemd-run", "--quiet", "--collect", "--scope", *who, "--"]
        return subprocess.Popen([*self.machine.enter(str(ROOT)), *scope, *words], **options)

    def ask(self, times: int) -> Asked:
        before, begun = self._in_line_s(), time.monotonic()
        latencies = self._latencies(times)
        seconds = time.monotonic() - begun
        return Asked(latencies, max(0.0, self._in_line_s() - before) / seconds)

    def _in_line_s(self) -> float:
        """How long carmad's threads have been ready to run while the kernel ran others."""
        pid = self.machine.show("carmad.service", "MainPID")
        with contextlib.suppress(OSError):  # it is being restarted
            threads = Path(self.inside(f"/proc/{pid}/task")).iterdir()
            return sum(int((each / "schedstat").read_text().split()[1]) for each in threads) / 1e9
        return 0.0

    def _latencies(self, times: int) -> dict[str, list[float]]:
        """The honest user's, in ms."""
        words = self.program("honest", "ask", times)
        with self.as_user(HONEST, *words, stdout=subprocess.PIPE) as asking:
            said, _ = asking.communicate()
        found: dict[str, list[float]] = json.loads(said)
        return found

    @contextlib.contextmanager
    def attack(self, user: str, kind: Any, *words: object) -> Iterator[str]:
        """Run one of the `attackers` as that user; "": as root. What it submitted is cancelled."""
        with self.unit(user, *self.program("attackers", kind.__name__, *words)) as unit:
            yield unit
        if user:
            self.await_none(user)

    def await_none(self, user: str) -> None:
        """Cancel what attackers submitted, which is no shell's work, until none is left."""

        def none() -> bool:
            with contextlib.suppress(Problem):
                jobs = self.root.get("/v1/jobs", user=user, states=honest.LIVE)["jobs"]
                live = [job for job in jobs if job["name"] != "sh"]
                for at in range(0, len(live), CANCELLED_AT_ONCE):
                    ids = [str(job["id"]) for job in live[at : at + CANCELLED_AT_ONCE]]
                    self.root.post("/v1/cancel", {"select": ",".join(ids)})
                return not live
            return False

        until(none, f"{user}'s jobs to end")

    @contextlib.contextmanager
    def unit(self, user: str, *words: str, **env: str) -> Iterator[str]:
        """Run a program outside of CARMA's jobs, as from a login; user "": root's."""
        name = f"siege-{next(self._numbers)}.service"
        who = [f"--uid={user}", f"--gid={user}"] if user else []
        log = f"{self.machine.folder}/{name}.log"
        self.machine.run(
            *(
                "systemd-run",
                "--quiet",
                "--collect",
                f"--unit={name}",
                f"--slice={self.slice(user)}",
                *who,
            ),
            *(f"--working-directory={ROOT}", "--property=LimitNOFILE=65536"),
            *(f"--property=StandardOutput=append:{log}", f"--property=StandardError=append:{log}"),
            *(f"--setenv={key}={value}" for key, value in env.items()),
            *("--", *words),
        )
        try:
            yield name
        finally:
            self.machine.systemctl("kill", "--signal=KILL", name, check=False)
            self.machine.systemctl("stop", "--no-block", name, check=False)

    @contextlib.contextmanager
    def mount(self, user: str) -> Iterator[str]:
        """A directory of the user's on a file system whose pages never come. When this is over,
        whoever was stuck in it no longer is."""
        where = f"/home/{user}/mnt-{next(self._numbers)}"
        self.machine.run("mkdir", where, user=user)
        uid = self.machine.users[user]
        serve = [sys.executable, stuck.__file__, "serve", where, str(uid)]
        with self.unit("", *serve):
            until(lambda: where in self.machine.read("/proc/mounts"), "the file system")
            yield where
        # The server is dead, and what waited for it has been told so.
        held = self._held.pop(where, [])
        until(lambda: not any(map(self.lives, held)), "the stuck to go on", GONE_WITHIN_S)
        self.machine.run("umount", "-l", where)

    def lives(self, pid: int) -> bool:
        return bool(self.machine.read(f"/proc/{pid}/stat"))

    @contextlib.contextmanager
    def stuck(self, user: str, mib: int = 2000) -> Iterator[Stuck]:
        """A process of the user's outside of all jobs, with memory on each GPU, that is stuck."""
        with self.mount(user) as folder:
            words = [sys.executable, stuck.__file__, "hold", f"{folder}/page", str(mib)]
            with self.unit(user, *words, CARMA_EMULATED_DIR=CARDS) as unit:
                pid = int(self.machine.show(unit, "MainPID"))
                self._held.setdefault(folder, []).append(pid)
                self.await_stuck(pid)
                yield Stuck(folder, pid)

    def await_stuck(self, pid: int) -> None:
        """Until its memory is locked: a case that met no such process would show nothing."""

        def waits() -> bool:
            state = self.machine.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            assert state, f"process {pid} has ended"
            return state[0] == "D" and self._hangs(f"/proc/{pid}/environ", HANGS_S)

        until(waits, "a process that is stuck")
        for name in ("cgroup", "stat", "status", "comm"):  # what CARMA goes by
            assert not self._hangs(f"/proc/{pid}/{name}", PATIENCE_S), name

    def _hangs(self, path: str, for_s: float) -> bool:
        words = [*self.machine.enter(), "cat", path]
        reader = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        try:
            reader.wait(for_s)
        except subprocess.TimeoutExpired:
            reader.kill()
            reader.wait()
            return True
        return False

    # jobs

    def job(self, id: int) -> dict[str, Any]:
        found: dict[str, Any] = self.root.get(f"/v1/jobs/{id}")
        return found

    def await_over(self, id: int) -> dict[str, Any]:
        found: dict[str, Any] = until(
            lambda: (job := self.job(id))["state"] in OVER and job, f"job {id} to end"
        )
        return found

    def supervisor(self, id: int) -> int:
        """Its pid inside, once the job's program runs."""
        folder = Path(self.inside(f"{STATE}/jobs/{id}.1"))
        started: exits.StartRecord = until(lambda: exits.read_start(folder), f"job {id} to start")
        return started.pid

    # the honest user's work

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        words = self.program("honest", "work", f"/home/{HONEST}/ledger")
        with self.as_user(HONEST, *words, stdin=subprocess.PIPE) as work:
            try:
                yield
            finally:
                assert work.stdin
                work.stdin.close()

    def lines(self, user: str = HONEST, verb: str = "") -> list[tuple[str, int]]:
        """What jobs wrote down: the verb, the id."""
        return [
            (words[0], int(words[1]))
            for line in self._text(user, "ledger").splitlines()
            if len(words := line.split()) == 2 and words[0].startswith(verb)
        ]

    def job_kinds(self) -> dict[int, int]:
        """The ids of the honest user's jobs that carmad accepted, and their kind."""
        lines = self._text(HONEST, "ledger.given").splitlines()
        return {int(line.split()[0]): int(line.split()[1]) for line in lines}

    def _text(self, user: str, name: str) -> str:
        with contextlib.suppress(OSError):
            return Path(self.inside(f"/home/{user}/{name}")).read_text()
        return ""

    def await_work(self, jobs: int) -> None:
        """Until so many more of each kind have ended, and carmad knows it: a few are live at a
        time, so the next ones tell of that."""
        before = self._counts()
        until(
            lambda: all(
                now - then >= jobs for now, then in zip(self._counts(), before, strict=True)
            ),
            f"{jobs} more jobs of each kind to end, after {before}",
        )

    def _counts(self) -> list[int]:
        given = self.job_kinds()
        done = Counter(given.get(id) for _, id in self.lines(verb="end"))
        return [done[kind] for kind in range(len(honest.KINDS))]

    def await_rest(self) -> None:
        """Until all of the honest user's jobs have ended."""
        until(
            lambda: not self.root.get("/v1/jobs", user=HONEST, states=honest.LIVE)["jobs"],
            "the honest user's jobs to end",
        )

    def reckon(self) -> tuple[int, list[int], list[int]]:
        """How many jobs, and which of them are lost or doubled."""
        starts = Counter(id for verb, id in self.lines() if verb == "start")
        ends = Counter(id for verb, id in self.lines() if verb == "end")
        given = self.job_kinds()
        lost = sorted(id for id in given if not starts[id] or not ends[id])
        doubled = sorted(id for id, times in (starts + ends).items() if times > 2)
        return len(given), lost, doubled

    def running(self) -> set[int]:
        """Jobs of the honest user's whose program has begun, and has not ended."""
        lines = self.lines()
        return {id for verb, id in lines if verb == "start"} - {
            id for verb, id in lines if verb == "end"
        }

    # what is watched

    def watch(self) -> None:
        self._watch.start()

    def close(self) -> None:
        self._closing.set()
        self._watch.join()

    def _look(self) -> None:
        fresh: dict[str, float] = {}
        ended: dict[int, float] = {}  # when that was first seen
        while not self._closing.wait(LOOK_S):
            now = time.monotonic()
            for user in self.machine.users:
                for _, id in self.lines(user, "end"):
                    ended.setdefault(id, now)
            with contextlib.suppress(Problem, OSError):
                states = "starting,running,stopping"
                within = ANSWERED_WITHIN_S
                live = self.root.get("/v1/jobs", within, states=states)["jobs"]
                gpus = self.root.get("/v1/gpus", within)["gpus"]
                for job in live:
                    unnoticed_s = now - ended.get(job["id"], now)
                    self.seen.unnoticed_s = max(self.seen.unnoticed_s, unnoticed_s)
                for gpu in gpus:
                    if gpu["state"] != "stale":
                        fresh[gpu["id"]] = now
                    stale_s = now - fresh.setdefault(gpu["id"], now)
                    self.seen.stale_s = max(self.seen.stale_s, stale_s)


@contextlib.contextmanager
def open_field() -> Iterator[Field]:
    """A machine of its own. Raises NotBooted."""
    with tempfile.TemporaryDirectory(prefix="carma-siege-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with boot(folder, USERS, **SETTINGS) as machine, in_field(machine) as field:
            yield field


@contextlib.contextmanager
def in_field(machine: Machine) -> Iterator[Field]:
    field = Field(machine)
    machine.call("GET", "/v1/health", user=HONEST)
    field.watch()
    try:
        yield field
    finally:
        field.close()
