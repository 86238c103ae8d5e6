"""Four users in a booted machine, three of them hostile: all attacks, or those named; root only.

For each: the honest user's p99 of a submission and of a status, quiet and attacked, turn by turn in
one go, and their ratio; beside them a control, which shows what the machine alone costs. Meanwhile
the honest user's jobs write down when they start and end: none may be lost or doubled, none may end
unnoticed, and no GPU may be without a reading. Exits with 0 whatever it finds: a number is no test.
tests/attack/test_siege.py is one.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Annotated

import typer

from benchmarks.daemon.booted import NotBooted
from benchmarks.daemon.siege.cases import CASES, Case, NotHere
from benchmarks.daemon.siege.field import Asked, Field, open_field
from benchmarks.harness import Report, Row, main, of_rows, percentile

ROUNDS, TIMES = 5, 60
JOBS = 2  # of each kind that must end while an attack goes on
STALE_S = 1.0
UNNOTICED_S = 10.0


@dataclass
class Found:
    case: str
    quiet: list[Asked] = field(default_factory=list)
    attacked: list[Asked] = field(default_factory=list)
    jobs: int = 0
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    stale_s: float = 0.0
    unnoticed_s: float = 0.0
    skipped: str = ""  # why it was not run
    failed: str = ""  # a state that did not come about

    def p99(self, rounds: list[Asked], what: str) -> float:
        return statistics.median(percentile(each.latencies[what], 0.99) for each in rounds)

    def in_line(self, rounds: list[Asked]) -> float:
        return statistics.median(each.in_line for each in rounds)


def besiege(field: Field, case: Case, rounds: int, times: int, jobs: int = JOBS) -> Found:
    """Without rounds: once, and nothing is timed."""
    found = Found(case.name)
    with field.working():
        try:
            if rounds:
                field.await_work(1)
            for _ in range(rounds or 1):
                if rounds:
                    found.quiet.append(field.ask(times))
                with case.attack(field):
                    if rounds:
                        found.attacked.append(field.ask(times))
                    field.await_work(jobs)
        except NotHere as error:
            found.skipped = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            traceback.print_exc()
            found.failed = f"{type(error).__name__}: {error}"
    try:
        field.await_rest()
    except Exception as error:  # noqa: BLE001 - likewise
        found.failed = found.failed or f"{type(error).__name__}: {error}"
    found.jobs, found.lost, found.doubled = field.reckon()
    found.stale_s, found.unnoticed_s = field.seen.stale_s, field.seen.unnoticed_s
    return found


def rows(case: Case, found: Found) -> list[Row]:
    if found.skipped:
        return [Row(case.name, "not run", 0, "", note=found.skipped)]
    out = []
    for what, bound in (("submit", case.most), ("status", case.most), ("control", None)):
        if found.quiet and found.attacked:
            quiet, attacked = found.p99(found.quiet, what), found.p99(found.attacked, what)
            note = f"{attacked:.0f} ms | {quiet:.0f} ms"
            ratio = attacked / quiet
            out.append(Row(case.name, f"{what}, p99", ratio, "×", bound=bound, note=note))
    if found.quiet and found.attacked:
        quiet, attacked = found.in_line(found.quiet), found.in_line(found.attacked)
        out.append(
            Row(
                case.name,
                "carmad waits for a processor",
                attacked,
                "s/s",
                note=f"{quiet:.2f} when it is quiet",
            )
        )
    note = f"{case.what}; {found.jobs} jobs"
    bad = len(found.lost) + len(found.doubled)
    out.append(Row(case.name, "jobs lost or doubled", bad, "", bound=0, note=note))
    out.append(Row(case.name, "a GPU without a reading", found.stale_s, "s", bound=STALE_S))
    out.append(Row(case.name, "an end unnoticed", found.unnoticed_s, "s", bound=UNNOTICED_S))
    if found.failed:
        said = " ".join(found.failed.split())[:200].replace("|", "/")
        out.append(Row(case.name, "states that did not come about", 1, "", bound=0, note=said))
    return out


def measure(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    rounds: Annotated[int, typer.Option(help="quiet and attacked, in turn")] = ROUNDS,
    times: Annotated[int, typer.Option(help="requests of a kind in each")] = TIMES,
) -> Report:
    known = [case.name for case in CASES]
    if unknown := set(names or ()) - set(known):
        sys.exit(f"no such case: {' '.join(unknown)}; there are: {' '.join(known)}")
    if os.geteuid() != 0:
        sys.exit("only root can boot a machine and be several users")
    # Whatever ends this, nothing may stay stuck: even `ps` would hang from then on.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    table: list[Row] = []
    everything: dict[str, Found] = {}
    for case in CASES:
        if names and case.name not in names:
            continue
        begun = time.monotonic()
        try:
            with open_field() as field:
                everything[case.name] = found = besiege(field, case, rounds, times)
        except NotBooted as error:
            sys.exit(f"not run: {error}")
        table += rows(case, found)
        print(f"{case.name}: {time.monotonic() - begun:.0f} s {vars(found)}", file=sys.stderr)
    note = (
        f"p99: the median of {rounds} rounds, each of {times} submissions and {times} looks at the"
        " status by plain HTTP, and as many runs of the control, quiet | attacked in turn"
    )
    title = "A siege: three hostile users, and what an honest one notices"
    data = {"cases": everything}
    return of_rows(title, table, data=data, notes=(note,), kept=not names)


if __name__ == "__main__":
    main("siege", measure)
