"""The page of `lab.lucid.models`: what was measured, beside the paper's figures, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Report, columns, markdown_table
from carmad.learning.models import Tree
from lab import compare
from lab.compare import Quote
from lab.lucid.packing import ALL_OF_IT, GUARD

Found = Mapping[str, Any]


def report(tree: Tree, found: Found) -> Report:
    blocks = [
        "## Paper and ours",
        compare.table([*_packing_model(found), *_others(found)]),
        "## Packing Analyze Model: the labels, and how often the tree tells them",
        _labels(found),
        "The tree that CARMA ships, from all configurations:",
        f"```\n{tree.text()}\n```",
        "## Packing by the scores: all 1,388 measured pairs",
        _packings(found),
        "## Throughput Predict Model: Venus, September 2020",
        _throughput(found["throughput"]),
        "## Workload Estimate Model: Philly",
        _durations(found["duration"]),
    ]
    return Report("Lucid's models on public data", blocks, found)


def _packing_model(found: Found) -> list[Quote]:
    ours, *_ = found["accuracy"]
    packed = {(row["scores"], row["capacity"], row["utilization"]): row for row in found["packing"]}
    tree = "the tree, neither network seen"
    guarded, careful, unseen = (packed[tree, 2, guard] for guard in (GUARD, ALL_OF_IT, None))
    by_hand = packed["the authors' labels", 2, None]
    return [
        *(
            quote
            for row, told in ((guarded, f"≤ {GUARD}"), (careful, f"≤ {ALL_OF_IT:.1f}"))
            for quote in (
                Quote(
                    f"packed pairs free of interference, tree and utilisation {told}",
                    98.1,
                    100 * row["free"],
                    "%",
                    f"networks held out of the tree; {GUARD} was chosen on these pairs, 1.0 is all "
                    "the time that a GPU has",
                ),
                Quote(
                    "… packing opportunities found",
                    87.0,
                    100 * row["found"],
                    "%",
                    "as above",
                ),
            )
        ),
        Quote(
            "packing model, accuracy, networks held out",
            94.1,
            100 * ours["each_model"],
            "%",
            "94.1 % is 16 of 17 configurations; the artifact tests on networks that it trained on, "
            "with labels set by hand and the measured average speed among the features. Pairs free "
            "of interference are what counts",
        ),
        Quote(
            "… configurations held out at random",
            94.1,
            100 * ours["at_random"],
            "%",
            "labels here are computed from the measured pairs, with no say of the authors' in them",
        ),
        Quote(
            "… as in the artifact's script",
            94.1,
            100 * found["accuracy_as_in_the_artifact"],
            "%",
            "66 configurations: a test set has 20, and one split differs from the next by 10 "
            "points; this is the mean of 20",
        ),
        Quote(
            "packed pairs free of interference, tree alone, networks held out",
            98.1,
            100 * unseen["free"],
            "%",
            "the tree never looks at GPU utilisation; labels are averages over neighbours of which "
            "four in ten are Tiny, so few jobs become Jumbo, and more is packed",
        ),
        Quote(
            "… by the authors' labels, nothing foretold",
            98.1,
            100 * by_hand["free"],
            "%",
            "nearly the paper's, and its 87.0 % comes out exactly: these are its "
            "labels; some of its pairs are not in the data here",
        ),
        Quote(
            "packing opportunities found, tree alone, networks held out",
            87.0,
            100 * unseen["found"],
            "%",
            "as above: more is packed",
        ),
        Quote("… by the authors' labels", 87.0, 100 * by_hand["found"], "%", "none"),
    ]


def _others(found: Found) -> list[Quote]:
    """Of the models of throughput and duration."""
    maes = {row["model"]: row["mae"] for row in found["throughput"]["rows"]}
    durations = {row["model"]: row["R²"] for row in found["duration"]["rows"]}
    return [
        *(
            Quote(f"throughput, MAE, {name}", paper, maes[model], "", cause)
            for name, model, paper, cause in (
                (
                    "GA²M",
                    "GA²M (EBM)",
                    4.125,
                    "features: the same time last week and the trend added",
                ),
                ("random forest", "random forest", 4.607, "features as above"),
                ("LightGBM", "LightGBM", 4.491, "features as above"),
                ("XGBoost", "XGBoost", 5.807, "features as above; defaults of another version"),
                ("DNN", "MLP", 5.132, "features as above"),
            )
        ),
        Quote(
            "duration, R²: Venus in the paper, Philly here",
            0.413,
            durations["GA²M, monotone in GPUs"],
            "",
            "not comparable: Venus' public log tells no names, and Philly's no "
            "user, no name and no profile; see below",
        ),
    ]


def _labels(found: Found) -> str:
    def share(value: float) -> str:
        return f"{100 * value:.1f}"

    table = columns(
        found["accuracy"],
        ("labelled by the average of", "{0[labels]}"),
        ("Tiny/Medium/Jumbo", lambda row: "/".join(map(str, row["counts"]))),
        ("as the authors %", lambda row: share(row["authors"])),
        ("accuracy, each network held out %", lambda row: share(row["each_model"])),
        (
            "… quarters of them",
            lambda row: f"{share(min(row['folds']))}–{share(max(row['folds']))}",
        ),
        ("… 30 % at random", lambda row: share(row["at_random"])),
        ("… seen", lambda row: share(row["seen"])),
        ("leaves", "{0[leaves]}"),
        text=range(2),
    )
    note = (
        "Of 66 configurations, 56 were measured in pairs; those of BERT, ResNet-50 and Transformer "
        "keep the authors' label (Jumbo). Quarters: lowest and highest of five shuffles. At "
        "random: the mean of 20 splits. The paper labels a job by its influence on others; "
        "the artifact averages the job's own speeds, and then trains on labels set by hand."
    )
    return f"{table}\n\n{note}"


def _packings(found: Found) -> str:
    rows = [
        (
            str(row["capacity"] or ""),
            row["scores"],
            str(row["utilization"] or ""),
            str(row["pairs"]),
            *(f"{100 * row[name]:.1f}" for name in ("free", "both_free", "found")),
        )
        for row in found["packing"]
    ]
    headings = (
        *("GSS", "scores from", "utilisation ≤", "pairs packed", "free of interference %"),
        *("… in both jobs %", "opportunities found %"),
    )
    note = (
        "Free of interference: the mean of the two speeds is 0.85 of that alone or more, as the "
        "paper's figures 2 and 5 have it; an opportunity is such a pair. Memory must fit 24 GB. "
        "Neither network seen: told by a tree that was trained on no configuration of either, with "
        "labels that no pair with either went into.\n\n"
        "Utilisation: the sum of what the two have alone must not exceed this. The default of "
        f"{GUARD} was chosen on these very pairs, and we know of no others with utilisations to "
        f"test it on; {ALL_OF_IT:.1f}, all the time that a GPU has, could be chosen without any."
    )
    return f"{markdown_table(headings, rows, numbers=(0, 2, 3, 4, 5, 6))}\n\n{note}"


def _throughput(found: Found) -> str:
    rows = [
        (row["model"], f"{row['mae']:.3f}", f"{row['seconds']:.0f}" if "seconds" in row else "")
        for row in found["rows"]
    ]
    told = ", ".join(f"{name} {score:.2f}" for name, score in found["importance"])
    notes = [
        "The paper does not say what is counted. Its artifact (simulation/predictor) foretells the "
        "GPU jobs submitted in ten minutes from nothing younger than about an hour; so is it here. "
        f"The mean of September is {found['mean']:.1f}; trained on April to August.",
        f"Mean absolute scores: {told}.",
        f"GPUs asked for in ten minutes: MAE {found['gpus_mae']:.1f}, with the last count known "
        f"{found['gpus_naive_mae']:.1f}.",
        f"The shape of `hour` (UTC as written in the file): {_shape(found['hour'])}.",
    ]
    table = markdown_table(("model", "MAE", "training s"), rows, numbers=(1, 2))
    return "\n\n".join([table, *notes])


def _durations(found: Found) -> str:
    measures = ("R²", "R² of the logarithm", "median of |log(foretold / real)|")
    rows = [
        (row["model"], *(f"{row[name]:.3f}" if name in row else "" for name in measures))
        for row in found["rows"]
    ]
    headings = ("model", *measures[:2], "median error of the logarithm")
    told = ", ".join(f"{name} {score:.2f}" for name, score in found["importance"])
    notes = [
        f"Trained on the first {found['trained']:,} jobs, tested on the {found['tested']:,} after "
        "them; the virtual cluster stands for the user. Durations span more than six orders of "
        "magnitude, so that R² in seconds hangs on a few jobs of weeks; policies order jobs, for "
        "which the logarithm tells more. What the paper's 0.413 rests on (users, names by affinity "
        "propagation, profiles) is not in this trace, and cannot be reproduced on it.",
        f"Mean absolute scores: {told}.",
        f"The shape of `gpus`, made monotone: {_shape(found['gpus'])}.",
    ]
    table = markdown_table(headings, rows, numbers=(1, 2, 3))
    return "\n\n".join([table, *notes])


def _shape(rows: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{label}: {score:+.2f}" for label, score in rows)
