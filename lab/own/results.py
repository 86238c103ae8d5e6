"""The runs of this call, and those of earlier calls that a file keeps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from pathlib import Path

from lab.own.runs import Ran

_kept: dict[str, Ran] = {}
_file: Path | None = None
_budget_s = inf


def begin(file: str, budget_s: float) -> None:
    global _file, _budget_s
    _file, _budget_s = Path(file) if file else None, budget_s
    if _file and _file.exists():
        for line in _file.read_text().splitlines():
            key, ran = json.loads(line)
            _kept[key] = Ran(**ran)


def recall(key: str, run: Callable[[], Ran]) -> Ran:
    if key not in _kept:
        if time.process_time() > _budget_s:
            sys.exit(f"{len(_kept)} runs are kept; the next: {key}")
        _kept[key] = run()
        if _file:
            with _file.open("a") as lines:
                lines.write(json.dumps([key, asdict(_kept[key])]) + "\n")
    return _kept[key]
