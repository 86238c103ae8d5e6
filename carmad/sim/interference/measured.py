"""Interference as somebody measured it, pair by pair, in a file of theirs."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

from carmad.core.types import Mode
from carmad.errors import CarmaError
from carmad.sim.catalogue import key
from carmad.sim.interference.base import Interference, Sharing
from carmad.sim.task import Load

Config = tuple[str, int]  # model, batch size
Pairs = dict[tuple[Mode, Config, Config], tuple[float, float]]


class Measured(Sharing):
    """Pairs that `path` holds have their measured speeds; all others those of `otherwise`.

    The file is a CSV with a row per pair and the columns model1, batchsize1, speed1, model2,
    batchsize2, speed2 (Lucid's artifact has them so), the speeds relative to running alone. A
    column mode says mps or streams; without it the pairs count as measured on streams. Rows that
    differ in nothing of this are averaged, and none of them makes a job faster than alone.
    """

    def __init__(self, path: Path, otherwise: Interference) -> None:
        super().__init__()
        self._pairs = _read(path)
        self._otherwise = otherwise

    def shared(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        if len(loads) == 2:
            one, other = (_config(load.model, load.batch_size) for load in loads)
            speeds = self._pairs.get((mode, one, other))
            if speeds is not None:
                return speeds
        return self._otherwise.speeds(loads, mode)


def _read(path: Path) -> Pairs:
    rows: dict[tuple[Mode, Config, Config], list[tuple[float, float]]] = {}
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                mode = Mode(row.get("mode") or Mode.STREAMS)
                one = _config(row["model1"], int(row["batchsize1"]))
                other = _config(row["model2"], int(row["batchsize2"]))
                speeds = float(row["speed1"]), float(row["speed2"])
                if min(speeds) <= 0:
                    raise ValueError(f"a speed of {min(speeds)} for {one[0]} and {other[0]}")
                rows.setdefault((mode, one, other), []).append(speeds)
                rows.setdefault((mode, other, one), []).append(speeds[::-1])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CarmaError(
            f"{path} cannot be read as measured pairs: {error!r}",
            "it needs the columns model1, batchsize1, speed1, model2, batchsize2, speed2",
        ) from error
    return {pair: _means(speeds) for pair, speeds in rows.items()}


def _means(speeds: list[tuple[float, float]]) -> tuple[float, float]:
    first, second = (min(1.0, fmean(column)) for column in zip(*speeds, strict=True))
    return first, second


def _config(model: str, batch_size: int) -> Config:
    return key(model), batch_size
