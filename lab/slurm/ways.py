"""Three ways for a cluster's jobs to get GPUs: what Slurm is told, and a job's script."""

from __future__ import annotations

import math
import os
import shlex
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

from carma_simulator.demo.sharing import argv
from carma_simulator.experiment import Task
from carmad.gpu import emulated
from tests.daemon import Carmad
from tests.extras.carma_slurm import slurm

NODES = 4
GPUS = 2  # of each node
GPU_GIB = 39  # what jobs can have of the 40,536 MiB
CARDS = f"{GPUS}xDGX-Station-A100-40GB"  # the CARMA paper's
SETTINGS = {  # the paper's times, compressed as the trace is; memory is as each job says
    "CARMA_ESTIMATOR": "declared",
    "CARMA_MONITOR__PERIOD_S": "0.1",
    "CARMA_MONITOR__WINDOW_S": "0.7",
    "CARMA_LIMITS__KILL_GRACE_S": "2",
    "CARMA_RETENTION__BACKUPS": "0",
    "CARMA_CLUSTER__ENGINE": "slurm",
}
RECORDED = """\
#!/bin/sh
# Says when a job begins and ends, whoever starts it.
job=$1
shift
echo "begin $job $(date +%s.%N)" >> {record}
"$@"
code=$?
echo "end $job $(date +%s.%N) $code" >> {record}
exit $code
"""
AGAIN = """\
#!/bin/sh
# Runs a job's command; if that fails, submits it again with GPUs of its own.
gpus=$1
job=$2
shift 2
export CARMA_EMULATED_DIR={cards}
"$@" || sbatch --job-name=$job --gres=gpu:$gpus --output=/dev/null "$0" $gpus $job "$@"
"""


def gib(task: Task) -> int:
    """What its owner asks for on each GPU."""
    return math.ceil(task.load.memory_mib / 1024)


class Way(ABC):
    """`cluster`, while it `runs`."""

    name: ClassVar[str]
    node: ClassVar[str]  # what each has, as in slurm.conf
    extra: ClassVar[str] = ""  # lines of slurm.conf

    def __init__(self, folder: Path, number_of_nodes: int = NODES) -> None:
        self.folder = folder
        self.carmads: dict[str, Carmad] = {}  # by node
        self.record = folder / "record"
        self.record.touch()
        recorded = folder / "recorded"
        recorded.write_text(RECORDED.format(record=shlex.quote(str(self.record))))
        recorded.chmod(0o755)
        self.cluster = slurm.Cluster(
            folder, number_of_nodes, node=self.node, extra=self.extra, gres=self.gres(folder)
        )

    def gres(self, folder: Path) -> str:
        """The contents of gres.conf."""
        return ""

    @contextmanager
    def runs(self) -> Iterator[None]:
        try:
            self.start_nodes()
            self.cluster.start()
            yield
        finally:
            self.cluster.stop()
            self.stop_nodes()

    def start_nodes(self) -> None:
        for name in self.cluster.nodes:
            emulated.create(self.cards(name), CARDS)

    def stop_nodes(self) -> None:  # noqa: B027 - Slurm alone has nothing else there
        """Whatever runs there beside Slurm."""

    def cards(self, node: str) -> Path:
        return self.folder / node / "cards"

    @abstractmethod
    def request(self, task: Task) -> list[str]:
        """Options of sbatch."""

    def command(self, task: Task, number: int) -> list[str]:
        return [str(self.folder / "recorded"), str(number), *argv(task, seed=number)]

    def script(self, task: Task, number: int) -> str:
        cards = f"export CARMA_EMULATED_DIR={self.folder}/$SLURMD_NODENAME/cards\n"
        return f"{cards}exec {shlex.join(self.command(task, number))}"

    def submit(self, task: Task, number: int) -> int:
        words = [f"--job-name={number}", *self.request(task)]
        return self.cluster.sbatch(*words, "--wrap", self.script(task, number))


class Exclusive(Way):
    name = "Slurm, GPUs exclusive"
    node = f"Gres=gpu:{GPUS}"
    extra = "GresTypes=gpu\n"

    def gres(self, folder: Path) -> str:
        return "".join(f"Name=gpu File={folder}/gpu{n}\n" for n in range(GPUS))

    def start_nodes(self) -> None:
        super().start_nodes()
        null = Path("/dev/null").stat().st_rdev
        for n in range(GPUS):  # Slurm wants devices
            os.mknod(self.folder / f"gpu{n}", stat.S_IFCHR | 0o666, null)

    def request(self, task: Task) -> list[str]:
        return [f"--gres=gpu:{task.gpus}"]


class Shards(Exclusive):
    """A shard is a GiB. Slurm gives shards of one GPU only: larger jobs have whole GPUs."""

    name = "Slurm, GPUs in shards"
    node = f"Gres=gpu:{GPUS},shard:{GPUS * GPU_GIB}"
    extra = "GresTypes=gpu,shard\n"

    def gres(self, folder: Path) -> str:
        shards = f"Name=shard Count={GPUS * GPU_GIB}\n"
        return super().gres(folder) + shards

    def request(self, task: Task) -> list[str]:
        if task.gpus > 1:
            return super().request(task)
        return [f"--gres=shard:{gib(task)}"]


class Resubmitted(Shards):
    """What failed is submitted again, with GPUs of its own, as a careful user's script does."""

    name = "Slurm, shards, failures again"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.again = folder / "again"
        self.again.write_text(AGAIN.format(cards=f"{folder}/$SLURMD_NODENAME/cards"))
        self.again.chmod(0o755)

    def script(self, task: Task, number: int) -> str:
        words = [str(self.again), str(task.gpus), str(number), *self.command(task, number)]
        return f"exec {shlex.join(words)}"


class WithCarma(Way):
    name = "Slurm with CARMA"
    node = f"Gres=gpumem:{GPUS * GPU_GIB}"
    extra = "GresTypes=gpumem\n"

    settings: ClassVar[Mapping[str, str]] = SETTINGS

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        own = {**self.settings, "SLURM_CONF": self.cluster.env["SLURM_CONF"]}
        self.carmads = {
            name: Carmad(folder / name, CARDS, **own, CARMA_CLUSTER__NODE=name)
            for name in self.cluster.nodes
        }

    def start_nodes(self) -> None:
        for daemon in self.carmads.values():
            daemon.start()

    def stop_nodes(self) -> None:
        with ExitStack() as stack:
            for daemon in self.carmads.values():
                stack.callback(daemon.clear_away)

    def cards(self, node: str) -> Path:
        return self.carmads[node].state / "emulated"

    def request(self, task: Task) -> list[str]:
        return [f"--gres=gpumem:{task.gpus * gib(task)}"]

    def script(self, task: Task, number: int) -> str:
        carma = [str(Path(sys.executable).with_name("carma")), "run", f"--gpus={task.gpus}"]
        carma += [f"--gpu-mem={gib(task)}G", "--", *self.command(task, number)]
        return f"exec {shlex.join(carma)}"


WAYS: tuple[type[Way], ...] = (Exclusive, Shards, Resubmitted, WithCarma)
