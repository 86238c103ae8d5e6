"""The trace estimator on the CARMA paper's own tasks.

Each task of its table 4 that can be built again (`lab.memory.carma_tasks`) is traced with
fp32 and Adam. Beside it: the memory measured on an A100, and what the paper's estimators said.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import estimators
from benchmarks.harness import Report, Row, markdown_table, row_table
from carmad.config import Estimation
from lab.data import DATA, read
from lab.main import main
from lab.memory.carma_tasks import TIMM, build
from lab.memory.truth import MIB

TASKS = DATA / "carma" / "tasks.csv"
CONTEXT_MIB = Estimation().any_context_mib  # nothing here was fitted to it
NO_ESTIMATE_MIB = 40_000
THEIRS = ("horus", "faketensor", "gpumemnet")


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


def measure() -> Report:
    rows = list(read(TASKS))
    told = [one for row in rows if (one := _told(row))]
    distinct = _distinct(told)
    return Report(
        "The CARMA paper's tasks, traced",
        [row_table(_rows(distinct)), _tasks(distinct, rows), NOT_BUILT],
        {"tasks": told},
        [
            f"{len(told)} of {len(rows)} tasks",
            f"fp32, Adam, a context of {CONTEXT_MIB} MiB; no cudnn.benchmark",
        ],
    )


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
        -(-nbytes // MIB) + CONTEXT_MIB for nbytes in (report.floor, report.reserved, report.safe)
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
    cells = []
    for one in told:
        row = by_task[one.task]
        others = [float(row[f"{name}_mib"]) for name in THEIRS]
        cells.append(
            (
                *(one.task, row["batch_size"], f"{one.measured_mib}", f"{one.expected_mib}"),
                *(f"{one.error_mib:+d}", f"{one.low_mib}–{one.safe_mib}"),
                *(f"{mib:.0f}" if mib != NO_ESTIMATE_MIB else "–" for mib in others),
            )
        )
    headings = ("task", "batch", "measured", "trace", "error", "low–safe", *THEIRS)
    return markdown_table(headings, cells, numbers=range(1, 9))


NOT_BUILT = """\
MiB per GPU. The last three columns are the paper's. Not traced: U-Net, Mask R-CNN, DLRM and XLNet,
of which the paper does not tell what their memory hangs on (picture and table sizes, lengths of
sequences and memories)."""


if __name__ == "__main__":
    main("memory_carma", measure, TASKS)
