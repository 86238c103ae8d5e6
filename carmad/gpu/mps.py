"""MPS: one control daemon, and which ones this machine has: one per GPU, so that a fault affects
only its own GPU, or one for all GPUs, so that a process can be a client on several.

Like the jobs under it, a daemon outlives carmad: the next carmad finds it by its pipe directory.
Which jobs run under MPS, and with what limits, is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from carmad import units
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError

START_WITHIN_S = 10.0
ANSWER_WITHIN_S = 5.0
POLL_S = 0.05

OPEN_FILES = 65_536  # NVIDIA asks for 16,384: each client's shared memory takes some
LONGEST_SOCKET = "control_privileged"  # of those in the daemon's pipe directory
SOCKET_PATH_MAX = 107  # bytes that fit into a sockaddr_un


class ServerState(StrEnum):
    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"  # accepts no new client until all clients affected by the fault have left


class MpsDaemon:
    """`home` has its pipes and logs, and names it. `systemd`: it runs in a transient unit, so that
    it outlives carmad's unit; otherwise it is a child process in its own session."""

    def __init__(self, home: Path, flags: tuple[str, ...], *, systemd: bool, control: str) -> None:
        self.name = f"carma-mps-{home.name}"
        self._home = home
        self.pipe = home / "pipe"  # CUDA_MPS_PIPE_DIRECTORY of the daemon and of its clients
        self.log = home / "log"  # CUDA_MPS_LOG_DIRECTORY: control.log and server.log
        self._socket = self.pipe / "control"
        self._flags = flags
        self._systemd = systemd
        self._control = control
        self._child: subprocess.Popen[bytes] | None = None

    # -- its life ---------------------------------------------------------------------------------

    def launch(self, gpus: Sequence[GpuId]) -> None:
        """Start it for these GPUs, and wait until it answers. Raises CarmaError."""
        control = shutil.which(self._control)
        if control is None:
            raise CarmaError(
                f"{self._control} is not on PATH",
                "install the driver's MPS programs, or set mps = false",
            )
        try:
            self._make_directories(gpus)
            argv = (control, *self._flags)
            env = {**self._environment(), "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
            if self._systemd:
                self._run_unit(argv, env)
            else:
                self._run_child(argv, env)
        except (OSError, subprocess.SubprocessError) as error:
            self._end()
            raise CarmaError(f"cannot start the MPS daemon {self.name}: {error}") from error
        if not self.wait(lambda: self._has_ended() or self.healthy()) or self._has_ended():
            how = "ended at once" if self._has_ended() else f"is silent for {START_WITHIN_S:g} s"
            self._end()
            raise CarmaError(
                f"the MPS daemon {self.name} {how}", f"{self._where_it_speaks()} may say why"
            )
        self.pipe.chmod(0o1777)  # the daemon would let anyone delete its sockets

    def unlike(self, gpus: Sequence[GpuId]) -> str:
        """In what it differs from one that would be started for these GPUs now; "": in nothing."""
        try:
            flags, _, served = self._start_file.read_text().partition("\n")
        except OSError:
            flags, served = "", ""
        if tuple(flags.split()) != self._flags:
            return "with another mps_multiuser"
        missing = set(gpus) - set(served.split())
        return f"without {', '.join(sorted(missing))}" if missing else ""

    def quit(self) -> bool:
        """Stop the daemon and its idle server. False if it has clients, or does not stop."""
        if any(self._clients().values()):
            return False
        self._ask("quit")
        ours = self._child is not None
        gone = self.wait(lambda: not self._alive() and (self._has_ended() or not ours))
        if gone:
            self._end()
        return gone

    def clear(self) -> None:
        """Remove the pipe directory of a daemon that has ended."""
        shutil.rmtree(self.pipe, ignore_errors=True)

    def wait(self, done: Callable[[], bool]) -> bool:
        """Whether it was done in time."""
        deadline = time.monotonic() + START_WITHIN_S
        while not done():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _end(self) -> None:
        """Kill a daemon without clients: one that was told to quit, or never came up."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if self._systemd:
                stop = ["systemctl", *units.manager(), "stop", self.name]
                subprocess.run(stop, capture_output=True, timeout=units.WITHIN_S)
            elif child := self._child:
                self._child = None
                child.kill()
                child.wait(ANSWER_WITHIN_S)

    def _make_directories(self, gpus: Sequence[GpuId]) -> None:
        """Recreate the pipe directory: its contents are from a dead daemon, or were put there by a
        user posing as one."""
        if len(os.fsencode(self.pipe / LONGEST_SOCKET)) > SOCKET_PATH_MAX:
            raise CarmaError(
                f"the path {self.pipe} is too long for the sockets of MPS",
                "give carmad a state directory with a shorter path: CARMA_STATE_DIR",
            )
        if self.pipe.exists():
            shutil.rmtree(self.pipe)
        self.log.mkdir(parents=True, exist_ok=True)
        for directory in (self._home.parent, self._home, self.log):
            directory.chmod(0o755)
        self._start_file.write_text(f"{' '.join(self._flags)}\n{' '.join(gpus)}\n")
        self.pipe.mkdir()
        self.pipe.chmod(0o1777)  # each user's server may add files of its own

    def _run_child(self, argv: Sequence[str], env: dict[str, str]) -> None:
        with self._console.open("wb") as console:
            child = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                cwd="/",
                start_new_session=True,
            )
        self._child = child
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (files, most))

    def _run_unit(self, argv: Sequence[str], env: dict[str, str]) -> None:
        properties = {
            "KillMode": "process",  # jobs survive without the daemon, but not without a server
            "LimitNOFILE": str(OPEN_FILES),
        }
        about = f"MPS for CARMA's jobs on {self._home.name}"
        if said := units.start(self.name, about, properties, argv, env):
            raise OSError(f"systemd-run: {said}")

    def _has_ended(self) -> bool:
        """For a unit, always False: a daemon that has ended just never answers."""
        return self._child is not None and self._child.poll() is not None

    # -- questions to it --------------------------------------------------------------------------

    def answers(self) -> bool:
        """Raises CarmaError if a live daemon does not answer: jobs may still run under it."""
        if not self._ours():
            return False
        try:
            answer = self._ask("get_default_active_thread_percentage")
        except _Refused:
            if self._alive():
                raise
            return False
        return re.search(r"^\s*\d", answer, re.MULTILINE) is not None

    def healthy(self) -> bool:
        """Whether it answers."""
        try:
            return self.answers()
        except CarmaError:
            return False

    def clients(self) -> frozenset[int]:
        """The pids of all clients, as far as it reports them."""
        with contextlib.suppress(CarmaError):
            return frozenset().union(*self._clients().values())
        return frozenset()

    def _clients(self) -> dict[int, frozenset[int]]:
        """Pids by server: there are two while one user's server is replaced by the next's. Raises
        CarmaError."""
        return {
            server: frozenset(_numbers(self._ask(f"get_client_list {server}")))
            for server in _numbers(self._ask("get_server_list"))
        }

    def terminate(self, pid: int) -> bool:
        """Disconnect one client from its server, so that a SIGKILL cannot harm the others.

        False if it is not a client (any more), or the server failed to disconnect it.
        """
        with contextlib.suppress(CarmaError):
            for server, clients in self._clients().items():
                if pid in clients:
                    return _numbers(self._ask(f"terminate_client {server} {pid}")) == [0]
        return False

    def state(self) -> ServerState | None:
        """The worst state of its servers; None if it has none yet, or does not answer."""
        states: set[str] = set()
        with contextlib.suppress(CarmaError):
            for server in _numbers(self._ask("get_server_list")):
                states.update(re.findall(r"\w+", self._ask(f"get_server_status {server}")))
        worst_first = (ServerState.FAULT, ServerState.INITIALIZING, ServerState.ACTIVE)
        return next((state for state in worst_first if state in states), None)

    def _ours(self) -> bool:
        """Whether the socket is. Once our daemon is dead, anyone may bind one there."""
        try:
            return self._socket.lstat().st_uid == os.geteuid()
        except OSError:
            return False

    def _alive(self) -> bool:
        """Whether a process of ours listens at the socket; the file alone may be left over. The
        kernel says who listens: names in /proc/net/unix may be anybody's."""
        if not self._ours():
            return False
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):  # NVIDIA documents neither
            with socket.socket(socket.AF_UNIX, kind) as caller:
                caller.settimeout(ANSWER_WITHIN_S)
                try:
                    caller.connect(str(self._socket))
                except (BlockingIOError, TimeoutError):
                    return True  # it is too busy to take a call
                except OSError:  # nobody listens, or not to this kind
                    continue
                its = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                _, uid, _ = struct.unpack("3i", its)
                return bool(uid == os.geteuid())
        return False

    def _ask(self, command: str) -> str:
        try:
            asked = subprocess.run(
                [self._control],
                env=self._environment(),
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
                f"the MPS daemon {self.name} has not answered {command!r} in {ANSWER_WITHIN_S:g} s",
                "its jobs may still run; when none does, kill the nvidia-cuda-mps-control whose "
                f"pipe directory is {self.pipe}",
            ) from error
        if asked.returncode != 0:
            said = (asked.stderr or asked.stdout).strip()
            raise _Refused(f"the MPS daemon {self.name} refused {command!r}: {said:.200}")
        return asked.stdout

    def _environment(self) -> dict[str, str]:
        """Nothing of carmad's own environment: its CUDA_MPS_… would apply to every job."""
        kept = ("PATH", "LD_LIBRARY_PATH")
        return {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
        }

    # -- its files --------------------------------------------------------------------------------

    @property
    def _start_file(self) -> Path:
        """The flags and the GPUs that it was started with."""
        return self._home / "flags"

    @property
    def _console(self) -> Path:
        return self.log / "console.log"

    def _where_it_speaks(self) -> str:
        if self._systemd:
            return " ".join(["journalctl", *units.manager(), "-u", self.name])
        return str(self._console)


class _Refused(CarmaError):
    """The control program failed: there is no daemon, or no such server."""


def _numbers(answer: str) -> list[int]:
    """The lines that are a number; others are messages."""
    return [int(line) for line in answer.split("\n") if line.strip().isdecimal()]


NODE = "node"  # the directory of the daemon for all GPUs; that of a GPU's own is the GPU's id


class Mps:
    """`directory` must be traversable by every user whose jobs need the pipes.

    `node`: one daemon serves all GPUs, which this returns. None: each GPU has a daemon of its own.
    """

    def __init__(
        self,
        directory: Path,
        *,
        multiuser: bool,
        systemd: bool,
        control: str = "nvidia-cuda-mps-control",
        node: Callable[[], Iterable[GpuId]] | None = None,
    ) -> None:
        self._directory = directory.absolute()
        self._flags = ("-f", "-multiuser-server") if multiuser else ("-f",)
        self._systemd = systemd
        self._control = control
        self._node = node
        self._lock = threading.Lock()  # one start at a time
        self._daemons: dict[str, MpsDaemon] = {}

    def daemon(self, gpu: GpuId) -> MpsDaemon:
        """The one that serves this GPU; after a change of scope, the old one, until its clients
        have left."""
        wanted = self._choose(gpu)
        other = self._named(_file_name(gpu) if self._node else NODE)
        return other if other.pipe.exists() and not wanted.pipe.exists() else wanted

    def start(self, *gpus: GpuId) -> None:
        """Make sure that a client can use these GPUs. Raises CarmaError if it cannot.

        A daemon that answers is left alone, unless it was started with other settings or without
        one of the GPUs, and has no clients.
        """
        wanted = self._choose(gpus[0])
        with self._lock:
            for other in self._of_the_other_scope(wanted):
                if other.answers():
                    _make_way(other, "with another mps_scope")
                other.clear()
            running = wanted.answers()
            if running and (unlike := wanted.unlike(gpus)):
                _make_way(wanted, unlike)
                running = False
            if not running:
                wanted.launch(self._clients_of(gpus))
        if wanted.state() is ServerState.FAULT:
            raise CarmaError(
                f"the MPS server of {wanted.name} is in a fault caused by one of its jobs",
                "it takes jobs again once all affected ones have ended; "
                f"{wanted.log}/server.log lists them",
            )

    def stop(self, gpu: GpuId) -> bool:
        """Stop the daemon, if it runs, once its last clients have left. False if they stay, or the
        daemon does."""
        daemon = self.daemon(gpu)
        with self._lock:
            if not daemon.answers():
                return True
            return daemon.wait(lambda: not daemon.clients()) and daemon.quit()

    # -- which daemon -----------------------------------------------------------------------------

    def _choose(self, gpu: GpuId) -> MpsDaemon:
        return self._named(NODE if self._node else _file_name(gpu))

    def _of_the_other_scope(self, wanted: MpsDaemon) -> Iterator[MpsDaemon]:
        """The daemons of the other scope for these GPUs: no GPU may have two servers."""
        node = self._named(NODE)
        if wanted is not node:
            yield node
            return
        for home in self._directory.glob("*/pipe"):
            if home.parent.name != NODE:
                yield self._named(home.parent.name)

    def _clients_of(self, gpus: Sequence[GpuId]) -> tuple[GpuId, ...]:
        if self._node is None:
            return tuple(gpus)
        known = tuple(self._node())
        if not known:
            raise CarmaError(
                "the GPUs that the MPS daemon is to serve are not known yet",
                "nothing to do: later jobs run under MPS, once the GPUs have been read",
            )
        return tuple(dict.fromkeys((*known, *gpus)))

    def _named(self, name: str) -> MpsDaemon:
        if name not in self._daemons:
            self._daemons[name] = MpsDaemon(
                self._directory / name, self._flags, systemd=self._systemd, control=self._control
            )
        return self._daemons[name]


def _make_way(daemon: MpsDaemon, unlike: str) -> None:
    if not daemon.quit():
        raise CarmaError(
            f"the MPS daemon {daemon.name} was started {unlike}, and is in use",
            "it is stopped for the first job after the present ones have ended",
        )


def _file_name(gpu: GpuId) -> str:
    """Without slashes: old drivers name MIG instances MIG-GPU-…/1/0."""
    return gpu.replace("/", "_")
