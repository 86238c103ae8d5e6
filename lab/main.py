"""The entry point of the laboratory's commands: as a benchmark's, with a look for the data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Report


def main(name: str, measure: Callable[..., Report], needs: Path | None = None) -> None:
    """As `benchmarks.harness.main`. `needs`: data without which the command ends at once."""

    @wraps(measure)
    def run(**options: object) -> Report:
        if needs is not None and not needs.exists():
            sys.exit(f"the public data are not here: {needs}; where to get them: lab/DATA.md")
        return measure(**options)

    harness.main(name, run)
