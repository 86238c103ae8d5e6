"""The Lucid paper's main claims: tables 4 and 5, figure 11, and its models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lab.claims import Claim

OURS = "five tenths of a Philly week; the paper's Venus has more recurring users"
TIRESIAS = "not tested: tiresias preempts at the authors' 62 s, and hardly loses by it here"
HORUS = "not tested"
# How many times as long it takes without Lucid, or one of its parts.
RATIOS = {
    "ratios: JCT, fifo : lucid": OURS,
    "ratios: JCT, sjf : lucid": OURS,
    "ratios: JCT, qssf : lucid": OURS,
    "ratios: JCT, horus : lucid": HORUS,
    "ratios: JCT, tiresias : lucid": TIRESIAS,
    "ratios: queue, tiresias : lucid": TIRESIAS,
    "ratios: p99.9 queue, tiresias : lucid": TIRESIAS,
    "figure 11: queue, without binder : whole": "naive sharing queues less, and slows jobs down",
    "figure 11: queue, without estimator : whole": "Philly does not tell who submitted what again",
    "figure 11: queue, qssf : without sharing": "Philly does not tell who submitted what again",
}
SENSITIVITY = {
    "profiler: profiling queue, by arrival : space-aware": "not tested; T_prof 500 s on both sides",
    "figure 12: queue, tiresias : lucid, low": TIRESIAS,
    "figure 12: queue, tiresias : lucid, high": TIRESIAS,
}
SCORES = "the tree, neither network seen"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    sensitivity = read("lucid_sensitivity")["claims"]
    for measured, ratios in ((read("lucid")["claims"], RATIOS), (sensitivity, SENSITIVITY)):
        for key, why in ratios.items():
            its, low, high = (measured[key][name] for name in ("claim", "low", "high"))
            what = key.partition(": ")[2].replace(" : ", " to ")
            yield Claim(what, its["paper"], (low, its["ours"], high), "×", why, 1.0)
    thresholds = [its for key, its in sensitivity.items() if key.startswith("thresholds: ")]
    changes = (100 * abs(its[end] - 1) for its in thresholds for end in ("low", "high"))
    why = "two other pairs of thresholds; five tenths of a Philly week"
    what = "change of JCT by the thresholds of Tiny and Medium"
    yield Claim(what, 3.6, tuple(changes), "%", why, at_most=True)
    models = read("lucid_models")
    guarded = {
        row["utilization"]: row
        for row in models["packing"]
        if row["scores"] == SCORES and row["capacity"] == 2
    }[1.2]
    why = "with the guard of 1.2 on the sum of utilisations, which was chosen on these pairs"
    for what, paper, found in (("free of interference", 98.1, "free"), ("found", 87.0, "found")):
        yield Claim(f"pairs {what}", paper, (100 * guarded[found],), "%", why)
    mae = {row["model"]: row["mae"] for row in models["throughput"]["rows"]}
    why = "Venus, from the artifact; no effect: the last count"
    ours = (mae["GA²M (EBM)"],)
    yield Claim("MAE of the throughput", 4.125, ours, "GPUs", why, mae["the last count known"])
    why = "its Venus jobs are not public with users and names"
    yield Claim("R² of the duration", 0.413, (), "", why)
    why = "five samples of a tenth of the cluster: the table has no counterpart"
    yield Claim("mean JCT on 864 GPUs (table 4)", 6.84, (), "h", why)
