"""What every model of interference must do, as rules for `carma_testing.check_rules`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import fsum
from random import Random

from carma_simulator.experiment import Load
from carma_simulator.interference import Interference, speeds_by_mode
from carmad.core.jobs.attempt import Mode

SHARED = (Mode.STREAMS, Mode.MPS)
SETS = 300  # of loads
MOST = 8  # loads on a GPU
ROUNDING = 1e-9

Loads = tuple[Load, ...]


class InterferenceRules:
    """Rules of a model, on random sets of loads, under MPS, on streams, and mixed.

    `loads`: those of which the sets are made, for a model that does not know all; by default any.
    """

    def __init__(self, model: Interference, loads: Sequence[Load] = ()) -> None:
        self._model = model
        self._loads = loads

    @cached_property
    def all(self) -> list[tuple[Loads, Mode]]:
        """Sets of two loads or more, and a mode that all of them share."""
        dice = Random("interference")
        sets = [self._draw(dice) for _ in range(SETS)]
        full = Load(sm_active=1.0, dram_active=1.0)
        sets += [] if self._loads else [(full,) * count for count in range(2, MOST + 1)]
        return list(product(sets, SHARED))

    def _draw(self, dice: Random) -> Loads:
        count = dice.randint(2, MOST)
        if self._loads:
            return tuple(dice.choices(self._loads, k=count))
        # Light and heavy ones, as both limits matter: the GPU's and the neighbours'.
        most = [dice.choice((0.2, 1.0)) for _ in range(count)]
        return tuple(
            Load(sm_active=dice.uniform(0, sm), dram_active=dice.uniform(0, sm)) for sm in most
        )

    def one_alone_is_not_slowed(self) -> None:
        for loads, mode in self.all:
            assert self._model.speeds(loads[:1], mode) == (1.0,), "alone, the speed is 1"
            assert self._model.speeds((), mode) == (), "without loads there are no speeds"

    def nobody_reaches_into_a_partition(self) -> None:
        for loads, _ in self.all:
            for mode in (Mode.EXCLUSIVE, Mode.MIG):
                speeds = self._model.speeds(loads, mode)
                assert set(speeds) == {1.0}, f"under {mode}, neighbours cost nothing"

    def a_speed_is_above_0_and_at_most_1(self) -> None:
        for loads, mode in self.all:
            speeds = self._model.speeds(loads, mode)
            assert len(speeds) == len(loads), "each load has a speed"
            assert all(0 < speed <= 1 for speed in speeds), f"0 < speed ≤ 1, not {speeds}"

    def the_order_of_the_loads_does_not_matter(self) -> None:
        for loads, mode in self.all:
            speeds, turned = (self._model.speeds(some, mode) for some in (loads, loads[::-1]))
            assert turned == speeds[::-1], "the order of the loads must not matter"

    def nobody_gains_by_company(self) -> None:
        for loads, mode in self.all:
            before, after = (self._model.speeds(some, mode) for some in (loads[:-1], loads))
            pairs = zip(before, after, strict=False)
            assert all(now <= then + ROUNDING for then, now in pairs), "nobody gains by company"

    def nobody_gains_by_a_busier_neighbour(self) -> None:
        if self._loads:  # no other load is known to the model
            return
        for (*others, last), mode in self.all:
            busier = replace(
                last,
                sm_active=(1 + last.sm_active) / 2,
                dram_active=(1 + last.dram_active) / 2,
            )
            before, after = (self._model.speeds((*others, it), mode) for it in (last, busier))
            pairs = zip(before[:-1], after[:-1], strict=True)
            assert all(now <= then + ROUNDING for then, now in pairs), "nobody gains by more load"

    def work_is_conserved(self) -> None:
        for loads, mode in self.all:
            self._assert_conserved(loads, self._model.speeds(loads, mode), str(mode))

    def work_is_conserved_in_mixed_company(self) -> None:
        dice = Random("modes")
        for loads, _ in self.all:
            modes = dice.choices(SHARED, k=len(loads))
            self._assert_conserved(loads, speeds_by_mode(self._model, loads, modes), "mixed modes")

    def _assert_conserved(self, loads: Loads, speeds: Sequence[float], how: str) -> None:
        for metric in ("sm_active", "dram_active"):
            pairs = zip(loads, speeds, strict=True)
            done = fsum(getattr(load, metric) * speed for load, speed in pairs)
            assert done <= 1 + ROUNDING, (
                f"{len(loads)} jobs, {how}: together they keep {done:.2f} times the GPU's"
                f" {metric} busy; they cannot keep more than all of it busy"
            )
