"""`python -m benchmarks [NAME…]`: measure all, or what is named; print a table, keep the results.

Always ends with exit code 0: a number is no test.
"""

from __future__ import annotations

import sys
import time

from benchmarks import command, idling, planning, starting, submitting, ticks
from benchmarks.rows import circumstances, save, summary, table

MEASUREMENTS = {
    "submitting": submitting.measure,
    "command": command.measure,
    "planning": planning.measure,
    "starting": starting.measure,
    "idling": idling.measure,
    "ticks": ticks.measure,
}


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        sys.exit(f"no such measurement: {' '.join(unknown)}; there are: {' '.join(MEASUREMENTS)}")
    facts = circumstances()
    rows = []
    for name in names or MEASUREMENTS:
        begun = time.monotonic()
        rows += MEASUREMENTS[name]()
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), "", sep="\n")
    print(table(rows), "", summary(rows), sep="\n")
    if not names:
        print(f"kept in {save(rows, facts)} and the .md beside it")


if __name__ == "__main__":
    main(sys.argv[1:])
