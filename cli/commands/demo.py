"""`carma demo`: runs one trace of real processes on emulated GPUs under two policies at once."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from carmad import paths
from carmad.sim.task import Task
from cli import dashboard, demo_report, output, parse, render
from cli.demo_run import GPUS, Replay
from cli.demo_trace import demo_trace
from cli.parser import Parser
from cli.problems import Problem

if TYPE_CHECKING:
    from cli.table import Block

LOOK_EVERY_S = 0.5
TELL_EVERY_S = 5.0
PATIENCE_S = 180.0  # several times what the replay takes, so something hangs


def demo(args: list[str]) -> int:
    """Run a demonstration on emulated GPUs. Logs and databases stay in your state directory."""
    parser = Parser("carma demo", description=__doc__)
    jobs = parse.whole(1, 1000)
    parser.add_argument("--jobs", type=jobs, default=20, help="how many (default: %(default)s)")
    options = parser.parse_args(args)
    home = Path(paths.user_state_dir()) / "demo"
    baseline, sharing = (Replay(policy, home / policy) for policy in ("exclusive", "magm"))
    trace = demo_trace(jobs=options.jobs)
    screen = output.console()
    screen.print(
        f"{len(trace)} training jobs modelled on the CARMA paper's Table 4, {GPUS} emulated:\n"
        "once with one GPU per job, as on most servers (exclusive), and at the same time\n"
        "once shared by CARMA (magm), each with its own carmad.\n"
    )
    for signum in (signal.SIGHUP, signal.SIGTERM):  # closing the terminal, too, ends both daemons
        signal.signal(signum, lambda signum, _: sys.exit(128 + signum))
    with ExitStack() as stack:
        for replay in (baseline, sharing):
            stack.callback(replay.stop)
            replay.start()
        for replay in (baseline, sharing):
            replay.await_health()
        with _watched(screen, sharing) as show:
            _play(trace, (baseline, sharing), show)
        screen.print(demo_report.table([baseline, sharing]))
        _explain(screen, sharing)
    screen.print(f"\nlogs and databases: {home}")
    return 0


def _play(trace: tuple[Task, ...], replays: tuple[Replay, ...], show: Any) -> None:
    begun = time.monotonic()
    for replay in replays:
        replay.begun_at = begun
    waiting = list(enumerate(trace))
    while any(replay.done < len(trace) for replay in replays):
        now = time.monotonic() - begun
        while waiting and waiting[0][1].submit_s <= now:
            number, task = waiting.pop(0)
            for replay in replays:
                replay.submit(task, number)
        for replay in replays:
            replay.look()
        show(now, len(trace), replays)
        if now > PATIENCE_S:
            raise Problem("the demo hangs", f"see {replays[1].log}")
        upcoming = waiting[0][1].submit_s - now if waiting else LOOK_EVERY_S
        time.sleep(max(0.01, min(LOOK_EVERY_S, upcoming)))


@contextmanager
def _watched(screen: Console, sharing: Replay) -> Iterator[Any]:
    """Shows a live dashboard on a terminal, otherwise a line now and then."""
    if not screen.is_terminal:
        told = -TELL_EVERY_S

        def tell(now: float, total: int, replays: tuple[Replay, ...]) -> None:
            nonlocal told
            if now - told >= TELL_EVERY_S:
                told = now
                screen.print(_progress(now, total, replays))

        yield tell
        return
    with Live(console=screen, screen=True, auto_refresh=False) as live:

        def draw(now: float, total: int, replays: tuple[Replay, ...]) -> None:
            head: list[Block] = [_progress(now, total, replays), ""]
            room, height = screen.size
            below = dashboard.status(sharing.get("/v1/status"), room, height - len(head))
            live.update(output.as_rich([*head, *below], room), refresh=True)

        yield draw


def _progress(now: float, total: int, replays: tuple[Replay, ...]) -> str:
    done = ", ".join(f"{replay.policy} {replay.done}/{total}" for replay in replays)
    return f"{now:5.1f} s  jobs done: {done}"


def _explain(screen: Console, replay: Replay) -> None:
    """Explain one job: one that ran out of memory, if any, otherwise the last that waited."""
    recovered = [job for job in replay.jobs if job.get("failures")]
    job = (recovered or replay.jobs)[-1 if not recovered else 0]
    screen.print(f"\n$ carma why {job['label']}", style="bold")
    output.show(render.why(replay.get(f"/v1/jobs/{job['label']}/why")))
