"""How much jobs that share a GPU slow each other down: the protocol, and the models by name.

Every model but `none`, the bound, conserves work: together, jobs never keep more SMs or more DRAM
busy than the GPU has (`carma_testing.check_interference`). Processes on streams take turns; under
MPS their kernels run side by side, but on the same SMs. On the A100s of CARMA's authors, sharing
under MPS keeps 98.4 to 99.8 % of the SM-busy seconds that the jobs take alone.
`python -m lab.simulator.interference` fits `Conserving` and measures the models' errors.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from math import fsum, inf, nan
from pathlib import Path
from statistics import fmean
from typing import Protocol

from carma_simulator.catalogue import key
from carma_simulator.experiment import Load
from carma_simulator.traces.rows import Row, Unusable, read_rows
from carmad.core.jobs.attempt import Mode
from carmad.errors import CarmaError

_COLUMNS = ("model1", "batchsize1", "speed1", "model2", "batchsize2", "speed2")
_SHARED = {mode.value: mode for mode in (Mode.STREAMS, Mode.MPS)}

Config = tuple[str, int]  # model, batch size
Pairs = dict[tuple[Mode, Config, Config], tuple[float, float]]


class Interference(Protocol):
    """Pure: speeds depend only on the loads and the mode, not on their order."""

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        """Each load's speed relative to running alone, in (0, 1]; alone it is 1."""
        ...


class Unslowed:
    """No slowdown: an upper bound that no real GPU reaches, as it makes work out of nothing."""

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        return (1.0,) * len(loads)


class Sharing(ABC):
    """A model of shared loads. Alone, in exclusive mode and on MIG instances the speed is 1.

    Nobody is faster than their share of a full GPU: 1 over the sum of all SM demands, or of all
    DRAM demands. So together they do no more than the GPU can, whatever the model says.
    Results are cached: traces repeat few loads, and the same combinations recur.
    """

    def __init__(self) -> None:
        self._kept = lru_cache(maxsize=1 << 17)(self._share)

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        if len(loads) < 2 or mode is Mode.EXCLUSIVE or mode is Mode.MIG:
            return (1.0,) * len(loads)
        return self._kept(tuple(loads), mode)

    def _share(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        # fsum rounds once, at the end: the order of the loads does not matter.
        sm = fsum(load.sm_active for load in loads)
        dram = fsum(load.dram_active for load in loads)
        share = 1.0 / max(1.0, sm, dram)
        return tuple(min(share, speed) for speed in self.speeds_together(loads, mode))

    @abstractmethod
    def speeds_together(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        """Like `speeds`, for two or more loads under MPS or on streams, on a GPU without limits."""


class Additive(Sharing):
    """The simplest model with a capacity: jobs get their share of a full GPU, and lose nothing."""

    def speeds_together(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        return (1.0,) * len(loads)


class Conserving(Sharing):
    """Slowdown = 1 + c · own SM · others' SM, a regression on measured pairs, if the GPU has room.

    The coefficient c, 0 or more by mode, is what a neighbour that keeps the whole GPU busy costs a
    job that would do so too.
    """

    def __init__(self, coefficients: Mapping[Mode, float] | None = None) -> None:
        super().__init__()
        self._coefficients = coefficients or _COMMITTED

    def speeds_together(self, loads: tuple[Load, ...], mode: Mode) -> tuple[float, ...]:
        cost = self._coefficients[mode]
        return tuple(
            1.0 / (1.0 + cost * own.sm_active * fsum(_sm(loads, without=n)))
            for n, own in enumerate(loads)
        )


def _sm(loads: Sequence[Load], without: int) -> Iterator[float]:
    return (load.sm_active for n, load in enumerate(loads) if n != without)


def _load_coefficients() -> dict[Mode, float]:
    text = files("carma_simulator").joinpath("coefficients/interference.json").read_text()
    return {Mode(mode): fit["sm"] for mode, fit in json.loads(text)["modes"].items()}


_COMMITTED = _load_coefficients()


class Measured:
    """Pairs in `path` have their measured speeds, all others those of `otherwise`.

    The file is a CSV with a row per pair and the columns model1, batchsize1, speed1, model2,
    batchsize2, speed2 (as in Lucid's artifact), the speeds relative to running alone. An optional
    column mode is mps or streams; without it the pairs count as measured on streams. Rows that
    are equal in all of this are averaged, and no speed exceeds 1. What was measured stands, even
    if the loads that a trace has for these models say that it cannot be.
    """

    def __init__(self, path: Path, otherwise: Interference) -> None:
        self._pairs = _read(path)
        self._otherwise = otherwise

    def coverage(self, loads: Iterable[Load], mode: Mode) -> tuple[int, int]:
        """How many of the loads' models, each at its batch size, have any pair; and their number.

        Loads without a model do not count."""
        asked = {_config(load.model, load.batch_size) for load in loads if load.model}
        known = {config for measured, config, _ in self._pairs if measured is mode}
        return len(asked & known), len(asked)

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
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


@cache
def _config(model: str, batch_size: int) -> Config:
    return key(model), batch_size


MODELS: dict[str, Callable[[], Interference]] = {
    "none": Unslowed,
    "additive": Additive,
    "conserving": Conserving,
}


def make(name: str) -> Interference:
    """The model `name`: none, additive, conserving, conserving:C or measured:FILE.

    Raises CarmaError for other names, for a coefficient that is none, and for a file without
    measured pairs."""
    kind, _, argument = name.partition(":")
    if kind == "measured" and argument:
        return Measured(Path(argument), Conserving())
    if kind == "conserving" and argument:
        return Conserving(dict.fromkeys(_SHARED.values(), _coefficient(argument)))
    if name not in MODELS:
        raise CarmaError(
            f"no interference model is called {name!r}",
            f"use {', '.join(MODELS)}, conserving:C with a coefficient C, or measured:FILE, a"
            " CSV of measured pairs",
        )
    return MODELS[name]()


def _coefficient(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not 0 <= value < inf:
        raise CarmaError(f"{text!r} is no coefficient of interference", "use 0 or more, as in 2.06")
    return value


def speeds_by_mode(
    model: Interference, loads: Sequence[Load], modes: Sequence[Mode]
) -> tuple[float, ...]:
    """The speed of each load on one GPU, `loads[n]` being in mode `modes[n]`.

    Clients of the GPU's MPS server run together, and the server takes turns with the processes
    outside it: for these, it is one load.
    """
    if len(set(modes)) == 1:
        return model.speeds(loads, modes[0])
    clients = tuple(load for load, mode in zip(loads, modes, strict=True) if mode is Mode.MPS)
    outside = tuple(load for load, mode in zip(loads, modes, strict=True) if mode is not Mode.MPS)
    if not clients:
        return model.speeds(loads, Mode.STREAMS)
    within = model.speeds(clients, Mode.MPS)
    server, *others = model.speeds((_server(clients, within), *outside), Mode.STREAMS)
    speeds = iter([speed * server for speed in within]), iter(others)
    return tuple(next(speeds[mode is not Mode.MPS]) for mode in modes)


def _server(clients: tuple[Load, ...], speeds: tuple[float, ...]) -> Load:
    """The load of an MPS server whose clients run at these speeds."""
    if len(clients) == 1:
        return clients[0]

    def total(metric: str) -> float:
        pairs = zip(clients, speeds, strict=True)
        return min(1.0, fsum(getattr(load, metric) * speed for load, speed in pairs))

    return Load(
        sm_active=total("sm_active"),
        sm_occupancy=total("sm_occupancy"),
        dram_active=total("dram_active"),
    )
