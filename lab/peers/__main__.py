"""CARMA beside the peers that are installed: how soon jobs start, how many a second, at what cost,
how long commands take, what the daemons take; then everyday tasks (`python -m lab.peers.tasks` for
these alone). `python -m lab.peers table` writes the table of `docs/compared.md` from the results.

Slurm (Debian: slurmctld slurmd munge), task-spooler (Debian: task-spooler), gflow (pip install
runqd; tmux, gcc); as root, or Slurm is left out. Takes fifteen minutes; nothing is left behind.
"""

from __future__ import annotations

import sys

from benchmarks.harness import Report
from lab.main import main
from lab.peers import table
from lab.peers.measures import GOES, ROUNDS, draw, measure_commands, measure_jobs, summarize
from lab.peers.system import adopt
from lab.peers.systems import BEST, SYSTEMS
from lab.peers.tasks import TITLE, side_by_side

HOW = """\
A time is a multiple of `python -c pass` (py), which took its turn between the systems, with the
interpreter of CARMA's daemon and of the jobs; medians of the wall clock. A job wants one of 8 GPUs
(emulated, faked, or files; 8 slots in task-spooler), and no time limit. Many jobs write a byte
each. gflow's many want no GPU and run all at once: it sees only after ten seconds that a job has
ended. task-spooler has no arrays, and holds 940 jobs: these stand for 1,000. CARMA and Slurm were
allowed 40,000 jobs instead of 10,000; tuned settings change only how jobs start. Processor time is
that of all processes of a system and of the job's shell, without the client's. Memory is that of
all its processes, shared pages in parts."""


def measure(goes: int = GOES, rounds: int = ROUNDS) -> Report:
    adopt()
    missing = {kind: kind.missing() for kind in SYSTEMS}
    kinds = [kind for kind, lacks in missing.items() if not lacks]
    titles = {kind.name: kind.title() for kind in kinds}
    lines = measure_jobs(kinds, goes)
    print(draw(lines, titles), file=sys.stderr)
    lines += measure_commands([kind for kind in kinds if not kind.tuned], rounds)
    table, cells = side_by_side(kinds=BEST)
    return Report(
        "CARMA beside its peers",
        (HOW, draw(lines, titles), summarize(lines), f"## {TITLE}", table),
        {"titles": titles, "lines": lines, "tasks": cells},
        [f"{kind.name} is left out: {lacks}" for kind, lacks in missing.items() if lacks],
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        table.write()
    else:
        main("peers", measure)
