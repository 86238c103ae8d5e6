"""Slurm from the distribution: a controller and its nodes, all on this machine.

Each node may have a carmad of its own: in its jobs, CARMA_SOCKET is `FOLDER/NODE/sock`, as a
TaskProlog sets it. The daemons run as root, in the foreground; nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import PATIENCE_S, until

FREEZER = Path("/sys/fs/cgroup/freezer")  # of cgroup v1: all that Slurm needs to track processes
NEEDS = ("munged", "slurmctld", "slurmd", "sbatch")
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/{tracks}
TaskPlugin=task/none
TaskProlog={folder}/task_prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=5
InactiveLimit=0
ReturnToService=2
SlurmdTimeout=10
SlurmdParameters=config_overrides
"""
# Words of a command.
HOSTILE = [
    "it's",
    'a "b"',
    "$HOME `id`",
    "two\nlines",
    "cr\r\nlf",
    "",
    "-x",
    "#SBATCH -n 9",
    "é%j\\",
]
PROLOG = """\
#!/bin/sh
echo export CARMA_SOCKET={folder}/$SLURMD_NODENAME/sock
"""


def missing() -> tuple[str, ...]:
    """What this machine lacks of Slurm; it needs root, too."""
    lacking = tuple(name for name in NEEDS if shutil.which(name) is None)
    return lacking if os.getuid() == 0 else ("root", *lacking)


class Cluster:
    """`node` is what each has, as in slurm.conf: "Gres=gpu:2". `extra` goes into slurm.conf.
    `tracks`: processes, by "linuxproc" or "cgroup"."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        node: str = "",
        extra: str = "",
        gres: str = "",
        tracks: str = "linuxproc",
    ) -> None:
        self.folder = folder
        self.nodes = tuple(f"n{n}" for n in range(1, nodes + 1))
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._configure(node, extra, gres, tracks)

    def _configure(self, node: str, extra: str, gres: str, tracks: str) -> None:
        for each in self.nodes:
            (self.folder / each / "spool").mkdir(parents=True)
        (self.folder / "state").mkdir()
        prolog = self.folder / "task_prolog"
        prolog.write_text(PROLOG.format(folder=self.folder))
        prolog.chmod(0o755)
        port, *ports = free_ports(1 + len(self.nodes))
        host = socket.gethostname().partition(".")[0]
        conf = CONF.format(host=host, folder=self.folder, port=port, tracks=tracks) + extra
        for name, its_port in zip(self.nodes, ports, strict=True):
            conf += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={its_port}"
            conf += f" CPUs=64 {node} State=UNKNOWN\n"
        conf += "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gres.conf").write_text(gres)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    def start(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"key-file": key, "socket": self.folder / "munge.sock"}
        files |= {f"{what}-file": self.folder / f"munge.{what}" for what in ("pid", "log", "seed")}
        words = (f"--{what}={file}" for what, file in files.items())
        self._spawn("munged", "munged", "--force", "--foreground", *words)
        until((self.folder / "munge.sock").exists, "munged")
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        until(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), "idle nodes")

    def start_controller(self) -> None:
        self._spawn("slurmctld", "slurmctld", "-D")

    def stop_controller(self) -> None:
        """As an upgrade does: it writes down what it knows."""
        process = self._running.pop("slurmctld")
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)

    def start_node(self, name: str) -> None:
        self._spawn(name, "slurmd", "-D", "-N", name)

    def kill(self, name: str) -> None:
        """`kill -9` of "slurmctld", or of a node's slurmd."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """All jobs are killed, then the daemons."""
        subprocess.run(["scancel", "-f", "-p", "gpu"], env=self.env, check=False)
        with contextlib.suppress(AssertionError, subprocess.CalledProcessError):
            until(lambda: not self.run("squeue", "-h"), "the last job", within_s=10)
        for process in reversed(self._running.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in self.nodes:  # Slurm leaves its cgroups
            for made in sorted(FREEZER.glob(f"slurm_{name}/**/"), reverse=True):
                with contextlib.suppress(OSError):
                    made.rmdir()

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """What a command of Slurm's prints."""
        out = subprocess.run(
            words, env=self.env | (env or {}), capture_output=True, text=True, check=False
        )
        assert out.returncode == 0, f"{words}: {out.stdout}{out.stderr}"
        return out.stdout.strip()

    def sbatch(self, *words: str, env: Mapping[str, str] | None = None) -> int:
        """Submit; the job's number. Its output goes to FOLDER/NUMBER.out."""
        out = self.run("sbatch", "--parsable", f"--output={self.folder}/%j.out", *words, env=env)
        return int(out.partition(";")[0])

    def hurry(self, number: int) -> None:
        """Slurm may keep a requeued job back for two minutes."""
        with contextlib.suppress(AssertionError):  # it has begun, or ended
            self.run("scontrol", "update", f"JobId={number}", "StartTime=now")

    def tend(self) -> int:
        """As an administrator: release what Slurm holds after a failed launch, and start what it
        keeps back after a node was lost. How many were held."""
        held = 0
        for line in self.run("squeue", "-h", "-t", "pending", "-o", "%A %r").splitlines():
            number, _, reason = line.partition(" ")
            if "held" in reason.lower():
                self.run("scontrol", "release", number)
                held += 1
            elif reason == "BeginTime":
                self.hurry(int(number))
        return held

    def states(self) -> dict[str, str]:
        """The state of each node, as `sinfo` writes it: "idle", "mixed", "down*"."""
        try:
            lines = self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        except AssertionError:
            return {}  # no controller answers
        return dict(line.split() for line in lines)

    def jobs(self) -> dict[int, str]:
        """The state of each job that the controller knows, also after its end."""
        lines = self.run("squeue", "-h", "-t", "all", "-o", "%A %T").splitlines()
        return {int(number): state for number, state in map(str.split, lines)}

    def _spawn(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.stderr").open("ab") as errors:
            self._running[name] = subprocess.Popen(
                words, env=self.env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )


@contextmanager
def cluster(folder: Path, nodes: int = 4, **options: str) -> Iterator[Cluster]:
    made = Cluster(folder, nodes, **options)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def free_ports(count: int) -> Sequence[int]:
    """Ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
