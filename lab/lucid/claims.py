"""The Lucid paper's main claims: tables 4 and 5, figure 11, and its models.

Quotients rest on Philly's whole week (`lab.lucid.weeks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
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
WEEK = "Philly's whole week on 344 GPUs"
LEFT_OUT = f"{WEEK}, of which too little has been run since Lucid consolidates: `lab.lucid.weeks`"
# What the causes are told by.
COMPARED = (
    *((weeks.WEEK, what) for what in (*weeks.UNDRAWN, "lucid", *dict(weeks.PARTS))),
    *((weeks.WEEK, f"lucid, {busy}") for busy in ("low", "high")),
    *((weeks.CAUSES, what) for what in ("true durations", "as in the authors' simulator")),
    *product(("profiler", weeks.AMPLY), (weeks.BY_ARRIVAL, weeks.SPACE_AWARE)),
)


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
    papers = {each.claim.what: each.claim.paper for each in found}
    for what in QUOTIENTS:
        yield Claim(
            what.replace(" : ", " to "),
            papers[what],
            whole.get(what, ()),
            "×",
            WEEK if what in whole else LEFT_OUT,
            causes.get(what, ""),
            1.0,
            BOUNDS.get(what, Bound.NONE),
            whole=what in WHOLE,
            due=what not in whole,
            setup=setups.get(what, ()),
        )
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
    """How long the baselines queue in the paper and here, as a measure of the load."""

    def queue(policy: str, paper: float, where: str = "") -> tuple[SetUp, ...]:
        ours = found.of(weeks.WEEK, policy).queue
        return (SetUp(f"{policy} queues{where}", paper, ours, "h"),)

    setups = {
        f"{figure}, {policy} : lucid": queue(policy, PAPER[policy][1])
        for figure in ("JCT", "queue", "p99.9 queue")
        for policy in POLICIES[:-1]
        if (weeks.WEEK, policy) in found.rows
    }
    for what, policy in (
        ("queue, without binder : whole", "lucid"),
        ("queue, without estimator : whole", "lucid"),
        ("queue, qssf : without sharing", "qssf"),
        ("queue, tiresias : lucid, low", "tiresias"),
        ("queue, tiresias : lucid, high", "tiresias"),
    ):
        if (weeks.WEEK, policy) in found.rows:
            setups[what] = queue(policy, VENUS[policy], " (Venus)")
    return setups


def find_causes(found: Runs, authors: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Why each quotient is what it is, by what was run; nothing if too little was. `authors`: the
    runs of their simulator."""
    if not all(row in found.rows for row in COMPARED):
        return {}
    jct = {(one["sample"], one["policy"]): one["jct"] for one in authors if one["whose"] == THEIRS}

    def theirs(policy: str) -> str:
        its = sorted(jct[n, policy] / jct[n, "lucid"] for n in {n for n, _ in jct})
        return f"the authors' simulator has {its[0]:.2f} to {its[-1]:.2f} × on four tenths of it"

    def queues(*whats: str) -> str:
        told = (f"{what} {hours(what).queue:.2f} h" for what in whats)
        return f"queueing is {', '.join(told)}"

    def profiling(table: str) -> str:
        its = (found.of(table, order) for order in (weeks.BY_ARRIVAL, weeks.SPACE_AWARE))
        return " and ".join(f"{one.profiling_queue_s:,.0f} s" for one in its)

    def hours(what: str) -> Result:
        return found.of(weeks.WEEK, what)

    fifo, sjf, tiresias, lucid = map(hours, ("fifo", "sjf", "tiresias", "lucid"))
    naive, true = hours("without binder"), found.of(weeks.CAUSES, "true durations")
    alike = found.of(weeks.CAUSES, "as in the authors' simulator")
    horus = "five tenths: in four, horus' three jobs on a GPU leave nobody waiting; in one, 14 h"
    if (weeks.WEEK, "horus") in found.rows:
        horus = (
            f"{queues('horus', 'lucid')}: three jobs may share a GPU, and none is profiled first"
        )
    return {
        "JCT, fifo : lucid": f"fifo queues for {fifo.queue:.1f} h (paper: 30.4 h),"
        f" lucid for {lucid.queue:.2f} h (0.29 h); {theirs('fifo')}",
        "JCT, sjf : lucid": theirs("sjf"),
        "JCT, qssf : lucid": "ours predicts from VC, GPUs and clock, as Philly tells no"
        f" users: with true durations (sjf) it would have {sjf.jct / lucid.jct:.2f}",
        "JCT, horus : lucid": horus,
        "JCT, tiresias : lucid": theirs("tiresias"),
        "queue, tiresias : lucid": f"{queues('tiresias', 'lucid')} (paper: 2.62 and 0.29 h); with"
        f" true durations lucid {true.queue:.2f} h, with all else as in the authors' simulator"
        f" {alike.queue:.2f} h: the rest is the workload",
        "p99.9 queue, tiresias : lucid": f"{tiresias.queue_p999:.1f} and"
        f" {lucid.queue_p999:.1f} h (paper: 98.8 and 71.2 h)",
        "queue, without binder : whole": f"{queues('lucid', naive.what)}; naive sharing slows jobs"
        f" down {naive.slowdown:.3f} times, lucid {lucid.slowdown:.3f}; JCT is"
        f" {naive.jct / lucid.jct:.2f} times as long",
        "queue, without estimator : whole": queues("lucid", "without estimator"),
        "queue, qssf : without sharing": f"{queues('qssf', 'without sharing', 'sjf')}; sjf knows"
        " all durations",
        "profiling queue, by arrival : space-aware": f"the week's jobs on a profiler of 16 GPUs:"
        f" {profiling('profiler')}; of 32: {profiling(weeks.AMPLY)}; 96 % ask for one GPU, so"
        " that the order by GPUs changes little",
        "queue, tiresias : lucid, low": f"{queues('tiresias', 'lucid, low')}",
        "queue, tiresias : lucid, high": f"{queues('tiresias', 'lucid, high')}: of models without"
        " the least busy third, fewer pairs are affine",
    }


def _runs(rows: Sequence[Mapping[str, Any]]) -> Runs:
    return Runs([Result(**row) for row in rows])
