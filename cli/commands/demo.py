"""`carma demo`: runs one trace of real processes on emulated GPUs under two policies at once."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live

from carmad import paths
from carmad.sim import metrics
from carmad.sim.task import Task
from cli import output, parse
from cli.demo import Replay, demo_trace, pane, sentence
from cli.parser import Parser
from cli.problems import Problem

LOOK_EVERY_S = 0.5
TELL_EVERY_S = 5.0
PATIENCE_S = 180.0  # several times what the replay takes, so something hangs
SIDE_BY_SIDE, WIDEST = 100, 80  # columns of the terminal, and of a pane
TITLES = {"exclusive": "one job per GPU (exclusive)", "magm": "shared by CARMA (magm)"}

Show = Callable[[float], None]  # called with the seconds so far


def demo(args: list[str]) -> int:
    """Run the same jobs on emulated GPUs twice at once, one job per GPU and shared by CARMA."""
    parser = Parser("carma demo", description=__doc__)
    jobs = parse.whole(1, 1000)
    parser.add_argument("--jobs", type=jobs, default=20, help="how many (default: %(default)s)")
    options = parser.parse_args(args)
    home = Path(paths.user_state_dir()) / "demo"
    trace = demo_trace(jobs=options.jobs)
    screen = output.console()
    screen.print(
        f"{len(trace)} training jobs, modelled on the CARMA paper's, on emulated GPUs: "
        f"twice at once.\nLogs: {home}\n"
    )
    for signum in (signal.SIGHUP, signal.SIGTERM):  # closing the terminal, too, ends both daemons
        signal.signal(signum, lambda signum, _: sys.exit(128 + signum))
    with replays(home) as both:
        with _show(screen, both, len(trace)) as show:
            play(trace, both, show)
        screen.print(f"\n{summary(both)}", style="bold")
    return 0


@contextmanager
def replays(home: Path) -> Iterator[tuple[Replay, ...]]:
    """Both policies' daemons, which are stopped at the end, however that comes about."""
    both = tuple(Replay(policy, home / policy) for policy in TITLES)
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
    while any(replay.done < len(trace) for replay in both):
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
    head = f"{now:5.1f} s  the same {total} jobs, on three emulated GPUs each"
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
                done = ", ".join(f"{replay.policy} {replay.done}/{total}" for replay in both)
                screen.print(f"{now:5.1f} s  jobs done: {done}")
                sys.stdout.flush()

        yield tell
        return
    plain = output.is_ascii()  # before Live takes the standard output
    with Live(console=screen, auto_refresh=False) as live:

        def draw(now: float) -> None:
            live.update(picture(now, both, total, screen.width, plain), refresh=True)

        yield draw
