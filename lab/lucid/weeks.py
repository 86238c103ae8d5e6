"""Lucid beside its baselines on Philly's whole week (10,650 jobs), which `lab.lucid` has in tenths.

On 520 GPUs, at the load of those tenths, and on the paper's 864; the models that jobs train are
drawn anew for each draw. Besides: consolidated as in the simulator of Lucid's authors, and the
profiler alone. Runs one after the other, those first that most depends on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import date, timedelta
from itertools import chain, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Report, bullets, markdown_table
from carmad.config import Profiling
from lab.compare import Quote
from lab.data import DATA
from lab.lucid import runs
from lab.lucid.findings import Figure, Finding, Row, Runs, spread, tables
from lab.lucid.page import FIGURES, PAPER
from lab.lucid.runs import KNOWS, MODELS, PHYSICS, POLICIES, Case, Given, Known, Result, settings
from lab.lucid.workload import TEST, Models, pairs, trained
from lab.main import main

NODES = {"520": 65, "864": 108}  # of eight GPUs
AT_LOAD, WHOLE, CONSOLIDATED = "520", "864", "520, consolidated"  # the tables
TITLES = {AT_LOAD: "520 GPUs", WHOLE: "864 GPUs", CONSOLIDATED: "520 GPUs, consolidated"}
PROFILER = Profiling(run_s=200.0, gpus=16, largest=8)  # GPUs as in the artifact
DRAWS = range(5)
UNDRAWN = ("fifo", "sjf", "qssf", "tiresias")  # nobody shares, so no model matters
PARTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("without estimator", {"estimated": False}),
    ("without sharing", {"sharing": "off"}),
    ("without binder", {"sharing": "naive"}),
)
AUTHORS_QUEUE_GPU_S = 18_000.0  # the first queue of Tiresias in the simulator of Lucid's authors
PROFILED_S = 500.0  # of 4.5
SPACE_AWARE, BY_ARRIVAL = "space-aware", "in order of arrival"
AMPLE, AMPLY = 32, "profiler, 32 GPUs"
BUDGET_S = 1_500.0

NOTES = f"""\
The paper's week of Philly as Sia's artifact prepared it, whole. {NODES[AT_LOAD] * 8} GPUs have the
load of the tenths of `lab.lucid` (0.70), {NODES[WHOLE] * 8} are the paper's (0.42). Policies,
predictions and costs are those of `lab.lucid`; but Lucid's profiler has {PROFILER.gpus} GPUs, as in
the artifact. A draw says which model each job trains: it changes only policies that share.
Consolidated: as in the simulator of Lucid's authors, a job of up to 8 GPUs waits for them on one
node, a larger one for whole nodes."""
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
    first = [_case(AT_LOAD, policy) for policy in UNDRAWN]
    lucid = [_case(AT_LOAD, "lucid", seed) for seed in DRAWS]
    profiler = [*_profiler()]
    most = [*first, *lucid, *profiler[:4], *_drawn(0), *_others(), *profiler[4:]]
    return [*most, *_drawn(1), *_drawn(2), *_last()]


def _case(table: str, policy: str, seed: int = 0, what: str = "", **more: Any) -> Case:
    """`table` begins with the GPUs."""
    busy = more.pop("busy", "median")
    return Case(
        table,
        what or policy,
        f"week {TEST} {seed} {busy}",
        f"{NODES[table[:3]]}x8xRTX3090-24GB",
        settings(policy, PROFILER),
        KNOWS.get(policy, "nothing"),
        **more,
    )


def _drawn(seed: int) -> Iterator[Case]:
    for what, ablation in PARTS:
        yield _case(AT_LOAD, "lucid", seed, what, ablation=ablation)
    for busy in ("low", "high"):
        yield _case(AT_LOAD, "lucid", seed, f"lucid, {busy}", busy=busy)
    yield _case(AT_LOAD, "horus", seed)


def _others() -> Iterator[Case]:
    yield _case(WHOLE, "fifo")
    for policy in ("fifo", "sjf", "tiresias", "lucid"):
        yield _case(CONSOLIDATED, policy, consolidated=True)
    what, queue = "tiresias, queue of 18,000 GPU-s", AUTHORS_QUEUE_GPU_S
    yield _case(CONSOLIDATED, "tiresias", 0, what, consolidated=True, first_queue=queue)
    for policy in ("lucid", "tiresias", "sjf", "qssf", "horus"):
        yield _case(WHOLE, policy)


def _last() -> Iterator[Case]:
    for seed in DRAWS[3:]:
        yield _case(AT_LOAD, "horus", seed)


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
        *(
            (f"## {title}", found.table(*rows))
            for table, title in TITLES.items()
            if (rows := [row for row in found.rows if row[0] == table])
        ),
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

    lucid = AT_LOAD, "lucid"
    wanted: list[tuple[str, float, Figure, Row, Row]] = [
        (f"{what}, {policy} : lucid", paper(policy, n), figure, (AT_LOAD, policy), lucid)
        for n, (what, figure) in enumerate(FIGURES)
        for policy in POLICIES[:-1]
    ]
    for part, its in (("without binder", 1.4), ("without estimator", 2.2)):
        wanted.append((f"queue, {part} : whole", its, queue, (AT_LOAD, part), lucid))
    pair = (AT_LOAD, "qssf"), (AT_LOAD, "without sharing")
    wanted.append(("queue, qssf : without sharing", 2.0, queue, *pair))
    for busy, its in (("low", 4.2), ("high", 1.8)):
        pair = (AT_LOAD, "tiresias"), (AT_LOAD, f"lucid, {busy}")
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
    """Hours: the paper's, and ours by the number of GPUs."""
    sizes = AT_LOAD, WHOLE
    rows = [
        (policy, *chain.from_iterable(_hours(found, policy, n, sizes) for n in range(2)))
        for policy in POLICIES
    ]
    headings = [
        f"{what} h, {whose}"
        for what, _ in FIGURES[:2]
        for whose in ("paper", *(f"{NODES[size] * 8} GPUs" for size in sizes))
    ]
    return markdown_table(("", *headings), rows, range(1, len(headings) + 1))


def _hours(found: Runs, policy: str, figure: int, sizes: Iterable[str]) -> tuple[str, ...]:
    ours = (found.rows.get((size, policy)) for size in sizes)
    told = spread(FIGURES[figure][1], ".2f")
    return f"{PAPER[policy][figure]:.2f}", *(told(its) if its else "" for its in ours)


def _profiling(found: Runs) -> str:
    rows = [
        (one.trace.split()[1], f"{one.jobs:,}", table, what, f"{one.profiling_queue_s:,.0f}")
        for table, what in product(("profiler", AMPLY), (SPACE_AWARE, BY_ARRIVAL))
        for one in found.rows.get((table, what), ())
    ]
    return markdown_table(("week of", "jobs", "", "order", "queue s"), rows, (1, 4))


if __name__ == "__main__":
    main("lucid_weeks", measure, DATA)
