"""Variables in the environments of processes, one of which does not answer."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from carmad.attempt import marks as module
from carmad.attempt.callers import title_of
from carmad.attempt.marks import Marks
from carmad.attempt.proc import own_environment, process_stat, processes
from carmad.attempt.starting import program
from carmad.errors import CarmaError

SILENT = """
import os, sys, time
from carmad.attempt import marks
read = marks.read_file
def stuck(path):
    if path == f"/proc/{os.environ['STUCK']}/environ":
        time.sleep(600)
    return read(path)
marks.read_file = stuck
marks.main()
"""


@contextmanager
def sleepers(*values: str) -> Iterator[list[int]]:
    """Processes with these values of MARK."""
    with ExitStack() as stack:
        found = []
        for value in values:
            argv = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
            process = subprocess.Popen(argv, env={"MARK": value}, stdout=subprocess.PIPE)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()  # it is what it will be
            found.append(process.pid)
        yield found


def starts(pids: list[int]) -> dict[int, int]:
    return {pid: stat[1] for pid in pids if (stat := process_stat(pid))}


def test_the_values_are_those_of_the_processes() -> None:
    with sleepers("one", "two") as pids:
        marks = Marks(b"MARK")
        found = starts(pids)
        assert marks.having(b"two", found) == {pids[1]: found[pids[1]]}
        assert [marks.value(*each) for each in found.items()] == [b"one", b"two"]
        assert marks.value(pids[0], 1) is None, "another process"
        assert own_environment(pids[0])["MARK"] == "one"
        assert found.items() <= processes().items()
    assert Marks(b"MARK").having(b"one", found) == {}, "they are gone"


def test_the_title_of_a_process_is_read_or_it_is_said_that_it_cannot_be() -> None:
    with sleepers("one") as pids:
        argv, cwd = title_of(pids[0])
        assert argv[:2] == [sys.executable, "-c"]
        assert cwd == str(Path.cwd())
    with subprocess.Popen(["/bin/true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(CarmaError, match="cannot be read"):
            title_of(ended.pid)  # it has no directory any more


def test_one_that_does_not_answer_keeps_nobody_from_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "WITHIN_S", 2.0)
    with sleepers("one", "stuck", "two") as pids:
        reader = [*program("x")[:-1], f"import os; os.environ['STUCK'] = '{pids[1]}'\n{SILENT}"]
        path = f"import sys; sys.path.insert(0, {sys.path[0]!r})\n"
        reader[-1] = path + reader[-1]
        monkeypatch.setattr(module, "program", lambda _: reader)
        marks, found = Marks(b"MARK"), starts(pids)
        marks.ask(found)
        assert [marks.value(*each) for each in found.items()] == [b"one", b"", b"two"]
        assert capfd.readouterr().err.count(f"process {pids[1]} cannot be read") == 1
        marks.ask(found)
        assert capfd.readouterr().err == "", "it is asked once"


def test_where_no_process_can_be_started_nothing_is_known_and_nothing_leaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with sleepers("one") as pids:
        marks, found = Marks(b"MARK"), starts(pids)
        with monkeypatch.context() as patch:
            patch.setattr(module.subprocess, "Popen", exhausted)
            gc.collect()  # what other tests of this process left open is not closed meanwhile
            before = {*Path("/proc/self/fd").iterdir()}
            assert marks.having(b"one", found) == {}
            assert {*Path("/proc/self/fd").iterdir()} <= before
        assert marks.having(b"one", found) == found, "they are asked the next time"
