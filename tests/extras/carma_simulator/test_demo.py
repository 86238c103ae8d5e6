"""`carma demo` as a newcomer sees it, with few jobs; what it draws and says of more."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from carma_simulator import metrics
from carma_simulator.demo.jobs import GPUS, demo_trace, loss
from carma_simulator.demo.sharing import Replay, argv, picture, sentence
from carmad.attempt.proc import own_environment
from carmad.gpu.emulated import create
from cli.main import run
from tests.waiting import PATIENCE_S

DEMO = [Path(sys.executable).with_name("carma"), "demo", "--jobs", "2"]
GIB = 1024


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path),
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8",
    }


def left(home: Path) -> list[psutil.Process]:
    """What still runs of a demo: its daemons, and their jobs."""
    return [
        process
        for process in psutil.process_iter()
        if (env := own_environment(process.pid))
        and (str(home) in " ".join(process.cmdline()) or str(home) in env.get("CARMA_SOCKET", ""))
    ]


def test_without_a_terminal_it_tells_now_and_then_and_ends_with_a_sentence(
    tmp_path: Path, env: dict[str, str]
) -> None:
    shown = subprocess.run(
        DEMO, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"jobs done: exclusive \d/2, magm \d/2\n", shown), shown
    assert "\x1b" not in shown and "GPU 0" not in shown
    *_, last, lost = shown.splitlines()
    assert re.fullmatch(r"Sharing GPUs, CARMA finished the same 2 jobs in \d+ s .*\.", last), shown
    assert "jobs would have crashed" in lost
    assert left(tmp_path) == []


def heeding() -> None:
    """What runs in the background, as CI may, ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_on_a_terminal_it_draws_two_panes_and_ctrl_c_leaves_nothing(
    tmp_path: Path, env: dict[str, str]
) -> None:
    ours, theirs = pty.openpty()
    demo = subprocess.Popen(
        DEMO, env=env, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=heeding
    )
    os.close(theirs)
    shown = b""
    while b"running" not in shown:
        shown += os.read(ours, 65536)
    assert re.search(
        r"╭─ one job per GPU \(exclusive\) ─+╮ ╭─ shared by CARMA \(magm\) ─+╮",
        shown.decode(errors="replace"),
    )
    demo.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while os.read(ours, 65536):
            pass
    os.close(ours)
    assert demo.wait(PATIENCE_S) == 130
    assert left(tmp_path) == []


# what it draws


def gpu(index: int, *jobs: tuple[int, str, int]) -> dict[str, Any]:
    resident = [{"id": id, "name": name, "memory_mib": gib * GIB} for id, name, gib in jobs]
    used = sum(job["memory_mib"] for job in resident)
    sizes = {"memory_mib": 40 * GIB, "memory_used_mib": used}
    return {"index": index, **sizes, "sm_active": 0.625, "jobs": resident}


def both() -> list[Replay]:
    alone, shared = (Replay(policy, Path("/none")) for policy in ("exclusive", "magm"))
    alone.gpus = [gpu(0, (2, "bert", 20))]
    alone.jobs = [{"code": "CD"}, {"code": "R"}, {"code": "PD"}]
    shared.gpus = [gpu(0, (2, "bert", 20), (3, "vgg", 10))]
    shared.jobs = [{"code": "PD", "failures": [{}]}, {"code": "R"}, {"code": "CF"}]
    return [alone, shared]


def shown(room: int, plain: bool = False) -> list[str]:
    console = Console(width=room, no_color=True)
    with console.capture() as captured:
        console.print(picture(7.0, both(), 4, room, plain))
    return captured.get().splitlines()


def test_the_panes_are_beside_each_other_where_there_is_room() -> None:
    lines = shown(110)
    assert len(lines) == 7
    assert re.search(
        r"│ GPU 0 █+░+ 20\.0/40G  SM  62 % │ │ GPU 0 █+░+ 30\.0/40G  SM  62 % │", lines[2]
    )
    assert lines[3].count("■ bert") == 2 and lines[3].count("■ vgg") == 1
    assert re.search(r"│ jobs  ●◐○·  .*│ jobs  ✗◐◐·  ", lines[4])
    assert "● 1 done  ◐ 1 running  ○ 1 waiting" in lines[5]
    assert "◐ 2 running  ✗ 1 OOM" in lines[5]


@pytest.mark.parametrize("room", [60, 99])
def test_they_are_below_each_other_where_there_is_not(room: int) -> None:
    lines = shown(room)
    assert len(lines) == 13
    assert all(len(line) <= room for line in lines)


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = "\n".join(shown(80, plain=True))
    assert text.isascii()
    assert re.search(r"GPU 0 #+\.+ ", text) and "jobs  #>o." in text


# what it says


def figures(end_s: float, mean_s: float, **more: Any) -> Any:
    jct = metrics.spread([mean_s])
    told = {"jobs": 20, "finished": 20, "oom_crashes": 0, "makespan_s": end_s, "jct": jct} | more
    return type("Figures", (), told)


def test_the_sentence() -> None:
    assert sentence(figures(50.0, 20.0), figures(40.0, 15.0, oom_crashes=1)) == (
        "Sharing GPUs, CARMA finished the same 20 jobs in 40 s instead of 50 s (20 % less); a job"
        " waited and ran for 15.0 s on average instead of 20.0 s (25 % less); GPU memory ran out"
        " once, but no job was lost."
    )
    assert "44 s instead of 40 s (10 % more)" in sentence(figures(40, 1), figures(44, 1))
    assert sentence(figures(1, 1), figures(1, 1, finished=18)).endswith("2 of them failed.")


# the paper's jobs


def test_a_trace_is_repeatable_and_compressed() -> None:
    assert demo_trace() == demo_trace() != demo_trace(1)
    slow, fast = demo_trace(3, compress=10.0), demo_trace(3, compress=20.0)
    assert len(slow) == 20
    for one, other in zip(slow, fast, strict=True):
        assert (one.name, one.load, one.gpus) == (other.name, other.load, other.gpus)
        assert one.submit_s == pytest.approx(2 * other.submit_s)
        assert one.duration_s == pytest.approx(2 * other.duration_s)


def test_a_traced_job_runs(tmp_path: Path) -> None:
    create(tmp_path, "2xA100-40GB")
    task = min(demo_trace(compress=10_000.0), key=lambda each: each.duration_s)
    env = os.environ | {"CARMA_EMULATED_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}
    ran = subprocess.run(argv(task, seed=1), env=env, capture_output=True, text=True, check=True)
    assert task.name in ran.stdout


# jobs of one's own

OWN = """\
name,submit_s,duration_s,gpus,user,memory_mib,sm_active
large,100,600,1,ann,30000,0.7
other,101,600,1,bob,30000,0.7
wide,102,600,4,cho,100,0.1
huge,103,600,1,cho,90000,0.1
wrong,104,-1,1,cho,100,0.1
"""


@pytest.mark.long
def test_it_takes_ones_own_jobs_and_names_those_that_would_have_crashed(
    tmp_path: Path, env: dict[str, str]
) -> None:
    own = tmp_path / "my_jobs.csv"
    own.write_text(OWN, encoding="utf-8")
    demo = [DEMO[0], "demo", str(own), "--gpus", "1xA100-40GB"]
    ran = subprocess.run(
        demo, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert "rows of the trace that are left out: 1; line 6: duration_s is -1" in ran.stderr
    assert "2 jobs do not fit 1xA100-40GB" in ran.stderr
    assert ran.stdout.startswith("2 jobs of "), ran.stdout
    said = " ".join(ran.stdout.split())
    assert "CARMA finished the same 2 jobs" in said
    assert "1 of the 2 jobs would have crashed: " in said
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (["/nonexistent.csv"], "/nonexistent.csv"),
        (["--jobs", "0"], "--jobs"),
        (["generate:lab", "--gpus", "4xA1000"], "no GPU is called 'A1000'"),
    ],
)
def test_jobs_that_cannot_be_run_are_an_error(
    words: list[str], piece: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", *words]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and piece in err and "Traceback" not in err


def test_the_papers_jobs_crash_where_nobody_looks() -> None:
    said = loss(demo_trace(compress=1.0), GPUS)
    assert "3 of the 20 jobs would have crashed: maskrcnn_resnet50_fpn-b8" in said
    alone = demo_trace(jobs=1, compress=1.0)
    assert "none of these jobs would have crashed" in loss(alone, GPUS)
