"""The CARMA paper's main claims, of its first trace and of its artifact's run heavy-60."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lab.claims import Claim

ORDER = "ten orders of the same tasks; loads from the artifact's figures, interference from others"
ENERGY = (
    "under the fitted interference jobs that share need fewer SM-busy seconds; the paper's SMACT"
    " and makespan multiply to as many as alone"
)
ONE_GPU = "the paper shows one GPU, ours is the mean of three"
WHY = {"makespan": ORDER, "energy": ENERGY, "SMACT": ONE_GPU, "SMOCC": ONE_GPU}


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    trace, heavy = read("carma_tables"), read("carma_heavy60")
    for its in trace["claims"]:
        what, paper, unit = its["what"], its["paper"], its["unit"]
        why = WHY.get(what.partition(",")[0], ONE_GPU)
        yield Claim(
            f"trace 1: {what}, against exclusive", paper, tuple(trace["orders"][what]), unit, why
        )
    paper = {its["what"]: its["paper"] for its in heavy["claims"]}
    for what, name in (("makespan", "makespan_change"), ("energy", "energy_change")):
        yield Claim(
            f"heavy-60: {what}, magm, against exclusive",
            paper[f"magm: {what}, change"],
            tuple(heavy["orders"][name]),
            "%",
            ORDER,
        )
    rows = read("memory_gpumemnet")["rows"]
    accuracy = {(row["group"], row["what"]): row["value"] for row in rows}
    data = "2146 measured MLPs, 1 GB"
    always = accuracy[data, "always the commonest bin: accuracy"]
    for model, its_paper in (("mlp", 0.95), ("transformer", 0.97)):
        ours = accuracy[data, f"{model}: accuracy"]
        what = f"GPUMemNet ({model}): accuracy on MLPs, bins of 1 GB"
        why = "their data; our classifiers also add up tensors, and know that bins are ordered"
        yield Claim(what, its_paper, (ours,), "", why, always)
