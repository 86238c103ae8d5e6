"""The Castor paper's main claims: tables 5 and 6, figures on interference, and its overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from lab.castor.paper import PAPERS, SIMULATED
from lab.castor.runs import GUESSING, THEIRS
from lab.claims import Bound, Claim, SetUp

Run = Mapping[str, Any]

# Mean JCT against these: tables 5 and 6.
JCT = {
    "philly": {"fifo": -42, "sjf": -18, "tiresias": -40, "lucid": -27},
    "saturn": {"fifo": -39, "sjf": -14, "tiresias": -27, "lucid": -14},
}
WAIT = {"philly": -78, "saturn": -74}
LOAD = "the samples run at the load at which fifo queues as in the paper"
MORE = {
    "lucid": "; our Lucid knows durations, the paper's predicts them",
    "sjf_ffs": "; the paper has its greatest lead on Venus (9.5)",
}
PLAIN = ("policies", THEIRS)  # the samples as they are


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    runs = read("castor_load")["runs"]
    plain = [run for run in read("castor")["runs"] if (run["table"], run["size"]) == PLAIN]

    def judged(what: str, paper: float, family: str, policy: str, measure: str) -> Claim:
        claim = Claim(
            f"{what}, {PAPERS[family]}",
            paper,
            _changes(runs, family, policy, measure),
            "%",
            LOAD + MORE.get(policy, ""),
            setup=_queueing(runs, family, policy),
        )
        before = replace(
            claim,
            ours=_changes(plain, family, policy, measure),
            setup=_queueing(plain, family, policy),
        )
        told = f"at the samples' own load: {before.told}"
        if policy == "lucid":
            guessed = _changes(runs, family, GUESSING, measure)
            told += f"; {claim.otherwise('if Lucid guesses durations', guessed)}"
        return replace(claim, cause=told)

    for family, paper in JCT.items():
        for policy, change in paper.items():
            yield judged(f"mean JCT against {policy}", change, family, policy, "jct")
        yield judged("queueing against fifo", WAIT[family], family, "fifo", "wait")
    claim = judged("mean JCT against sjf_ffs, at most", -20, "saturn", "sjf_ffs", "jct")
    gavel = read("castor_gavel")["runs"]
    told = (
        claim.otherwise(f"{how} on Gavel's pairs", _changes(gavel, "philly", "sjf_ffs", "jct", who))
        for how, who in (
            ("the shipped model", "castor"),
            ("trained on half of them", "castor, trained"),
            ("the ratios known", "castor, ratios known"),
        )
    )
    yield replace(claim, cause="; ".join((claim.cause, *told)))
    rmse = {
        row["model"]: row["rmse"]
        for row in read("castor_models")["interference"]
        if (row["data"], row["held_out"]) == ("Lucid, RTX 3090", "pairs")
    }
    yield Claim(
        "RMSE of the interference ratio, held-out pairs",
        0.065,  # .06 and .07: of the two jobs of a pair
        (rmse["boosted trees"],),
        "",
        "pairs that Lucid's authors measured, both jobs; no effect: always the mean",
        null=rmse["constant"],
        whole=True,
    )
    mean_ms = tuple(
        row["mean_ms"]
        for row in read("castor_decisions")["decisions"]
        if row["policy"] == "castor" and row["gpus"] == 16
    )
    what, note = "mean time of a decision, 16 GPUs", "all plans of a run; another machine"
    yield Claim(what, 20, mean_ms, "ms", note, bound=Bound.AT_MOST, whole=True)
    yield Claim("JCT against Pollux", -26, (), "%", "no other policy here resizes what a job gets")
    note = "the sample is not described well enough to repeat it"
    yield Claim("makespan against fifo on the testbed (table 4)", -34, (), "%", note)


def _queueing(runs: Sequence[Run], family: str, policy: str) -> tuple[SetUp, ...]:
    """How much of FIFO's and the policy's JCT is queueing: how crowded it is, and how much of that
    is the baseline's doing."""

    def share(what: str) -> SetUp:
        paper = SIMULATED[family][what]
        its = [run for run in runs if run["workload"] == family and run["what"] == what]
        ours = 100 * median(run["wait"] / run["jct"] for run in its)
        return SetUp(f"{what}'s share of queueing", 100 * paper.wait[0] / paper.jct[0], ours, "%")

    known = (what for what in dict.fromkeys(("fifo", policy)) if what in SIMULATED[family])
    return tuple(map(share, known))


def _changes(
    runs: Sequence[Run], family: str, policy: str, measure: str, castor: str = "castor"
) -> tuple[float, ...]:
    """Castor's against the policy's, in percent, sample by sample and size by size."""
    by_key = {(run["workload"], run["size"], run["sample"], run["what"]): run for run in runs}
    return tuple(
        100 * (its[measure] / by_key[workload, size, sample, policy][measure] - 1)
        for (workload, size, sample, what), its in by_key.items()
        if workload == family and what == castor
    )
