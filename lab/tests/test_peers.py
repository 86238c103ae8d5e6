"""The side-by-side benchmark, with CARMA alone: the peers are installed on few machines."""

from __future__ import annotations

import psutil
import pytest

from lab.peers import __main__ as peers
from lab.peers import tasks
from lab.peers.system import System
from lab.peers.systems import Carma, Gflow, Spooler


class Absent(Gflow):
    needs = ("no-such-program",)


def test_what_is_absent_is_left_out_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARMA_SOCKET", "/nowhere")  # a `Daemon` sets it for the client
    monkeypatch.setattr(peers, "SYSTEMS", (Carma, Absent))
    monkeypatch.setattr(peers, "STARTS", 1)
    monkeypatch.setattr(peers, "NEAR_EMPTY", 3)
    monkeypatch.setattr(peers, "side_by_side", lambda kinds: ("the tasks", {}))
    page = peers.measure(rounds=1, queued=2, tasks=10).page({})
    assert "gflow is left out: no no-such-program here" in page
    for what in (
        "daemon: start",
        "submit to start",
        "why, near-empty",
        "cancel, 2 queued",
        "the tasks",
    ):
        assert what in page


class Queue(Spooler):
    """Without a program."""

    name = "a queue"
    needs = ()

    def start(self) -> None:
        assert self.gpus == tasks.GPUS

    def processes(self) -> list[psutil.Process]:
        return []


class Broken(Queue):
    name = "broken"

    def start(self) -> None:
        raise TimeoutError("no answer")


class AbsentToo(Queue):
    name = "absent"
    needs = ("no-such-program",)


def works(system: System) -> str:
    return "yes" if system.out.is_dir() else "no"


def refuses(system: System) -> str:
    return system.says(["sh", "-c", "echo; echo 'Caused by:\n  0: too | many'; exit 1"])


def test_each_task_is_tried_on_each_system_that_is_there() -> None:
    tried = [
        tasks.Task("works", works),
        tasks.Task("refuses", refuses),
        tasks.Task("inside", tasks.quota),
    ]
    table, cells = tasks.side_by_side(tried, (Queue, Broken, AbsentToo))
    assert [cells[task.what]["a queue"] for task in tried] == [
        "yes",
        "no: too | many",
        "no: no such command",
    ]
    assert {of["broken"] for of in cells.values()} == {"not tried: no answer"}
    assert {of["absent"] for of in cells.values()} == {"no no-such-program here"}
    assert table.splitlines()[0].split("|")[2].strip() == "a queue"
    assert r"too \| many" in table
