"""The catalogue's rows of the CARMA paper's tasks, and the DGX Station's power, from the figures in
the artifact.

A task's SM-busy seconds are its SMACT times its duration while it has a GPU alone in the run
heavy-60. They are taken to be the same in the paper's Table 4, whose durations the catalogue has:
the kernels are the same, and only the CPU is faster or slower at feeding them. What the figures do
not show is derived: Xception at smaller batch sizes from its busy time at 128, SMOCC and DRAMA from
SMACT (`carma_simulator.catalogue.activity`). Tasks without a figure keep what was assumed of them.
Nothing here has seen a makespan. Writes the rows into the simulator's `coefficients/catalogue.csv`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.harness import Report, columns
from carma_simulator import catalogue
from carmad.gpu.card import POWER_EXPONENT
from carmad.gpu.kinds import KINDS
from carmad.gpu.source import utilization
from lab.carma import figures
from lab.data import read
from lab.main import main

ROWS = Path(catalogue.__file__).with_name("coefficients") / "catalogue.csv"
STATION = KINDS["DGX-Station-A100-40GB"]

# NVML's memory utilisation over that of the GPU: Lucid's measurement of the family on an RTX 3090;
# where it has none (Inception, Xception, GPT-2, XLNet), assumed.
MEMORY_OVER_GPU = {
    "inception": 0.70,
    "xception": 0.70,
    "efficientnet_b0": 0.65,
    "mobilenet_v2": 0.65,
    "resnet50": 0.82,
    "vgg16": 0.67,
    "BERT_base": 0.62,
    "BERT_large": 0.62,
    "gpt2_large": 0.58,
    "xlnet_base": 0.59,
    "xlnet_large": 0.60,
}
LIKE = {"Xception": "Xception3", "Xception2": "Xception3"}  # busy for as long an epoch
MEASURED = "SMACT from the artifact's figures; SMOCC and DRAMA derived"
DERIVED = "SMACT derived from batch size 128 in the artifact's figures; SMOCC and DRAMA derived"


@dataclass(frozen=True, slots=True)
class Found:
    """What a row of Table 4 gets from the figures."""

    task: str
    model: str
    dataset: str
    batch_size: int
    gpus: int
    shown_smact: float
    shown_s: float
    table_s: float
    seen: float | None  # busy seconds in the curves over those of heavy60_tasks.csv
    source: str

    @property
    def smact(self) -> float:
        return min(1.0, round(self.shown_smact * self.shown_s / self.table_s, 3))

    @property
    def fields(self) -> dict[str, str]:
        gpu_util, _ = utilization(self.smact, 0.0)
        gmem_util = gpu_util * MEMORY_OVER_GPU[self.model]
        _, occupancy, dram = catalogue.activity(gpu_util, gmem_util)
        return {
            "gpu_util": f"{gpu_util:.2f}",
            "gmem_util": f"{gmem_util:.2f}",
            "source": f"CARMA table 4; {self.source}",
            "sm_active": f"{self.smact:.3f}",
            "sm_occupancy": f"{occupancy:.3f}",
            "dram_active": f"{dram:.3f}",
        }


def measure() -> Report:
    found = list(from_figures())
    ROWS.write_text(rewritten(ROWS.read_text(), found))
    return Report(
        "The CARMA paper's tasks on its GPUs, from the artifact's figures",
        [
            _table(found),
            _checked(found),
            "## Power of the DGX Station's GPUs",
            *_power(),
        ],
        {"rows": {each.task: [each.smact, each.shown_smact, each.source] for each in found}},
        [
            "SMACT in the figures: mean of the task alone on its GPU, run heavy-60 (exclusive)",
            "SMACT of the row: the same SM-busy seconds in the time of Table 4",
        ],
    )


def from_figures() -> Iterator[Found]:
    shown = {row["task"]: row for row in read(figures.TASKS)}
    seen = figures.busy_seconds()
    for row in read("carma/tasks.csv"):
        task = row["task"]
        alike = LIKE.get(task, task)
        if alike not in shown:
            continue
        smact, shown_s = (float(shown[alike][name]) for name in ("smact", "duration_s"))
        yield Found(
            task,
            row["model"],
            row["dataset"],
            int(row["batch_size"]),
            int(row["gpus"]),
            smact,
            shown_s,
            float(row["duration_s"]),
            fmean(seen[task]) / (smact * shown_s) if task in shown else None,
            MEASURED if task in shown else DERIVED,
        )


def rewritten(table: str, found: Sequence[Found]) -> str:
    """The catalogue with these rows of Table 4 replaced; other lines stay as they are."""
    new = {(each.model, each.dataset, str(each.batch_size)): each.fields for each in found}
    head, *lines = table.splitlines()
    names = head.split(",")
    written = [head]
    for line in lines:
        (cells,) = csv.reader([line])
        row = dict(zip(names, cells, strict=False))
        fields = new.get((row["model"], row["dataset"], row["batch_size"]))
        if fields is not None and row["source"].startswith("CARMA table 4"):
            text = io.StringIO()
            csv.DictWriter(text, names, lineterminator="").writerow({**row, **fields})
            line = text.getvalue()
        written.append(line)
    return "\n".join(written) + "\n"


def _table(found: Sequence[Found]) -> str:
    return columns(
        found,
        ("task", "{0.task}"),
        ("GPUs", "{0.gpus}"),
        ("SMACT in the figures", "{0.shown_smact:.3f}"),
        ("over s", "{0.shown_s:,.0f}"),
        ("Table 4 s", "{0.table_s:,.0f}"),
        ("SMACT of the row", "{0.smact:.3f}"),
        ("curves", lambda each: "derived" if each.seen is None else f"{100 * each.seen:.0f} %"),
    )


def _checked(found: Sequence[Found]) -> str:
    seen = [100 * each.seen for each in found if each.seen is not None]
    return (
        "Curves: busy seconds read off the curves by memory plateau, in the order of submission,"
        f" over those of `heavy60_tasks.csv`: {min(seen):.0f}–{max(seen):.0f} %, mean"
        f" {fmean(seen):.0f} %."
    )


def _power() -> tuple[str, ...]:
    """The fit on all readings, how it does on the run it has not seen, and what we ship."""
    runs = {run: _pairs(run) for run in ("exclusive", "magm")}
    every = np.concatenate(list(runs.values()))
    fits = {"both runs": _fit(every), **{run: _fit(pairs) for run, pairs in runs.items()}}
    rows = [
        (f"fitted to {name}", fit, *(_rmse(fit, pairs) for pairs in runs.values()))
        for name, fit in fits.items()
    ]
    shipped = (STATION.idle_w, STATION.busy_w - STATION.idle_w, POWER_EXPONENT)
    rows.append(("shipped", shipped, *(_rmse(shipped, pairs) for pairs in runs.values())))
    for exponent in (0.5, 0.75, 1.0):
        fit = _fit(every, (exponent,))
        rows.append(
            (f"exponent {exponent:g}", fit, *(_rmse(fit, pairs) for pairs in runs.values()))
        )
    return (
        columns(
            rows,
            ("", "{0[0]}"),
            ("W", lambda row: "{:.0f} + {:.0f} · SMACT^{:.2f}".format(*row[1])),
            ("RMSE exclusive", "{0[2]:.1f} W"),
            ("RMSE magm", "{0[3]:.1f} W"),
            text=(0, 1),
        ),
        f"{len(every):,} readings of SMACT and power, every 40 s, smoothed by the authors; RMSE of"
        f" what is shipped over both runs {_rmse(shipped, every):.1f} W. The highest reading is"
        f" {every[:, 1].max():.0f} W: the boards are limited to about 275 W.",
    )


Fit = tuple[float, float, float]  # W at rest, W more at full activity, exponent


def _pairs(run: str) -> np.ndarray:
    shown = figures.readings(run)
    return np.array([(each.smact, each.power_w) for each in shown if each.smact is not None])


def _fit(pairs: np.ndarray, exponents: Sequence[float] = tuple(np.arange(0.3, 1.01, 0.02))) -> Fit:
    """Least squares, with the best of the exponents."""

    def at(exponent: float) -> Fit:
        columns = np.c_[np.ones(len(pairs)), pairs[:, 0] ** exponent]
        (idle, more), *_ = np.linalg.lstsq(columns, pairs[:, 1], rcond=None)
        return float(idle), float(more), float(exponent)

    return min((at(exponent) for exponent in exponents), key=lambda fit: _rmse(fit, pairs))


def _rmse(fit: Fit, pairs: np.ndarray) -> float:
    idle, more, exponent = fit
    return float(np.sqrt(np.mean((idle + more * pairs[:, 0] ** exponent - pairs[:, 1]) ** 2)))


if __name__ == "__main__":
    main("carma_catalogue", measure, figures.FIGURES)
