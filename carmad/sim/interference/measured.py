"""Measured interference, pair by pair, from a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from carmad.core.types import Mode
from carmad.errors import CarmaError
from carmad.sim.catalogue import key
from carmad.sim.interference.base import Interference, Sharing
from carmad.sim.task import Load
from carmad.sim.traces.rows import Row, Unusable, read_rows

_COLUMNS = ("model1", "batchsize1", "speed1", "model2", "batchsize2", "speed2")
_SHARED = {mode.value: mode for mode in (Mode.STREAMS, Mode.MPS)}

Config = tuple[str, int]  # model, batch size
Pairs = dict[tuple[Mode, Config, Config], tuple[float, float]]


class Measured(Sharing):
    """Pairs in `path` have their measured speeds, all others those of `otherwise`.

    The file is a CSV with a row per pair and the columns model1, batchsize1, speed1, model2,
    batchsize2, speed2 (as in Lucid's artifact), the speeds relative to running alone. An optional
    column mode is mps or streams; without it the pairs count as measured on streams. Rows that
    are equal in all of this are averaged, and no speed exceeds 1.
    """

    def __init__(self, path: Path, otherwise: Interference) -> None:
        super().__init__()
        self._pairs = _read(path)
        self._otherwise = otherwise

    def coverage(self, loads: Iterable[Load], mode: Mode) -> tuple[int, int]:
        """How many of the loads' models, each at its batch size, have any pair; and their number.

        Loads without a model do not count."""
        asked = {_config(load.model, load.batch_size) for load in loads if load.model}
        known = {config for measured, config, _ in self._pairs if measured is mode}
        return len(asked & known), len(asked)

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
        for row in read_rows(path, _COLUMNS):
            mode, speeds = _mode(row), (row.number("speed1"), row.number("speed2"))
            one = _config(row.text("model1"), row.whole("batchsize1"))
            other = _config(row.text("model2"), row.whole("batchsize2"))
            if min(speeds) <= 0:
                raise Unusable(f"has a speed of {min(speeds):g}, but must be above 0")
            rows.setdefault((mode, one, other), []).append(speeds)
            rows.setdefault((mode, other, one), []).append(speeds[::-1])
    except Unusable as error:
        raise CarmaError(f"{path}, line {row.line}: {error}") from None
    return {pair: _means(speeds) for pair, speeds in rows.items()}


def _mode(row: Row) -> Mode:
    text = row.text("mode") if "mode" in row.where else ""
    if text and text not in _SHARED:
        raise Unusable(f"has the mode {text!r}, but must be streams or mps")
    return _SHARED.get(text, Mode.STREAMS)


def _means(speeds: list[tuple[float, float]]) -> tuple[float, float]:
    first, second = (min(1.0, fmean(column)) for column in zip(*speeds, strict=True))
    return first, second


def _config(model: str, batch_size: int) -> Config:
    return key(model), batch_size
