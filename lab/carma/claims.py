"""The CARMA paper's main claims: its two traces, and GPUMemNet's accuracies (table 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lab.carma.paper import DEFAULT
from lab.claims import Bound, Claim, Values

ORDER = "ten orders of the same tasks; loads from the artifact's figures, interference from others"
ONE_GPU = "the paper shows one GPU, ours is the mean of three"
WHY = {"makespan": ORDER, "energy": ORDER}
ALONE = "against exclusive"

# Table 3, by the data on which ours were judged: what is measured of, size of a bin, accuracies.
MEASURED = "their measured MLPs; our classifiers add up tensors, and know bins are ordered"
SYNTHESISED = "networks that we drew as theirs were drawn; their test data have no memory of each"
ACCURACIES: Mapping[str, tuple[str, str, Mapping[str, float]]] = {
    "2146 measured MLPs, 1 GB": (
        "MLPs, bins of 1 GB",
        MEASURED,
        {"mlp": 0.95, "transformer": 0.97},
    ),
    "2146 measured MLPs, 2 GB": (
        "MLPs, bins of 2 GB",
        MEASURED,
        {"mlp": 0.97, "transformer": 0.98},
    ),
    "784 synthesised, cnn, 8 GB, in use": (
        "CNNs, bins of 8 GB",
        SYNTHESISED,
        {"mlp": 0.83, "transformer": 0.81},
    ),
    "812 synthesised, transformer, 8 GB, in use": (
        "transformers, bins of 8 GB",
        SYNTHESISED,
        {"mlp": 0.88, "transformer": 0.86},
    ),
}


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    trace = read("carma_tables")
    for its in trace["claims"]:
        what = its["what"]
        ours = {model: tuple(of[what]) for model, of in trace["orders"].items()}
        yield _claim(
            f"trace 1: {what}, {ALONE}",
            its["paper"],
            ours,
            WHY.get(what.partition(",")[0], ONE_GPU),
        )
    crashes = tuple(trace["oracle's crashes"])
    what = "trace 1: out-of-memory crashes, oracle"
    yield Claim(what, 0, crashes, "", ORDER, bound=Bound.AT_MOST)
    second = read("carma_trace2")
    ours = {model: tuple(values) for model, values in second["makespans"].items()}
    yield _claim(f"trace 2: makespan, lug, horus, {ALONE}", second["paper"], ours, ORDER)
    rows = read("memory_gpumemnet")["rows"]
    found = {(row["group"], row["what"]): row["value"] for row in rows}
    for data, (what, why, accuracies) in ACCURACIES.items():
        always = found[data, "always the commonest bin: accuracy"]
        for model, paper in accuracies.items():
            ours_of_it = (found[data, f"{model}: accuracy"],)
            name = f"GPUMemNet ({model}): accuracy on {what}"
            yield Claim(name, paper, ours_of_it, "", why, always)


def _claim(what: str, paper: float, ours: Mapping[str, Values], why: str) -> Claim:
    others = {model: values for model, values in ours.items() if model != DEFAULT}
    return Claim(what, paper, ours[DEFAULT], "%", why, under=others)
