"""The page of `lab.castor`: the paper's figures, ours, the difference and likely causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import fmean

from benchmarks.harness import Report, columns, markdown_table, percentile
from lab.castor import against, notes
from lab.castor.found import Runs, named, relative
from lab.castor.paper import sums
from lab.castor.runs import (
    FAMILIES,
    FEW,
    FULL,
    GAVEL_POLICIES,
    GPUS,
    GROWING,
    INTENSITIES,
    MURI_TRACES,
    POLICIES,
    SHARING,
    Result,
)
from lab.castor.timing import Taken


def report(results: Sequence[Result], taken: Sequence[Taken], name: str = "") -> Report:
    runs = Runs(results)
    sections: list[tuple[str, Callable[[], Iterable[str]]]] = [
        ("policies", lambda: _of_the_paper(runs)),
        *(("policies", partial(_of_family, runs, family)) for family in FAMILIES),
        ("load", lambda: (notes.LOAD, against.at_load(runs))),
        ("muri", lambda: ("## Muri's traces, 128 V100 (32 GB)", notes.MURI, _muri(runs))),
        (
            "intensities",
            lambda: (
                "## Intensity (figure 16)",
                notes.INTENSITY,
                *(_intensity(runs, f) for f in FAMILIES),
            ),
        ),
        (
            "techniques",
            lambda: ("## Streams and MPS (figure 15)", notes.TECHNIQUES, _techniques(runs)),
        ),
        (
            "benefits",
            lambda: ("## Sharing benefit (equation 24)", notes.BENEFIT, _benefits(runs)),
        ),
        (
            "predictions",
            lambda: (
                "## Ratios foretold, and known (figure 13)",
                notes.PREDICTION,
                _predictions(runs),
            ),
        ),
        (
            "splits",
            lambda: ("## Splitting batches (algorithm 2)", notes.SPLITS, _splits(runs)),
        ),
        (
            "gavel",
            lambda: (
                "## Where sharing often loses: Gavel's pairs (figure 14)",
                notes.GAVEL,
                _gavel(runs),
            ),
        ),
        (
            "decisions",
            lambda: ("## How long a decision takes (5.2.4)", notes.DECISIONS, _decisions(taken)),
        ),
        ("policies", lambda: ("## Likely causes of the differences", notes.CAUSES)),
    ]
    there = {*(result.table for result in results), *(["decisions"] if taken else [])}
    data = {"decisions": taken, "runs": results}
    return Report(
        "Castor beside other schedulers, simulated",
        [block for table, blocks in sections if table in there for block in blocks()],
        data,
        name=name,
    )


# -- beside the paper


def _of_the_paper(runs: Runs) -> tuple[str, ...]:
    return (
        "## The paper's figures and ours",
        notes.SETTING,
        against.against(runs),
        against.best(runs),
        against.congestion(runs),
        "## The paper's tables 5 and 6 add up",
        sums(),
    )


def _of_family(runs: Runs, family: str) -> tuple[str, ...]:
    return f"## {named(family)}", *_by_size(runs, family)


# -- all figures


def _by_size(runs: Runs, family: str) -> Iterator[str]:
    for size in GPUS:
        results = [
            r for r in runs.results if (r.table, r.workload, r.size) == ("policies", family, size)
        ]
        jobs, samples = results[0].jobs, len({r.sample for r in results})
        share = 100 * fmean(r.large_share for r in results)
        yield (
            f"{size} A6000; means over {samples} samples of {jobs} jobs; {share:.0f} % of the jobs"
            " are large. Hours."
        )
        yield _policies(runs, family, size)


def _policies(runs: Runs, family: str, size: str) -> str:
    headings = (
        *("policy", "makespan", "JCT", "queueing", "JCT: large +", "small", "queueing: large +"),
        *("small", "mean JCT: large", "small", "slow-down", "castor's JCT"),
    )
    variants = ("sjf_ffs, line not held", "castor, profiling online")
    rows = []
    for what in (*POLICIES, *(variants if size == FULL else ())):
        row = ("policies", family, size, what)
        jct, wait, large_jct, large_wait, share, makespan, slowdown = (
            runs.mean(of, *row)
            for of in (
                *("jct", "wait", "large_jct", "large_wait", "large_share"),
                *("makespan", "slowdown"),
            )
        )
        hours = (
            *(makespan, jct, wait, large_jct, jct - large_jct, large_wait, wait - large_wait),
            *(large_jct / share, (jct - large_jct) / (1 - share)),
        )
        castor = runs.mean("jct", "policies", family, size, "castor")
        rows.append(
            (
                what,
                *(f"{value:.2f}" for value in hours),
                f"{slowdown:.2f}",
                "" if what == "castor" else f"{relative(castor, jct):+.0f} %",
            )
        )
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


def _muri(runs: Runs) -> str:
    headings = ("policy", *(f"{n}: {w}" for n in MURI_TRACES for w in _WHAT))
    rows = []
    for policy in POLICIES:
        cells = []
        for number in MURI_TRACES:
            row = ("muri", f"muri-{number}", "128", policy)
            cells += [f"{runs.mean(of, *row):.1f}" for of in ("makespan", "jct", "wait")]
        rows.append((policy, *cells))
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


_WHAT = ("makespan", "JCT", "queueing")


def _intensity(runs: Runs, family: str) -> str:
    headings = (
        f"{named(family)}, mean JCT",
        *(f"{jobs} jobs" for jobs in INTENSITIES),
        f"{INTENSITIES[-1]} over {INTENSITIES[0]}",
    )
    rows = []
    for policy in GROWING:
        hours = [_jct_at(runs, family, jobs, policy) for jobs in INTENSITIES]
        rows.append((policy, *(f"{h:.2f}" for h in hours), f"×{hours[-1] / hours[0]:.1f}"))
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


def _jct_at(runs: Runs, family: str, jobs: int, policy: str) -> float:
    """Of 240 jobs the first samples have been told of already."""
    found = runs.at("intensities", family, str(jobs), policy)
    found = found or runs.at("policies", family, "128", policy)[: len(FEW)]
    return fmean(result.jct for result in found)


def _techniques(runs: Runs) -> str:
    headings = ("", "workload", "makespan h", "JCT h", "queueing h", "slow-down", "JCT")
    rows = []
    techniques = ("streams (temporal)", "MPS, a server per GPU", "MPS, one per node")
    for workload in FAMILIES:
        first = runs.mean("jct", "techniques", workload, FULL, techniques[0])
        for what in techniques:
            row = ("techniques", workload, FULL, what)
            hours = (f"{runs.mean(of, *row):.2f}" for of in ("makespan", "jct", "wait", "slowdown"))
            change = relative(runs.mean("jct", *row), first)
            rows.append((what, workload, *hours, f"{change:+.0f} %"))
    return markdown_table(headings, rows, numbers=range(2, len(headings)))


# -- the sharing benefit


def _benefits(runs: Runs) -> str:
    headings = (
        *("policy", "workload", "GPUs", "decisions", "above 1"),
        *("P10", "median", "P90", "mean"),
    )
    rows = []
    for family in FAMILIES:
        for policy in SHARING:
            found = _all_benefits(runs.at("benefits", family, FULL, policy))
            rows.append((policy, family, FULL, *_spread(found)))
    return markdown_table(headings, rows, numbers=range(2, len(headings)))


def _spread(benefits: Sequence[float]) -> tuple[str, ...]:
    if not benefits:
        return ("0", *[""] * 5)
    above = 100 * fmean(benefit > 1 for benefit in benefits)
    cuts = (percentile(benefits, q) for q in (0.1, 0.5, 0.9))
    numbers = (*cuts, fmean(benefits))
    return f"{len(benefits):,}", f"{above:.0f} %", *(f"{number:.2f}" for number in numbers)


def _all_benefits(results: Sequence[Result]) -> list[float]:
    return [benefit for result in results for benefit in result.benefits]


def _predictions(runs: Runs) -> str:
    headings = (
        *("workload", "GPUs", "JCT h: foretold", "known", "apart", "benefit: foretold", "known"),
        *("apart", "paper"),
    )
    rows = []
    for family in FAMILIES:
        foretold = runs.at("benefits", family, FULL, "castor")
        rows.append(_foretold(family, FULL, foretold, runs))
        pairs = f"{family}, Lucid's models"
        found = runs.at("predictions", pairs, FULL, "castor, ratios foretold")
        rows.append(_foretold(pairs, FULL, found, runs))
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


def _foretold(workload: str, size: str, foretold: Sequence[Result], runs: Runs) -> tuple[str, ...]:
    known = runs.at("predictions", workload, size, "castor, ratios known")
    jcts = [fmean(result.jct for result in each) for each in (foretold, known)]
    benefits = [fmean(_all_benefits(each)) for each in (foretold, known)]
    return (
        workload,
        size,
        *(f"{jct:.3f}" for jct in jcts),
        f"{relative(*jcts):+.1f} %",
        *(f"{benefit:.2f}" for benefit in benefits),
        f"{relative(*benefits):+.1f} %",
        "< 10 %",
    )


def _gavel(runs: Runs) -> str:
    headings = (
        *("64 V100, Philly", "makespan h", "JCT h", "range", "queueing h", "slow-down"),
        "against sjf_ffs",
    )
    base = runs.mean("jct", "gavel", "philly", "64", "sjf_ffs")
    rows = []
    for what in (*GAVEL_POLICIES, "castor, trained", "castor, ratios known"):
        row = ("gavel", "philly", "64", what)
        jcts = [result.jct for result in runs.at(*row)]
        hours = (runs.mean(of, *row) for of in ("makespan", "jct", "wait", "slowdown"))
        makespan, jct, wait, slowdown = (f"{value:.2f}" for value in hours)
        span = f"{min(jcts):.2f}–{max(jcts):.2f}"
        change = f"{relative(runs.mean('jct', *row), base):+.0f} %"
        rows.append((what, makespan, jct, span, wait, slowdown, change))
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


def _splits(runs: Runs) -> str:
    headings = (
        *("workload", "64 GPUs of", "may be split", "makespan h", "JCT h", "queueing h"),
        *("slow-down", "starts in parts", "OOM", "JCT"),
    )
    rows = []
    for workload, gpu in dict.fromkeys(
        (r.workload, r.size) for r in runs.results if r.table == "splits"
    ):
        first = None
        for what in ("nobody", "everybody"):
            row = ("splits", workload, gpu, what)
            jct = runs.mean("jct", *row)
            first = first or jct
            hours = (f"{runs.mean(of, *row):.2f}" for of in ("makespan", "jct", "wait", "slowdown"))
            counts = (
                f"{sum(getattr(r, of) for r in runs.at(*row))}" for of in ("crowded", "oom_crashes")
            )
            rows.append((workload, gpu, what, *hours, *counts, f"{relative(jct, first):+.1f} %"))
    return markdown_table(headings, rows, numbers=range(3, len(headings)))


def _decisions(taken: Sequence[Taken]) -> str:
    return columns(
        taken,
        ("policy", "{0.policy}"),
        ("GPUs", "{0.gpus}"),
        ("plans", "{0.plans}"),
        ("mean ms", "{0.mean_ms:.2f}"),
        ("median ms", "{0.median_ms:.2f}"),
        ("P99 ms", "{0.p99_ms:.2f}"),
        ("worst ms", "{0.worst_ms:.2f}"),
        ("paper ms", lambda e: "≤ 20" if (e.policy, e.gpus) == ("castor", 16) else ""),
    )
