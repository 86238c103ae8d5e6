"""`carma submit` on a terminal: a script that stops by itself is told."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import psutil
import pytest

from cli.commands import submit as preflight
from cli.hot import run as run_hot
from cli.problems import INTERRUPTED
from tests.daemon import CARMA
from tests.fake_daemon import FakeDaemon, waiting
from tests.terminal import Terminal
from tests.waiting import until

submit = partial(run_hot, "submit")

CRASH = "at train.py:5: RuntimeError: a and b must have same reduction dim"
NEXT = (  # what comes after a submission at a terminal
    "carma: its log is /home/alice/carma-42.out; follow it: carma logs -f;"
    " why it waits: carma why\n"
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "POLL_S", 0.0)


def says(
    monkeypatch: pytest.MonkeyPatch, words: str | BaseException, terminal: bool = True
) -> list[str]:
    """Let the user answer, at a terminal or not; returns the questions."""
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys.stdin, "fileno", lambda: 0, raising=False)
    monkeypatch.setattr("os.getpgrp", os.getpid)
    monkeypatch.setattr("os.tcgetpgrp", lambda fd: os.getpid())
    asked: list[str] = []

    def answer(question: str = "") -> str:
        asked.append(question)
        if isinstance(words, BaseException):
            raise words
        return words

    monkeypatch.setattr("builtins.input", answer)
    return asked


def found(fake: FakeDaemon, *jobs: Any) -> None:
    """What the daemon says of the job, one after the other; the last for good."""
    left = list(jobs)
    answer = fake.answer

    def told(method: str, target: str, body: Any) -> tuple[int, Any]:
        if (method, target) == ("GET", "/v1/jobs/42"):
            return 200, left.pop(0) if len(left) > 1 else left[0]
        if target == "/v1/cancel":
            fake.asked.append((method, target))
            return 200, {"results": []}
        return answer(method, target, body)

    fake.answer = told  # type: ignore[method-assign]


def cancelled(fake: FakeDaemon) -> bool:
    return any(asked[1] == "/v1/cancel" for asked in fake.asked)


@pytest.mark.parametrize(
    ("words", "keeps"),
    [
        *(("n", False), ("", False), ("y", True), ("Yes", True)),
        *((EOFError(), True), (KeyboardInterrupt(), True)),
    ],
)
def test_the_owner_decides(
    fake: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: Any,
    keeps: bool,
) -> None:
    found(fake, waiting(state="pending"), waiting(crash=CRASH))
    asked = says(monkeypatch, words)
    assert submit(["python", "train.py"]) == (0 if keeps else 1)
    out, err = capsys.readouterr()
    assert out.startswith("Submitted batch job 42")
    assert f"carma: your script stops {CRASH}" in err
    assert len(asked) == 1
    assert cancelled(fake) is not keeps


def test_the_owner_decides_on_what_no_gpu_has(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    too_large = "needs at least 149.5G, and the largest GPU has 40.0G"
    found(fake, waiting(state="pending"), waiting(too_large=too_large))
    asked = says(monkeypatch, "n")
    assert submit(["python", "train.py"]) == 1
    assert f"carma: your job {too_large}" in capsys.readouterr().err
    assert len(asked) == 1 and cancelled(fake)


def test_nothing_is_said_of_a_script_that_runs(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(fake, waiting(state="pending"), waiting(crash=None))
    asked = says(monkeypatch, "n")
    assert submit(["python", "train.py"]) == 0
    assert capsys.readouterr() == ("Submitted batch job 42\n", NEXT)
    assert not asked


def test_what_an_earlier_job_may_still_mend_is_only_told(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(fake, waiting(crash="at t.py:1: FileNotFoundError: data.csv"))
    asked = says(monkeypatch, "n")
    assert submit(["--after", "41", "python", "train.py"]) == 0
    assert "data.csv" in capsys.readouterr().err and not asked


def test_a_job_that_has_started_is_only_told(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a free GPU it starts in the step in which the answer arrives."""
    found(fake, waiting(state="pending"), waiting(state="starting", crash=CRASH))
    asked = says(monkeypatch, "n")
    assert submit(["python", "train.py"]) == 0
    assert f"your script stops {CRASH}" in capsys.readouterr().err and not asked


def test_who_types_has_the_terminal_back_when_the_job_starts(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its script is tried on; whoever waits for the job is told."""
    tried = waiting(state="running", estimating=True)
    found(fake, tried, tried, waiting(state="starting", estimating=False, crash=CRASH))
    says(monkeypatch, "n")
    assert submit(["python", "train.py"]) == 0
    assert capsys.readouterr() == ("Submitted batch job 42\n", NEXT)
    found(fake, tried, waiting(state="starting", estimating=False, crash=CRASH))
    monkeypatch.setattr("cli.commands.submit.wait_for", lambda job: {})
    monkeypatch.setattr("cli.commands.submit.exit_code", lambda job: 3)
    monkeypatch.setattr(preflight, "_is_typed", lambda: False)
    assert submit(["--wait", "python", "train.py"]) == 3
    assert f"your script stops {CRASH}" in capsys.readouterr().err


def left_behind(session: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found


@pytest.mark.parametrize("stops", [CRASH, "", "late"])
def test_what_is_known_later_is_said_on_the_terminal_that_is_still_there(
    fake: FakeDaemon, stops: str
) -> None:
    tried = waiting(state="running", estimating=True)
    ended = "2026-11-26T12:00:00Z" if stops == "late" else None
    then = waiting(state="running", estimating=False, crash=stops and CRASH, ended_at=ended)
    found(fake, tried, tried, tried, then)
    with Terminal([*CARMA, "submit", "python", "-m", "train"]) as terminal:
        assert terminal.process.wait() == 0, "the prompt is back"
        assert "your script stops" not in terminal.written
        until(lambda: not left_behind(terminal.process.pid), "the end of what was left behind")
        said = f"carma: job 42: your script stops {CRASH}"
        assert (said in " ".join(terminal.text.split())) is (stops == CRASH)


@pytest.mark.parametrize("option", ["--anyway", "--quiet", "--json", "--parsable"])
def test_nobody_is_asked_who_does_not_want_to_be(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    found(fake, waiting(crash=CRASH))
    asked = says(monkeypatch, "n")
    assert submit([option, "python", "train.py"]) == 0
    assert not asked and ("GET", "/v1/jobs/42") not in [one[:2] for one in fake.asked]


def test_a_script_is_never_held_up(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    found(fake, waiting(crash=CRASH))
    asked = says(monkeypatch, "n", terminal=False)
    assert submit(["python", "train.py"]) == 0
    assert not asked and len(fake.asked) == 1


@pytest.mark.parametrize("leader", ["own", "foreground"])
def test_nor_is_one_on_a_terminal(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, leader: str
) -> None:
    """`for i in 1 2; do carma submit …; done` in a file; or in the background."""
    found(fake, waiting(crash=CRASH))
    asked = says(monkeypatch, "n")
    if leader == "own":
        monkeypatch.setattr("os.getpgrp", lambda: os.getpid() + 1)
    else:
        monkeypatch.setattr("os.tcgetpgrp", lambda fd: os.getpid() + 1)
    assert submit(["python", "train.py"]) == 0
    assert not asked and len(fake.asked) == 1


def test_who_waits_for_the_job_is_told_but_not_asked(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(fake, waiting(state="pending"), waiting(crash=CRASH))
    monkeypatch.setattr("cli.commands.submit.wait_for", lambda job: {})
    monkeypatch.setattr("cli.commands.submit.exit_code", lambda job: 3)
    asked = says(monkeypatch, "n", terminal=False)
    assert submit(["--wait", "python", "train.py"]) == 3
    assert capsys.readouterr().err == f"carma: your script stops {CRASH}\n"
    assert not asked and not cancelled(fake)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    found(fake, waiting(state="pending"))
    monkeypatch.setattr("time.sleep", interrupted)
    assert submit(["--wait", "python", "train.py"]) == INTERRUPTED
    assert "job 42 continues" in capsys.readouterr().err


def test_with_its_output_in_a_file_it_tells_but_does_not_ask(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(fake, waiting(crash=CRASH))
    asked = says(monkeypatch, "n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert submit(["python", "train.py"]) == 0
    assert f"your script stops {CRASH}" in capsys.readouterr().err and not asked


def test_closed_ends_are_no_terminal(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(fake, waiting(crash=CRASH))
    asked = says(monkeypatch, "n")
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", None)
        assert submit(["python", "train.py"]) == 0
    assert f"your script stops {CRASH}" in capsys.readouterr().err and not asked
    fake.asked.clear()
    monkeypatch.setattr(sys, "stdin", None)
    assert submit(["python", "train.py"]) == 0
    assert not asked and len(fake.asked) == 1


def test_what_a_script_says_cannot_move_the_cursor(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(fake, waiting(crash="at t.py:1: ValueError: \x1b[2Jgone"))
    says(monkeypatch, "y")
    assert submit(["python", "train.py"]) == 0
    err = capsys.readouterr().err
    assert "gone" in err and "\x1b" not in err


def test_impatience_and_an_unreachable_daemon_leave_the_job_alone(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(fake, waiting(state="pending"))
    says(monkeypatch, "n")
    monkeypatch.setattr(preflight, "WITHIN_S", 0.05)
    assert submit(["python", "train.py"]) == 0
    assert "still being tried" in capsys.readouterr().err

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    assert submit(["python", "train.py"]) == 0
    assert "job 42 stays in the queue" in capsys.readouterr().err
    monkeypatch.setenv("CARMA_SOCKET", "/nonexistent")
    assert preflight.is_wanted("42", "42", asks=True)
    assert not cancelled(fake)
