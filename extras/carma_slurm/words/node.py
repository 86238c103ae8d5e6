"""This server as Slurm's one node. Imports stay light."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from carma_slurm.words.fields import HOST
from cli import client

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Node:
    """`gpus`: as the daemon describes them; `kinds`: of each, and of its MIG instances, what Slurm
    would call it. Memory in MiB."""

    def __init__(self, status: dict[str, Any]) -> None:
        server = status["server"]
        self.name = HOST
        self.gpus: list[dict[str, Any]] = [gpu for gpu in status["gpus"] if not gpu["parent"]]
        self.kinds: dict[str, str] = {gpu["id"]: _kind(gpu["name"]) for gpu in status["gpus"]}
        self.cpus: int = server.get("cpus") or os.cpu_count() or 1
        self.cpus_free: int = server.get("cpus_free", self.cpus)
        self.memory_mib = _memory("MemTotal")
        self.free_mib = _memory("MemAvailable")
        self.load = os.getloadavg()[0]
        self.version: str = server["version"]
        self.runs: int = status["counts"]["running"]

    @property
    def state(self) -> str:
        """mixed as soon as a job runs: CARMA lets jobs share, so it is never full."""
        if self.gpus and all(gpu["state"] == "drained" for gpu in self.gpus):
            return "draining" if self.runs else "drained"
        return "mixed" if self.runs else "idle"

    @property
    def gres(self) -> str:
        """gpu:a100:3, for each kind."""
        return self._count(lambda _: True)

    @property
    def gres_in_use(self) -> str:
        """Likewise, of the GPUs on which jobs run."""
        return self._count(lambda gpu: bool(gpu["jobs"]))

    def _count(self, counts: Callable[[dict[str, Any]], bool]) -> str:
        kinds: dict[str, int] = {}
        for gpu in self.gpus:
            kind = self.kinds[gpu["id"]]
            kinds[kind] = kinds.get(kind, 0) + counts(gpu)
        return ",".join(f"gpu:{kind}:{count}" for kind, count in kinds.items()) or "(null)"


def read_node() -> Node:
    return Node(client.get("/v1/status"))


def _kind(name: str) -> str:
    return "-".join(name.lower().removeprefix("nvidia ").split())


def _memory(name: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
        line = next((line for line in file if line.startswith(name)), "x 0")
    return int(line.split()[1]) // 1024
