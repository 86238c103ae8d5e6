"""One MPS control daemon per GPU, so that a fault affects only its own GPU.

Like the jobs under them, the daemons outlive carmad: the next carmad finds them by their pipe
directories. Which jobs run under MPS, and with what limits, is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from carmad.core.types import GpuId
from carmad.errors import CarmaError

START_WITHIN_S = 10.0
ANSWER_WITHIN_S = 5.0
SYSTEMD_WITHIN_S = 30.0
POLL_S = 0.05

OPEN_FILES = 65_536  # NVIDIA asks for 16,384: each client's shared memory takes some
LONGEST_SOCKET = "control_privileged"  # of those in the daemon's pipe directory
SOCKET_PATH_MAX = 107  # bytes that fit into a sockaddr_un


class ServerState(StrEnum):
    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"  # accepts no new client until all clients affected by the fault have left


class Mps:
    """`directory` must be traversable by every user whose jobs need the pipes.

    `systemd`: run each daemon in a transient unit, so that it outlives carmad's unit; otherwise it
    is a child process in its own session.
    """

    def __init__(
        self,
        directory: Path,
        *,
        multiuser: bool,
        systemd: bool,
        control: str = "nvidia-cuda-mps-control",
    ) -> None:
        self._directory = directory.absolute()
        self._flags = ("-f", "-multiuser-server") if multiuser else ("-f",)
        self._systemd = systemd
        self._control = control
        self._lock = threading.Lock()  # one start at a time
        self._children: dict[GpuId, subprocess.Popen[bytes]] = {}

    def pipe(self, gpu: GpuId) -> Path:
        """CUDA_MPS_PIPE_DIRECTORY of the daemon and of its clients."""
        return self._home(gpu) / "pipe"

    def log(self, gpu: GpuId) -> Path:
        """CUDA_MPS_LOG_DIRECTORY: control.log and server.log."""
        return self._home(gpu) / "log"

    def start(self, gpu: GpuId) -> None:
        """Make sure that clients can connect. Raises CarmaError if they cannot.

        A daemon that answers is left alone, unless `multiuser` has changed since it was started
        and it has no clients.
        """
        with self._lock:
            running = self._answers(gpu)
            if running and self._started_with(gpu) != self._flags:
                self._make_way(gpu)
                running = False
            if not running:
                self._launch(gpu)
        if self.server_state(gpu) is ServerState.FAULT:
            raise CarmaError(
                f"the MPS server of {gpu} is in a fault caused by one of its jobs",
                "it takes jobs again once all affected ones have ended; "
                f"{self.log(gpu)}/server.log lists them",
            )

    def stop(self, gpu: GpuId) -> bool:
        """Stop the daemon and its idle server. False if it has clients, or does not stop. Raises
        CarmaError if it does not answer."""
        with self._lock:
            return self._quit(gpu)

    def healthy(self, gpu: GpuId) -> bool:
        """Whether the daemon answers."""
        try:
            return self._answers(gpu)
        except CarmaError:
            return False

    def clients(self, gpu: GpuId) -> frozenset[int]:
        """The pids of all its clients, as far as the daemon reports them."""
        with contextlib.suppress(CarmaError):
            return frozenset().union(*self._clients(gpu).values())
        return frozenset()

    def terminate(self, gpu: GpuId, pid: int) -> bool:
        """Disconnect one client from its server, so that a SIGKILL cannot harm the others.

        False if it is not a client (any more), or the server failed to disconnect it.
        """
        with contextlib.suppress(CarmaError):
            for server, clients in self._clients(gpu).items():
                if pid in clients:
                    return _numbers(self._ask(gpu, f"terminate_client {server} {pid}")) == [0]
        return False

    def server_state(self, gpu: GpuId) -> ServerState | None:
        """The worst state of its servers; None if it has none yet, or does not answer."""
        states: set[str] = set()
        with contextlib.suppress(CarmaError):
            for server in _numbers(self._ask(gpu, "get_server_list")):
                states.update(re.findall(r"\w+", self._ask(gpu, f"get_server_status {server}")))
        worst_first = (ServerState.FAULT, ServerState.INITIALIZING, ServerState.ACTIVE)
        return next((state for state in worst_first if state in states), None)

    # -- the daemon's life ------------------------------------------------------------------------

    def _launch(self, gpu: GpuId) -> None:
        control = shutil.which(self._control)
        if control is None:
            raise CarmaError(
                f"{self._control} is not on PATH",
                "install the driver's MPS programs, or set mps = false",
            )
        try:
            self._make_directories(gpu)
            if self._systemd:
                self._run_unit(gpu, control)
            else:
                self._run_child(gpu, control)
        except (OSError, subprocess.SubprocessError) as error:
            self._end(gpu)
            raise CarmaError(f"cannot start the MPS daemon of {gpu}: {error}") from error
        if not self._wait(lambda: self._ended(gpu) or self.healthy(gpu)) or self._ended(gpu):
            how = "ended at once" if self._ended(gpu) else f"is silent for {START_WITHIN_S:g} s"
            self._end(gpu)
            raise CarmaError(
                f"the MPS daemon of {gpu} {how}", f"{self._where_it_speaks(gpu)} may say why"
            )
        self.pipe(gpu).chmod(0o1777)  # the daemon would let anyone delete its sockets

    def _make_way(self, gpu: GpuId) -> None:
        if not self._quit(gpu):
            raise CarmaError(
                f"the MPS daemon of {gpu} was started with another mps_multiuser, and is in use",
                "it is restarted for the first job after the present ones have ended",
            )

    def _quit(self, gpu: GpuId) -> bool:
        """Stop the daemon and its idle server. False if it has clients, or does not stop."""
        if any(self._clients(gpu).values()):
            return False
        self._ask(gpu, "quit")
        ours = gpu in self._children
        gone = self._wait(lambda: not self._alive(gpu) and (self._ended(gpu) or not ours))
        if gone:
            self._end(gpu)
        return gone

    def _end(self, gpu: GpuId) -> None:
        """Kill a daemon without clients: one that was told to quit, or never came up."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if self._systemd:
                stop = ["systemctl", *self._manager(), "stop", self._unit(gpu)]
                subprocess.run(stop, capture_output=True, timeout=SYSTEMD_WITHIN_S)
            elif child := self._children.pop(gpu, None):
                child.kill()
                child.wait(ANSWER_WITHIN_S)

    def _make_directories(self, gpu: GpuId) -> None:
        """Recreate the pipe directory: its contents are from a dead daemon, or were put there by a
        user posing as one."""
        pipe, log = self.pipe(gpu), self.log(gpu)
        if len(os.fsencode(pipe / LONGEST_SOCKET)) > SOCKET_PATH_MAX:
            raise CarmaError(
                f"the path {pipe} is too long for the sockets of MPS",
                "give carmad a state directory with a shorter path: CARMA_STATE_DIR",
            )
        if pipe.exists():
            shutil.rmtree(pipe)
        log.mkdir(parents=True, exist_ok=True)
        for directory in (self._directory, self._home(gpu), log):
            directory.chmod(0o755)
        self._flags_file(gpu).write_text(" ".join(self._flags))
        pipe.mkdir()
        pipe.chmod(0o1777)  # each user's server may add files of its own

    def _run_child(self, gpu: GpuId, control: str) -> None:
        with self._console(gpu).open("wb") as console:
            child = subprocess.Popen(
                [control, *self._flags],
                env=self._environment(gpu),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                cwd="/",
                start_new_session=True,
            )
        self._children[gpu] = child
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (files, most))

    def _run_unit(self, gpu: GpuId, control: str) -> None:
        properties = {
            "KillMode": "process",  # jobs survive without the daemon, but not without a server
            "OOMPolicy": "continue",
            "TasksMax": "infinity",
            "LimitNOFILE": str(OPEN_FILES),
            "LimitMEMLOCK": "infinity",
        }
        asked = subprocess.run(
            [
                "systemd-run",
                *self._manager(),
                "--quiet",
                "--collect",
                f"--unit={self._unit(gpu)}",
                "--slice=carma.slice",
                f"--description=MPS for CARMA's jobs on {gpu}",
                *(f"--property={key}={value}" for key, value in properties.items()),
                *(f"--setenv={name}={value}" for name, value in self._environment(gpu).items()),
                control,
                *self._flags,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SYSTEMD_WITHIN_S,
        )
        if asked.returncode != 0:
            raise OSError(f"systemd-run: {asked.stderr.strip()}")

    def _manager(self) -> list[str]:
        return ["--user"] if os.geteuid() != 0 else []

    def _environment(self, gpu: GpuId) -> dict[str, str]:
        """Nothing of carmad's own environment: its CUDA_MPS_… would apply to every job."""
        kept = ("PATH", "LD_LIBRARY_PATH")
        return {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe(gpu)),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log(gpu)),
        }

    def _ended(self, gpu: GpuId) -> bool:
        """For a unit, always False: a daemon that has ended just never answers."""
        child = self._children.get(gpu)
        return child is not None and child.poll() is not None

    def _wait(self, done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + START_WITHIN_S
        while not done():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    # -- questions to it --------------------------------------------------------------------------

    def _answers(self, gpu: GpuId) -> bool:
        """Raises CarmaError if a live daemon does not answer: jobs may still run under it."""
        try:
            owner = self._socket(gpu).lstat().st_uid
        except OSError:
            return False
        if owner != os.geteuid():
            return False  # once our daemon is dead, anyone may bind a socket there
        try:
            answer = self._ask(gpu, "get_default_active_thread_percentage")
        except _Refused:
            if self._alive(gpu):
                raise
            return False
        return re.search(r"^\s*\d", answer, re.MULTILINE) is not None

    def _alive(self, gpu: GpuId) -> bool:
        """Whether a process has the daemon's socket open; the file alone may be left over."""
        try:
            listing = Path("/proc/net/unix").read_text(errors="replace")
        except OSError:
            return False
        path = f" {self._socket(gpu)}"
        return any(line.endswith(path) for line in listing.splitlines())

    def _clients(self, gpu: GpuId) -> dict[int, frozenset[int]]:
        """Clients by server: there are two while one user's server is replaced by the next's."""
        return {
            server: frozenset(_numbers(self._ask(gpu, f"get_client_list {server}")))
            for server in _numbers(self._ask(gpu, "get_server_list"))
        }

    def _ask(self, gpu: GpuId, command: str) -> str:
        try:
            asked = subprocess.run(
                [self._control],
                env=self._environment(gpu),
                input=f"{command}\n",
                capture_output=True,
                text=True,
                errors="replace",
                cwd="/",
                timeout=ANSWER_WITHIN_S,
            )
        except OSError as error:
            raise CarmaError(f"cannot run {self._control}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise CarmaError(
                f"the MPS daemon of {gpu} has not answered {command!r} in {ANSWER_WITHIN_S:g} s",
                "its jobs may still run; when none does, kill the nvidia-cuda-mps-control whose "
                f"pipe directory is {self.pipe(gpu)}",
            ) from error
        if asked.returncode != 0:
            said = (asked.stderr or asked.stdout).strip()
            raise _Refused(f"the MPS daemon of {gpu} refused {command!r}: {said:.200}")
        return asked.stdout

    # -- names ------------------------------------------------------------------------------------

    def _home(self, gpu: GpuId) -> Path:
        return self._directory / _file_name(gpu)

    def _socket(self, gpu: GpuId) -> Path:
        return self.pipe(gpu) / "control"

    def _unit(self, gpu: GpuId) -> str:
        return f"carma-mps-{_file_name(gpu)}"

    def _console(self, gpu: GpuId) -> Path:
        return self.log(gpu) / "console.log"

    def _where_it_speaks(self, gpu: GpuId) -> str:
        if self._systemd:
            return " ".join(["journalctl", *self._manager(), "-u", self._unit(gpu)])
        return str(self._console(gpu))

    def _flags_file(self, gpu: GpuId) -> Path:
        return self._home(gpu) / "flags"

    def _started_with(self, gpu: GpuId) -> tuple[str, ...]:
        try:
            return tuple(self._flags_file(gpu).read_text().split())
        except OSError:
            return ()


class _Refused(CarmaError):
    """The control program failed: there is no daemon, or no such server."""


def _numbers(answer: str) -> list[int]:
    """The lines that are a number; others are messages."""
    return [int(line) for line in answer.split("\n") if line.strip().isdecimal()]


def _file_name(gpu: GpuId) -> str:
    """Without slashes: old drivers name MIG instances MIG-GPU-…/1/0."""
    return gpu.replace("/", "_")
