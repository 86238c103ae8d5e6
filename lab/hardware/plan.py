"""The plan of a visit: what each command measures, how long it takes, and what is left."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from benchmarks.harness import Report, bullets, circumstances, columns
from lab.hardware import stages
from lab.hardware.visit import Portion, Stage, Visit

VISIT_MIN = 30.0
AROUND_MIN = 2.0  # of a visit: to get there, and to copy results back
COMMAND_MIN = 9.5  # at most
ENDING_MIN = 0.3  # of a command: it starts, stops processes, and writes pages
# What is asked for most: the next part of each of these stages, and then all others in their order.
FIRST = ("suspend", "pairs", "loads", "trace", "trace", "facts")


@dataclass(slots=True)
class Command:
    parts: list[tuple[Stage, Portion]] = field(default_factory=list)

    @property
    def minutes(self) -> float:
        return round(ENDING_MIN + sum(part.minutes for _, part in self.parts), 1)

    @property
    def shares(self) -> dict[str, float]:
        """The minutes of its stages, which it runs in their order."""
        taken: dict[str, float] = {}
        for stage, part in self.parts:
            taken[stage.name] = taken.get(stage.name, 0.0) + part.minutes
        return {name: round(minutes, 1) for name, minutes in taken.items()}


def plan(rehearse: bool, minutes: float) -> Report:
    """Of a visit of so many minutes. With `rehearse`, each stage is rehearsed and timed."""
    here, lacking = stages.loaded(stages.ORDER)
    if not here:
        raise SystemExit("\n\n".join(lacking))
    found, left = commands(here, minutes)
    return Report(
        "The plan of a visit",
        [
            _table(found),
            f"{sum(each.minutes for each in found):.1f} minutes in {len(found)} commands, by "
            f"estimate, of a visit of {minutes:g}. $OUT is a folder whose files come back; each "
            "command needs what those before it have kept, so copy it back before the next:",
            f"```sh\n{words(found)}\n```",
            *_left(left),
            *([_rehearsed(here)] if rehearse else []),
            "To bring what the machine may lack: `python -m lab.hardware carry wheels`",
            *(["## Cannot be run here", bullets(lacking)] if lacking else []),
        ],
        {},
        kept=False,
    )


def commands(
    here: Sequence[Stage], minutes: float
) -> tuple[list[Command], list[tuple[Stage, Portion]]]:
    """And the parts that are left. Each part goes into the first command that has room for it, if
    those before it of its stage went somewhere."""
    found: list[Command] = []
    left: list[tuple[Stage, Portion]] = []
    wanted = {stage.name: [(stage, part) for part in stage.parts] for stage in here}
    first = [wanted[name].pop(0) for name in FIRST if wanted.get(name)]
    for stage, part in chain(first, *wanted.values()):
        command = _room(found, stage, part, minutes - AROUND_MIN)
        if command is None or any(stage is other for other, _ in left):
            left.append((stage, part))
            continue
        if command not in found:
            found.append(command)
        command.parts.append((stage, part))
    return found, left


def _room(found: Sequence[Command], stage: Stage, part: Portion, minutes: float) -> Command | None:
    """A command with room for the part, maybe a new one; None: the visit has no time for it."""
    total = sum(each.minutes for each in found)
    before = [n for n, each in enumerate(found) if {*stage.needs, stage.name} & each.shares.keys()]
    for command in found[max(before, default=0) :]:
        if stage.name in [*command.shares][:-1]:  # it would come before what is asked for more
            continue
        if round(command.minutes + part.minutes, 1) <= COMMAND_MIN:
            return command if round(total + part.minutes, 1) <= minutes else None
    return Command() if round(total + ENDING_MIN + part.minutes, 1) <= minutes else None


def words(found: Sequence[Command]) -> str:
    """The shell's: each command, and the copy of what it kept. The commit is named, for the tree
    may travel without its repository."""
    commit = circumstances()["commit"]
    return "\n".join(
        f"CARMA_COMMIT={commit} python -m lab.hardware "
        f"{','.join(f'{name}={share:g}' for name, share in command.shares.items())} "
        f"--minutes {command.minutes:g} --results $OUT\n"
        "mkdir -p lab/results/hardware && cp -r $OUT/. lab/results/hardware/"
        for command in found
    )


def _table(found: Sequence[Command]) -> str:
    rows = [
        (n, name, "; ".join(_names(command.parts, name)), minutes)
        for n, command in enumerate(found, 1)
        for name, minutes in command.shares.items()
    ]
    return columns(
        rows,
        ("command", "{0[0]}"),
        ("stage", "{0[1]}"),
        ("measures", "{0[2]}"),
        ("minutes, by estimate", "{0[3]:.1f}"),
        text=(1, 2),
    )


def _left(left: Sequence[tuple[Stage, Portion]]) -> list[str]:
    if not left:
        return []
    names = [name for name in stages.ORDER if any(_names(left, name))]
    return [
        f"## Left for the next visit: {sum(part.minutes for _, part in left):.1f} minutes",
        bullets(f"{name}: {'; '.join(_names(left, name))}" for name in names),
        "What was measured is not measured again, so it is enough to say, as often as there is "
        f"time: `python -m lab.hardware {','.join(names)} --results $OUT`",
    ]


def _names(parts: Sequence[tuple[Stage, Portion]], stage: str) -> Iterator[str]:
    return (part.name for its, part in parts if its.name == stage)


def _rehearsed(here: Sequence[Stage]) -> str:
    rows = [(stage, rehearsed_s(stage)) for stage in here]
    return columns(
        rows,
        ("stage", "{0[0].name}"),
        ("about", "{0[0].about}"),
        ("all of it on a GPU, minutes by estimate", "{0[0].minutes:.1f}"),
        ("rehearsed here, s", "{0[1]:.1f}"),
        text=(0, 1),
    )


def rehearsed_s(stage: Stage) -> float:
    """How long a rehearsal of it takes on this machine."""
    with tempfile.TemporaryDirectory(prefix="carma-rehearsal-") as folder:
        begun = time.monotonic()
        stage.measure(Visit(Path(folder), stage.name, rehearse=True))
        return time.monotonic() - begun
