"""Compares the demo's two replays. Pure.

Times and crashes are the simulator's figures for the daemon's history; readings of the GPUs are
averaged over all GPUs and the makespan.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from rich.table import Table

from carmad.sim import metrics
from carmad.sim.metrics import Figures, Spread
from cli.demo_run import Replay

Figure = Callable[[Replay, Figures], float]


def table(replays: list[Replay]) -> Table:
    """A row per figure, a column per policy, and the change from the first to the second."""
    both = [(replay, metrics.figures(replay.outcome())) for replay in replays]
    made = Table(title=f"the same {both[0][1].jobs} jobs, twice at once", title_style="bold")
    made.add_column("")
    for replay in replays:
        made.add_column(replay.policy, justify="right")
    made.add_column("change", justify="right")
    for name, unit, figure in FIGURES:
        values = [figure(*one) for one in both]
        made.add_row(
            name,
            *(f"{value:.{_digits(unit)}f} {unit}".strip() for value in values),
            _change(values),
        )
    return made


def _digits(unit: str) -> int:
    return 0 if unit in ("", "%", "MiB") else 1


def _change(values: list[float]) -> str:
    before, after = values
    return f"{(after - before) / before:+.0%}" if before else ""


def _makespan(_: Replay, figures: Figures) -> float:
    return figures.makespan_s or 0.0  # None: no job finished


def _mean(of: Callable[[Figures], Spread | None]) -> Figure:
    return lambda _, figures: spread.mean if (spread := of(figures)) else 0.0


def _p95(of: Callable[[Figures], Spread | None]) -> Figure:
    return lambda _, figures: spread.p95 if (spread := of(figures)) else 0.0


def _read(field: str, scale: float) -> Figure:
    def figure(replay: Replay, figures: Figures) -> float:
        end = _makespan(replay, figures)
        values = [gpu[field] or 0 for at, gpus in replay.readings if 0 <= at <= end for gpu in gpus]
        return scale * fmean(values)

    return figure


def _energy_kj(replay: Replay, figures: Figures) -> float:
    return replay.energy_j(_makespan(replay, figures)) / 1000


FIGURES: tuple[tuple[str, str, Figure], ...] = (
    ("makespan", "s", _makespan),
    ("wait, average", "s", _mean(lambda found: found.wait)),
    ("wait, p95", "s", _p95(lambda found: found.wait)),
    ("execution, average", "s", _mean(lambda found: found.execution)),
    ("execution, p95", "s", _p95(lambda found: found.execution)),
    ("JCT, average", "s", _mean(lambda found: found.jct)),
    ("JCT, p95", "s", _p95(lambda found: found.jct)),
    ("OOM crashes", "", lambda _, found: found.oom_crashes),
    ("GPU memory used", "MiB", _read("memory_used_mib", 1)),
    ("SM activity", "%", _read("sm_active", 100)),
    ("GPU energy", "kJ", _energy_kj),
)
