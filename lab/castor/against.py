"""Castor's figures beside those that the paper prints."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

from benchmarks.harness import markdown_table
from lab.castor.found import Runs, named, relative
from lab.castor.paper import PAPERS, SIMULATED
from lab.castor.runs import FAMILIES, GPUS, GUESSING, POLICIES, THEIRS, Result


def against(runs: Runs) -> str:
    headings = (
        *("castor against", "", "paper"),
        *(heading for gpus in GPUS for heading in (f"{gpus} GPUs", "apart")),
        "likely cause",
    )
    rows = []
    for family in FAMILIES:
        for other, what, of, paper in _told(family):
            ours = [runs.change(of, family, size, other) for size in GPUS]
            apart = (
                cell for each in ours for cell in (f"{each:+.0f} %", f"{each - paper:+.0f} points")
            )
            cause = CAUSE_OF.get(of) or CAUSE[other]
            rows.append((f"{other}, {named(family)}", what, f"{paper:+.0f} %", *apart, cause))
    return markdown_table(headings, rows, numbers=range(2, len(headings) - 1))


CAUSE_OF = {
    "wait": "the load: with two jobs on each GPU hardly anybody waits",
}
CAUSE = {
    "fifo": "the load",
    "sjf": "the load; milder interference",
    "tiresias": "none found (castor_tiresias.md)",
    "lucid": "it knows durations here, and packs beside idle GPUs",
}


def _told(family: str) -> Iterator[tuple[str, str, str, float]]:
    """What the paper says of Castor against another policy, in %."""
    simulated = SIMULATED[family]
    for other in POLICIES:
        if other in simulated and other != "castor":
            mine, its = simulated["castor"], simulated[other]
            yield other, "JCT", "jct", relative(mine.jct[0], its.jct[0])
            yield other, "queueing", "wait", relative(mine.wait[0], its.wait[0])


def at_load(runs: Runs) -> str:
    """The rows of tables 5 and 6 at the paper's load."""
    headings = (
        *("hours", "JCT", "paper", "queueing", "paper", "of the JCT", "paper", "slow-down"),
        *("castor's JCT: median", "range", "paper"),
    )
    rows = []
    for family in FAMILIES:
        told = SIMULATED[family]
        castor = runs.at("load", family, THEIRS, "castor")
        for policy in (*POLICIES, GUESSING):
            its = runs.at("load", family, THEIRS, policy)
            jct, wait, slowed = (
                fmean(getattr(run, of) for run in its) for of in ("jct", "wait", "slowdown")
            )
            change = [relative(one.jct, other.jct) for one, other in zip(castor, its, strict=True)]
            theirs = told.get(policy)
            rows.append(
                (
                    f"{policy}, {named(family)}",
                    *(f"{jct:.2f}", f"{theirs.jct[0]:.2f}" if theirs else ""),
                    *(f"{wait:.2f}", f"{theirs.wait[0]:.2f}" if theirs else ""),
                    *(_share(wait, jct), _share(theirs.wait[0], theirs.jct[0]) if theirs else ""),
                    f"{slowed:.2f}",
                    *(f"{median(change):+.0f} %", f"{min(change):+.0f} to {max(change):+.0f}"),
                    f"{relative(told['castor'].jct[0], theirs.jct[0]):+.0f} %" if theirs else "",
                )
            )
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


def best(runs: Runs) -> str:
    """Against SJF-FFS the paper prints no more than "up to 20 %"."""
    gains = []
    for castor in runs.results:
        if castor.what == "castor" and castor.table in ("policies", "muri", "intensities"):
            row = (castor.table, castor.workload, castor.size, "sjf_ffs")
            other = next(r for r in runs.at(*row) if r.sample == castor.sample)
            gains.append((relative(castor.jct, other.jct), castor))
    (best, where), (worst, elsewhere) = min(gains, key=_first), max(gains, key=_first)
    middle = median(gain for gain, _ in gains)
    return (
        f"Castor's JCT against SJF-FFS (paper: up to 20 % less, on {PAPERS['saturn']}): from"
        f" {best:+.0f} % ({_where(where)}) to {worst:+.0f} % ({_where(elsewhere)}), median"
        f" {middle:+.0f} %, of {len(gains)} runs; in {sum(g < 0 for g, _ in gains)} it is less."
    )


def congestion(runs: Runs) -> str:
    """By how much a workload is more than its cluster can take."""
    shares = []
    for family in FAMILIES:
        ours = (
            f"{_share(*(runs.mean(of, 'policies', family, n, 'fifo') for of in ('wait', 'jct')))}"
            f" on {n} GPUs"
            for n in GPUS
        )
        told = SIMULATED[family]["fifo"]
        paper = _share(told.wait[0], told.jct[0])
        shares.append(f"{named(family)}: {', '.join(ours)}; in the paper {paper}")
    return f"Of FIFO's JCT is queueing: {'. '.join(shares)}."


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"


def _first(pair: tuple[float, Result]) -> float:
    return pair[0]


def _where(result: Result) -> str:
    of = "jobs" if result.table == "intensities" else "GPUs"
    return f"{result.sample}, {result.size} {of}"
