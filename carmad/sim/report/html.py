"""A report of runs as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from carmad.errors import CarmaError
from carmad.html import environment, style
from carmad.readable import clean
from carmad.sim.report.measures import SIMULATOR
from carmad.sim.report.rows import notes, rows
from carmad.sim.report.runs import Run

if TYPE_CHECKING:
    from carmad.sim.outcome import JobOutcome
    from carmad.sim.task import Rejected

MOST = 1000  # of the rejected rows shown; JSON has all

_T = TypeVar("_T")


def page(runs: Sequence[Run], made_at: str = "") -> str:
    """A page for one or more runs. The same runs give the same page, apart from `made_at`.

    Raises CarmaError if a library that it needs is not installed.
    """
    try:
        from carmad.sim.report.charts import charts
        from carmad.sim.report.style import colour
    except ModuleNotFoundError as error:
        message = f"an HTML report needs {error.name}, which is not installed"
        raise CarmaError(message, "pip install 'carma-gpu[sim]'") from None
    found = [row for row in rows(runs) if row.measure.group != SIMULATOR]
    template = environment("carmad.sim.report").get_template("page.html.j2")
    return template.render(
        style=style(),
        title=f"CARMA: {_told(runs, _trace)}, simulated",
        about=_about(runs, made_at),
        runs=runs,
        notes=notes(runs),
        colours=[colour(n) for n in range(len(runs))],
        groups=_grouped(found, lambda row: row.measure.group),
        sections=_grouped(charts(runs), lambda chart: chart.section),
        finished=any(run.figures.finished for run in runs),
        rejected=_rejected(runs),
        stuck=_stuck(runs),
        most=MOST,
        meanings={row.measure.name: row.measure.meaning for row in found},
    )


def _about(runs: Sequence[Run], made_at: str) -> list[tuple[str, str]]:
    facts: list[tuple[str, Callable[[Run], str]]] = [
        ("trace", lambda run: f"{_trace(run)}, {len(run.outcome.jobs):,} jobs"),
        ("GPUs", lambda run: run.cluster),
        ("estimator", lambda run: clean(run.outcome.estimator)),
        ("interference", lambda run: clean(run.outcome.interference)),
        ("seed", lambda run: str(run.outcome.seed)),
        ("settings", _settings),
    ]
    about = [("policies", ", ".join(run.name for run in runs))]
    about += [(name, _told(runs, fact)) for name, fact in facts]
    return [*about, ("made", made_at)] if made_at else about


def _trace(run: Run) -> str:
    return clean(run.outcome.trace)


def _settings(run: Run) -> str:
    changed = (f"{name}={value}" for name, value in run.settings.items())
    return ", ".join(changed) or "defaults"


def _told(runs: Sequence[Run], fact: Callable[[Run], str]) -> str:
    """The fact for each run, or only once if it is the same for all."""
    if len({fact(run) for run in runs}) == 1:
        return fact(runs[0])
    return "; ".join(f"{run.name}: {fact(run)}" for run in runs)


def _rejected(runs: Sequence[Run]) -> list[tuple[str, tuple[Rejected, ...]]]:
    found = {_trace(run): run.experiment.trace.rejected for run in runs}
    return [(trace, rows) for trace, rows in found.items() if rows]


def _stuck(runs: Sequence[Run]) -> list[tuple[str, list[JobOutcome]]]:
    found = [(run.name, [job for job in run.outcome.jobs if not job.attempts]) for run in runs]
    return [(name, jobs) for name, jobs in found if jobs]


def _grouped(items: Iterable[_T], name: Callable[[_T], str]) -> list[tuple[str, list[_T]]]:
    return [(group, list(members)) for group, members in groupby(items, name)]
