"""The Castor paper's main claims: tables 5 and 6, figures on interference, and its overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from carmad.readable import number
from lab.castor.paper import PAPERS
from lab.castor.runs import GUESSING, THEIRS
from lab.claims import Bound, Claim

Run = Mapping[str, Any]

# Mean JCT against these: tables 5 and 6.
JCT = {
    "philly": {"fifo": -42, "sjf": -18, "tiresias": -40, "lucid": -27},
    "saturn": {"fifo": -39, "sjf": -14, "tiresias": -27, "lucid": -14},
}
WAIT = {"philly": -78, "saturn": -74}
PLAIN = ("policies", THEIRS)  # the samples as they are


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    runs = read("castor_load")["runs"]
    plain = [run for run in read("castor")["runs"] if (run["table"], run["size"]) == PLAIN]
    for family, paper in JCT.items():
        for policy, change in paper.items():
            what = f"mean JCT against {policy}, {PAPERS[family]}"
            why = _at_their_load(plain, family, policy, "jct")
            if policy == "lucid":
                guessed = median(_changes(runs, family, GUESSING, "jct"))
                why += f"; were the durations that Lucid knows guesses: {number(guessed)} %"
            yield Claim(what, change, _changes(runs, family, policy, "jct"), "%", why)
        what = f"queueing against fifo, {PAPERS[family]}"
        why = _at_their_load(plain, family, "fifo", "wait")
        yield Claim(what, WAIT[family], _changes(runs, family, "fifo", "wait"), "%", why)
    gavel = read("castor_gavel")["runs"]
    for castor, why in (
        ("castor, ratios known", "the ratios are known, on Gavel's pairs under MPS"),
        ("castor, trained", "its model was trained on half of Gavel's pairs"),
        ("castor", "the shipped model has seen other GPUs, and time slices instead of MPS"),
    ):
        changes = _changes(gavel, "philly", "sjf_ffs", "jct", castor)
        yield Claim(f"mean JCT against sjf_ffs, at most; {castor}", -20, changes, "%", why)
    rmse = {
        (row["held_out"], row["model"]): row["rmse"]
        for row in read("castor_models")["interference"]
        if row["data"] == "Lucid, RTX 3090"
    }
    for held_out, paper_rmse, why in (
        ("pairs", 0.06, "pairs that Lucid's authors measured; no effect: always the mean"),
        ("networks", 0.07, "networks that the model has not seen are harder"),
    ):
        ours, always = rmse[held_out, "boosted trees"], rmse[held_out, "constant"]
        what = f"RMSE of the interference ratio, held-out {held_out}"
        yield Claim(what, paper_rmse, (ours,), "", why, always)
    mean_ms = tuple(
        row["mean_ms"]
        for row in read("castor_decisions")["decisions"]
        if row["policy"] == "castor" and row["gpus"] == 16
    )
    why = "another machine"
    yield Claim("mean time of a decision, 16 GPUs", 20, mean_ms, "ms", why, bound=Bound.AT_MOST)
    yield Claim("JCT against Pollux", -26, (), "%", "no other policy here resizes what a job gets")
    why = "the sample is not described well enough to repeat it"
    yield Claim("makespan against fifo on the testbed (table 4)", -34, (), "%", why)


def _at_their_load(runs: Sequence[Run], family: str, policy: str, measure: str) -> str:
    """What becomes of the claim where Sia's samples are run as they are."""
    change = median(_changes(runs, family, policy, measure))
    return f"at the load of Sia's samples as they are: {number(change)} %"


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
