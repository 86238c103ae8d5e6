"""The side-by-side benchmark, with CARMA alone: the peers are installed on few machines."""

from __future__ import annotations

import json
from functools import partial

import psutil
import pytest

from lab import RESULTS
from lab.peers import __main__ as peers
from lab.peers import measures, table, tasks
from lab.peers.measures import Line
from lab.peers.system import System
from lab.peers.systems import Carma, Gflow, Spooler


class Absent(Gflow):
    needs = ("no-such-program",)


@pytest.mark.long
def test_what_is_absent_is_left_out_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARMA_SOCKET", "/nowhere")  # a `Daemon` sets it for the client
    monkeypatch.setattr(peers, "SYSTEMS", (Carma, Absent))
    monkeypatch.setattr(peers, "adopt", lambda: None)
    monkeypatch.setattr(measures, "NEAR_EMPTY", 3)
    monkeypatch.setattr(measures, "measure_cancel", partial(measures.measure_cancel, tasks=10))
    jobs = partial(measures.measure_jobs, many=3, single=3)
    monkeypatch.setattr(peers, "measure_jobs", jobs)
    commands = partial(measures.measure_commands, sizes=(2, 4))
    monkeypatch.setattr(peers, "measure_commands", commands)
    monkeypatch.setattr(peers, "side_by_side", lambda kinds: ("the tasks", {}))
    page = peers.measure(goes=1, rounds=1).page({})
    assert "gflow is left out: no-such-program" in page
    for what in (
        "a Python job",
        "3 jobs at once",
        "daemon: start",
        "why, near-empty",
        "cancel, 2 jobs in line",
        "queue, as JSON, an array of 4 in line",
        "cancel an array of 10",
        "the tasks",
    ):
        assert what in page


@pytest.mark.parametrize(
    ("goal", "than", "least", "met"),
    [
        (5, "py", False, True),
        (3, "py", False, False),
        (1, "gflow", False, False),
        (1, "absent", False, None),
        (30, "", True, True),
        (None, "", False, None),
    ],
)
def test_a_goal_is_a_multiple_of_something(
    goal: float | None, than: str, least: bool, met: bool | None
) -> None:
    line = Line("a job", "ms", {"CARMA": 40.0, "gflow": 20.0}, 10.0, goal, than, least)
    assert line.met is met
    assert line.cell("CARMA") == "4 × (40.0 ms)"


def test_the_comparison_shows_the_committed_results() -> None:
    found = json.loads((RESULTS / "peers.json").read_text())
    block = table.BLOCK.search(table.PAGE.read_text(encoding="utf-8"))
    assert block and block[0] == table.draw(found), "run python -m lab.peers table"


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
        tasks.Task("works", "it works", works),
        tasks.Task("refuses", "it refuses", refuses),
        tasks.Task("quota", "it has limits", tasks.quota),
    ]
    table, cells = tasks.side_by_side(tried, (Queue, Broken, AbsentToo))
    assert [cells[task.key]["a queue"] for task in tried] == [
        "yes",
        "no: too | many",
        "no: no such command",
    ]
    assert {of["broken"] for of in cells.values()} == {"not tried: no answer"}
    assert {of["absent"] for of in cells.values()} == {"no no-such-program here"}
    assert table.splitlines()[0].split("|")[2].strip() == "a queue"
    assert r"too \| many" in table
