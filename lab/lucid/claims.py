"""The Lucid paper's main claims: tables 4 and 5, figure 11, and its models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lab.claims import Bound, Claim, Values
from lab.lucid.findings import Finding, Runs
from lab.lucid.page import ablations, against_lucid
from lab.lucid.runs import OTHERWISE, Result
from lab.lucid.sensitivity_page import by_load, by_thresholds, space_aware

OURS = "five tenths of a Philly week; the paper's Venus has more recurring users"
TIRESIAS = "not tested: tiresias preempts at the authors' 62 s, and hardly loses by it here"
HORUS = "not tested"
# How many times as long it takes without Lucid, or one of its parts.
RATIOS = {
    "JCT, fifo : lucid": OURS,
    "JCT, sjf : lucid": OURS,
    "JCT, qssf : lucid": OURS,
    "JCT, horus : lucid": HORUS,
    "JCT, tiresias : lucid": TIRESIAS,
    "queue, tiresias : lucid": TIRESIAS,
    "p99.9 queue, tiresias : lucid": TIRESIAS,
    "queue, without binder : whole": "naive sharing queues less, and slows jobs down",
    "queue, without estimator : whole": "Philly does not tell who submitted what again",
    "queue, qssf : without sharing": "Philly does not tell who submitted what again",
    "profiling queue, by arrival : space-aware": "not tested; T_prof 500 s on both sides",
    "queue, tiresias : lucid, low": TIRESIAS,
    "queue, tiresias : lucid, high": TIRESIAS,
}
BOUNDS = {"queue, qssf : without sharing": Bound.AT_LEAST}  # "over 2.0"
SCORES = "the tree, neither network seen"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    runs, sensitivity = _runs(read("lucid")["runs"]), _runs(read("lucid_sensitivity")["runs"])
    found = (
        *against_lucid(runs),
        *ablations(runs),
        space_aware(sensitivity),
        *by_load(sensitivity),
    )
    others = {model: _values(against_lucid(runs, model)) for model in OTHERWISE}
    papers = {each.claim.what: each.claim.paper for each in found}
    for what, ours in _values(found).items():
        if what in RATIOS:
            yield Claim(
                what.replace(" : ", " to "),
                papers[what],
                ours,
                "×",
                RATIOS[what],
                1.0,
                BOUNDS.get(what, Bound.NONE),
                under={model: its[what] for model, its in others.items() if what in its},
            )
    changes = tuple(
        100 * abs(value - 1) for its in by_thresholds(sensitivity) for value in its.values
    )
    why = "two other pairs of thresholds; five tenths of a Philly week"
    what = "change of JCT by the thresholds of Tiny and Medium"
    yield Claim(what, 3.6, changes, "%", why, bound=Bound.AT_MOST)
    models = read("lucid_models")
    guarded = {
        row["utilization"]: row
        for row in models["packing"]
        if row["scores"] == SCORES and row["capacity"] == 2
    }[1.2]
    why = "with the guard of 1.2 on the sum of utilisations, which was chosen on these pairs"
    for what, paper, figure in (("free of interference", 98.1, "free"), ("found", 87.0, "found")):
        yield Claim(f"pairs {what}", paper, (100 * guarded[figure],), "%", why)
    mae = {row["model"]: row["mae"] for row in models["throughput"]["rows"]}
    why = "Venus, from the artifact; no effect: the last count"
    ours = (mae["GA²M (EBM)"],)
    yield Claim("MAE of the throughput", 4.125, ours, "GPUs", why, mae["the last count known"])
    why = "would need the names that users gave their jobs in Venus"
    yield Claim("R² of the duration", 0.413, (), "", why)
    why = "five samples of a tenth of the cluster: the table has no counterpart"
    yield Claim("mean JCT on 864 GPUs (table 4)", 6.84, (), "h", why)


def _runs(rows: Sequence[Mapping[str, Any]]) -> Runs:
    return Runs([Result(**row) for row in rows])


def _values(found: Iterable[Finding]) -> dict[str, Values]:
    return {each.claim.what: each.values for each in found}
