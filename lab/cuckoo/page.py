"""The page of `python -m lab.cuckoo`: the paper's figures, ours, and likely causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from benchmarks.harness import Report, columns, markdown_table
from lab.cuckoo import notes
from lab.cuckoo.pairs import Found
from lab.cuckoo.paper import (
    BEST_WEIGHTS,
    CUCKOO_MET,
    ERRORS,
    FIFO_JCT_S,
    FIFO_MET,
    PREDICTED,
    TABLES,
)
from lab.cuckoo.runs import BUSIER, HEADLINE, IN_STEP, SEEDS, SENDING, WEIGHTS, Result, Setting

LINE = "\n\n"


@dataclass(frozen=True, slots=True)
class Runs:
    results: Sequence[Result]

    def of(self, what: str, setting: Setting = HEADLINE) -> list[Result]:
        return [r for r in self.results if r.what == what and r.setting == setting]

    def median(self, of: str, what: str, setting: Setting = HEADLINE) -> float:
        return float(median(getattr(result, of) for result in self.of(what, setting)))

    def ratios(self, of: str, what: str, setting: Setting) -> list[float]:
        """Over Cuckoo's, seed by seed."""
        pairs = zip(self.of(what, setting), self.of("Cuckoo", setting), strict=True)
        return [getattr(one, of) / getattr(cuckoo, of) for one, cuckoo in pairs]


@dataclass(frozen=True, slots=True)
class Beside:
    """A figure of the paper's beside ours, a value per seed."""

    what: str
    unit: str
    paper: float
    values: Sequence[float]

    @property
    def ours(self) -> float:
        return float(median(self.values))


def report(results: Sequence[Result], found: Sequence[Found]) -> Report:
    runs = Runs(results)
    beside = {
        "headline": [*_unshared(runs), *variants(runs, HEADLINE)],
        "longer jobs": list(variants(runs, BUSIER)),
        "table 3's stages": [*variants(runs, SENDING), *_prediction(runs)],
        "groups in step": list(variants(runs, IN_STEP)),
        "pairs": list(_errors(found)),
    }
    beside = {name: rows for name, rows in beside.items() if rows}
    settings = dict.fromkeys(result.setting for result in results)
    weighed = all(runs.of(what, SENDING) for what in WEIGHTS)
    sections = (
        ("## What is simulated", notes.SETTING),
        *((f"## Paper and ours: {name}", _beside(rows)) for name, rows in beside.items()),
        *((f"## {_title(setting)}", _table(runs, setting)) for setting in settings),
        ("## The weight w (figure 12)", _weights(runs), notes.WEIGHTS) if weighed else (),
        ("## Deadlines predicted (table 11, figure 11)", _predicted(runs), notes.PREDICTED),
        ("## Throughput of pairs (figure 10)", _pairs(found), notes.PAIRS) if found else (),
        ("## Causes of the differences", notes.CAUSES),
    )
    data = {"beside": beside, "runs": results, "pairs": found}
    return Report("Cuckoo beside other schedulers", [*chain.from_iterable(sections)], data)


# -- beside the paper


def _of(what: str, unit: str, paper: float, ours: Sequence[float]) -> Beside:
    return Beside(what, unit, paper, list(ours))


def _unshared(runs: Runs) -> Iterator[Beside]:
    alone = runs.of("None")
    yield _of("table 1: not packed, mean JCT (calibrated)", "s", FIFO_JCT_S, [r.jct for r in alone])
    met = [100 * r.met for r in alone]
    yield _of("table 1: not packed, deadlines met (calibrated)", "%", FIFO_MET, met)


def variants(runs: Runs, setting: Setting) -> Iterator[Beside]:
    if not runs.of("Cuckoo", setting):
        return
    met = [100 * r.met for r in runs.of("Cuckoo", setting)]
    yield _of("tables 9-14: Cuckoo, deadlines met", "%", CUCKOO_MET, met)
    for number, rows in TABLES.items():
        for what, told in rows.items():
            if not runs.of(what, setting):
                continue
            name = f"{number}: {what}"
            met = [100 * r.met for r in runs.of(what, setting)]
            yield _of(f"{name}, deadlines met", "%", told.met, met)
            yield _of(f"{name}, JCT", "x", told.jct, runs.ratios("jct", what, setting))
            yield _of(f"{name}, p99 JCT", "x", told.tail, runs.ratios("tail", what, setting))


def _prediction(runs: Runs) -> Iterator[Beside]:
    for what, (precision, f1) in PREDICTED.items():
        if not runs.of(what, SENDING):
            continue
        name = f"figure 11: {'AM' if what == 'Cuckoo' else what}"
        scores = [_scores([run]) for run in runs.of(what, SENDING)]
        yield _of(f"{name}, precision", "%", precision, [each[0] for each in scores])
        yield _of(f"{name}, F1", "%", f1, [each[2] for each in scores])


def _errors(found: Sequence[Found]) -> Iterator[Beside]:
    for model, paper in ERRORS.items():
        for each in found:
            if each.model == model:
                name = f"figure 10: {model}, error of throughput: {each.data}"
                yield _of(name, "%", paper, [100 * each.group])


def _beside(rows: Sequence[Beside]) -> str:
    return columns(
        rows,
        ("", "{0.what}"),
        ("unit", "{0.unit}"),
        ("paper", "{0.paper:,.4g}"),
        ("ours", "{0.ours:,.4g}"),
        ("seeds", lambda each: f"{min(each.values):,.4g}–{max(each.values):,.4g}"),
        ("difference", lambda each: f"{each.ours - each.paper:+,.3g}"),
        text=range(2),
    )


def _scores(of: Sequence[Result]) -> tuple[float, float, float]:
    """Precision, recall and F1 of "done in time", in %."""
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
    note = f"Medians of {SEEDS} seeds. Jobs that never finished: {unfinished}."
    return markdown_table(headings, rows, numbers=range(1, len(headings))) + LINE + note


def _weights(runs: Runs) -> str:
    """0.6 and 1 have other names among the variants."""
    named = {**{float(what.split()[-1]): what for what in WEIGHTS}, 0.6: "Cuckoo", 1.0: "Blossom"}
    rows = [
        (
            f"{weight:g}",
            f"{100 * runs.median('met', named[weight], SENDING):.1f} %",
            f"{runs.median('jct', named[weight], SENDING):,.0f}",
            f"{runs.median('tail', named[weight], SENDING):,.0f}",
        )
        for weight in sorted(named)
    ]
    best = max(named, key=lambda weight: runs.median("met", named[weight], SENDING))
    quick = min(named, key=lambda weight: runs.median("jct", named[weight], SENDING))
    headings = ("w", "deadlines met", "mean JCT s", "99th percentile s")
    low, high = BEST_WEIGHTS
    return (
        f"{markdown_table(headings, rows, numbers=range(4))}{LINE}Most deadlines at w = {best:g}, "
        f"the shortest JCT at {quick:g}; the paper: both from {low} to {high}."
    )


def _predicted(runs: Runs) -> str:
    rows = []
    for what in PREDICTED:
        of = runs.of(what, SENDING)
        counts = (sum(getattr(r, n) for r in of) for n in ("kept", "broken", "late", "lucky"))
        scores = (f"{score:.2f} %" for score in _scores(of))
        rows.append(("AM" if what == "Cuckoo" else what, *(f"{n:,}" for n in counts), *scores))
    headings = (
        *("", "in time, and was", "and was not", "late, and was", "and was not"),
        *("precision", "recall", "F1"),
    )
    return markdown_table(headings, rows, numbers=range(1, 8))


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
