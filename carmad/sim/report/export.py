"""Runs as CSV and JSON, for other programs: a row per run, a row per job, or both and attempts.

Keys are stable: those of `MEASURES`, and those written out here. Times are in seconds since the
first submission or as durations, shares 0–1; undefined values are empty in CSV, null in JSON.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from carmad.readable import clean
from carmad.sim.metrics import crashes, finished, in_time, preemptions, times
from carmad.sim.outcome import Attempt, JobOutcome
from carmad.sim.report.measures import MEASURES, SIMULATOR
from carmad.sim.report.runs import Run

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
        "finished": finished(job),
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
