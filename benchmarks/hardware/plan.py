"""The plan of a visit: which stage runs in which command, and how long it takes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hardware import stages
from benchmarks.hardware.stages import Lacking
from benchmarks.hardware.visit import Stage, Visit
from benchmarks.harness.report import Report, bullets
from benchmarks.harness.rows import columns

COMMANDS, COMMAND_MIN = 3, 9.5  # of a visit of 30 minutes


@dataclass(frozen=True, slots=True)
class Planned:
    name: str
    about: str
    minutes: float | None  # None: it cannot be run here
    rehearsed_s: float | None
    lacking: str = ""
    commands: tuple[int, ...] = ()


def plan(rehearse: bool) -> Report:
    """With `rehearse`, each stage is rehearsed and timed."""
    rows = packed([_planned(name, rehearse) for name in stages.ORDER])
    total = sum(row.minutes or 0 for row in rows)
    have = COMMANDS * COMMAND_MIN
    fits = (
        "fits" if total <= have else f"is {total - have:.1f} minutes too long: stages go on later"
    )
    lacking = [row.lacking for row in rows if row.lacking]
    return Report(
        "The plan of a visit",
        [
            columns(
                rows,
                ("stage", "{0.name}"),
                ("about", "{0.about}"),
                ("minutes, estimated", lambda row: _number(row.minutes, "{:.1f}")),
                ("rehearsed s", lambda row: _number(row.rehearsed_s, "{:.1f}")),
                ("in command", lambda row: ", ".join(map(str, row.commands)) or "–"),
                text=(0, 1),
            ),
            f"{total:.1f} minutes of {have:g}: it {fits}. {COMMANDS} times "
            f"`python -m benchmarks.hardware all --minutes {COMMAND_MIN:g}`, each of which goes on "
            "where the last one ended.",
            *(["## Cannot be run here", bullets(lacking)] if lacking else []),
        ],
        {},
        kept=False,
    )


def packed(rows: Sequence[Planned]) -> list[Planned]:
    """With the commands that each runs in: one after the other, and a stage that does not fit goes
    on in the next."""
    done, at = [], 0.0
    for row in rows:
        end = at + (row.minutes or 0.0)
        first, last = int(at // COMMAND_MIN), int(max(at, end - 1e-6) // COMMAND_MIN)
        commands = tuple(range(first + 1, last + 2)) if row.minutes else ()
        done.append(
            Planned(row.name, row.about, row.minutes, row.rehearsed_s, row.lacking, commands)
        )
        at = end
    return done


def _planned(name: str, rehearse: bool) -> Planned:
    try:
        stage = stages.load(name)
    except Lacking as error:
        return Planned(name, "", None, None, str(error))
    took = rehearsed_s(stage) if rehearse else None
    return Planned(name, stage.about, stage.minutes, took)


def rehearsed_s(stage: Stage, clock: Callable[[], float] = time.monotonic) -> float:
    """How long a rehearsal of it takes on this machine."""
    with tempfile.TemporaryDirectory(prefix="carma-rehearsal-") as folder:
        begun = clock()
        stage.measure(Visit(Path(folder), stage.name, rehearse=True))
        return clock() - begun


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
