"""CARMA, gflow, Slurm and task-spooler, each with its defaults where these let it run here."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from benchmarks.daemon.carmad import GPUS, Daemon, memory_mb, plain_environment
from benchmarks.peers.system import LONG, SHORT, System, wait_for

BIN = Path(sys.executable).parent
CARMA = str(BIN / "carma")


class Carma(System):
    """On emulated GPUs. What is queued wants one for itself, and running jobs hold all of them."""

    name: ClassVar[str] = "CARMA"
    needs: ClassVar[tuple[str, ...]] = ()

    def start(self) -> None:
        self._carmad = Daemon()
        self._carmad.__enter__()
        self.env = plain_environment() | {"CARMA_SOCKET": self._carmad.socket}

    def stop(self) -> None:
        self._carmad.__exit__(None, None, None)

    def submission(self, command: list[str], queued: bool = False) -> list[str]:
        options = ["--parsable", "-o", "/dev/null", *(["--exclusive"] if queued else [])]
        return [CARMA, "submit", *options, "--", *command]

    def block(self) -> None:
        for _ in range(GPUS):
            self.submit(LONG, queued=True)

    def fill(self, count: int) -> list[str]:
        return [str(self._carmad.run(LONG, exclusive=True)) for _ in range(count)]

    def verbs(self) -> Mapping[str, list[str]]:
        return {
            "submit": self.submission(SHORT, queued=True),
            "queue": [CARMA, "queue"],
            "queue, as JSON": [CARMA, "queue", "--json"],
            "status": [CARMA, "status"],
            "show": [CARMA, "show", "{job}"],
            "why": [CARMA, "why", "{job}"],
            "history": [CARMA, "history"],
            "stats": [CARMA, "stats"],
            "hold": [CARMA, "hold", "{job}"],
            "cancel": [CARMA, "cancel", "{job}"],
            "complete": [CARMA, "completion", "ids"],
        }

    def rss_mb(self) -> float:
        return self._carmad.rss_mb()


class Gflow(System):
    """Without GPUs, so that whatever wants one waits."""

    name: ClassVar[str] = "gflow"
    needs: ClassVar[tuple[str, ...]] = ("gflowd", "gbatch", "tmux")

    def start(self) -> None:
        self.env["TMUX_TMPDIR"] = str(self.folder)
        for file in (".bashrc", ".bash_profile"):  # its jobs run in login shells, and report by it
            (self.folder / file).write_text(f"export PATH={shlex.quote(self.env['PATH'])}\n")
        self.daemon("gflowd")
        self.answers("gqueue")

    def stop(self) -> None:
        subprocess.run(["tmux", "kill-server"], env=self.env, capture_output=True, check=False)

    def submission(self, command: list[str], queued: bool = False) -> list[str]:
        return ["gbatch", *(["--gpus", "1"] if queued else []), "--", *command]

    def number(self, printed: str) -> str:
        return printed.split()[3]

    def verbs(self) -> Mapping[str, list[str]]:
        return {
            "submit": self.submission(SHORT, queued=True),
            "queue": ["gqueue"],
            "queue, as JSON": ["gqueue", "-o", "json"],
            "status": ["ginfo"],
            "show": ["gjob", "show", "{job}"],
            "history": ["gqueue", "--completed"],
            "stats": ["gstats"],
            "hold": ["gjob", "hold", "{job}"],
            "cancel": ["gcancel", "{job}"],
        }


SLURM_CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={port}
SlurmdPort={slurmd_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
MaxArraySize=10001
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=p Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm(System):
    """One node: this machine. It has no accounting, which would need a database server."""

    name: ClassVar[str] = "Slurm"
    needs: ClassVar[tuple[str, ...]] = ("slurmctld", "slurmd", "munged", "sbatch")

    def start(self) -> None:
        if os.getuid() != 0:
            raise PermissionError("its daemons need root")
        self.folder.chmod(0o755)
        conf = self.folder / "slurm.conf"
        port, slurmd_port = _free_ports(2)
        conf.write_text(
            SLURM_CONF.format(
                host=socket.gethostname().partition(".")[0],
                user="root",
                folder=self.folder,
                port=port,
                slurmd_port=slurmd_port,
                cpus=os.cpu_count(),
            )
        )
        self.env["SLURM_CONF"] = str(conf)
        (self.folder / "spool").mkdir()
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"key-file": key, "socket": self.folder / "munge.sock"} | {
            f"{what}-file": self.folder / f"munge.{what}" for what in ("pid", "log", "seed")
        }
        self.daemon(
            "munged",
            "--force",
            "--foreground",
            *(f"--{what}={file}" for what, file in files.items()),
        )
        wait_for((self.folder / "munge.sock").exists, "munged")
        self.daemon("slurmctld", "-D")
        self.daemon("slurmd", "-D")
        self.answers("sh", "-c", "sinfo -h -o %t | grep -qx idle")

    def stop(self) -> None:
        subprocess.run(["scancel", "-f", "-u", "root"], env=self.env, check=False)
        time.sleep(0.5)  # slurmd kills them

    def submission(self, command: list[str], queued: bool = False) -> list[str]:
        options = ["-o", "/dev/null", *(["--hold"] if queued else [])]
        return ["sbatch", "--parsable", *options, "--wrap", shlex.join(command)]

    def verbs(self) -> Mapping[str, list[str]]:
        return {
            "submit": self.submission(SHORT, queued=True),
            "queue": ["squeue"],
            "queue, as JSON": ["squeue", "--json"],
            "status": ["sinfo"],
            "show": ["scontrol", "show", "job", "{job}"],
            "hold": ["scontrol", "hold", "{job}"],
            "cancel": ["scancel", "{job}"],
        }


MOST_SPOOLED = 940  # it has a connection for each job, and select() takes 1,024


class Spooler(System):
    """One job at a time: a running one makes the others wait."""

    name: ClassVar[str] = "task-spooler"
    needs: ClassVar[tuple[str, ...]] = ("tsp",)

    def start(self) -> None:
        self.env |= {"TS_SOCKET": str(self.folder / "socket"), "TS_MAXFINISHED": "100"}
        self.env["TMPDIR"] = str(self.folder)
        self.answers("tsp")

    def fill(self, count: int) -> list[str]:
        return super().fill(min(count, MOST_SPOOLED))

    def submission(self, command: list[str], queued: bool = False) -> list[str]:
        return ["tsp", *command]

    def verbs(self) -> Mapping[str, list[str]]:
        return {
            "submit": self.submission(LONG, queued=True),
            "queue": ["tsp"],
            "show": ["tsp", "-i", "{job}"],
            "cancel": ["tsp", "-r", "{job}"],
        }

    def rss_mb(self) -> float:
        """Shared pages in parts: there is a process for each job in line."""
        return sum(memory_mb(one.pid, "smaps_rollup", "Pss:") for one in self.processes())


SYSTEMS: tuple[type[System], ...] = (Carma, Gflow, Slurm, Spooler)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
