"""`carma demo`: runs one trace of real processes on emulated GPUs under two policies at once.
`carma demo suspend` shows another."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from carma_simulator import metrics, recorded
from carma_simulator.demo.jobs import GPUS, demo_trace, in_a_minute, loss, own_jobs
from carma_simulator.experiment import Outcome, Task
from carma_simulator.metrics import Figures
from carmad import paths
from carmad.paths import python
from carmad.readable import clean, number
from carmad.states import ENDED_CODES
from cli import client, output
from cli.app import argument, option
from cli.problems import Problem, Unreachable

SETTINGS = {  # the paper's times, compressed like the trace as far as real processes allow
    "CARMA_ESTIMATOR": "declared",  # and nothing is declared, as in the paper's runs (4.3)
    "CARMA_MONITOR__PERIOD_S": "0.1",
    "CARMA_MONITOR__WINDOW_S": "0.7",
    "CARMA_LIMITS__KILL_GRACE_S": "2",
    "CARMA_RETENTION__BACKUPS": "0",
}
START_S = 30.0
WARMUP_S = 0.3  # of loading data, so that the first kernel is always some time after the launch

COLORS = ("cyan", "magenta", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_yellow")
LABEL, FIGURES = 6, 19  # columns left and right of a bar
# in Unicode, in ASCII, the style ("": the job's color)
MARKS = {
    "done": ("●", "#", "green"),
    "running": ("◐", ">", ""),
    "waiting": ("○", "o", ""),
    "OOM": ("✗", "x", "bold red"),  # and waiting to be run again
    "to come": ("·", ".", "dim"),
}


def argv(task: Task, seed: int, warmup_s: float = WARMUP_S, **more: float) -> list[str]:
    """The command line of an emulated job that behaves like `task`."""
    load = task.load
    options = {
        "model": task.name,
        "memory-mib": f"{load.memory_mib}",
        "sm": f"{load.sm_active:.4f}",
        "occupancy": f"{load.sm_occupancy:.4f}",
        "dram": f"{load.dram_active:.4f}",
        "seconds": f"{task.duration_s:.3f}",
        "warmup": f"{warmup_s:.3f}",
        "seed": f"{seed}",
        **{name: f"{value:.3f}" for name, value in more.items()},
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [*python("carmad.gpu.emulated_job"), *words]


@dataclass(slots=True)
class Replay:
    """A daemon under one policy, and what it said last."""

    policy: str
    directory: Path
    cards: str = GPUS
    settings: Mapping[str, str] = field(default_factory=lambda: SETTINGS)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    _daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._answers():
            hint = f"wait for it to end, or: carma daemon stop --socket {self.socket}"
            raise Problem("another demo of yours is running", hint)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, mode=0o700)
        settings = {name: value for name, value in os.environ.items() if name[:6] != "CARMA_"}
        words = [*python("carmad.daemon.main"), "--emulated", self.cards]
        words += ["--state-dir", str(self.directory), "--socket", self.socket]
        words += ["--config", os.devnull]
        with self.log.open("wb") as log:
            self._daemon = subprocess.Popen(
                words,
                env={**settings, **self.settings, "CARMA_POLICY": self.policy},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_health(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._daemon and self._daemon.poll() is None:
            if self._answers():
                return
            time.sleep(0.05)
        raise Problem("the demo's carmad did not start", self.log.read_text()[-2000:])

    @property
    def log(self) -> Path:
        return self.directory / "carmad.log"

    @property
    def socket(self) -> str:
        return str(self.directory / "sock")

    def get(self, path: str, **query: object) -> Any:
        os.environ["CARMA_SOCKET"] = self.socket
        return client.get(path, **query)  # type: ignore[arg-type]

    def submit(self, task: Task, number: int) -> None:
        os.environ["CARMA_SOCKET"] = self.socket
        body = {
            "argv": argv(task, seed=number),
            "name": task.name,
            "gpus": task.gpus,
            "cwd": str(self.directory),
            "env": dict(os.environ),
        }
        client.post("/v1/jobs", body)

    def look(self) -> None:
        """Read the GPUs and the jobs once."""
        self.gpus = self.get("/v1/gpus")["gpus"]
        self.jobs = self.get("/v1/jobs", select="1-1000")["jobs"]

    def outcome(self) -> Outcome:
        """The jobs' outcome; raises CarmaError if none has run."""
        return recorded.from_history(self.get).outcome

    @property
    def ends(self) -> int:
        return sum(job["code"] in ENDED_CODES for job in self.jobs)

    def stop(self) -> None:
        """Begin to stop, jobs first."""
        if self._daemon is None:
            return
        try:
            os.environ["CARMA_SOCKET"] = self.socket
            client.post("/v1/cancel", {"select": "all"})
        except (Problem, Unreachable):
            pass  # no jobs left, or no daemon
        self._daemon.send_signal(signal.SIGTERM)

    def await_end(self) -> None:
        if self._daemon is not None:
            self._daemon.wait(timeout=START_S)

    def _answers(self) -> bool:
        try:
            self.get("/v1/health")
        except Unreachable:
            return False
        return True


def pane(
    title: str,
    gpus: Sequence[dict[str, Any]],
    jobs: Sequence[dict[str, Any]],
    total: int,
    width: int,
    plain: bool = False,
) -> Panel:
    """One of the two replays: its GPUs by job, and its jobs, `jobs` as submitted so far, in order,
    `total` with those to come. `plain`: in ASCII."""
    room = width - 4  # within the frame
    lines = [line for gpu in gpus for line in _gpu(gpu, room, plain)]
    states = [_state(job) for job in jobs] + ["to come"] * (total - len(jobs))
    dots, counts = Text("jobs  "), Text()
    for place, state in enumerate(states, start=1):
        dots.append(*_mark(state, place, plain))
    for state, (symbol, ascii_symbol, style) in MARKS.items():
        if (count := states.count(state)) and state != "to come":
            counts.append(ascii_symbol if plain else symbol, style)
            counts.append(f" {count} {state}  ")
    for line in (dots, counts):
        line.truncate(room)
    done = len(jobs) == total and all(job["code"] in ENDED_CODES for job in jobs)
    return Panel(
        Group(*lines, dots, counts),
        title=Text(title, "bold not dim"),
        title_align="left",
        border_style="green" if done else "dim",
        box=box.ASCII if plain else box.ROUNDED,
        width=width,
    )


def _gpu(gpu: dict[str, Any], room: int, plain: bool) -> tuple[Text, Text]:
    """Its memory as a bar with a part for each job, and below it the jobs."""
    bar, names = Text(f"GPU {gpu['index']} "), Text(" " * LABEL)
    cells = room - LABEL - FIGURES
    free = cells
    for job in gpu["jobs"]:
        color = _color(job["id"])
        part = min(free, round(cells * (job["memory_mib"] or 0) / gpu["memory_mib"]))
        bar.append(("#" if plain else "█") * part, color)
        names.append("= " if plain else "■ ", color).append(f"{job['name']}  ")
        free -= part
    bar.append(("." if plain else "░") * free, "dim")
    used, all_of_it = (gpu[name] / 1024 for name in ("memory_used_mib", "memory_mib"))
    bar.append(f"{used:5.1f}/{all_of_it:.0f}G  SM {100 * (gpu['sm_active'] or 0):3.0f} %")
    names.truncate(room, overflow="ellipsis")
    return bar, names


def _state(job: dict[str, Any]) -> str:
    if job["code"] in ENDED_CODES:
        return "done"
    if job["code"] == "PD":
        return "OOM" if job.get("failures") else "waiting"
    return "running"


def _mark(state: str, number: int, plain: bool) -> tuple[str, str]:
    symbol, ascii_symbol, style = MARKS[state]
    return ascii_symbol if plain else symbol, style or _color(number)


def _color(id: int) -> str:
    return COLORS[id % len(COLORS)]


def sentence(alone: Figures, shared: Figures) -> str:
    """What sharing the GPUs gave; `alone`: the same jobs, each with a GPU of its own. Times and
    crashes are the simulator's figures for the daemons' histories."""
    end, end_alone = (figures.makespan_s or 0.0 for figures in (shared, alone))
    mean, mean_alone = (figures.jct.mean if figures.jct else 0.0 for figures in (shared, alone))
    return (
        f"Sharing GPUs, CARMA finished the same {shared.jobs} jobs in {end:.0f} s instead of "
        f"{end_alone:.0f} s ({_change(end, end_alone)}); a job waited and ran for "
        f"{mean:.1f} s on average instead of {mean_alone:.1f} s ({_change(mean, mean_alone)}); "
        f"{_losses(shared)}."
    )


def _change(now: float, before: float) -> str:
    share = now / before - 1 if before else 0.0
    return f"{100 * abs(share):.0f} % {'less' if share < 0 else 'more'}"


def _losses(figures: Figures) -> str:
    if lost := figures.jobs - figures.finished:
        return f"{lost} of them failed"
    if not figures.oom_crashes:
        return "none failed"
    times = "once" if figures.oom_crashes == 1 else f"{figures.oom_crashes} times"
    return f"GPU memory ran out {times}, but no job was lost"


LOOK_EVERY_S = 0.5
TELL_EVERY_S = 5.0
PATIENCE_S = 180.0  # several times what the replay takes, so something hangs
SIDE_BY_SIDE, WIDEST = 100, 80  # columns of the terminal, and of a pane
TITLES = {"exclusive": "one job per GPU (exclusive)", "magm": "shared by CARMA (magm)"}

Show = Callable[[float], None]  # called with the seconds so far


def demo(
    trace: Annotated[
        str | None,
        argument(
            "FILE",
            "jobs of your own: a CSV file, or any trace of `carma simulate`; suspend: show jobs"
            " that make room for others",
        ),
    ] = None,
    jobs: Annotated[
        int,
        option("--jobs", metavar="N", min=1, max=1000, help="how many (default: the first 20)"),
    ] = 20,
    gpus: Annotated[
        str, option("--gpus", metavar="SPEC", help=f"GPUs to emulate (default: {GPUS})")
    ] = GPUS,
) -> int:
    """The columns of a CSV file: name, submit_s, duration_s and, where known, gpus, user,
    memory_mib, sm_active, sm_occupancy, dram_active; the guide to `carma simulate` has all.
    """
    if trace == "suspend":
        from carma_simulator.demo.suspend import demo_suspend

        return demo_suspend()
    home = Path(paths.user_state_dir()) / "demo"
    screen = output.console()
    if trace is None:
        tasks, played = demo_trace(jobs=jobs, compress=1.0), demo_trace(jobs=jobs)
        what = "training jobs, modelled on the CARMA paper's"
    else:
        tasks = own_jobs(trace, jobs, gpus)
        played, factor = in_a_minute(tasks, gpus)
        what = f"jobs of {clean(trace)}, {number(factor)} times as fast"
    screen.print(f"{len(played)} {what}, on emulated GPUs: twice at once.\nLogs: {home}\n")
    for signum in (signal.SIGHUP, signal.SIGTERM):  # closing the terminal, too, ends both daemons
        signal.signal(signum, lambda signum, _: sys.exit(128 + signum))
    with replays(home, gpus) as both:
        with _show(screen, both, len(played)) as show:
            play(played, both, show)
        screen.print(f"\n{summary(both)}", style="bold")
        screen.print(loss(tasks, gpus), markup=False, highlight=False)
    return 0


@contextmanager
def replays(home: Path, gpus: str = GPUS) -> Iterator[tuple[Replay, ...]]:
    """Both policies' daemons, which are stopped at the end, however that comes about."""
    both = tuple(Replay(policy, home / policy, gpus) for policy in TITLES)
    with ExitStack() as stack:
        for replay in both:
            stack.callback(replay.await_end)
        for replay in both:
            stack.callback(replay.stop)
            replay.start()
        for replay in both:
            replay.await_health()
        yield both


def play(trace: Sequence[Task], both: Sequence[Replay], show: Show) -> None:
    begun = time.monotonic()
    waiting = list(enumerate(trace))
    while any(replay.ends < len(trace) for replay in both):
        now = time.monotonic() - begun
        while waiting and waiting[0][1].submit_s <= now:
            number, task = waiting.pop(0)
            for replay in both:
                replay.submit(task, number)
        for replay in both:
            replay.look()
        show(now)
        if now > PATIENCE_S:
            raise Problem("the demo hangs", f"see {both[-1].log}")
        upcoming = waiting[0][1].submit_s - now if waiting else LOOK_EVERY_S
        time.sleep(max(0.01, min(LOOK_EVERY_S, upcoming)))


def summary(both: Sequence[Replay]) -> str:
    return sentence(*(metrics.figures(replay.outcome()) for replay in both))


def picture(
    now: float, both: Sequence[Replay], total: int, room: int, plain: bool = False
) -> RenderableType:
    """Two panes, beside each other if there is room."""
    beside = room >= SIDE_BY_SIDE
    width = min(WIDEST, (room - 1) // 2 if beside else room)
    panes = [pane(TITLES[r.policy], r.gpus, r.jobs, total, width, plain) for r in both]
    cards = len(both[0].gpus)
    head = f"{now:5.1f} s  the same {total} jobs, on {cards} emulated GPUs each"
    return Group(head, Columns(panes, padding=(0, 1, 0, 0)) if beside else Group(*panes))


@contextmanager
def _show(screen: Console, both: Sequence[Replay], total: int) -> Iterator[Show]:
    """Shows two live panes on a terminal, otherwise a line now and then."""
    if not sys.stdout.isatty():
        told = -TELL_EVERY_S

        def tell(now: float) -> None:
            nonlocal told
            if now - told >= TELL_EVERY_S:
                told = now
                done = ", ".join(f"{replay.policy} {replay.ends}/{total}" for replay in both)
                screen.print(f"{now:5.1f} s  jobs done: {done}")
                sys.stdout.flush()

        yield tell
        return
    plain = output.is_ascii()  # before Live takes the standard output
    with Live(console=screen, auto_refresh=False) as live:

        def draw(now: float) -> None:
            live.update(picture(now, both, total, screen.width, plain), refresh=True)

        yield draw
