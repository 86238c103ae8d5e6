"""The page of stage `trace`: what each policy came to, and whether the simulator predicts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from benchmarks.harness import bullets, columns, markdown_table
from carma_simulator.experiment import Outcome
from carma_simulator.metrics import figures
from carmad.core.jobs.attempt import Cause
from carmad.core.jobs.states import JobState
from lab.hardware import interference, simulated
from lab.hardware.policies import RUNS, Run
from lab.hardware.simulated import attempts, overheads
from lab.hardware.visit import Entry, Visit
from lab.simulator.fidelity import Comparison

TARGET = 10.0  # % of the makespan
ALONE = RUNS[0]
KJ = 1000.0
HEADINGS = ("run", "", "daemon", "simulator", "difference", f"≤ {TARGET:g} %")
SHOWS = """\
One GPU, cut to the memory of an A100 of 40 GB by a process of no job, stands for one of CARMA's
four. What can be seen: who shares with whom, what runs out of memory and recovers, what sharing
gains. What cannot: the choice between GPUs, and jobs of several GPUs. Jobs train for seconds, not
an hour, so imports, first kernels and the settling of the GPU weigh far more than in the paper:
compare runs with each other, not with its hours."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run through the daemon."""

    name: str
    makespan_s: float
    jct_s: float
    energy_kj: float
    ooms: int
    recovered: int
    finished: int
    jobs: int


def blocks(visit: Visit) -> list[str]:
    entries = visit.entries()
    kept = {run: entries[run.name] for run in RUNS if "jobs" in entries.get(run.name, {})}
    failed = [f"{name}: {entry['failed']}" for name, entry in entries.items() if "failed" in entry]
    missing = [run.name for run in RUNS if run.name not in entries]
    if not kept:
        return ["Nothing was run yet: it needs the loads of stage `loads`.", bullets(failed)]
    return [
        SHOWS,
        _table(kept),
        *_unrecovered(kept),
        *(["## Failed", bullets(failed)] if failed else []),
        *([f"Not run yet: {'; '.join(missing)}."] if missing else []),
        "## Fidelity",
        *_fidelity(kept, visit),
    ]


def measured(run: Run, entry: Entry) -> Figures:
    """JCTs are of finished jobs, as the simulator's."""
    jobs = entry["jobs"]
    done = [job for job in jobs if job["state"] == JobState.SUCCEEDED]
    crashed = [job for job in jobs if _ooms(job)]
    return Figures(
        run.name,
        max(attempts(job)[-1].ended_s for job in jobs if job["attempts"]),
        fmean(attempts(job)[-1].ended_s - job["submit_s"] for job in done) if done else 0.0,
        (entry["energy_j"] or 0.0) / KJ,
        sum(map(_ooms, jobs)),
        sum(job in done for job in crashed),
        len(done),
        len(jobs),
    )


def _ooms(job: Entry) -> int:
    return sum(attempt.cause == Cause.GPU_OOM for attempt in attempts(job))


def _table(kept: Mapping[Run, Entry]) -> str:
    rows = [measured(run, entry) for run, entry in kept.items()]
    alone = rows[0] if ALONE in kept else None

    def change(figure: str) -> Callable[[Figures], str]:
        """Against the exclusive run."""
        base = getattr(alone, figure) if alone else 0.0
        return lambda row: f"{100 * (getattr(row, figure) / base - 1):+.1f} %" if base else "–"

    return columns(
        rows,
        ("run", "{0.name}"),
        ("makespan s", "{0.makespan_s:.1f}"),
        ("change", change("makespan_s")),
        ("mean JCT s", "{0.jct_s:.1f}"),
        ("change", change("jct_s")),
        ("energy kJ", "{0.energy_kj:.1f}"),
        ("change", change("energy_kj")),
        ("OOM", "{0.ooms}"),
        ("recovered", "{0.recovered}"),
        ("finished", "{0.finished} of {0.jobs}"),
    )


def _unrecovered(kept: Mapping[Run, Entry]) -> list[str]:
    lost = [
        f"{run.name}: job {number} ({job['name']}) ended {job['state']}: {job['evidence'] or '–'}"
        for run, entry in kept.items()
        for number, job in enumerate(entry["jobs"], 1)
        if job["state"] != JobState.SUCCEEDED
    ]
    return ["## Not recovered", bullets(lost)] if lost else ["Every job finished."]


# -- fidelity


def _fidelity(kept: Mapping[Run, Entry], visit: Visit) -> Iterator[str]:
    if ALONE not in kept:
        yield f"It needs the run {ALONE.name}, by which jobs alone are known."
        return
    try:
        costs = overheads(kept[ALONE], kept.values())
    except ValueError:
        yield f"It needs a job of the run {ALONE.name} that ended well."
        return
    chosen = interference.chosen(visit, kept[ALONE]["interference"])
    rows = [
        row
        for run, entry in kept.items()
        for row in _compared(measured(run, entry), simulated.simulated(run, entry, costs, chosen))
    ]
    judged = [row for row in rows if row.met is not None]
    yield markdown_table(HEADINGS, [row.cells for row in rows])
    yield f"{sum(bool(row.met) for row in judged)} of {len(judged)} within {TARGET:g} %."
    yield (
        "The simulator is told the loads and step times of stage `loads`, the daemon's estimates"
        " and, from the exclusive run, what a job takes around its steps:"
        f" {costs.first_kernel_s:.2f} s to its first kernel, {costs.end_s:+.2f} s beyond its steps."
        f" {chosen.about}"
    )


def _compared(daemon: Figures, outcome: Outcome) -> Iterator[Comparison]:
    found = figures(outcome)
    makespan_s = outcome.makespan_s
    jct_s = found.jct.mean if found.jct else 0.0
    yield Comparison(daemon.name, "makespan", "s", (daemon.makespan_s,), makespan_s, TARGET)
    if daemon.jct_s:
        yield Comparison(daemon.name, "mean JCT", "s", (daemon.jct_s,), jct_s)
    if daemon.energy_kj:
        kj = found.energy_mj * KJ
        yield Comparison(daemon.name, "energy", "kJ", (daemon.energy_kj,), kj)
    yield Comparison(daemon.name, "OOM crashes", "", (daemon.ooms,), found.oom_crashes)
