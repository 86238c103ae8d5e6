"""`carma top` on real terminals of several sizes: its keys, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cli import host, screen
from cli.dashboard import ASCII, graph
from tests import fake_daemon as fakes
from tests.fake_daemon import FakeDaemon, gpu, job, waiting
from tests.terminal import Terminal
from tests.waiting import until

CARMA = [sys.executable, "-c", "from cli.main import main; main()"]
JOBS = [
    job(id=1, label="1", name="first", elapsed_s=60.0),
    job(id=2, label="2", name="second", user="bob", elapsed_s=7200.0),
    waiting(id=3, label="3_[2-99%4]", name="sweep", tasks="2-99%4", count=98),
]


def status(fake: FakeDaemon, **changes: Any) -> None:
    fake.answers["GET", "/v1/status"] = fakes.STATUS | {"jobs": JOBS} | changes


def top(columns: int = 80, lines: int = 24, every_s: float = 60.0) -> Terminal:
    return Terminal([*CARMA, "top", "-w", str(every_s)], columns, lines)


def rows(terminal: Terminal) -> list[str]:
    """The ids of the jobs that are shown."""
    picture = terminal.picture
    begin = next(at for at, line in enumerate(picture) if line.lstrip().startswith("JOBID"))
    return [line.split()[0] for line in picture[begin + 1 :] if "alice" in line or "bob" in line]


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (100, 30), (200, 60), (40, 10)])
def test_it_fits_terminals_of_all_sizes(fake: FakeDaemon, columns: int, lines: int) -> None:
    many = [waiting(id=n, label=str(n), name=f"job-{n}") for n in range(1, 80)]
    status(fake, gpus=[gpu(n) for n in range(4)], jobs=many)
    with top(columns, lines) as terminal:
        terminal.shows("? help")
        picture = terminal.picture
        assert len(picture) == lines
        assert max(map(len, picture)) <= columns
        if columns >= 80:
            assert sum("A100" in line for line in picture) == 4, "GPUs are always in sight"
            assert any("more" in line for line in picture)
        terminal.press("q")
        assert terminal.ends() == 0


REASON = "(HeldFor: GPU0 until number 17 ends)"
STRANGER = {"pid": 4711, "user": "eve", "command": "python notebook.py", "memory_mib": 2048}


def busy(fake: FakeDaemon, gpus: int = 3) -> None:
    """Some jobs, a reason that takes room beside limits that say nothing, a stranger's process, and
    the last half hour."""
    jobs = [job(id=n, label=str(n), name=f"job-{n}", time_limit_s=None) for n in range(1, 4)]
    waits = waiting(id=4, label="4", name="patient", reason=REASON, time_limit_s=None)
    cards = [gpu(n, outsiders=[STRANGER] if n == 0 else []) for n in range(gpus)]
    status(fake, gpus=cards, jobs=[*jobs, waits])
    values = [None] * 60 + [0.0] * 60 + [1.0] * 60
    past = [
        {"id": each["id"], "sm_active": values, "used_mib": [v and 40960 * v for v in values]}
        for each in cards
    ]
    fake.answers["GET", "/v1/timeline"] = {"schema": 1, "gpus": past, "times": [], "step_s": 10}


@pytest.mark.parametrize(("columns", "lines"), [(40, 10), (80, 24), (200, 60)])
@pytest.mark.parametrize("gpus", [1, 3, 8])
def test_jobs_are_in_sight_and_a_reason_is_never_cut(
    fake: FakeDaemon, columns: int, lines: int, gpus: int
) -> None:
    """At 40 by 10, no job was; at 80 by 24, the reason was cut beside a column of dashes."""
    busy(fake, gpus)
    with top(columns, lines) as terminal:
        terminal.shows("? help")
        picture = terminal.picture
        assert any("job-1 " in line for line in picture), picture
        assert len(picture) == lines and max(map(len, picture)) <= columns
        assert any("CPU" in line for line in picture), "the host's"
        shown = " ".join(picture)
        assert shown.count("12/40G") + shown.count("12.0G/40.0G") >= gpus, "every GPU"
        if columns == 80:
            assert not any("LIMIT" in line for line in picture), "it says nothing"
        terminal.press("k" * 5 + "j" * 3)  # the one that waits, wherever it was

        def reason() -> list[str]:
            return [w for w in " ".join(terminal.picture).split() if w in REASON.split()]

        until(lambda: reason() == REASON.split(), "all of the reason")


def test_a_large_terminal_shows_the_last_half_hour_and_all_processes(fake: FakeDaemon) -> None:
    busy(fake)
    with top(200, 60) as terminal:
        terminal.shows("? help")  # the last line: all is drawn
        picture = terminal.picture
        title = next(at for at, line in enumerate(picture) if "30 min" in line)
        full = picture[title + 1][: 200 // 3]
        assert full.rstrip().endswith("█") and full.startswith(" ")
        bottom = next(line for line in picture[title + 2 :] if "▁" in line)
        half = bottom[: len(bottom) // 6]
        assert half.startswith(" ") and "▁█" in half, "nothing known, then idle, then busy"
        assert any("pid 4711, not CARMA's" in line and "notebook.py" in line for line in picture)
        assert any("job 42" in line and "train" in line for line in picture)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (60, 12)])
def test_words_stay_whole_beside_long_ones(fake: FakeDaemon, columns: int, lines: int) -> None:
    """With GPUs whose numbers are long, labels of arrays, and keys that there is no room for."""
    cards = [
        gpu(n, memory_used_mib=140 << 10, memory_mib=141 << 10, sm_active=1.0) for n in range(8)
    ]
    label = "123456_[1-2000%16]"
    waits = waiting(id=123456, label=label, user="alexandra.mustermann", reason=REASON)
    status(fake, gpus=cards, jobs=[waits])
    with top(columns, lines) as terminal:
        terminal.press("sm")
        terminal.shows("yours only")
        terminal.press("m")
        terminal.shows(label)
        shown = " ".join(terminal.picture).split()
        assert set(REASON.split()) <= set(shown)
        keys = terminal.picture[-1].split("? help")[1]
        assert all(f"  {key}" in f"{'  '.join(screen.FOOTER)}  " for key in keys.split("  ") if key)
        loads = [word for word in shown if word.endswith("/141G") or "/141.0G" in word]
        assert len(loads) == 8, "none runs into the next"
        terminal.press("q")


def test_gpus_that_there_is_no_room_for_are_counted(fake: FakeDaemon) -> None:
    cards = [gpu(n % 8) | {"index": n} for n in range(16)]
    status(fake, gpus=cards)
    with top(40, 10) as terminal:
        terminal.shows("first")
        assert any(line.endswith("+8 GPUs") for line in terminal.picture), terminal.picture


def test_graphs_go_before_a_list_of_what_the_table_says_already(fake: FakeDaemon) -> None:
    busy(fake, 8)
    with top(120, 40) as terminal:
        terminal.shows("30 min")
        assert any("eve:pid4711" in line for line in terminal.picture)


def test_an_older_daemon_has_no_half_hour(fake: FakeDaemon) -> None:
    busy(fake)
    del fake.answers["GET", "/v1/timeline"]
    with top(200, 60) as terminal:
        terminal.shows("patient")
        assert not any("30 min" in line for line in terminal.picture)


def test_a_graph_in_ascii_and_of_many_values() -> None:
    assert graph([0.0, 0.5, 1.0, None], 4, 2) == ["  █ ", "▁██ "]
    assert graph([0.5], 3, 1, plain=True) == [ASCII[4] * 3]
    assert graph([], 3, 2) == ["   ", "   "]
    assert graph([1.0, 0.0] * 50, 10, 1) == ["▄" * 10], "means"


def test_jobs_are_selected_sorted_and_left_out(fake: FakeDaemon) -> None:
    status(fake)
    with top() as terminal:
        terminal.shows("sweep")
        assert rows(terminal) == ["1", "2", "3_[2-99%4]"]
        terminal.press("s")
        terminal.shows("sorted by time")
        assert rows(terminal)[0] == "2"
        terminal.press("m")
        terminal.shows("yours only")
        assert rows(terminal) == ["1", "3_[2-99%4]"]
        terminal.press("?")
        terminal.shows("cancel it, after a question")
        terminal.press("\x1b")
        terminal.shows("sweep")


def test_live_jobs_come_before_a_few_that_have_ended(fake: FakeDaemon) -> None:
    tasks = [fakes.ended(id=n, label=f"9_{n}") for n in range(40)]
    status(fake, jobs=[*tasks, *JOBS])
    with top() as terminal:
        terminal.shows("sweep")
        assert rows(terminal) == ["1", "2", "3_[2-99%4]", *(f"9_{n}" for n in range(5))]


def test_a_job_s_why_and_log(fake: FakeDaemon, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"epoch {n}\n" for n in range(200)) + "10%\r99%\n\x1b[2Jevil\n")
    fake.answers["GET", "/v1/jobs/1"] = job(stdout=str(log))
    fake.answers["GET", "/v1/jobs/3_2/why"] = fakes.WHY
    status(fake)
    with top() as terminal:
        terminal.shows("sweep")
        terminal.press("l")
        terminal.shows("epoch 199")
        assert "99%" in terminal.picture and "?[2Jevil" in terminal.picture
        terminal.press("\x1b[B\x1b[Bjj")  # the pane scrolls, the selection stays
        terminal.press("\x1bjj")
        terminal.press("w")
        terminal.shows("what would help")
        terminal.press("w")
        terminal.shows("sweep")


def test_cancelling_asks_first(fake: FakeDaemon) -> None:
    status(fake)
    with top() as terminal:
        terminal.shows("sweep")
        terminal.press("jjc")
        terminal.shows("cancel job 3_[2-99%4]?")
        terminal.press("x")
        terminal.shows("? help")
        assert ("POST", "/v1/cancel") not in [asked[:2] for asked in fake.asked]
        terminal.press("cy")
        label = "3_[2-99%4]"
        until(lambda: ("POST", "/v1/cancel") in [asked[:2] for asked in fake.asked])
        assert (
            next(body for method, _, _, body in fake.asked if method == "POST")["select"] == label
        )


def test_a_daemon_that_is_gone_for_a_while_is_told(fake: FakeDaemon) -> None:
    status(fake)
    with top(every_s=0.2) as terminal:
        terminal.shows("sweep")
        fake.refuse_all = 500, "error"
        terminal.shows("asking again every 0.2 s")
        assert any("sweep" in line for line in terminal.picture), "what it said last stays"
        fake.refuse_all = None
        terminal.shows("? help")


def test_no_daemon_is_an_error(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARMA_SOCKET", "/nonexistent")
    with top() as terminal:
        assert until(lambda: terminal.process.poll()) == 3
        assert "no answer at" in "".join(terminal.picture)


def test_the_terminal_is_given_back_whatever_ends_it(fake: FakeDaemon) -> None:
    status(fake)
    for end, code in (("\x03", 130), ("", 128 + signal.SIGTERM)):
        with top() as terminal:
            terminal.shows("sweep")
            if end:
                terminal.press(end)
            else:
                terminal.process.terminate()
            assert terminal.ends() == code


def test_a_signal_may_come_while_a_picture_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.extend(iter(lambda: os.read(ours, 65536), b"")))

    def pause(*_: object) -> None:  # while the pipe is full
        reader.start()
        screen._write("paused")

    monkeypatch.setattr("sys.stdout", os.fdopen(theirs, "w"))
    before = signal.signal(signal.SIGALRM, pause)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        screen._write("x" * 300_000)
    finally:
        signal.signal(signal.SIGALRM, before)
        sys.stdout.close()
        reader.join()
        os.close(ours)
    said = b"".join(got)
    assert said.count(b"x") == 300_000 and b"paused" in said


def test_ctrl_z_gives_the_terminal_back_until_fg(fake: FakeDaemon) -> None:
    status(fake)
    shell = 'set -m; "$@"; echo halted; fg'  # job control: otherwise, nothing stops
    with Terminal(["bash", "-c", shell, "bash", *CARMA, "top", "-w", "60"]) as terminal:
        terminal.shows("sweep")
        terminal.press("\x1a")
        until(lambda: terminal.picture and "halted" in terminal.written)
        assert "\x1b[?1049l" in terminal.written.partition("halted")[0]
        until(lambda: terminal.picture and "sweep" in terminal.written.partition("halted")[2])
        terminal.press("q")
        assert terminal.ends() == 0


def test_a_new_size_is_used_at_once(fake: FakeDaemon) -> None:
    status(fake)
    with top() as terminal:
        terminal.shows("sweep")
        terminal.resize(120, 40)
        until(lambda: len(terminal.picture), wanted=lambda lines: lines == 40)
        terminal.press("q")
        assert terminal.ends() == 0


def test_queue_is_watched(fake: FakeDaemon) -> None:
    with Terminal([*CARMA, "queue", "-w", "0.2"]) as terminal:
        terminal.shows("train")
        fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": [job(name="another")]}
        terminal.shows("another")
        fake.refuse_all = 500, "error"
        terminal.shows("no")
        terminal.press("q")
        assert terminal.ends() == 0


def test_the_host_is_read_as_the_kernel_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, meminfo = tmp_path / "stat", tmp_path / "meminfo"
    monkeypatch.setattr(host, "STAT", str(stat))
    monkeypatch.setattr(host, "MEMINFO", str(meminfo))
    meminfo.write_text("MemTotal: 4194304 kB\nMemFree: 1 kB\nMemAvailable: 1048576 kB\n\n")
    stat.write_text("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1\n")
    seen = host.Host()
    assert (seen.cpu, seen.used_mib, seen.total_mib) == (None, 3072, 4096)
    stat.write_text("cpu  150 0 125 750 175 0 0 0 90 0\n")
    seen.look()
    assert seen.cpu == pytest.approx(75 / 200)
    seen.look()  # at once: nothing has passed
    assert seen.cpu == pytest.approx(75 / 200)
