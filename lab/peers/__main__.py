"""How long each daily verb takes, of CARMA and of the peers that are installed, and what their
daemons take; then ten everyday tasks (`python -m lab.peers.tasks` for these alone). Slurm
(Debian: slurmctld slurmd munge), task-spooler (Debian: task-spooler), gflow (pip install runqd); as
root, or Slurm is left out. Takes six minutes; nothing is left behind.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.harness import Report, Row, milliseconds, of_rows, of_runs
from lab.main import main
from lab.peers.system import SHORT, System, Taken
from lab.peers.systems import SYSTEMS, Carma
from lab.peers.tasks import TITLE, side_by_side

ROUNDS = 9
STARTS = 5
QUEUED = 1_000
NEAR_EMPTY = 2 * ROUNDS + 2  # jobs in line: enough to show, hold and cancel one each time
TASKS = 5_000
BOUNDS_MS = {"near-empty": 60.0, "1,000 queued": 120.0}  # CPU of a verb of CARMA
SUBMIT_MS = 25.0


def measure(rounds: int = ROUNDS, queued: int = QUEUED, tasks: int = TASKS) -> Report:
    rows: list[Row] = []
    notes: list[str] = []
    with ExitStack() as stack:
        systems = []
        for kind in SYSTEMS:
            if missing := kind.missing():
                notes.append(f"{kind.name} is left out: no {missing} here")
                continue
            try:
                systems.append(stack.enter_context(kind()))
            except (OSError, subprocess.SubprocessError) as error:
                notes.append(f"{kind.name} is left out: {error}")
        rows += [
            Row("daemon: start", one.name, one.start_s, "s", bound=_of_carma(one, 1.5))
            for one in systems
        ]
        rows += [
            of_runs("submit to start", one.name, [one.started_ms() for _ in range(STARTS)], "ms")
            for one in systems
        ]
        jobs = {}
        for one in systems:
            one.block()
            jobs[one.name] = one.fill(NEAR_EMPTY)
        rows += _verbs("near-empty", systems, jobs, rounds)
        for one in systems:
            print(f"{one.name}: {queued:,} jobs", file=sys.stderr)
            jobs[one.name] += one.fill(queued)
        rows += _verbs(f"{queued:,} queued", systems, jobs, rounds)
        rows += [
            Row(f"daemon: RSS, {queued:,} queued", one.name, one.rss_mb(), "MB") for one in systems
        ]
        rows += _cancelled(next(one for one in systems if isinstance(one, Carma)), tasks)
    table, cells = side_by_side(kinds=SYSTEMS)
    return of_rows(
        "CARMA beside its peers",
        rows,
        f"## {TITLE}",
        table,
        data={"tasks": cells},
        notes=notes,
    )


def _of_carma(system: System, bound: float | None) -> float | None:
    return bound if isinstance(system, Carma) else None


def _verbs(
    when: str, systems: Sequence[System], jobs: dict[str, list[str]], rounds: int
) -> list[Row]:
    """Programs take turns, so that what else the machine does meets all of them."""
    taken: dict[tuple[str, str], list[Taken]] = {}
    for _ in range(rounds):
        for verb in Carma.verbs(_example(systems)):
            for one in systems:
                if words := one.verbs().get(verb):
                    job = jobs[one.name].pop(0) if "{job}" in words else ""
                    run = one.run([word.replace("{job}", job) for word in words])
                    taken.setdefault((verb, one.name), []).append(run)
                    if job and verb not in ("hold", "cancel"):
                        jobs[one.name].append(job)
    rows = []
    for (verb, name), runs in taken.items():
        bound = SUBMIT_MS if verb == "submit" else BOUNDS_MS.get(when)
        wall = statistics.median(run.wall_ms for run in runs)
        cpu = [run.cpu_ms for run in runs]
        note = f"wall {wall:.0f} ms"
        bound = bound if name == Carma.name else None
        rows.append(of_runs(f"{verb}, {when}", name, cpu, "ms CPU", bound=bound, note=note))
    return rows


def _example(systems: Sequence[System]) -> Carma:
    return next(one for one in systems if isinstance(one, Carma))


def _cancelled(carma: Carma, tasks: int) -> list[Row]:
    """How long a whole array takes to cancel, and how long others wait meanwhile."""
    submit = carma.submission(SHORT, queued=True)
    at = submit.index("--")
    array = subprocess.run(
        [*submit[:at], "--array", f"1-{tasks}", *submit[at:]],
        env=carma.env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    time.sleep(1.0)
    waits: list[float] = []
    over = threading.Event()

    def others() -> None:
        while not over.is_set():
            waits.append(carma.run(submit).wall_ms)

    alone = statistics.median(carma.run(submit).wall_ms for _ in range(5))
    thread = threading.Thread(target=others)
    thread.start()
    cancelled = milliseconds(
        lambda: subprocess.run(
            [*submit[:1], "cancel", array], env=carma.env, stdout=subprocess.DEVNULL, check=True
        )
    )
    over.set()
    thread.join()
    what = f"cancel an array of {tasks:,}"
    note = f"{alone:.0f} ms otherwise; the whole `carma submit`"
    return [
        Row(what, "CARMA", cancelled / 1000, "s", bound=0.3),
        Row(what, "longest submission meanwhile", max(waits) - alone, "ms", bound=50.0, note=note),
    ]


if __name__ == "__main__":
    main("peers", measure)
