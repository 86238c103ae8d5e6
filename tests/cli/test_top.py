"""`carma top` and `carma queue --watch`: what they show on terminals of several sizes, their keys,
and what they leave behind."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from cli import top
from cli.dashboard import graph
from tests import fake_daemon as fakes
from tests.aio import run_here
from tests.fake_daemon import FakeDaemon, gpu, job, waiting
from tests.terminal import Terminal
from tests.waiting import PATIENCE_S, until

CARMA = [sys.executable, "-c", "from cli.main import main; main()"]
JOBS = [
    job(id=1, label="1", name="first", elapsed_s=60.0),
    job(id=2, label="2", name="second", user="bob", elapsed_s=7200.0),
    waiting(id=3, label="3_[2-99%4]", name="sweep", tasks="2-99%4", count=98),
]
REASON = "(HeldFor: GPU0 until number 17 ends)"
STRANGER = {"pid": 4711, "user": "eve", "command": "python notebook.py", "memory_mib": 2048}


def status(fake: FakeDaemon, **changes: Any) -> None:
    fake.answers["GET", "/v1/status"] = fakes.STATUS | {"jobs": JOBS} | changes


class Shown:
    """What runs, with its keys and its picture."""

    def __init__(self, pilot: Pilot[int]) -> None:
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    @property
    def lines(self) -> list[str]:
        screen = self.pilot.app.screen
        return [strip.text for strip in screen._compositor.render_strips(screen.size)]

    @property
    def rows(self) -> list[str]:
        """The ids of the jobs that are shown."""
        begin = next(at for at, line in enumerate(self.lines) if line.lstrip().startswith("JOBID"))
        jobs = [line for line in self.lines[begin + 1 :] if "alice" in line or "bob" in line]
        return [line.split()[0] for line in jobs]

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not any(text in line for line in self.lines):
                await self.pilot.pause(0.02)


def play(
    what: Callable[[Shown], Any], columns: int = 80, lines: int = 24, every_s: float = 60.0
) -> None:
    async def run() -> None:
        app = top.Top(top.status, every_s)
        async with app.run_test(size=(columns, lines)) as pilot:
            shown = Shown(pilot)
            await shown.shows("q Quit")
            await what(shown)

    run_here(run())


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


@pytest.mark.parametrize(("columns", "lines"), [(40, 10), (80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("gpus", [1, 8])
def test_it_fits_and_a_reason_is_never_cut(
    fake: FakeDaemon, columns: int, lines: int, gpus: int
) -> None:
    busy(fake, gpus)

    async def look(shown: Shown) -> None:
        picture = shown.lines
        assert any("job-1 " in line for line in picture), picture
        assert len(picture) == lines and max(map(len, picture)) <= columns
        assert any("CPU" in line for line in picture), "the host's"
        text = " ".join(picture)
        assert text.count("12/40G") + text.count("12.0G/40.0G") >= gpus, "every GPU"
        assert columns != 80 or "LIMIT" not in text, "it says nothing"
        await shown.press("j", "j", "down")  # the one that waits, wherever it is
        words = [word for word in " ".join(shown.lines).split() if word in REASON.split()]
        assert words == REASON.split(), shown.lines

    play(look, columns, lines)


def test_a_large_terminal_shows_the_last_half_hour_and_all_processes(fake: FakeDaemon) -> None:
    busy(fake)

    async def look(shown: Shown) -> None:
        await shown.shows("30 min")
        picture = shown.lines
        title = next(at for at, line in enumerate(picture) if "30 min" in line)
        full = picture[title + 1][: 200 // 3]
        assert full.rstrip().endswith("█") and full.startswith(" ")
        bottom = next(line for line in picture[title + 2 :] if "▁" in line)
        half = bottom[: len(bottom) // 6]
        assert half.startswith(" ") and "▁█" in half, "nothing known, then idle, then busy"
        assert any("pid 4711, not CARMA's" in line and "notebook.py" in line for line in picture)
        assert any("job 42" in line and "train" in line for line in picture)

    play(look, 200, 60)


def test_an_older_daemon_has_no_half_hour(fake: FakeDaemon) -> None:
    busy(fake)
    del fake.answers["GET", "/v1/timeline"]

    async def look(shown: Shown) -> None:
        await shown.shows("patient")
        assert not any("30 min" in line for line in shown.lines)

    play(look, 200, 60)


def test_a_graph_of_many_values() -> None:
    assert graph([0.0, 0.5, 1.0, None], 4, 2) == ["  █ ", "▁██ "]
    assert graph([], 3, 2) == ["   ", "   "]
    assert graph([1.0, 0.0] * 50, 10, 1) == ["▄" * 10], "means"


def test_jobs_are_selected_sorted_searched_and_left_out(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    status(fake)
    monkeypatch.setattr(top, "user_of", lambda *_, **__: "alice")

    async def look(shown: Shown) -> None:
        assert shown.rows == ["1", "2", "3_[2-99%4]"]
        await shown.press("s")
        await shown.shows("sorted by time")
        assert shown.rows[0] == "2"
        await shown.press("m")
        await shown.shows("yours only")
        assert shown.rows == ["1", "3_[2-99%4]"]
        await shown.press("m", "slash", *"SEC", "enter")
        await shown.shows("1 with SEC")
        assert shown.rows == ["2"]
        await shown.press("escape")
        assert len(shown.rows) == 3
        await shown.pilot.click(top.Jobs, offset=(14, 0))  # a header
        await shown.shows("sorted by name")

    play(look)


def test_live_jobs_come_before_a_few_that_have_ended(fake: FakeDaemon) -> None:
    tasks = [fakes.ended(id=n, label=f"9_{n}") for n in range(40)]
    status(fake, jobs=[*tasks, *JOBS])

    async def look(shown: Shown) -> None:
        assert shown.rows == ["1", "2", "3_[2-99%4]", *(f"9_{n}" for n in range(5))]

    play(look, 100, 30)


def test_of_very_many_jobs_the_first_are_listed_and_any_is_found(fake: FakeDaemon) -> None:
    status(fake, jobs=[waiting(id=n, label=str(n), name=f"job-{n}") for n in range(1, 351)])

    async def look(shown: Shown) -> None:
        await shown.shows("and 50 more")
        await shown.press("slash", *"job-350")
        await shown.shows("1 with job-350")
        assert shown.rows == ["350"]

    play(look)


def test_a_job_has_a_page(fake: FakeDaemon, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"epoch {n}\n" for n in range(200)) + "10%\r99%\n\x1b[2Jevil[bold]\n")
    fake.answers["GET", "/v1/jobs/1"] = job(stdout=str(log))
    fake.answers["GET", "/v1/jobs/2"] = fakes.private(job(user="bob"))
    fake.answers["GET", "/v1/jobs/3_2/why"] = fakes.WHY
    status(fake)

    async def look(shown: Shown) -> None:
        await shown.press("l")
        await shown.shows("evil[bold]")
        assert any(line.strip() == "99%" for line in shown.lines), "of a line, what is left of it"
        await shown.press("k", "k")
        await shown.press("s")
        await shown.shows("all about it")
        await shown.press("escape", "j", "l")
        await shown.shows("its output is its owner's")
        await shown.press("q", "j", "enter")
        await shown.shows("what would help")
        assert not any("Search" in line for line in shown.lines), "keys of the list"
        await shown.press("q")
        await shown.shows("sweep")

    play(look)


def test_cancelling_asks_first(fake: FakeDaemon) -> None:
    status(fake)

    async def look(shown: Shown) -> None:
        await shown.press("j", "j", "c")
        await shown.shows("cancel job 3_[2-99%4]?")
        await shown.press("x")
        assert ("POST", "/v1/cancel") not in [asked[:2] for asked in fake.asked]
        await shown.press("c", "y")
        async with asyncio.timeout(PATIENCE_S):
            while not (told := [body for method, *_, body in fake.asked if method == "POST"]):
                await shown.pilot.pause(0.02)
        assert told[0]["select"] == "3_[2-99%4]"

    play(look)


def test_a_daemon_that_is_gone_for_a_while_is_told(fake: FakeDaemon) -> None:
    status(fake)

    async def look(shown: Shown) -> None:
        fake.refuse_all = 500, "error"
        await shown.shows("asking again every 0.1 s")
        assert any("sweep" in line for line in shown.lines), "what it said last stays"
        fake.refuse_all = None
        status(fake, jobs=[job(name="another")])
        await shown.shows("another")
        assert not any("asking again" in line for line in shown.lines)
        status(fake, jobs=[])
        await shown.shows("no jobs: submit one")

    play(look, every_s=0.1)


def test_no_daemon_is_an_error(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARMA_SOCKET", "/nonexistent")
    with Terminal([*CARMA, "top"]) as terminal:
        assert until(lambda: terminal.process.poll()) == 3
        assert "no answer at" in terminal.text


def test_the_terminal_is_given_back_whatever_ends_it(fake: FakeDaemon) -> None:
    status(fake)
    for end, code in (("q", 0), ("\x03", 130), ("", 128 + signal.SIGTERM)):
        with Terminal([*CARMA, "top"]) as terminal:
            terminal.shows("sweep")
            if end:
                terminal.press(end)
            else:
                terminal.process.terminate()
            assert terminal.ends() == code


def test_ctrl_z_gives_the_terminal_back_until_fg(fake: FakeDaemon) -> None:
    status(fake)
    shell = 'set -m; "$@"; echo halted; fg'  # job control: otherwise, nothing stops
    with Terminal(["bash", "-c", shell, "bash", *CARMA, "top", "--every", "60"]) as terminal:
        terminal.shows("sweep")
        terminal.press("\x1a")
        until(lambda: terminal.text and "halted" in terminal.written)
        assert "\x1b[?1049l" in terminal.written.partition("halted")[0]
        until(lambda: terminal.text and "sweep" in terminal.written.partition("halted")[2])
        terminal.press("q")
        assert terminal.ends() == 0


def test_a_new_size_is_used_at_once(fake: FakeDaemon) -> None:
    status(fake)

    async def look(shown: Shown) -> None:
        await shown.pilot.resize_terminal(120, 40)
        await shown.shows("VRAM(USED/EST)")
        assert len(shown.lines) == 40

    play(look, 60, 16)


def test_queue_is_watched_without_colour(fake: FakeDaemon) -> None:
    with Terminal(["env", "NO_COLOR=1", *CARMA, "queue", "-w", "--every", "0.2"]) as terminal:
        terminal.shows("train")
        fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": [job(name="another")]}
        terminal.shows("another")
        assert "\x1b[31m" not in terminal.written and "GPUs (nvml)" not in terminal.text
        terminal.press("q")
        assert terminal.ends() == 0


def test_a_dumb_terminal_is_told_why_it_gets_one_picture(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    status(fake)
    with Terminal(["env", "TERM=dumb", *CARMA, "top"]) as terminal:
        assert until(lambda: terminal.process.poll() is not None) and terminal.process.poll() == 0
        assert "printed once: the terminal is dumb" in terminal.text and "sweep" in terminal.text


def test_the_host_is_read() -> None:
    seen = top.read_host()
    assert 0 <= seen.cpu <= 1 and 0 < seen.used_mib < seen.total_mib
