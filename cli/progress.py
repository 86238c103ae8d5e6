"""Shows on a terminal how far simulations are, and for how much longer they will take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from carmad.readable import duration
from carmad.sim.experiment import Experiment
from carmad.sim.run import Progress as Now

Watch = Callable[[Experiment, Now | None], None]


@contextmanager
def show(runs: int, screen: Console | None = None) -> Iterator[Watch]:
    """Yields a function for `sweep`. A line per run, if it takes a while, and one for all runs;
    nothing if stderr is not a terminal."""
    screen = screen or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
        TextColumn("{task.fields[at]}"),
        TimeRemainingColumn(compact=True),
    )
    lines: dict[int, TaskID] = {}
    with Progress(
        *columns, console=screen, transient=True, expand=True, disable=not screen.is_terminal
    ) as progress:
        whole = progress.add_task("simulated", total=runs, unit="runs", at="")

        def watch(experiment: Experiment, now: Now | None) -> None:
            line = lines.get(id(experiment))
            if now is None:
                progress.advance(whole)
                if line is not None:
                    progress.update(line, visible=False)
                return
            if line is None:
                name = experiment.settings.policy
                line = progress.add_task(name, total=now.jobs, unit="jobs", at="")
                lines[id(experiment)] = line
            progress.update(line, completed=now.ended, at=f"at {duration(now.at_s)}")

        yield watch
