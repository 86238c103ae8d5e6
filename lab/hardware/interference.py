"""Interference in the simulation of stage `trace`: as stage `pairs` measured it on this GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from carma_simulator.experiment import Load
from carma_simulator.interference import Conserving, Interference
from carmad.core.jobs.attempt import Mode
from lab.hardware import loads
from lab.hardware.pairs_page import Group, groups, samples
from lab.hardware.visit import Visit
from lab.simulator.interference import fit

EMULATED = "emulated"  # what entries of a rehearsal say


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model, and what the page says of it."""

    model: Interference
    about: str


class Measured:
    """Groups of `pairs` have their measured speeds, none above 1; others those of `otherwise`, by
    mode. The model of a load has to be the name of its run."""

    def __init__(self, found: Sequence[Group], otherwise: Mapping[Mode, Interference]) -> None:
        self._otherwise = otherwise
        self._speeds: dict[tuple[Mode, tuple[str, ...]], tuple[float, ...]] = {}
        for group in found:
            speed = dict(zip(group.names, group.speeds, strict=True))
            for names in permutations(group.names):
                told = tuple(min(1.0, speed[name]) for name in names)
                self._speeds[group.mode, names] = told

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        names = tuple(load.model for load in loads)
        known = self._speeds.get((mode, names))
        return self._otherwise[mode].speeds(loads, mode) if known is None else known


def chosen(visit: Visit, said: str) -> Chosen:
    """`said`: by the entry of the exclusive run. Emulated cards have the law `conserving`; so
    has a GPU without groups of stage `pairs`, as CARMA ships it."""
    if said == EMULATED:
        return Chosen(Conserving(), "Interference is that of emulated cards.")
    found = [
        group
        for group in groups(visit.entries("pairs").values())
        if group.setting == group.mode  # no percentages: the daemon gives none
    ]
    if not found:
        return Chosen(
            Conserving(),
            "Interference is `conserving` as CARMA ships it: stage `pairs` measured nothing here.",
        )
    known = loads.loads(visit)
    otherwise: dict[Mode, Interference] = {}
    fitted = []
    for mode in (Mode.STREAMS, Mode.MPS):
        sides = samples([group for group in found if group.mode is mode], known)
        otherwise[mode] = Conserving({mode: fit(sides)}) if sides else Conserving()
        fitted.append(f"{mode} {fit(sides):.3f}" if sides else f"{mode} as shipped")
    return Chosen(
        Measured(found, otherwise),
        f"Interference is that of the {len(found)} groups that stage `pairs` measured on this GPU; "
        f"of others, `conserving` fitted to these ({', '.join(fitted)}).",
    )
