"""Imports the workloads of the Sia artifact (SOSP '23), jobs of Pollux's six applications.

A job lasts as many steps as Pollux's own training runs took to their last epoch at its batch size
(the `iteration` column of `validation-BATCH.csv` in petuum/adaptdl, folders simulator/traces and
sched/traces): bert 2 epochs, cifar10 100, deepspeech2 80, imagenet 90, yolov3 50. A step takes as
long as measured on a DGX A100 (`throughput/APPLICATION-placements-dgx.csv`). Jobs are named by
application and batch size, since the artifact's names are unique.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from carma_simulator.catalogue import load_of
from carma_simulator.experiment import Task, Trace
from carma_simulator.traces.rows import Row, Unusable, collect, configuration, read_rows
from carmad.errors import CarmaError

_COLUMNS = ("time", "application", "num_replicas", "batch_size")
_STEPS = {
    ("bert", 384): 480,
    ("cifar10", 2048): 3_178,
    ("cifar10", 4096): 2_011,
    ("deepspeech2", 320): 2_264,
    ("deepspeech2", 640): 1_423,
    ("imagenet", 1600): 78_453,
    ("imagenet", 3200): 42_123,
    ("yolov3", 64): 14_577,
}
_REFERENCE, _GPUS_PER_NODE = "A100-40GB", 8

# By placement, such as "48" for 4 GPUs on one node and 8 on another: the batch size of each GPU,
# the seconds of a step, and those of them spent on gradients, in ascending order.
_Measured = Mapping[str, list[tuple[int, float, float]]]


def read(path: Path) -> Trace:
    """Expects `throughput/` next to the folder of `path`. Times are in seconds."""
    folder = path.parent.parent / "throughput"

    @cache
    def measured(application: str) -> _Measured:
        return _measured(folder / f"{application}-placements-dgx.csv")

    return collect(path.stem, read_rows(path, _COLUMNS), lambda row: _task(row, measured))


def _task(row: Row, measured: Callable[[str], _Measured]) -> Task:
    application, batch_size = row.text("application"), row.whole("batch_size")
    gpus = row.gpus("num_replicas")
    steps = _STEPS.get((application, batch_size))
    if steps is None:
        raise Unusable(f"is {application} at batch size {batch_size}: its steps are unknown")
    step_s, per_gpu = _step(measured(application), gpus, batch_size)
    return Task(
        name=configuration(application, batch_size),
        submit_s=row.number("time"),
        duration_s=steps * step_s,
        gpus=gpus,
        load=load_of(application, per_gpu),
        reference=_REFERENCE,
    )


def _step(measured: _Measured, gpus: int, batch_size: int) -> tuple[float, int]:
    """The seconds of a step on as few nodes as possible, and the batch size on each GPU.

    A batch that is too large is split, and only the last part waits for gradients.
    """
    whole, rest = divmod(gpus, _GPUS_PER_NODE)
    placement = (str(rest) if rest else "") + str(_GPUS_PER_NODE) * whole
    if placement not in measured:
        raise Unusable(f"asks for {gpus} GPUs, and no step was measured on that many")
    points = measured[placement]
    share = math.ceil(batch_size / gpus)
    parts = math.ceil(share / points[-1][0])
    share = math.ceil(share / parts)
    if share < points[0][0]:
        raise Unusable(f"has a batch of {share} per GPU, smaller than any measured")
    step_s, sync_s = _between(points, share)
    return step_s + (parts - 1) * (step_s - sync_s), share


def _between(points: list[tuple[int, float, float]], share: int) -> tuple[float, float]:
    """Interpolated linearly."""
    above = bisect_left(points, share, key=lambda point: point[0])
    if points[above][0] == share:
        return points[above][1:]
    (low, *before), (high, *after) = points[above - 1 : above + 1]
    part = (share - low) / (high - low)
    step_s, sync_s = (x + part * (y - x) for x, y in zip(before, after, strict=True))
    return step_s, sync_s


def _measured(path: Path) -> _Measured:
    by_placement: dict[str, list[tuple[int, float, float]]] = {}
    try:
        for row in read_rows(path, ("placement", "local_bsz", "step_time", "sync_time")):
            point = (row.whole("local_bsz"), row.number("step_time"), row.number("sync_time"))
            by_placement.setdefault(row.text("placement"), []).append(point)
    except Unusable as error:
        raise CarmaError(f"{path}, line {row.line}: {error}") from None
    return {placement: sorted(points) for placement, points in by_placement.items()}
