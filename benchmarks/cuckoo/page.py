"""The page of `python -m benchmarks.cuckoo`: the paper's figures, ours, and likely causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from benchmarks.cuckoo import notes
from benchmarks.cuckoo.pairs import Found
from benchmarks.cuckoo.paper import (
    BEST_WEIGHTS,
    CUCKOO_MET,
    ERRORS,
    FIFO_JCT_S,
    FIFO_MET,
    PREDICTED,
    TABLES,
)
from benchmarks.cuckoo.runs import HEADLINE, HEAVY, SETTINGS, WEIGHTS, Result, Setting
from benchmarks.cuckoo.timing import LIMITS_S, Pruned, Taken
from benchmarks.harness.report import Report
from benchmarks.harness.rows import columns, verdict
from carmad.sim.report import compare, markdown
from carmad.sim.report.compare import Claim

LINE = "\n\n"


@dataclass(frozen=True, slots=True)
class Runs:
    results: Sequence[Result]

    def of(self, what: str, setting: Setting = HEADLINE) -> list[Result]:
        return [r for r in self.results if r.what == what and r.setting == setting]

    def median(self, of: str, what: str, setting: Setting = HEADLINE) -> float:
        return float(median(getattr(result, of) for result in self.of(what, setting)))

    def ratio(self, of: str, what: str, setting: Setting) -> float:
        """Over Cuckoo's, seed by seed."""
        pairs = zip(self.of(what, setting), self.of("Cuckoo", setting), strict=True)
        return float(median(getattr(one, of) / getattr(cuckoo, of) for one, cuckoo in pairs))


def report(
    results: Sequence[Result],
    found: Sequence[Found],
    taken: Sequence[Taken],
    pruned: Sequence[Pruned],
) -> Report:
    runs = Runs(results)
    sections = (
        ("## What is simulated", notes.SETTING),
        ("## The paper's figures and ours", compare.table(list(_claims(runs, found)))),
        ("### At twice the load", compare.table(list(_variants(runs, HEAVY)))),
        *((f"## {_title(setting)}", _table(runs, setting)) for setting in SETTINGS),
        ("## The weight w (figure 12)", _weights(runs), notes.WEIGHTS),
        ("## Deadlines foretold (table 11, figure 11)", _predicted(runs), notes.PREDICTED),
        ("## Throughput of pairs (figure 10)", _pairs(found), notes.PAIRS),
        ("## How long a plan takes", _taken(taken), _pruned(pruned), notes.PLANS),
        ("## Likely causes of the differences", notes.CAUSES),
    )
    data = {"runs": results, "pairs": found, "plans": taken, "pruned": pruned}
    return Report("Cuckoo beside other schedulers", [*chain.from_iterable(sections)], data)


# -- beside the paper


def _claims(runs: Runs, found: Sequence[Found]) -> Iterator[Claim]:
    unshared = runs.median("jct", "fifo")
    yield Claim("table 1: non-packing, mean JCT", FIFO_JCT_S, unshared, "s", notes.FITTED)
    met = 100 * runs.median("met", "fifo")
    yield Claim("table 1: non-packing, deadlines met", FIFO_MET, met, "%", notes.FIFO)
    yield from _variants(runs, HEADLINE)
    for what, (precision, f1) in PREDICTED.items():
        name = f"figure 11: {'AM' if what == 'Cuckoo' else what}"
        ours = _scores(runs, what)
        yield Claim(f"{name}, precision", precision, ours[0], "%", notes.PRECISION)
        yield Claim(f"{name}, F1", f1, ours[2], "%", notes.PRECISION)
    for model, paper in ERRORS.items():
        for each in found:
            if each.model == model:
                name = f"figure 10: {model}, error of throughput: {each.data}"
                yield Claim(name, paper, 100 * each.group, "%", notes.ERROR)


def _told(runs: Runs, what: str) -> list[Result]:
    return [*runs.of(what), *runs.of(what, HEAVY)]


def _variants(runs: Runs, setting: Setting) -> Iterator[Claim]:
    met = 100 * runs.median("met", "Cuckoo", setting)
    yield Claim("tables 9–14: Cuckoo, deadlines met", CUCKOO_MET, met, "%", notes.MET)
    for number, rows in TABLES.items():
        for what, told in rows.items():
            name, cause = f"{number}: {what}", notes.CAUSE[what]
            met = 100 * runs.median("met", what, setting)
            jct, tail = (runs.ratio(of, what, setting) for of in ("jct", "tail"))
            yield Claim(f"{name}, deadlines met", told.met, met, "%", cause)
            yield Claim(f"{name}, JCT over Cuckoo's", told.jct, jct, "×", cause)
            yield Claim(f"{name}, 99th percentile", told.tail, tail, "×", cause)


def _scores(runs: Runs, what: str) -> tuple[float, float, float]:
    """Precision, recall and F1 of "done in time", in %, over all seeds and both loads."""
    of = _told(runs, what)
    kept, broken, lucky = (sum(getattr(r, n) for r in of) for n in ("kept", "broken", "lucky"))
    precision, recall = kept / max(1, kept + broken), kept / max(1, kept + lucky)
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return 100 * precision, 100 * recall, 100 * f1


# -- our tables


def _title(setting: Setting) -> str:
    stages, truth = setting
    first = ": the headline" if setting == HEADLINE else ""
    return f"Stages: {stages}; pairs: {truth}{first}"


def _table(runs: Runs, setting: Setting) -> str:
    headings = (
        *("", "deadlines met", "runs", "mean JCT s", "over Cuckoo's", "99th percentile s"),
        *("slow-down", "jobs in line"),
    )
    names = dict.fromkeys(r.what for r in runs.results if r.setting == setting)
    cuckoo = runs.median("jct", "Cuckoo", setting)
    rows = []
    for what in names:
        if what in WEIGHTS:
            continue
        met = [100 * result.met for result in runs.of(what, setting)]
        jct = runs.median("jct", what, setting)
        rows.append(
            (
                *(what, f"{median(met):.1f} %", f"{min(met):.1f}–{max(met):.1f}"),
                *(f"{jct:,.0f}", f"{jct / cuckoo:.2f}"),
                f"{runs.median('tail', what, setting):,.0f}",
                f"{runs.median('slowdown', what, setting):.2f}",
                f"{runs.median('queue', what, setting):.1f}",
            )
        )
    unfinished = sum(r.jobs - r.finished for r in runs.results if r.setting == setting)
    note = f"Medians of {SETTINGS[setting][1]} seeds. Jobs that never finished: {unfinished}."
    return markdown.table(headings, rows, numbers=range(1, len(headings))) + LINE + note


def _weights(runs: Runs) -> str:
    """At twice the load. 0.6 and 1 have other names among the variants."""
    named = {**{float(what.split()[-1]): what for what in WEIGHTS}, 0.6: "Cuckoo", 1.0: "Blossom"}
    rows = [
        (
            f"{weight:g}",
            f"{100 * runs.median('met', named[weight], HEAVY):.1f} %",
            f"{runs.median('jct', named[weight], HEAVY):,.0f}",
            f"{runs.median('tail', named[weight], HEAVY):,.0f}",
        )
        for weight in sorted(named)
    ]
    best = max(named, key=lambda weight: runs.median("met", named[weight], HEAVY))
    quick = min(named, key=lambda weight: runs.median("jct", named[weight], HEAVY))
    headings = ("w", "deadlines met", "mean JCT s", "99th percentile s")
    low, high = BEST_WEIGHTS
    return (
        f"{markdown.table(headings, rows, numbers=range(4))}{LINE}Most deadlines at w = {best:g}, "
        f"the shortest JCT at {quick:g}; the paper: both from {low} to {high}."
    )


def _predicted(runs: Runs) -> str:
    rows = []
    for what in PREDICTED:
        of = _told(runs, what)
        counts = (sum(getattr(r, n) for r in of) for n in ("kept", "broken", "late", "lucky"))
        scores = (f"{score:.2f} %" for score in _scores(runs, what))
        rows.append(("AM" if what == "Cuckoo" else what, *(f"{n:,}" for n in counts), *scores))
    headings = (
        *("", "in time, and was", "and was not", "late, and was", "and was not"),
        *("precision", "recall", "F1"),
    )
    return markdown.table(headings, rows, numbers=range(1, 8))


def _pairs(found: Sequence[Found]) -> str:
    return columns(
        found,
        ("data", "{0.data}"),
        ("model", "{0.model}"),
        ("pairs judged", "{0.pairs:,}"),
        ("λ fitted", lambda each: "" if each.gpu is None else f"{each.gpu:.2f}"),
        ("error of the pair's throughput", lambda each: f"{100 * each.group:.1f} %"),
        ("iterations alike", lambda e: "" if e.alike is None else f"{100 * e.alike:.1f} %"),
        ("of each job's", lambda each: f"{100 * each.job:.1f} %"),
        text=range(2),
    )


def _taken(taken: Sequence[Taken]) -> str:
    return columns(
        taken,
        ("GPUs", "{0.gpus}"),
        ("jobs in line", "{0.queued:,}"),
        ("plans", "{0.plans}"),
        ("median ms", "{0.median_ms:,.0f}"),
        ("worst ms", "{0.worst_ms:,.0f}"),
        ("at most ms", lambda each: f"{1000 * LIMITS_S[each.queued]:,.0f}"),
        ("", lambda each: verdict(each.worst_ms <= 1000 * LIMITS_S[each.queued])),
        text=(0, 6),
    )


def _pruned(pruned: Sequence[Pruned]) -> str:
    return columns(
        pruned,
        ("jobs", "{0.jobs:,}"),
        ("edges", "{0.full_edges:,}"),
        ("kept", "{0.edges:,}"),
        ("weight lost", lambda each: f"{100 * each.lost:.3f} %"),
        ("matched in s", "{0.full_s:.2f}"),
        ("pruned, in s", "{0.took_s:.3f}"),
        text=(),
    )
