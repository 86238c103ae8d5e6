"""Imports the traces of the Muri artifact (Zhao et al., SIGCOMM '22), made from Philly's.

Jobs are named by model and batch size, since runs of the same configuration recur.
"""

from __future__ import annotations

from pathlib import Path

from carma_simulator.catalogue import load_of
from carma_simulator.experiment import Task, Trace
from carma_simulator.traces.rows import Row, collect, configuration, read_rows

_COLUMNS = ("num_gpu", "submit_time", "model_name", "batch_size", "duration")
_REFERENCE = "V100-32GB"  # 8 nodes of 8 V100 (the artifact's cluster_exp/README.md)


def read(path: Path) -> Trace:
    """Times are in milliseconds. A model not in the catalogue keeps only its name."""
    return collect(f"muri-{path.stem}", read_rows(path, _COLUMNS), _task)


def _task(row: Row) -> Task:
    model, batch_size = row.text("model_name"), row.whole("batch_size")
    return Task(
        name=configuration(model, batch_size),
        submit_s=row.number("submit_time") / 1000,
        duration_s=row.number("duration") / 1000,
        gpus=row.gpus("num_gpu"),
        load=load_of(model, batch_size),
        reference=_REFERENCE,
    )
