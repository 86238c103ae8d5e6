"""Lucid beside its baselines on Philly's whole week (10,650 jobs), which `lab.lucid` has in tenths.

On 344 GPUs, where the baselines queue for about as long as in the paper; the models that jobs train
are drawn anew for each draw. Besides: one possible cause at a time of Lucid's queueing there, and
the profiler alone. Runs one after the other, those first that most depends on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import date, timedelta
from itertools import chain, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Report, bullets, columns, markdown_table
from carmad.config import Profiling, Settings
from lab.compare import Quote
from lab.data import DATA
from lab.lucid import runs
from lab.lucid.findings import Figure, Finding, Row, Runs, middle, spread, tables
from lab.lucid.page import FIGURES, PAPER
from lab.lucid.runs import KNOWS, MODELS, PHYSICS, POLICIES, Case, Given, Known, Result, settings
from lab.lucid.workload import TEST, Models, pairs, trained
from lab.main import main

GPUS = "43x8xRTX3090-24GB"
WEEK, CAUSES = "344", "causes"  # the tables
PROFILER = Profiling(run_s=200.0, gpus=16, largest=8)  # GPUs as in the artifact
DRAWS = range(5)
UNDRAWN = ("fifo", "sjf", "qssf", "tiresias")  # nobody shares, so no model matters
PARTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("without estimator", {"estimated": False}),
    ("without sharing", {"sharing": "off"}),
    ("without binder", {"sharing": "naive"}),
)
PROFILED_S = 500.0  # of 4.5
SPACE_AWARE, BY_ARRIVAL = "space-aware", "in order of arrival"
AMPLE, AMPLY = 32, "profiler, 32 GPUs"
BUDGET_S = 1_500.0
UNGUARDED = {"utilization_capacity": 2.0}
THEIR_PROFILER = replace(PROFILER, run_s=80.0, largest=4)

NOTES = f"""\
The paper's week of Philly as Sia's artifact prepared it, whole, on 344 GPUs: there fifo, sjf and
tiresias queue for about as long as in the paper, on its 864 GPUs nobody does. Policies, predictions
and costs are those of `lab.lucid`; but Lucid's profiler has {PROFILER.gpus} of the GPUs, as in
the artifact. A draw says which model each job trains: it changes only policies that share."""
CAUSES_TOLD = """\
One thing at a time is not as ever, on the first draw. *Packed*: jobs that shared their GPUs for a
while. *Scattered*: as until 2026-12-01, a job takes GPUs on more nodes rather than wait for one.
*As in the authors' simulator*: true durations, their labels, no guard, T_prof of 80 s for jobs of
up to four GPUs, and GPUs that take the next job at once."""
PROFILING = f"""\
Jobs of up to {PROFILER.largest} GPUs on a profiler of {PROFILER.gpus} GPUs, or {AMPLE}, each for
{PROFILED_S:.0f} s or until its end."""


def measure(budget_s: float = BUDGET_S, kept: str = "") -> Report:
    """`budget_s`: processor time after which no further run begins; 0: none does. `kept`: a file to
    which each result is added, and whose results are not computed again."""
    log = Path(kept) if kept else None
    found = _read(log)
    earlier = len(found)
    left = [case for case in cases() if _key(case) not in found]
    begun = time.process_time()
    with TemporaryDirectory() as directory:
        models: dict[Known, Models] = {}
        runs._take(Given(models, pairs(Path(directory))))
        for n, case in enumerate(left, 1):
            if time.process_time() - begun >= budget_s:
                break
            if case.knows in MODELS and case.knows not in models:
                models[case.knows] = trained(profiled=case.knows == "profiled")
            result = found[_key(case)] = runs.run(case)
            print(f"{n} of {len(left)}: {_key(case)}: {result.wall_s:.0f} s", file=sys.stderr)
            if log:
                with log.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
    done = [found[_key(case)] for case in cases() if _key(case) in found]
    made = report(done, [" ".join(_key(c)) for c in cases() if _key(c) not in found])
    return replace(
        made, notes=[f"{earlier} of {len(found)} runs are of earlier calls, and were kept"]
    )


def _read(log: Path | None) -> dict[tuple[str, ...], Result]:
    lines = log.read_text().splitlines() if log and log.exists() else []
    return {_key(result): result for result in (Result(**json.loads(line)) for line in lines)}


def _key(one: Case | Result) -> tuple[str, ...]:
    return one.table, one.what, one.trace


# -- which runs there are


def cases() -> list[Case]:
    first = [_case(WEEK, policy) for policy in UNDRAWN]
    lucid = [_case(WEEK, "lucid", seed) for seed in DRAWS]
    causes = [_case(CAUSES, "lucid", 0, what, **more) for what, more in _causes().items()]
    profiler = [*_profiler()]
    most = [*lucid, *first, *causes, *profiler[:4], *_drawn(0), *profiler[4:]]
    return [*most, *chain.from_iterable(map(_drawn, DRAWS[1:]))]


def _case(table: str, policy: str, seed: int = 0, what: str = "", **more: Any) -> Case:
    busy = more.pop("busy", "median")
    made = more.pop("settings", None) or settings(policy, PROFILER)
    knows = more.pop("knows", KNOWS.get(policy, "nothing"))
    trace = f"week {TEST} {seed} {busy}"
    return Case(table, what or policy, trace, GPUS, made, knows, **more)


def _drawn(seed: int) -> Iterator[Case]:
    for what, ablation in PARTS:
        yield _case(WEEK, "lucid", seed, what, ablation=ablation)
    for busy in ("low", "high"):
        yield _case(WEEK, "lucid", seed, f"lucid, {busy}", busy=busy)
    yield _case(WEEK, "horus", seed)


def _causes() -> dict[str, dict[str, Any]]:
    made, unguarded = (settings("lucid", PROFILER, **its) for its in ({}, UNGUARDED))
    theirs = replace(unguarded, profiling=THEIR_PROFILER)
    scattered = {"scattered": True}
    return {
        "true durations": {"knows": "truth"},
        "as in the authors' simulator": {
            "knows": "truth",
            "labelled": True,
            "settings": _at_once(theirs),
        },
        "scattered": scattered,
        "scattered, no guard on utilisation": {**scattered, "settings": unguarded},
        "scattered, authors' labels, no guard": {
            **scattered,
            "labelled": True,
            "settings": unguarded,
        },
        "scattered, no settling": {**scattered, "settings": _at_once(made)},
    }


def _at_once(made: Settings) -> Settings:
    """GPUs take the next job a second after the last one's first kernel."""
    return replace(made, monitor=replace(made.monitor, window_s=1.0))


def _profiler() -> Iterator[Case]:
    """Nothing is ever on the last node. A job ends a second before it would be sent back."""
    longest_s = PROFILED_S - PHYSICS.first_kernel_s - 1
    weeks = [date.fromisoformat(TEST) + timedelta(weeks=week) for week in DRAWS]
    for gpus, days in ((PROFILER.gpus, weeks[:1]), (AMPLE, weeks[:1]), (PROFILER.gpus, weeks[1:])):
        made = settings("lucid", replace(PROFILER, run_s=PROFILED_S, gpus=gpus))
        for day, order in product(days, (SPACE_AWARE, BY_ARRIVAL)):
            ablation = {"time_aware": False, "space_aware": order == SPACE_AWARE}
            yield Case(
                "profiler" if gpus == PROFILER.gpus else AMPLY,
                order,
                f"brief {day} {longest_s}",
                f"{int(gpus) // 8 + 1}x8xRTX3090-24GB",
                made,
                ablation=ablation,
            )


# -- the page


def report(results: Sequence[Result], cut: Sequence[str]) -> Report:
    found = Runs(results)
    quotients = list(against_paper(found))
    sections: tuple[tuple[str, ...], ...] = (
        (NOTES, _against_table_4(found)),
        ("## Against the paper", tables({"": quotients})[""]),
        ("## All figures", found.table(*(row for row in found.rows if row[0] == WEEK))),
        ("## Why Lucid queues", CAUSES_TOLD, _by_cause(found)),
        ("## The profiler alone (4.5)", PROFILING, _profiling(found)),
        ("## Left out", bullets(cut) or "Nothing."),
    )
    return Report(
        "Lucid on whole weeks of Philly, simulated",
        [*chain.from_iterable(sections)],
        {"quotients": {one.claim.what: one for one in quotients}, "runs": results},
    )


def against_paper(found: Runs) -> Iterator[Finding]:
    """The quotients that the paper's claims are about, by their names in `lab.lucid.claims`."""

    def queue(one: Result) -> float:
        return one.queue

    lucid = WEEK, "lucid"
    wanted: list[tuple[str, float, Figure, Row, Row]] = [
        (f"{what}, {policy} : lucid", paper(policy, n), figure, (WEEK, policy), lucid)
        for n, (what, figure) in enumerate(FIGURES)
        for policy in POLICIES[:-1]
    ]
    for part, its in (("without binder", 1.4), ("without estimator", 2.2)):
        wanted.append((f"queue, {part} : whole", its, queue, (WEEK, part), lucid))
    pair = (WEEK, "qssf"), (WEEK, "without sharing")
    wanted.append(("queue, qssf : without sharing", 2.0, queue, *pair))
    for busy, its in (("low", 4.2), ("high", 1.8)):
        pair = (WEEK, "tiresias"), (WEEK, f"lucid, {busy}")
        wanted.append((f"queue, tiresias : lucid, {busy}", its, queue, *pair))
    pair = ("profiler", BY_ARRIVAL), ("profiler", SPACE_AWARE)
    what = "profiling queue, by arrival : space-aware"
    wanted.append((what, 11.6, lambda one: one.profiling_queue_s, *pair))
    for what, its, figure, over, under in wanted:
        if values := tuple(quotients(found, figure, over, under)):
            yield Finding(Quote(what, its, median(values), "times", f"{len(values)}"), values)


def paper(policy: str, figure: int) -> float:
    """How many times as long as under Lucid."""
    return PAPER[policy][figure] / PAPER["lucid"][figure]


def quotients(found: Runs, figure: Figure, over: Row, under: Row) -> Iterator[float]:
    """Draw by draw; who does not share was run once."""
    above = {one.trace: figure(one) for one in found.rows.get(over, ())}
    once = next(iter(above.values()), None) if over[1] in UNDRAWN else None
    for one in found.rows.get(under, ()):
        value = above.get(one.trace, once)
        if value is not None and figure(one):
            yield value / figure(one)


def _against_table_4(found: Runs) -> str:
    return columns(
        [policy for policy in POLICIES if (WEEK, policy) in found.rows],
        ("", "{}"),
        *(
            heading
            for n, (what, figure) in enumerate(FIGURES)
            for heading in (
                (f"{what} h, paper", lambda policy, n=n: f"{PAPER[policy][n]:.2f}"),
                ("ours", lambda policy, f=figure: spread(f, ".2f")(found.rows[WEEK, policy])),
            )
        ),
    )


def _by_cause(found: Runs) -> str:
    rows = [rows for (table, _), rows in found.rows.items() if table == CAUSES]
    return columns(
        [*([whole[:1]] if (whole := found.rows.get((WEEK, "lucid"))) else []), *rows],
        ("", lambda its: its[0].what),
        ("queue h", middle(lambda one: one.queue, ".2f")),
        ("JCT h", middle(lambda one: one.jct, ".2f")),
        ("slowdown", middle(lambda one: one.slowdown, ".3f")),
        ("packed %", middle(lambda one: 100 * one.packed, ".0f")),
    )


def _profiling(found: Runs) -> str:
    rows = [
        (one.trace.split()[1], f"{one.jobs:,}", table, what, f"{one.profiling_queue_s:,.0f}")
        for table, what in product(("profiler", AMPLY), (SPACE_AWARE, BY_ARRIVAL))
        for one in found.rows.get((table, what), ())
    ]
    return markdown_table(("week of", "jobs", "", "order", "queue s"), rows, (1, 4))


if __name__ == "__main__":
    main("lucid_weeks", measure, DATA)
