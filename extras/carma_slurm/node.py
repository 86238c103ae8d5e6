"""Tells Slurm how much GPU memory this node has to give: its counted resource `gpumem`, in GiB.

What is wanted follows from the GPUs as they are now and from slurm.conf, and what Slurm has is
asked before it is changed. So nothing needs to be remembered, whichever of the two was restarted.
Slurm takes a node out of service if it is said to have more than slurm.conf gives it.
"""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from carmad import beats
from carmad.core.scene import Scene
from carmad.edge import Host
from carmad.readable import clean, count

LOOK_S = 1.0
ASK_S = 60.0  # `scontrol reconfigure` restores what slurm.conf says, for instance
WITHIN_S = 20.0  # that scontrol may take
LATE_S = 6 * WITHIN_S  # several are asked
OURS = "carma: "  # how the reasons begin with which we drain the node
MOST_SAID = 200
MIB_PER_GIB = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    usable_mib: int  # of the GPUs that take jobs
    all_mib: int
    why: str  # the former is less; "": all take jobs


GPUMEM = re.compile(r"(?<![^,])gpumem:(?:no_consume:)?(\d+[KMGTP]?)")


@dataclass(frozen=True, slots=True)
class Node:
    """What Slurm has on record."""

    gres: str  # "gpu:a100:2,gpumem:80"
    configured_gib: int  # its gpumem by slurm.conf
    drained: bool
    reason: str


class SlurmFailed(Exception):
    pass


def goal(scene: Scene) -> Wanted | None:
    """None: nobody knows the GPUs yet."""
    usable_mib, all_mib, why = 0, 0, []
    for view in scene.view.gpus:
        all_mib += view.gpu.memory_mib
        fault = view.sample.fault if view.sample else None
        if drain := scene.drains.get(view.id):
            why.append(f"GPU {view.gpu.index} drained by {drain.by}: {drain.reason}")
        elif fault:
            why.append(f"GPU {view.gpu.index}: {fault}")
        else:
            usable_mib += view.gpu.memory_mib
    told = clean("; ".join(why))[:MOST_SAID]  # Slurm's own answers are read by the line
    return Wanted(usable_mib, all_mib, told) if all_mib else None


def name_of(setting: str) -> str:
    """The node's name in Slurm."""
    return setting or socket.gethostname().partition(".")[0]


def look(name: str) -> Node:
    """Raises SlurmFailed."""
    return node_in(scontrol("--oneliner", "show", "node", name), configuration_gib(name))


def node_in(said: str, configured: int) -> Node:
    """As `scontrol --oneliner` prints it."""
    gres = re.search(r" Gres=(\S+)", said)
    state = re.search(r" State=(\S+)", said)
    reason = re.search(r" Reason=(.*?)(?: \[[^\]]*\])?\s*$", said)
    return Node(
        re.sub(r"\([^)]*\)", "", gres[1]) if gres else "",  # without the sockets
        configured,
        "DRAIN" in state[1] if state else False,
        reason[1] if reason else "",
    )


def configuration_gib(name: str) -> int:
    """The node's gpumem by slurm.conf, as its slurmd reads that; 0: none. Raises SlurmFailed."""
    _, said = ask("slurmd", "-G", "-N", name)
    found = re.search(r"Name=gpumem .*?Count=(\d+[KMGTP]?)", said)
    return count(found[1]) if found else 0


def changes(node: Node, want: Wanted) -> Iterator[dict[str, str]]:
    """What to tell Slurm of the node, one after the other. A node without any GPU is drained, so
    that its jobs are not refused but wait; and resumed if it was drained by us."""
    reason, ours = OURS + want.why, node.reason.startswith(OURS)
    if want.usable_mib == 0:
        if not node.drained or (ours and node.reason != reason):
            yield {"State": "DRAIN", "Reason": reason}
        return
    gib = node.configured_gib * want.usable_mib // want.all_mib
    gres = GPUMEM.sub(f"gpumem:{gib}", node.gres)
    if gres != node.gres:
        yield {"Gres": gres, "Comment": reason if want.why else ""}
    if node.drained and ours:
        yield {"State": "RESUME"}


def scontrol(*words: str) -> str:
    return ask("scontrol", *words)[0]


def ask(*words: str) -> tuple[str, str]:
    """What a command of Slurm's prints, and what it writes to standard error, as slurmd does.
    Raises SlurmFailed."""
    try:
        ran = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmFailed(str(error)) from error
    if ran.returncode != 0:
        raise SlurmFailed((ran.stderr or ran.stdout).strip()[:MOST_SAID])
    return ran.stdout, ran.stderr


def slurm_node(host: Host) -> SlurmNode | None:
    cluster = host.settings().cluster
    return SlurmNode(host.scene, cluster.node) if cluster.engine else None


class SlurmNode:
    def __init__(self, scene: Callable[[], Scene], name: str) -> None:
        self._scene = scene
        self._name = name_of(name)
        self._told: Wanted | None = None
        self._failing = ""
        self._stopped = threading.Event()
        self._thread = beats.thread("slurm-node", LATE_S, self._watch)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()  # it may be waiting for scontrol

    def _watch(self) -> None:
        looks = 0
        while not self._stopped.wait(LOOK_S):
            looks += 1
            beats.at("what Slurm has on record")
            try:
                want = goal(self._scene())
                if want and (want != self._told or looks * LOOK_S >= ASK_S):
                    looks = 0
                    self._told = want  # if it fails, the next try is with the next ASK_S
                    self._tell(want)
                    self._failing = ""
            except SlurmFailed as error:
                if self._failing != str(error):
                    self._failing = str(error)
                    log.error("cannot tell Slurm about the GPUs of %s: %s", self._name, error)
            except Exception:
                log.exception("Slurm was not told about the GPUs")
            beats.idle()

    def _tell(self, want: Wanted) -> None:
        for each in changes(look(self._name), want):
            scontrol("update", f"NodeName={self._name}", *(f"{k}={v}" for k, v in each.items()))
            log.info("told Slurm of %s: %s", self._name, each)
