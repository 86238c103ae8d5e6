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


@dataclass(frozen=True, slots=True)
class Visit:
    """To one GPU. `folder` is results/hardware/GPU: a stage adds to STAGE.jsonl there, a line an
    entry, at once, so that a second visit goes on where the first ended."""

    folder: Path
    stage: str
    rehearse: bool  # without a GPU: small models on the CPU, emulated cards, fakes of the driver
    until: float = field(default=float("inf"))  # monotonic: nothing is begun after it

    def todo(self, cases: Iterable[Case], key: Callable[[Case], str]) -> Iterator[Case]:
        """Those without an entry, as long as there is time to begin one."""
        done = self.entries()
        for case in cases:
            if key(case) in done:
                continue
            if time.monotonic() >= self.until:
                return
            yield case

    def keep(self, key: str, entry: Entry) -> None:
        """A later entry of the same key counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._file(self.stage).open("a") as file:
            file.write(json.dumps({"key": key} | entry) + "\n")

    def entries(self, stage: str = "") -> dict[str, Entry]:
        """What was kept, by key: by this stage, or by an earlier one."""
        file = self._file(stage or self.stage)
        lines = file.read_text().splitlines() if file.exists() else ()
        return {entry.pop("key"): entry for entry in map(_entry, lines) if entry}

    def _file(self, stage: str) -> Path:
        return self.folder / f"{stage}.jsonl"


@dataclass(frozen=True, slots=True)
class Stage:
    """`measure` fills the visit; `blocks` tells what was found, from the entries alone, as Markdown
    (so that a page can be made again without a GPU)."""

    name: str
    about: str
    minutes: float  # on a GPU, at most nine
    packages: tuple[str, ...]  # that it imports beside CARMA's own
    measure: Callable[[Visit], None]
    blocks: Callable[[Visit], list[str]]


def _entry(line: str) -> Entry:
    try:
        entry: Entry = json.loads(line)
    except ValueError:  # cut off: the visit ended there
        return {}
    return entry
