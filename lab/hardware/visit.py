"""What a stage of the campaign is given, and what it keeps: a visit to a GPU machine is short, and
may end in the middle of a stage."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Entry = dict[str, Any]
Case = TypeVar("Case")
VISITS = "visits"  # the file that says which stage was measured when, and where


@dataclass(frozen=True, slots=True)
class Visit:
    """To one GPU. A stage adds to `folder`/STAGE.jsonl, a line an entry, at once, so that a second
    visit goes on where the first ended: a file that `folder` lacks is that of `earlier` visits."""

    folder: Path
    stage: str
    rehearse: bool  # without a GPU: small models on the CPU, emulated cards, fakes of the driver
    until: float = field(default=float("inf"))  # monotonic: see `todo`
    gpu: str = ""  # its UUID; "": the first
    earlier: Path | None = None

    def todo(
        self,
        cases: Iterable[Case],
        key: Callable[[Case], str],
        takes_s: float | Callable[[Case], float] = 0.0,
    ) -> Iterator[Case]:
        """Those without an entry, then those that failed in an earlier command, as long as there
        is time for the next, which `takes_s`."""
        kept = self.entries()
        done = {name for name, entry in kept.items() if "failed" not in entry}
        undone = [case for case in cases if key(case) not in done]
        for case in sorted(undone, key=lambda case: key(case) in kept):
            its_s = takes_s(case) if callable(takes_s) else takes_s
            if time.monotonic() + its_s >= self.until:
                return
            yield case

    def keep(self, key: str, entry: Entry) -> None:
        """A later entry of the same key counts. One that failed says why as `failed`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = self._read(self.stage)
        cut_off = "" if not kept or kept.endswith("\n") else "\n"
        with self._file(self.stage).open("a") as file:
            if not file.tell():
                file.write(kept)
            file.write(cut_off + json.dumps({"key": key} | entry) + "\n")

    def entries(self, stage: str = "") -> dict[str, Entry]:
        """What was kept, by key: by this stage, or by an earlier one."""
        lines = self._read(stage or self.stage).splitlines()
        return {entry.pop("key"): entry for entry in map(_entry, lines) if entry}

    def _read(self, stage: str) -> str:
        for folder in (self.folder, self.earlier):
            if folder and (file := folder / f"{stage}.jsonl").exists():
                return file.read_text()
        return ""

    def _file(self, stage: str) -> Path:
        return self.folder / f"{stage}.jsonl"


@dataclass(frozen=True, slots=True)
class Portion:
    """Of a stage: what it measures in a row."""

    name: str
    minutes: float  # on a GPU, by estimate


@dataclass(frozen=True, slots=True)
class Stage:
    """`measure` fills the visit; `blocks` tells what was found, from the entries alone, as Markdown
    (so that a page can be made again without a GPU)."""

    name: str
    about: str
    parts: tuple[Portion, ...]  # in the order in which they are measured
    packages: tuple[str, ...]  # that it imports beside CARMA's own
    measure: Callable[[Visit], None]
    blocks: Callable[[Visit], list[str]]
    needs: tuple[str, ...] = ()  # stages that must have been measured before

    @property
    def minutes(self) -> float:
        return sum(part.minutes for part in self.parts)


def provenance(visit: Visit) -> str:
    """Of a stage's entries: "measured: GPU, driver, date", by the last visit to it."""
    facts = [each for each in visit.entries(VISITS).values() if each["stage"] == visit.stage]
    if not facts:
        return "measured: nobody noted where"
    return "measured: {gpu}, driver {driver}, {date}".format(**facts[-1])


def _entry(line: str) -> Entry:
    try:
        entry: Entry = json.loads(line)
    except ValueError:  # cut off: the visit ended there
        return {}
    return entry
