"""The plan of a visit: which stages run in which command, and how long each takes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from benchmarks.hardware import stages
from benchmarks.hardware.visit import Stage, Visit
from benchmarks.harness.report import Report, bullets, circumstances
from benchmarks.harness.rows import columns

COMMANDS, COMMAND_MIN = 3, 9.5  # of a visit of 30 minutes


@dataclass(frozen=True, slots=True)
class Planned:
    """A stage, in minutes: what it takes by estimate, and its share of a command."""

    command: int
    stage: Stage
    share: float
    rehearsed_s: float | None


def plan(rehearse: bool) -> Report:
    """With `rehearse`, each stage is rehearsed and timed."""
    here, lacking = stages.loaded(stages.ORDER)
    if not here:
        raise SystemExit("\n\n".join(lacking))
    groups = commands(here)
    rows = [
        Planned(n, stage, share(stage, group), rehearsed_s(stage) if rehearse else None)
        for n, group in enumerate(groups, 1)
        for stage in group
    ]
    return Report(
        "The plan of a visit",
        [
            columns(
                rows,
                ("command", "{0.command}"),
                ("stage", "{0.stage.name}"),
                ("about", "{0.stage.about}"),
                ("minutes, by estimate", "{0.stage.minutes:.1f}"),
                ("of the command", "{0.share:.1f}"),
                ("rehearsed s", lambda row: _number(row.rehearsed_s)),
                text=(1, 2),
            ),
            f"{sum(stage.minutes for stage in here):.1f} minutes by estimate, in {COMMANDS} "
            f"commands of {COMMAND_MIN:g}. A stage that does not finish in its share measures what "
            "tells most, and goes on when it is run again. $OUT is a folder whose files come back; "
            "each command needs what those before it have kept, so copy it back before the next:",
            f"```sh\n{words(groups)}\n```",
            "## To bring",
            f"```\n{stages.METADATA}\n```",
            *(["## Cannot be run here", bullets(lacking)] if lacking else []),
        ],
        {},
        kept=False,
    )


def words(groups: Sequence[Sequence[Stage]]) -> str:
    """The shell's: each command, and the copy of what it kept. The commit is named, for the tree
    may travel without its repository."""
    commit = circumstances()["commit"]
    return "\n".join(
        f"CARMA_COMMIT={commit} python -m benchmarks.hardware "
        f"{','.join(stage.name for stage in group)} --minutes {COMMAND_MIN:g} --results $OUT\n"
        "mkdir -p benchmarks/results/hardware && cp -r $OUT/. benchmarks/results/hardware/"
        for group in groups
    )


def commands(here: Sequence[Stage]) -> list[Sequence[Stage]]:
    """The stages in order, cut into commands so that the longest is as short as can be."""
    places = range(1, len(here))
    cuts = min(
        combinations(places, min(COMMANDS, len(here)) - 1),
        key=lambda cuts: max(map(_minutes, _cut(here, cuts))),
    )
    return _cut(here, cuts)


def _cut(here: Sequence[Stage], cuts: Sequence[int]) -> list[Sequence[Stage]]:
    return [here[begin:end] for begin, end in pairwise((0, *cuts, len(here)))]


def _minutes(group: Sequence[Stage]) -> float:
    return sum(stage.minutes for stage in group)


def share(stage: Stage, group: Sequence[Stage]) -> float:
    """Minutes that it has in a command with these."""
    return min(stage.minutes, COMMAND_MIN * stage.minutes / _minutes(group))


def rehearsed_s(stage: Stage) -> float:
    """How long a rehearsal of it takes on this machine."""
    with tempfile.TemporaryDirectory(prefix="carma-rehearsal-") as folder:
        begun = time.monotonic()
        stage.measure(Visit(Path(folder), stage.name, rehearse=True))
        return time.monotonic() - begun


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
