"""The CARMA paper's main claims: its two traces, and GPUMemNet (table 3, figure 2).

Both traces are simulated in the paper's own order, in which nothing is drawn: that decides. How
much the order is worth, the same tasks in other orders tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from carmad.readable import number
from lab.carma.paper import DEFAULT, MAGM, RR
from lab.claims import Bound, Claim, SetUp

ONE_GPU = "the paper shows GPU 0, ours is the mean of three"
# SMOCC is SMACT times a constant of each task here: the same measurement, counted once.
SMACT, SMOCC = "SMACT, magm, recovery only", "SMOCC, magm, recovery only"
MEMORY = "GPU memory, magm, recovery only"
# Where the assumptions of `lab.carma` were changed one by one: the run, and its figure.
CHANGED = {
    "makespan, rr, recovery only": (RR, "makespan_change"),
    MEMORY: (MAGM, "memory_change"),
}
MLP_1, MLP_2 = "2146 measured MLPs, 1 GB", "2146 measured MLPs, 2 GB"
TABLE_3 = {"mlp": (0.95, 0.97), "transformer": (0.97, 0.98)}  # on MLPs, bins of 1 and of 2 GB
# On these, bins of 8 GB, %: of its MLP-based classifiers.
WIDE_BINS = {"cnn": ("CNNs", 83), "transformer": ("transformers", 88)}
COMMONEST = "always the commonest bin"
TIMM = "GPUMemNet, where it answers"
RIVALS = ("Horus", "FakeTensor, as in the data")
MANY = 100  # of fewer runs, chance decides the share that is right
GIB = 1024  # MiB


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    trace = read("carma_tables")
    for its in trace["claims"]:
        if (what := its["what"]) != SMOCC:
            ours = {model: of[what] for model, of in trace["orders"].items()}
            claim = _simulated(f"trace 1: {what}", its["paper"], ours)
            yield replace(claim, note=_noted(what, claim), cause=_cause(trace, what, claim))
    what, crashes = "trace 1: out-of-memory crashes, oracle", trace["oracle's crashes"]
    claim = Claim(what, 0, (crashes[0],), "", whole=True, bound=Bound.AT_MOST)
    yield replace(claim, note=claim.otherwise("in ten orders", crashes))
    second = read("carma_trace2")
    yield _simulated("trace 2: makespan, lug, horus", second["paper"], second["makespans"])
    yield from _mlps(read("memory_gpumemnet")["rows"])
    yield from _timm(read("memory_timm"))


def _simulated(what: str, paper: float, ours: Mapping[str, Sequence[float]]) -> Claim:
    """`ours`: by model of interference, the trace's own order first."""
    own = {model: (values[0],) for model, values in ours.items()}
    decides = own.pop(DEFAULT)
    claim = Claim(f"{what}, against exclusive", paper, decides, "%", whole=True, under=own)
    return replace(claim, note=claim.otherwise("in ten orders", ours[DEFAULT]))


def _noted(what: str, claim: Claim) -> str:
    more = {
        SMACT: f"{ONE_GPU}; SMOCC (paper: 61 %) follows from SMACT here, and is not counted again",
        MEMORY: ONE_GPU,
    }
    return "; ".join(filter(None, (more.get(what), claim.note)))


def _cause(trace: Mapping[str, Any], what: str, claim: Claim) -> str:
    """Of the assumptions that were changed one by one, the one nearest the paper."""
    if what not in CHANGED:
        return ""
    run, figure = CHANGED[what]
    found = {how: results[run.name][figure] for how, results in trace["rests on"].items()}
    nearest = min(found, key=lambda how: abs(found[how] - claim.paper))
    told = claim.otherwise(f"nearest is “{nearest}”", (found[nearest],))
    return f"of {len(found) - 1} assumptions changed one by one, {told}"


def _mlps(rows: Sequence[Mapping[str, Any]]) -> Iterator[Claim]:
    """Table 3's MLPs: their own measured networks, on which ours are trained and tested."""
    found = {(row["group"], row["what"]): row["value"] for row in rows}
    always = found[MLP_1, f"{COMMONEST}: accuracy"]
    same = SetUp("commonest bin, of the same data", always, always)
    for kind, (paper, of_2) in TABLE_3.items():
        one, two = (
            Claim(
                f"GPUMemNet ({kind}): accuracy on MLPs, bins of 1 GB",
                its,
                (found[data, f"{kind}: accuracy"],),
                "",
                null=found[data, f"{COMMONEST}: accuracy"],
                whole=True,
                setup=(same,),
            )
            for data, its in ((MLP_1, paper), (MLP_2, of_2))
        )
        note = "the paper's measured MLPs, cross-validated; no effect: always the commonest bin"
        yield replace(one, note=f"{note}; {two.otherwise(f'2 GB (paper: {of_2:g})', two.ours)}")


def _timm(timm: Mapping[str, Any]) -> Iterator[Claim]:
    """What ships, on networks that others measured: our own labels would prove little."""
    its = timm["judged"][TIMM]
    every = max(one["n"] for one in timm["judged"].values())
    bins = {(row["group"], row["what"]): row["value"] for row in timm["rows"]}
    for kind, (networks, paper) in WIDE_BINS.items():
        group = f"GPUMemNet, {kind}"
        name = f"GPUMemNet: accuracy on {networks}, bins of 8 GB"
        if answered := bins.get((group, "answers")):
            note = f"the {number(answered)} measured timm runs of them that it answers"
            right, null = bins[group, "right bin of 8 GB"], bins[group, COMMONEST]
            yield Claim(name, paper, (right,), "%", note, null=null, whole=answered >= MANY)
    error, *rivals = (timm["judged"][name]["absolute"][0] / GIB for name in (TIMM, *RIVALS))
    told = ", ".join(f"{name} {number(rival)}" for name, rival in zip(RIVALS, rivals, strict=True))
    note = (
        f"measured timm runs: it answers {its['n']} of {every:,} ({its['n'] / every:.0%}), and is"
        f" off by {number(error)} GiB in the median ({told}); too low in {its['under']:.0%}"
    )
    what, ours = "figure 2: GPUMemNet's error, of the better rival's", error / min(rivals)
    claim = Claim(what, 1, (ours,), "×", note, bound=Bound.AT_MOST, whole=True)
    if always := bins.get(("GPUMemNet, cnn", "error P50 of who is always right")):
        right = claim.otherwise("always in the right bin, of CNNs", (always / min(rivals),))
        claim = replace(claim, cause=f"bins are 8 GB wide: {right}")
    yield claim
