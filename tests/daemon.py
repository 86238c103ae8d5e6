"""Starts, kills, queries and cleans up a real carmad on emulated GPUs in a test's directory."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from carmad.attempt.environment import ATTEMPT_VARIABLE
from carmad.attempt.launcher import SOCKET
from carmad.attempt.marks import Marks
from carmad.attempt.proc import process_stat, processes, uids
from carmad.core.jobs.states import ENDED
from carmad.gpu.card import Card, paths
from tests.api_server import request
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parent.parent
CARMAD = [sys.executable, "-m", "carmad.daemon.main"]
MAIN = "import sys; from carmad.daemon.main import main; sys.exit(main(sys.argv[1:]))"
CARMA = [str(Path(sys.executable).with_name("carma"))]
QUICK = {
    "CARMA_MONITOR__PERIOD_S": "0.1",
    "CARMA_MONITOR__WINDOW_S": "0.3",
    "CARMA_LIMITS__KILL_GRACE_S": "1",
    "CARMA_RETENTION__BACKUPS": "0",
    "CARMA_ESTIMATOR": "declared",  # nothing that they run is a training script
}
NO_KERNELS = {"CARMA_MONITOR__FIRST_KERNEL_TIMEOUT_S": "0.2"}  # for jobs that are shell scripts
OVER = frozenset(state.value for state in ENDED)
UNREACHABLE = (OSError, http.client.HTTPException)  # nobody there, or killed while answering

NULL = Path(os.devnull)

Json = dict[str, Any]


def train(**options: object) -> list[str]:
    """The argv of an emulated job: `train(memory_mib=4000, seconds=2)`."""
    words = [sys.executable, "-m", "carmad.gpu.emulated_job"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


class Process:
    """As `subprocess.Popen`, of any process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd: int | None = None  # it may have ended already
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)

    def has_ended(self, within_s: float | None = 0.0) -> bool:
        if self._pidfd is not None and select.select([self._pidfd], [], [], within_s)[0]:
            os.close(self._pidfd)
            self._pidfd = None
        return self._pidfd is None

    def poll(self) -> int | None:
        """0 once it has ended: nobody knows how."""
        return 0 if self.has_ended() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self.has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return 0

    def send_signal(self, signum: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Carmad:
    """`settings` are environment variables."""

    def __init__(self, folder: Path, gpus: str = "3xA100-40GB", **settings: str) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)
        self.socket = str(folder / "sock")
        self.log = folder / "carmad.log"
        self.argv = ["--emulated", gpus, "--state-dir", str(self.state)]
        self.argv += ["--socket", self.socket, "--config", os.devnull]
        self.env = clean_environment() | QUICK | settings
        self.pid = 0
        self._process: Process | None = None

    # its life

    def start(self, crash_after: int = 0, forgetful: bool = False, wait: bool = True) -> None:
        """`crash_after`: a number of commits; `forgetful`: skip actions owed by an earlier daemon.

        Returns when it is up, unless `wait` is False.
        """
        faults = {"crash_after": crash_after, "forgetful": forgetful}
        self._watch(fork(self.argv, self.env, self.log, self.log, **faults))
        if wait:
            self.await_ready()

    def start_cold(self, *under: str, first: str = "") -> None:
        """In a new interpreter, which sees the whole environment; optionally through a command that
        execs it, or after a program."""
        carmad = [sys.executable, "-c", f"{first}\n{MAIN}"] if first else CARMAD
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*under, *carmad, *self.argv],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._watch(process.pid)
        self.await_ready()

    def _watch(self, pid: int) -> None:
        self.pid = pid
        self._process = Process(pid)

    @property
    def alive(self) -> bool:
        return not self.await_death(0.0)

    def await_ready(self) -> None:
        def up() -> bool:
            assert self.alive, f"carmad died:\n{self.log.read_text()[-4000:]}"
            try:
                return self.call("GET", "/v1/health")[0] == 200
            except UNREACHABLE:
                return False

        until(up, "carmad to come up")

    def await_death(self, within_s: float = PATIENCE_S) -> bool:
        """False: it is still alive."""
        return self._process is None or self._process.has_ended(within_s)

    def signal(self, signum: int) -> None:
        if self._process:
            self._process.send_signal(signum)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.await_death()

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        assert self.await_death(), "carmad did not heed SIGTERM"

    def clear_away(self) -> None:
        """Leave no process behind, however the test ended."""
        self.kill()
        for pid in self.fork_servers() + self.supervisors() + self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # what it says

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Json]:
        data = None if body is None else json.dumps(body).encode()
        return request(self.socket, method, path, data)

    def get(self, path: str) -> Json:
        status, out = self.call("GET", path)
        assert status == 200, out
        return out

    def post(self, path: str, body: object) -> Json:
        status, out = self.call("POST", path, body)
        assert status < 300, out
        return out

    def submission(self, *argv: str, **fields: object) -> Json:
        env = {"PATH": os.environ["PATH"]}
        return {"argv": argv, "cwd": str(self.work), "env": env, **fields}

    def submit(self, *argv: str, **fields: object) -> int:
        return int(self.post("/v1/jobs", self.submission(*argv, **fields))["id"])

    def sh(self, script: str, **fields: object) -> int:
        return self.submit("/bin/sh", "-c", script, **fields)

    def job(self, id: int) -> Json:
        return self.get(f"/v1/jobs/{id}")

    def why(self, id: int) -> Json:
        return self.get(f"/v1/jobs/{id}/why")

    def gpus(self) -> list[Json]:
        found: list[Json] = self.get("/v1/gpus")["gpus"]
        return found

    def cancel(self, id: int) -> None:
        self.post("/v1/cancel", {"select": str(id)})

    def await_state(self, id: int, *states: str) -> Json:
        found: Json = {}

        def there() -> bool:
            nonlocal found
            found = self.job(id)
            assert found["state"] in states or found["state"] not in OVER, found
            return found["state"] in states

        until(there, f"job {id} to be {' or '.join(states)}")
        return found

    def ended(self, id: int) -> Json:
        return self.await_state(id, *OVER)

    # what its jobs leave

    def output(self, id: int) -> str:
        path = self.work / f"carma-{id}.out"
        return path.read_text() if path.exists() else ""

    def await_output(self, id: int, text: str) -> None:
        until(lambda: text in self.output(id), f"job {id} to say {text!r}")

    def attempt(self, id: int, attempt: int = 1) -> Path:
        return self.state / "jobs" / f"{id}.{attempt}"

    def supervisor(self, id: int, attempt: int = 1) -> int:
        started = self.attempt(id, attempt) / "started"
        until(started.exists, f"a supervisor of job {id}")
        return int(json.loads(started.read_text())["pid"])

    def supervisors(self) -> list[int]:
        return self._named(f"{self.state}/jobs/")

    def fork_servers(self) -> list[int]:
        """Without children that have only just been forked, and have no name of their own yet."""
        found = self._named(f"{self.state}/{SOCKET}")
        return [pid for pid in found if (process_stat(pid) or (0, 0))[0] not in found]

    def _named(self, word: str) -> list[int]:
        """Its processes with that in their command lines."""
        mark = word.encode()
        found = []
        for pid in processes():
            with contextlib.suppress(OSError):
                if (
                    uids(pid) == {os.geteuid()}
                    and mark in Path(f"/proc/{pid}/cmdline").read_bytes()
                ):
                    found.append(pid)
        return found

    def processes(self) -> list[int]:
        """The processes of all its jobs."""
        marks, found = Marks(ATTEMPT_VARIABLE.encode()), processes()
        marks.ask(found)
        within = f"{self.state}/".encode()
        return [
            pid for pid, at in found.items() if (marks.value(pid, at) or b"").startswith(within)
        ]

    def cards(self) -> list[Card]:
        found = [Card(path) for path in paths(str(self.state / "emulated"))]
        return sorted(found, key=lambda card: card.index)

    # the command line

    def carma(self, *words: str, rc: int | None = 0, umask: int = 0o022) -> str:
        """What `carma WORDS` prints; both streams when it fails."""
        env = self.env | {"CARMA_SOCKET": self.socket, "COLUMNS": "200"}
        ran = run_forked(words, env, program="carma", cwd=str(self.work), umask=umask)
        assert rc is None or ran.returncode == rc, (words, ran)
        return ran.stdout if ran.returncode == 0 else ran.stdout + ran.stderr


@contextlib.contextmanager
def running(folder: Path, gpus: str = "3xA100-40GB", **settings: str) -> Iterator[Carmad]:
    daemon = Carmad(folder, gpus, **settings)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.clear_away()


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name[:6] != "CARMA_"}


def run_carmad(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run carmad in the foreground, for starts that fail."""
    return run_forked(("--config", os.devnull, *argv), clean_environment() | env)


def run_forked(
    argv: Sequence[str], env: dict[str, str], **options: object
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        out, err, status = (Path(folder, name) for name in ("out", "err", "status"))
        pid = fork(argv, env, out, err, status=str(status), **options)
        try:
            code = int(until(lambda: status.exists() and status.read_text(), f"{argv} to end"))
        except BaseException:
            os.killpg(pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(argv, code, out.read_text(), err.read_text())


def fork(
    argv: Sequence[str], env: dict[str, str], out: Path = NULL, err: Path = NULL, **options: object
) -> int:
    """The pid of a carmad, or of another program, that has imported everything."""
    zygote = _zygote()
    assert zygote.stdin and zygote.stdout
    order = {"argv": argv, "env": env, "out": str(out), "err": str(err), **options}
    zygote.stdin.write(json.dumps(order) + "\n")
    zygote.stdin.flush()
    return int(zygote.stdout.readline())


@cache
def _zygote() -> subprocess.Popen[str]:
    """It ends with this process, when its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.warm"],
        cwd=ROOT,
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
