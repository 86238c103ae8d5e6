"""What goes wrong while jobs run and wait."""

from __future__ import annotations

import contextlib
import time

import psutil

from carmad.attempt.proc import own_environment
from lab.slurm.ways import Way
from tests.waiting import until

SETTLED_S = 6.0  # so that slurmctld has written that these jobs exist
NODE_DOWN_S = 240.0  # until a busy slurmctld misses a node; the test's SlurmdTimeout is 10 s


def all_of_them(way: Way) -> None:
    """`kill -9` of each daemon in turn, then the loss of a node.

    slurmctld writes its state every five seconds. What ended since then, it runs again after a
    `kill -9`, with CARMA or without; in this compressed trace, five seconds are an hour.
    """
    cluster = way.cluster
    time.sleep(SETTLED_S)
    cluster.kill("slurmctld")
    cluster.start_controller()
    _answers(way)
    for name in cluster.nodes:
        cluster.kill(name)
        cluster.start_node(name)
    for daemon in way.carmads.values():
        daemon.kill()
        daemon.start()
    _answers(way)
    lose(way, cluster.nodes[-1])


def lose(way: Way, node: str) -> None:
    """As if its power went and came back once Slurm had missed it."""
    cluster, carmad = way.cluster, way.carmads.get(node)
    cluster.kill(node)
    if carmad:
        carmad.clear_away()
    for process in _jobs_of(node):
        with contextlib.suppress(psutil.Error):
            process.kill()
    until(lambda: cluster.states().get(node, "").startswith("down"), f"{node} down", NODE_DOWN_S)
    if carmad:
        carmad.start()
    cluster.start_node(node)
    _answers(way)


def _answers(way: Way) -> None:
    until(
        lambda: (
            len(states := way.cluster.states()) == len(way.cluster.nodes)
            and not any(word in state for state in states.values() for word in ("down", "*", "unk"))
        ),
        "all nodes",
        NODE_DOWN_S,
    )


def _jobs_of(node: str) -> list[psutil.Process]:
    """What Slurm runs there, and the slurmstepds that run it."""
    found = []
    for process in psutil.process_iter():
        if own_environment(process.pid).get("SLURMD_NODENAME") == node:
            found.append(process)
            with contextlib.suppress(psutil.Error):
                if (parent := process.parent()) and "slurmstepd" in parent.name():
                    found.append(parent)
    return found
