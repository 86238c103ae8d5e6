"""Runs as one self-contained HTML page, as CSV and JSON (a row per run, a row per job, or both and
attempts), and as the report that `carma stats --report week` would give of a run.

Keys of CSV and JSON are stable: those of `MEASURES`, and those written out here. Times are in
seconds since the first submission or as durations, shares 0–1; undefined values are empty in CSV,
null in JSON.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TextIO, TypeVar

from carma_simulator.experiment import Attempt, JobOutcome, Outcome, Rejected
from carma_simulator.metrics import crashes, has_finished, in_time, preemptions, times
from carma_simulator.report.measures import MEASURES, SIMULATOR, Run, measure_notes, measure_rows
from carmad.api.report import Period, ReportOut, report_out
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.sharing import (
    AttemptSummary,
    ExitSummary,
    JobSummary,
    SpecSummary,
    StatusSummary,
)
from carmad.core.jobs.findings import Estimate, Usage
from carmad.errors import CarmaError
from carmad.html import environment, style
from carmad.installed import how_to_add
from carmad.readable import clean, duration

# -- the page

MOST = 1000  # of the rejected rows shown; JSON has all

_T = TypeVar("_T")


def page(runs: Sequence[Run], made_at: str = "") -> str:
    """A page for one or more runs. The same runs give the same page, apart from `made_at`.

    Raises CarmaError if a library that it needs is not installed.
    """
    try:
        from carma_simulator.report.charts import charts
        from carma_simulator.report.gantt import colour
    except ModuleNotFoundError as error:
        message = f"an HTML report needs {error.name}, which is not installed"
        raise CarmaError(message, how_to_add("sim")) from None
    found = [row for row in measure_rows(runs) if row.measure.group != SIMULATOR]
    template = environment("carma_simulator.report").get_template("page.html.j2")
    return template.render(
        style=style(),
        title=f"CARMA: {_describe(runs, _trace)}, simulated",
        about=_about_runs(runs, made_at),
        runs=runs,
        notes=measure_notes(runs),
        colours=[colour(n) for n in range(len(runs))],
        groups=_group(found, lambda row: row.measure.group),
        sections=_group(charts(runs), lambda chart: chart.section),
        finished=any(run.figures.finished for run in runs),
        rejected=_rejects(runs),
        stuck=_find_unstarted(runs),
        most=MOST,
        meanings={row.measure.name: row.measure.meaning for row in found},
    )


def _about_runs(runs: Sequence[Run], made_at: str) -> list[tuple[str, str]]:
    facts: list[tuple[str, Callable[[Run], str]]] = [
        ("trace", lambda run: f"{_trace(run)}, {len(run.outcome.jobs):,} jobs"),
        ("GPUs", lambda run: run.cluster),
        ("estimator", lambda run: clean(run.outcome.estimator)),
        ("interference", lambda run: clean(run.outcome.interference)),
        ("seed", lambda run: str(run.outcome.seed)),
        ("settings", _settings_text),
    ]
    about = [("policies", ", ".join(run.name for run in runs))]
    about += [(name, _describe(runs, fact)) for name, fact in facts]
    return [*about, ("made", made_at)] if made_at else about


def _trace(run: Run) -> str:
    return clean(run.outcome.trace)


def _settings_text(run: Run) -> str:
    changed = (f"{name}={value}" for name, value in run.settings.items())
    return ", ".join(changed) or "defaults"


def _describe(runs: Sequence[Run], fact: Callable[[Run], str]) -> str:
    """The fact for each run, or only once if it is the same for all."""
    if len({fact(run) for run in runs}) == 1:
        return fact(runs[0])
    return "; ".join(f"{run.name}: {fact(run)}" for run in runs)


def _rejects(runs: Sequence[Run]) -> list[tuple[str, tuple[Rejected, ...]]]:
    found = {_trace(run): run.experiment.trace.rejected for run in runs}
    return [(trace, rows) for trace, rows in found.items() if rows]


def _find_unstarted(runs: Sequence[Run]) -> list[tuple[str, list[JobOutcome]]]:
    found = [(run.name, [job for job in run.outcome.jobs if not job.attempts]) for run in runs]
    return [(name, jobs) for name, jobs in found if jobs]


def _group(items: Iterable[_T], name: Callable[[_T], str]) -> list[tuple[str, list[_T]]]:
    return [(group, list(members)) for group, members in groupby(items, name)]


# -- CSV and JSON

FORMAT = 1  # of the JSON; incremented when a key changes its meaning or is removed


def write_runs(runs: Sequence[Run], file: TextIO) -> None:
    """CSV with a row per run: its parameters, then every measure."""
    _write(({**_about(run), **_figures(run), **_simulator(run)} for run in runs), file)


def write_jobs(runs: Sequence[Run], file: TextIO) -> None:
    """CSV with a row per job of each run. GPUs and mode are those of its last attempt."""
    _write(({"run": run.name, **_job(job)} for run in runs for job in run.outcome.jobs), file)


def write_json(runs: Sequence[Run], file: TextIO) -> None:
    """One object: `format`, and `runs` with their figures, jobs, attempts and rejected rows.

    Running the same experiment again changes nothing but each run's `simulator`.
    """
    found = [
        {
            **_about(run),
            "settings": dict(run.settings),
            "figures": _figures(run),
            "simulator": _simulator(run),
            "jobs": [
                {**_job(job), "attempts": list(map(_attempt, job.attempts))}
                for job in run.outcome.jobs
            ],
            "rejected": [
                {"line": row.line, "why": clean(row.why)} for row in run.experiment.trace.rejected
            ],
        }
        for run in runs
    ]
    # In one call and not indented, which is fast: there may be 100,000 jobs.
    file.write(json.dumps({"format": FORMAT, "runs": found}, allow_nan=False) + "\n")


def _about(run: Run) -> dict[str, Any]:
    outcome = run.outcome
    return {
        "run": run.name,
        "trace": clean(outcome.trace),
        "gpus": run.cluster,
        "policy": outcome.policy,
        "estimator": outcome.estimator,
        "interference": outcome.interference,
        "seed": outcome.seed,
        "settings": " ".join(f"{name}={value}" for name, value in run.settings.items()),
    }


def _figures(run: Run) -> dict[str, float | None]:
    return {m.key: m.of(run) for m in MEASURES if m.group != SIMULATOR}


def _simulator(run: Run) -> dict[str, float | None]:
    return {m.key: m.of(run) for m in MEASURES if m.group == SIMULATOR}


def _job(job: JobOutcome) -> dict[str, Any]:
    found = times(job)
    last = job.attempts[-1] if job.attempts else None
    return {
        "job": job.id,
        "name": clean(job.task.name),
        "user": clean(job.task.user),
        "state": job.state.value,
        "finished": has_finished(job),
        "gpus_wanted": job.task.gpus,
        "submit_s": job.task.submit_s,
        "ended_s": last.ended_at if last else None,
        "first_wait_s": found.first_wait_s if found else None,
        "wait_s": found.wait_s if found else None,
        "lost_s": found.lost_s if found else None,
        "execution_s": found.execution_s if found else None,
        "jct_s": found.jct_s if found else None,
        "alone_s": found.alone_s if found else None,
        "slowdown": found.slowdown if found else None,
        "finish_ratio": found.finish_ratio if found else None,
        "launches": len(job.attempts),
        "oom_crashes": crashes(job),
        "preemptions": preemptions(job),
        "deadline_s": job.task.deadline_s,
        "deadline_met": in_time(job),
        "energy_j": job.energy_j,
        "gpus": " ".join(last.gpus) if last else None,
        "mode": last.mode.value if last else None,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "gpus": list(attempt.gpus),
        "mode": attempt.mode.value,
        "launched_s": attempt.launched_at,
        "first_kernel_s": attempt.ready_at,
        "ended_s": attempt.ended_at,
        "cause": attempt.cause.value,
    }


def _write(rows: Iterable[Mapping[str, Any]], file: TextIO) -> None:
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)


# -- as `carma stats --report week`


def report_of(outcome: Outcome) -> ReportOut:
    """Of the whole run. How long each job takes alone is known exactly. Why jobs waited is not
    kept; estimates are those that the run was given."""
    memory = {kind.name: kind.memory_mib for node in outcome.cluster.nodes for kind in node.units}
    gpus = {
        each.gpu: Gpu(each.gpu, index, each.kind, memory[each.kind], node=each.node)
        for index, each in enumerate(outcome.gpus)
    }
    jobs = [_summary(job, outcome.estimator) for job in outcome.jobs]
    end_s = math.nextafter(outcome.makespan_s, math.inf)  # so that the last job ends before it
    period = Period(0.0, end_s, end_s)
    out = report_out(jobs, period, gpus, lambda job: "")
    whole = f"{outcome.trace} under {outcome.policy}, simulated: {duration(outcome.makespan_s)}"
    return {**out, "since": None, "until": None, "title": whole}


def _summary(job: JobOutcome, estimator: str) -> JobSummary:
    task = job.task
    known = {"oracle": task.load.memory_mib, **dict(task.estimates)}
    stays = [
        AttemptSummary(
            each.gpus, each.mode, each.launched_at, each.ended_at, exit=ExitSummary(each.cause)
        )
        for each in job.attempts
    ]
    held_s = sum(len(each.gpus) * (each.ended_at - each.launched_at) for each in job.attempts)
    return JobSummary(
        id=job.id,
        spec=SpecSummary(task.user, 0, task.name),
        status=StatusSummary(job.state, stays[-1] if stays else None),
        submitted_at=task.submit_s,
        earlier=tuple(stays[:-1]),
        estimate=Estimate(known[estimator], estimator) if estimator in known else None,
        usage=Usage(task.load.memory_mib, job.energy_j, task.load.sm_active * held_s, held_s),
        alone_s=job.alone_s,
    )
