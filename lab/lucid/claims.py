"""The Lucid paper's main claims: tables 4 and 5, figure 11, and its models.

Quotients rest on Philly's whole week (`lab.lucid.weeks`); what its five tenths say is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from carmad.readable import number
from lab.claims import Bound, Claim, SetUp, Values
from lab.lucid import weeks
from lab.lucid.authors import THEIRS
from lab.lucid.findings import Runs
from lab.lucid.page import PAPER, ablations, against_lucid
from lab.lucid.runs import POLICIES, Result
from lab.lucid.sensitivity_page import by_load, by_thresholds, space_aware

# The claims that are quotients: how many times as long without Lucid, or one of its parts.
QUOTIENTS = (
    "JCT, fifo : lucid",
    "JCT, sjf : lucid",
    "JCT, qssf : lucid",
    "JCT, horus : lucid",
    "JCT, tiresias : lucid",
    "queue, tiresias : lucid",
    "p99.9 queue, tiresias : lucid",
    "queue, without binder : whole",
    "queue, without estimator : whole",
    "queue, qssf : without sharing",
    "profiling queue, by arrival : space-aware",
    "queue, tiresias : lucid, low",
    "queue, tiresias : lucid, high",
)
BOUNDS = {"queue, qssf : without sharing": Bound.AT_LEAST}  # "over 2.0"
WHOLE = ("queue, qssf : without sharing", "profiling queue, by arrival : space-aware")  # undrawn
# Queueing in hours, table 4: figures 11 (a) and 12 are of Venus, ours of Philly.
VENUS = {"lucid": 0.25, "qssf": 1.88, "tiresias": 0.82}
SCORES = "the tree, neither network seen"
BLACK_BOXES = {"random forest": 4.607, "LightGBM": 4.491, "XGBoost": 5.807, "MLP": 5.132}  # table 7
GLASS_BOX = "GA²M (EBM)"
GLASS_MAE = 4.125
WEEK = f"Philly's whole week on {8 * weeks.NODES[weeks.AT_LOAD]} GPUs"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    runs, sensitivity = _runs(read("lucid")["runs"]), _runs(read("lucid_sensitivity")["runs"])
    found = (
        *against_lucid(runs),
        *ablations(runs),
        space_aware(sensitivity),
        *by_load(sensitivity),
    )
    whole = {what: tuple(one["values"]) for what, one in read("lucid_weeks")["quotients"].items()}
    week = _runs(read("lucid_weeks")["runs"])
    authors = read("lucid_authors")
    causes, setups = find_causes(week, authors["runs"]), find_setups(week)
    tenths = {each.claim.what: each for each in found}
    for what in QUOTIENTS:
        claim = Claim(
            what.replace(" : ", " to "),
            tenths[what].claim.paper,
            whole[what],
            "×",
            WEEK,
            causes.get(what, ""),
            1.0,
            BOUNDS.get(what, Bound.NONE),
            whole=what in WHOLE,
            setup=setups.get(what, ()),
        )
        fifo = runs.of("headline", "fifo").queue
        part = f"five tenths, where fifo queues for {number(fifo)} h"
        yield replace(claim, note=f"{WEEK}; {claim.otherwise(part, tenths[what].values)}")
    two = [[100 * abs(value - 1) for value in its.values] for its in by_thresholds(sensitivity)]
    changes = tuple(map(max, zip(*two, strict=True)))
    note = "the greater change of two other pairs of thresholds; five tenths of a Philly week"
    what = "change of JCT by the thresholds of Tiny and Medium"
    yield Claim(what, 3.6, changes, "%", note, bound=Bound.AT_MOST)
    yield from _models(read("lucid_models"))
    venus = authors["venus"]
    note = (
        f"the paper's own predictions for {venus['jobs']:,} jobs of Venus are public: where the"
        " clone has Venus' log, `lab.lucid.authors` judges them; the users' names for jobs are not"
    )
    known: Values = () if venus["r2"] is None else (venus["r2"],)
    yield Claim("R² of the duration", 0.413, known, "", note, whole=True)
    note = (
        "the paper's preparation of Philly is not public: its jobs run for 25,533 s on average, the"
        " public ones for 7,829 s, and even fifo has a JCT of 2.18 h and no queue on 864 GPUs"
    )
    yield Claim("mean JCT on 864 GPUs (table 4)", 6.84, (), "h", note)


def _models(models: Mapping[str, Any]) -> Iterator[Claim]:
    guarded = {
        row["utilization"]: row
        for row in models["packing"]
        if row["scores"] == SCORES and row["capacity"] == 2
    }
    for what, paper, figure in (("free of interference", 98.1, "free"), ("found", 87.0, "found")):
        plain, strict = (100 * guarded[limit][figure] for limit in (None, 1.0))
        note = (
            "with the guard of 1.2 on the sum of utilisations, which was chosen on these pairs;"
            f" without one, as the paper has it, {number(plain)} %; with 1.0, all the time that a"
            f" GPU has, {number(strict)} %"
        )
        yield Claim(f"pairs {what}", paper, (100 * guarded[1.2][figure],), "%", note, fitted=True)
    mae = {row["model"]: row["mae"] for row in models["throughput"]["rows"]}
    papers_best, best = min(BLACK_BOXES.values()), min(mae[name] for name in BLACK_BOXES)
    lead, papers = 100 * (mae[GLASS_BOX] / best - 1), 100 * (GLASS_MAE / papers_best - 1)
    note = (
        f"Venus, from the artifact; MAE {number(mae[GLASS_BOX])} jobs (paper: {GLASS_MAE});"
        f" the mean of the last hour has {number(mae['mean of the last hour known'])}"
    )
    setup = SetUp("the best black box's MAE", papers_best, best, "jobs")
    what = "MAE of the throughput, against the best black box"
    yield Claim(what, papers, (lead,), "%", note, whole=True, setup=(setup,))


def find_setups(found: Runs) -> dict[str, tuple[SetUp, ...]]:
    """How long the baselines queue, in the paper and in ours: how crowded both are."""

    def queue(policy: str, paper: float, where: str = "") -> tuple[SetUp, ...]:
        ours = found.of(weeks.AT_LOAD, policy).queue
        return (SetUp(f"{policy} queues{where}", paper, ours, "h"),)

    setups = {
        f"{figure}, {policy} : lucid": queue(policy, PAPER[policy][1])
        for figure in ("JCT", "queue", "p99.9 queue")
        for policy in POLICIES[:-1]
        if (weeks.AT_LOAD, policy) in found.rows
    }
    for what, policy in (
        ("queue, without binder : whole", "lucid"),
        ("queue, without estimator : whole", "lucid"),
        ("queue, qssf : without sharing", "qssf"),
        ("queue, tiresias : lucid, low", "tiresias"),
        ("queue, tiresias : lucid, high", "tiresias"),
    ):
        setups[what] = queue(policy, VENUS[policy], " (Venus)")
    return setups


def find_causes(found: Runs, authors: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of the quotients that differ, what was tried. `authors`: the runs of their simulator."""
    jct = {(one["sample"], one["policy"]): one["jct"] for one in authors if one["whose"] == THEIRS}

    def theirs(policy: str) -> str:
        its = sorted(jct[n, policy] / jct[n, "lucid"] for n in {n for n, _ in jct})
        return f"the authors' simulator has {its[0]:.2f} to {its[-1]:.2f} × on four tenths of it"

    def profiling(table: str) -> str:
        its = (found.of(table, order) for order in (weeks.BY_ARRIVAL, weeks.SPACE_AWARE))
        return " and ".join(f"{one.profiling_queue_s:,.0f} s" for one in its)

    def hours(what: str) -> Result:
        return found.of(weeks.AT_LOAD, what)

    sjf, tiresias, lucid = map(hours, ("sjf", "tiresias", "lucid"))
    consolidated = found.of(weeks.CONSOLIDATED, "fifo").queue
    most = 100 * tiresias.queue / (tiresias.jct - tiresias.queue)
    naive = hours("without binder")
    return {
        "JCT, fifo : lucid": f"the load: consolidated, fifo queues for {consolidated:.1f} h;"
        f" {theirs('fifo')}",
        "JCT, qssf : lucid": "what is predicted from: Philly tells no users; with true durations"
        f" (sjf) it would have {sjf.jct / lucid.jct:.2f} ×",
        "JCT, tiresias : lucid": "the load: with no queueing at all, a policy that does not share"
        f" would be {most:.0f} % ahead of tiresias; {theirs('tiresias')}",
        "queue, without binder : whole": "sharing wherever memory allows keeps fewer waiting, but"
        f" slows jobs down {naive.slowdown:.3f} times, lucid {lucid.slowdown:.3f}; JCT is"
        f" {naive.jct / lucid.jct:.2f} times as long",
        "queue, qssf : without sharing": f"not what is predicted: knowing all durations, sjf queues"
        f" for {sjf.queue:.2f} h, without sharing {hours('without sharing').queue:.2f}",
        "profiling queue, by arrival : space-aware": "not the profiler's size: on 16 GPUs"
        f" {profiling('profiler')}, on {weeks.AMPLE} {profiling(weeks.AMPLY)}",
    }


def _runs(rows: Sequence[Mapping[str, Any]]) -> Runs:
    return Runs([Result(**row) for row in rows])
