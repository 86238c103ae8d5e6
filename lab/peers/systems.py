"""CARMA, gflow, Slurm and task-spooler, each with its defaults where these let it run here; gflow
and Slurm also as their documentation advises for many short jobs."""

from __future__ import annotations

import contextlib
import io
import os
import pwd
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from benchmarks.daemon.carmad import Daemon, plain_environment
from benchmarks.daemon.hostile import as_user
from carmad import configfile
from carmad.config import Limits, Settings, Suspending
from cli.main import run
from cli.verbs import leaves
from lab.peers.system import LONG, SHORT, System, wait_for
from tests import fake_gpu
from tests.extras.carma_slurm.slurm import free_ports

MOST_QUEUED = 10_000  # by the defaults of CARMA and Slurm: a few more do not fit
SETTINGS = Settings(limits=Limits(queued_per_user=4 * MOST_QUEUED))
HOST_MIB = 262_144  # for suspended jobs; those whose memory is not known count with all of a GPU's
BIN = Path(sys.executable).parent
CARMA = str(BIN / "carma")


class Carma(System):
    """On emulated GPUs. What is queued wants one for itself, and running jobs hold all of them."""

    name: ClassVar[str] = "CARMA"
    needs: ClassVar[tuple[str, ...]] = ()
    VERSION: ClassVar[tuple[str, ...]] = (CARMA, "--version")
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "gpus": "--exclusive --gpus {}",
        "time": "--time {}",
        "array": "--array {}",
        "sweep": "--param {}",
        "kind": "--exclusive --gpus {}:1",
    }
    COMMANDS: ClassVar[Mapping[str, str]] = {
        "allow": f"{CARMA} limit nobody --booking 8",
        "book": f"{CARMA} reserve --me --gpus 1 --for 1h",
        "past": f"{CARMA} history --states failed {{word}}",
        "here": f"{CARMA} run --",
        "inside": f"{CARMA} attach {{job}} --",
        "limit": f"{CARMA} limit root --gpus 1",
        "reserve": f"{CARMA} reserve --gpus 4 --users nobody --for 1h",
        "why": f"{CARMA} why {{job}}",
    }
    EXIT: ClassVar[str] = r"(?m)^exit +(\d+):"

    def start(self) -> None:
        self._carmad = Daemon(gpus=f"{self.gpus}xA100-40GB", settings=SETTINGS)
        self._carmad.__enter__()
        self._carmad.directory.chmod(0o711)
        self.env = plain_environment() | {"CARMA_SOCKET": self._carmad.socket}

    def stop(self) -> None:
        self._carmad.__exit__(None, None, None)

    def submission(
        self, command: list[str], queued: bool = False, options: Sequence[str] = ()
    ) -> list[str]:
        held = ["--exclusive"] if queued else []
        return [CARMA, "submit", "--parsable", "-o", "/dev/null", *held, *options, "--", *command]

    def says_to(self, user: str, words: list[str]) -> str:
        """Without an interpreter of the user's: this one may be where only root can read."""
        entry = pwd.getpwnam(user)
        for verb in leaves():
            verb.function()  # imported while this may be read
        code, printed = as_user(entry.pw_uid, lambda: _printed(words[1:], self.env))
        if code:
            raise subprocess.CalledProcessError(code, words, printed, printed)
        return str(printed)

    def crash(self) -> None:
        self._carmad.kill()
        self._carmad.start()

    def let_suspend(self) -> None:
        """Allow that jobs are suspended for others."""
        limits = replace(SETTINGS.limits, preemption="suspend")
        suspend = Suspending(host_memory_mib=HOST_MIB)
        settings = replace(SETTINGS, limits=limits, suspend=suspend)
        (self._carmad.directory / "config.toml").write_text(configfile.dump(settings))
        self.crash()

    def owns(self, pid: int) -> bool:
        folder = os.fsencode(self._carmad.directory)
        with contextlib.suppress(OSError):
            return folder in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def plain(self) -> list[str]:
        return []

    def fill(self, count: int) -> list[str]:
        """With their memory, as nothing here is about estimating it."""
        words = ([LONG[0], f"{3600 + n}"] for n in range(count))
        wishes = {"exclusive": True, "memory_mib": 1024}
        return [str(self._carmad.run(command, **wishes)) for command in words]

    def clear(self, jobs: Sequence[str]) -> None:
        """Jobs as a range: it takes so many names only. A single one may be an array."""
        numbers = sorted(map(int, jobs))
        super().clear([f"{numbers[0]}-{numbers[-1]}" if len(jobs) > 1 else jobs[0]])

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
        }


MOST_GFLOW = 1_000  # tasks of an array: the body of a request has a limit


class Gflow(System):
    """On the GPUs of a fake NVML."""

    name: ClassVar[str] = "gflow"
    needs: ClassVar[tuple[str, ...]] = ("gflowd", "gbatch", "tmux", "gcc")
    VERSION: ClassVar[tuple[str, ...]] = ("gflowd", "--version")
    folds: ClassVar[bool] = False
    SETTINGS: ClassVar[str] = ""
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "gpus": "--gpus {}",
        "time": "--time {}",
        "array": "--array {}",
        "sweep": "--param {}",
    }
    COMMANDS: ClassVar[Mapping[str, str]] = {
        "inside": "gjob attach {job}",  # to its terminal: it takes no command
        "limit": "gctl quota set --user root --max-running-gpus 1",
        "reserve": "sh -c 'gctl reserve create --user nobody --gpus 4 --duration 1h"
        ' --start "$(date +%FT%T%:z)"\'',
        "why": "sh -c 'gqueue -a -f \"NODELIST(REASON)\" -j {job} | tail -n 1'",
    }
    EXIT: ClassVar[str] = r"(?i)exit ?code[=: ]+(\d+)"

    def start(self) -> None:
        fake = fake_gpu.environment(self.folder / "gpus", self.gpus)
        self.env |= {name: fake[name] for name in fake if name.startswith(("FAKE_", "LD_"))}
        (port,) = free_ports(1)
        settings = self.folder / ".config/gflow/gflow.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"[daemon]\nport = {port}\n{self.SETTINGS}")
        self.env["TMUX_TMPDIR"] = str(self.folder)
        for file in (".bashrc", ".bash_profile"):  # its jobs run in login shells, and report by it
            (self.folder / file).write_text(f"export PATH={shlex.quote(self.env['PATH'])}\n")
        self.daemon("gflowd")
        self.answers("gqueue")

    def stop(self) -> None:
        subprocess.run(["tmux", "kill-server"], env=self.env, capture_output=True, check=False)

    def crash(self) -> None:
        self.restart("gflowd")

    def submission(
        self, command: list[str], queued: bool = False, options: Sequence[str] = ()
    ) -> list[str]:
        return ["gbatch", *(["--gpus", "1"] if queued else []), *options, "--", *command]

    def number(self, printed: str) -> str:
        return printed.split()[3]

    def slot(self) -> list[str]:
        """Without one: it takes ten seconds to see that a job has ended."""
        return []

    def submit_many(self, command: list[str], count: int) -> float:
        options = self.options(array=f"1-{count}")
        return self.run(self.submission(command, options=options)).cpu_ms

    def fill(self, count: int) -> list[str]:
        """As an array: its tasks are jobs like any others."""
        ids = ["gqueue", "-n", "0", "-f", "JOBID"]
        before = self.says(ids).split()
        for done in range(0, count, MOST_GFLOW):
            most = min(MOST_GFLOW, count - done)
            self.submit(LONG, options=self.options(gpus=1, array=f"1-{most}"))
        return sorted({*self.says(ids).split()} - {*before}, key=int)

    def clear(self, jobs: Sequence[str]) -> None:
        self.run(["gcancel", ",".join(jobs)])

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


class GflowProcess(Gflow):
    """Jobs are its processes: faster than its default, tmux, and they survive the daemon's end."""

    name: ClassVar[str] = "gflow, process executor"
    tuned: ClassVar[bool] = True
    SETTINGS: ClassVar[str] = '[executor]\ntype = "process"\n'


SLURM_CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
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
SelectTypeParameters=CR_CPU
MaxArraySize=10001
MaxJobCount={most}
GresTypes=gpu
SlurmdParameters=config_overrides
ScronParameters=enable
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:a100:{gpus} State=UNKNOWN
PartitionName=p Nodes={host} Default=YES MaxTime=INFINITE State=UP
{settings}"""


class Slurm(System):
    """One node: this machine. It has no accounting, which would need a database server."""

    name: ClassVar[str] = "Slurm"
    needs: ClassVar[tuple[str, ...]] = ("slurmctld", "slurmd", "munged", "sbatch")
    VERSION: ClassVar[tuple[str, ...]] = ("slurmctld", "-V")
    SETTINGS: ClassVar[str] = ""
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "gpus": "--gres=gpu:{}",
        "time": "--time={}",
        "array": "--array={}",
        "sweep": "--param={}",
        "kind": "--gres=gpu:{}:1",
    }
    COMMANDS: ClassVar[Mapping[str, str]] = {
        "cron": "scrontab {file}",
        "book": "scontrol create reservation user=nobody starttime=now duration=60 nodes=ALL",
        "past": "sacct --state FAILED --name {word}",
        "here": "srun --pty",
        "inside": "srun --overlap --jobid {job}",
        "limit": "sacctmgr -i modify user root set GrpTRES=gres/gpu=1",
        "reserve": "scontrol create reservation user=nobody starttime=now duration=60 nodes=ALL",
        "why": "squeue -h -o %r -j {job}",
    }
    EXIT: ClassVar[str] = r"ExitCode=(\d+):"

    @classmethod
    def missing(cls) -> str:
        return super().missing() or ("root" if os.getuid() else "")

    def start(self) -> None:
        conf = self.folder / "slurm.conf"
        port, slurmd_port = free_ports(2)
        conf.write_text(
            SLURM_CONF.format(
                host=socket.gethostname().partition(".")[0],
                folder=self.folder,
                port=port,
                slurmd_port=slurmd_port,
                cpus=max(os.cpu_count() or 1, 2 * self.gpus),
                gpus=self.gpus,
                most=4 * MOST_QUEUED,
                settings=self.SETTINGS,
            )
        )
        cards = [self.folder / f"gpu{n}" for n in range(self.gpus)]
        for card in cards:
            card.touch()
        (self.folder / "gres.conf").write_text(
            "".join(f"Name=gpu Type=a100 File={card}\n" for card in cards)
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
        options = [f"--{what}={file}" for what, file in files.items()]
        self.daemon("munged", "--force", "--foreground", *options)
        wait_for((self.folder / "munge.sock").exists, "munged")
        self.daemon("slurmctld", "-D")
        self.daemon("slurmd", "-D")
        self.answers("sh", "-c", "sinfo -h -o %t | grep -qx idle")

    def stop(self) -> None:
        subprocess.run(["scancel", "-f", "-u", "root"], env=self.env, check=False)
        time.sleep(0.5)  # slurmd kills them

    def crash(self) -> None:
        self.restart("slurmctld", "-D")

    def submission(
        self, command: list[str], queued: bool = False, options: Sequence[str] = ()
    ) -> list[str]:
        held = self.options(gpus=1) if queued else []
        words = ["sbatch", "--parsable", "-o", "/dev/null", *held, *options]
        return [*words, "--wrap", shlex.join(command)]

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


class SlurmTuned(Slurm):
    """As its guide for high throughput advises, but for what would make a single job wait."""

    name: ClassVar[str] = "Slurm, tuned"
    tuned: ClassVar[bool] = True
    SETTINGS: ClassVar[str] = """\
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
SlurmctldDebug=error
SlurmdDebug=error
"""


MOST_SPOOLED = 940  # it has a connection for each job, and select() takes 1,024


class Spooler(System):
    """With a slot for each GPU: it knows none."""

    name: ClassVar[str] = "task-spooler"
    needs: ClassVar[tuple[str, ...]] = ("tsp",)
    VERSION: ClassVar[tuple[str, ...]] = ("tsp", "-V")
    folds: ClassVar[bool] = False
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "gpus": "-N {}",  # it counts slots, and knows no GPUs
        "time": "",
        "array": "--array={}",
        "sweep": "--param={}",
    }
    COMMANDS: ClassVar[Mapping[str, str]] = {"here": "tsp -nf", "why": "tsp -s {job}"}
    EXIT: ClassVar[str] = r"exit code (\d+)"

    def start(self) -> None:
        self.env["TS_SLOTS"] = str(self.gpus)
        self.env |= {"TS_SOCKET": str(self.folder / "socket"), "TS_MAXFINISHED": "100"}
        self.env["TMPDIR"] = str(self.folder)
        self.answers("tsp")

    def fill(self, count: int) -> list[str]:
        return super().fill(min(count, MOST_SPOOLED))

    def submit_many(self, command: list[str], count: int) -> float:
        """One by one: it has no arrays."""
        words = self.submission(command, options=self.options(gpus=1))
        return sum(self.run(words).cpu_ms for _ in range(count))

    def submission(
        self, command: list[str], queued: bool = False, options: Sequence[str] = ()
    ) -> list[str]:
        return ["tsp", *options, *command]

    def crash(self) -> None:
        server = min(self.processes(), key=lambda process: process.create_time())
        server.kill()
        self.answers("tsp")

    def verbs(self) -> Mapping[str, list[str]]:
        return {
            "submit": self.submission(LONG, queued=True),
            "queue": ["tsp"],
            "show": ["tsp", "-i", "{job}"],
            "cancel": ["tsp", "-r", "{job}"],
        }


def _printed(words: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    """The exit code of `carma WORDS` in this process, and both its streams."""
    os.environ.update(env)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            return run(words), printed.getvalue()
        except BaseException as error:  # noqa: BLE001 - this process goes no further
            return 1, repr(error)


SYSTEMS: tuple[type[System], ...] = (Carma, Gflow, GflowProcess, Slurm, SlurmTuned, Spooler)
BEST: tuple[type[System], ...] = (Carma, GflowProcess, SlurmTuned, Spooler)
