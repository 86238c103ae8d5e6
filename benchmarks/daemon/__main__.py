"""How fast the daemon and `carma submit` are, against targets: all measurements, or those named.

Exits with 0 whatever it finds: a number is no test.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from benchmarks.daemon import idling, starting, submitting, ticks
from benchmarks.harness import Report, main, of_rows

MEASUREMENTS = {
    "submitting": submitting.measure,
    "command": submitting.measure_command,
    "planning": ticks.measure_planning,
    "starting": starting.measure,
    "cancelling": submitting.measure_cancel,
    "idling": idling.measure,
    "ticks": ticks.measure_growth,
}


def measure(names: Annotated[list[str] | None, typer.Argument()] = None) -> Report:
    if unknown := set(names or ()) - set(MEASUREMENTS):
        sys.exit(f"no such measurement: {' '.join(unknown)}; there are: {' '.join(MEASUREMENTS)}")
    begun_at = datetime.now(UTC)
    rows = []
    for name in names or MEASUREMENTS:
        begun = time.monotonic()
        rows += MEASUREMENTS[name]()
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return of_rows("Speed, as measured", rows, name=f"{begun_at:%Y-%m-%dT%H%M%SZ}", kept=not names)


if __name__ == "__main__":
    main("", measure)
