"""What the demo's two replays come to, side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from statistics import mean, quantiles
from typing import Any

from rich.table import Table

from cli.demo_run import Replay

Jobs = list[dict[str, Any]]


def table(replays: list[Replay]) -> Table:
    """A row per figure, a column per policy, and the second's change against the first."""
    made = Table(title=f"the same {len(replays[0].jobs)} jobs, twice at once", title_style="bold")
    made.add_column("")
    for replay in replays:
        made.add_column(replay.policy, justify="right")
    made.add_column("change", justify="right")
    for name, unit, figure in FIGURES:
        values = [figure(replay) for replay in replays]
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


def _spread(measure: Callable[[dict[str, Any]], float], p95: bool) -> Callable[[Replay], float]:
    def figure(replay: Replay) -> float:
        values = [measure(job) for job in replay.jobs]
        return quantiles(values, n=20, method="inclusive")[-1] if p95 else mean(values)

    return figure


def _at(job: dict[str, Any], field: str) -> float:
    return datetime.fromisoformat(job[field]).timestamp()


def _wait(job: dict[str, Any]) -> float:
    """Until the last start: what an attempt that crashed took is waiting, too."""
    return _at(job, "started_at") - _at(job, "submitted_at")


def _execution(job: dict[str, Any]) -> float:
    return _at(job, "ended_at") - _at(job, "started_at")


def _jct(job: dict[str, Any]) -> float:
    return _at(job, "ended_at") - _at(job, "submitted_at")


def makespan(replay: Replay) -> float:
    ends = [_at(job, "ended_at") for job in replay.jobs]
    return max(ends) - min(_at(job, "submitted_at") for job in replay.jobs)


def crashes(replay: Replay) -> int:
    """Attempts that ran out of GPU memory."""
    exits = [e for job in replay.jobs for e in (*job.get("failures", ()), job.get("exit"))]
    return sum(e is not None and e["cause"] == "gpu_oom" for e in exits)


def _gpu_mean(field: str, scale: float) -> Callable[[Replay], float]:
    """The mean over the GPUs and over the makespan."""

    def figure(replay: Replay) -> float:
        end = makespan(replay)
        values = [gpu[field] or 0 for at, gpus in replay.readings if 0 <= at <= end for gpu in gpus]
        return scale * mean(values)

    return figure


FIGURES: tuple[tuple[str, str, Callable[[Replay], float]], ...] = (
    ("makespan", "s", makespan),
    ("wait, average", "s", _spread(_wait, False)),
    ("wait, p95", "s", _spread(_wait, True)),
    ("execution, average", "s", _spread(_execution, False)),
    ("execution, p95", "s", _spread(_execution, True)),
    ("JCT, average", "s", _spread(_jct, False)),
    ("JCT, p95", "s", _spread(_jct, True)),
    ("OOM crashes", "", crashes),
    ("GPU memory used", "MiB", _gpu_mean("memory_used_mib", 1)),
    ("SM activity", "%", _gpu_mean("sm_active", 100)),
    ("GPU energy", "kJ", lambda replay: replay.energy_j / 1000),
)
