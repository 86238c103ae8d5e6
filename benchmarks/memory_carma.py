"""`python -m benchmarks.memory_carma`: the trace estimator on the CARMA paper's own tasks.

Each task of its table 4 that can be built again (`benchmarks.carma_models`) is traced with fp32 and
Adam; the memory measured on an A100, and what the paper's estimators said, stand beside it.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import estimators
from benchmarks.carma_models import TIMM, build
from benchmarks.rows import RESULTS, Row, circumstances, table
from carmad.config import Estimation
from estimators.tracer.replay import safe

TASKS = Path(__file__).parents[2] / "shared" / "data" / "carma" / "tasks.csv"
CONTEXT_MIB = Estimation().context_mib  # nothing here was fitted to it
MIB = 2**20
NO_ESTIMATE_MIB = 40_000


@dataclass(frozen=True, slots=True)
class Told:
    """What the paper measured, and ours."""

    task: str
    model: str
    measured_mib: int
    low_mib: int
    expected_mib: int
    safe_mib: int

    @property
    def error_mib(self) -> int:
        return self.expected_mib - self.measured_mib


def main() -> None:
    if not TASKS.exists():
        sys.exit(f"the paper's tasks are not here: {TASKS}")
    with TASKS.open() as file:
        rows = list(csv.DictReader(file))
    told = [one for row in rows if (one := _told(row))]
    page = "\n".join(
        [
            "# The CARMA paper's tasks, traced",
            "",
            *(f"- {name}: {value}" for name, value in circumstances().items()),
            f"- {len(told)} of {len(rows)} tasks; `python -m benchmarks.memory_carma`",
            f"- fp32, Adam, a context of {CONTEXT_MIB} MiB; no cudnn.benchmark",
            "",
            table(_rows(_distinct(told))),
            "",
            _tasks(_distinct(told), rows),
            "",
            NOT_BUILT,
        ]
    )
    print(page)
    (RESULTS / "memory_carma.md").write_text(page)
    data = {"facts": circumstances(), "tasks": [asdict(one) for one in told]}
    (RESULTS / "memory_carma.json").write_text(json.dumps(data, indent=1) + "\n")


def _told(row: dict[str, str]) -> Told | None:
    found = _traced(row["model"], row["dataset"], int(row["batch_size"]), int(row["gpus"]))
    if found is None:
        return None
    return Told(row["task"], row["model"], round(float(row["mem_mib"])), *found)


@cache
def _traced(model: str, dataset: str, batch_size: int, gpus: int) -> tuple[int, int, int] | None:
    """Low, expected and safe, in MiB."""
    task = build(model, dataset, batch_size, gpus)
    if task is None:
        return None
    report = estimators.trace(task.model, task.inputs)
    low, expected, high = (
        -(-nbytes // MIB) + CONTEXT_MIB for nbytes in (report.floor, report.reserved, safe(report))
    )
    return low, expected, high


def _distinct(told: Sequence[Told]) -> list[Told]:
    """Without tasks that differ in the number of epochs alone."""
    return list({(one.model, one.measured_mib, one.expected_mib): one for one in told}.values())


def _rows(told: Sequence[Told]) -> list[Row]:
    networks = [one for one in told if one.model in TIMM]
    errors = sorted(abs(one.error_mib) for one in networks)
    group = f"{len(networks)} CNNs"
    short = sum(one.safe_mib < one.measured_mib for one in told)
    return [
        Row(group, "error, median", statistics.median(errors), "MiB", 65),
        Row(group, "error, greatest", max(errors), "MiB", 1.3 * 1024),
        *(
            Row("Transformers", one.model, 100 * abs(one.error_mib) / one.measured_mib, "%", 5)
            for one in told
            if one.model in ("BERT_base", "BERT_large", "gpt2_large")
        ),
        Row("all", "safe number below the measured", short, f"of {len(told)}"),
    ]


def _tasks(told: Sequence[Told], rows: Sequence[dict[str, str]]) -> str:
    by_task = {row["task"]: row for row in rows}
    lines = [
        "| task | batch | measured | trace | error | low–safe | horus | faketensor | gpumemnet |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in told:
        row = by_task[one.task]
        others = (float(row[f"{name}_mib"]) for name in ("horus", "faketensor", "gpumemnet"))
        cells = (f"{mib:.0f}" if mib != NO_ESTIMATE_MIB else "–" for mib in others)
        lines.append(
            f"| {one.task} | {row['batch_size']} | {one.measured_mib} | {one.expected_mib} |"
            f" {one.error_mib:+d} | {one.low_mib}–{one.safe_mib} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


NOT_BUILT = """\
MiB per GPU. The last three columns are the paper's. Not traced: U-Net, Mask R-CNN, DLRM and XLNet,
of which the paper does not tell what their memory hangs on (picture and table sizes, lengths of
sequences and memories).
"""


if __name__ == "__main__":
    main()
