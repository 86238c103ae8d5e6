"""This machine's MPS control daemons: one per GPU, so that a fault affects only its own GPU, or one
for all GPUs, so that a process can be a client on several.

Which jobs run under MPS, and with what limits, is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from carmad.core.types import GpuId
from carmad.errors import CarmaError
from carmad.gpu.mps_daemon import MpsDaemon, ServerState

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

    def pipe(self, gpu: GpuId) -> Path:
        """CUDA_MPS_PIPE_DIRECTORY of the daemon and of its clients."""
        return self._serving(gpu).pipe

    def log(self, gpu: GpuId) -> Path:
        """CUDA_MPS_LOG_DIRECTORY: control.log and server.log."""
        return self._serving(gpu).log

    def start(self, *gpus: GpuId) -> None:
        """Make sure that a client can use these GPUs. Raises CarmaError if it cannot.

        A daemon that answers is left alone, unless it was started with other settings or without
        one of the GPUs, and has no clients.
        """
        wanted = self._wanted(gpus[0])
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
                wanted.launch(self._served(gpus))
        if wanted.state() is ServerState.FAULT:
            raise CarmaError(
                f"the MPS server of {wanted.name} is in a fault caused by one of its jobs",
                "it takes jobs again once all affected ones have ended; "
                f"{wanted.log}/server.log lists them",
            )

    def stop(self, gpu: GpuId) -> bool:
        """Stop the daemon, if it runs, once its last clients have left. False if they stay, or the
        daemon does."""
        daemon = self._serving(gpu)
        with self._lock:
            if not daemon.answers():
                return True
            return daemon.wait(lambda: not self.clients(gpu)) and daemon.quit()

    def healthy(self, gpu: GpuId) -> bool:
        """Whether the daemon answers."""
        return self._serving(gpu).healthy()

    def clients(self, gpu: GpuId) -> frozenset[int]:
        """The pids of all clients of the GPU's daemon, as far as it reports them."""
        with contextlib.suppress(CarmaError):
            return frozenset().union(*self._serving(gpu).clients().values())
        return frozenset()

    def terminate(self, gpu: GpuId, pid: int) -> bool:
        """Disconnect one client from its server, so that a SIGKILL cannot harm the others.

        False if it is not a client (any more), or the server failed to disconnect it.
        """
        with contextlib.suppress(CarmaError):
            return self._serving(gpu).terminate(pid)
        return False

    def server_state(self, gpu: GpuId) -> ServerState | None:
        """The worst state among the daemon's servers. None if it has none, or does not answer."""
        return self._serving(gpu).state()

    # -- which daemon -----------------------------------------------------------------------------

    def _wanted(self, gpu: GpuId) -> MpsDaemon:
        return self._daemon(NODE if self._node else _file_name(gpu))

    def _serving(self, gpu: GpuId) -> MpsDaemon:
        """After a change of scope, the old daemon, until its clients have left."""
        wanted = self._wanted(gpu)
        other = self._daemon(_file_name(gpu) if self._node else NODE)
        return other if other.pipe.exists() and not wanted.pipe.exists() else wanted

    def _of_the_other_scope(self, wanted: MpsDaemon) -> Iterator[MpsDaemon]:
        """The daemons of the other scope for these GPUs: no GPU may have two servers."""
        node = self._daemon(NODE)
        if wanted is not node:
            yield node
            return
        for home in self._directory.glob("*/pipe"):
            if home.parent.name != NODE:
                yield self._daemon(home.parent.name)

    def _served(self, gpus: Sequence[GpuId]) -> tuple[GpuId, ...]:
        if self._node is None:
            return tuple(gpus)
        known = tuple(self._node())
        if not known:
            raise CarmaError(
                "the GPUs that the MPS daemon is to serve are not known yet",
                "nothing to do: later jobs run under MPS, once the GPUs have been read",
            )
        return tuple(dict.fromkeys((*known, *gpus)))

    def _daemon(self, name: str) -> MpsDaemon:
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
