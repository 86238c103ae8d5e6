"""A-SRPT with as many jobs as in its paper's figure 6, 37,500 on 250 servers: a tenth of both, five
windows.

The paper has 37,500 to 150,000 there, and 75,000 elsewhere. To simulate these would take hours for
each policy; a tenth of the jobs on a tenth of the servers comes as densely, for as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.harness import Report, markdown_table
from lab.asrpt.page import AGAINST_PERFECT, Beside, Runs, beside_paper, extreme, price
from lab.asrpt.runs import (
    DEFAULT,
    NO_LIMIT,
    OURS,
    PAPER,
    PERFECT,
    SEEDS,
    UNHELD,
    Case,
    Result,
    results,
)
from lab.asrpt.workload import PHILLY
from lab.main import main

TENTH = 10
LARGE = Case(37_500 // TENTH, part=TENTH)
LONG = "37,500 jobs"  # a tenth of them
BEST, WORST = "WCS-duration", "SPJF"  # of its baselines, says the paper (V-B)
UNSLOWED = replace(LARGE, gbit=NO_LIMIT)

SETTING = f"""\
{LARGE.jobs:,} consecutive jobs on 25 servers, five windows of the same trace as `lab.asrpt`: as
dense as the paper's 37,500 on 250 servers (the fewest of its figure 6), and for as long (three
days). Of the baselines, the one that the paper calls the best and the one that it calls the worst.
Perfect: with durations that are known. As the paper prints it (algorithm 1, lines 5 and 25), A-SRPT
waits while the first job in its queue finds too few GPUs, and so does SPJF ("if the shortest job
does not fit, it will not schedule longer jobs"); the WCS baselines are work-conserving: whoever
fits starts. On the same jobs, A-SRPT was run with its queue held and not held, and without its
reserve (CARMA's variant: a job need not wait for its turn in the virtual machine); where nothing is
slowed by the network; and with durations that are known. In equation 8 the paper sums the times at
which jobs end, so counted from the first submission; of its testbed, it says that times are from
each job's own on."""
CAUSES = """\
A-SRPT's jobs start in the order in which the virtual machine completes them. That machine is as
fast as all GPUs, and knows neither GPUs that a held queue leaves idle, nor slow-downs, nor work
beyond what was predicted. The real GPUs fall behind it by all of that, and while jobs come as fast
as the machine completes them, nothing makes up for it: every job, however short, waits for as long
as the GPUs are behind. SPJF and WCS have no such delay: a short job passes all longer ones."""


def cases() -> list[Case]:
    found = [
        *(replace(LARGE, policy=policy) for policy in (*OURS, BEST, WORST)),
        *(replace(UNSLOWED, policy=policy) for policy in (*OURS, BEST)),
        replace(LARGE, prediction=PERFECT),
    ]
    return [replace(case, seed=seed) for seed in range(SEEDS) for case in found]


def measure() -> Report:
    return report(list(results(cases())))


def report(found: Sequence[Result]) -> Report:
    runs = Runs({result.case: result for result in found})
    beside = against_paper(runs)
    blocks = [
        SETTING,
        beside_paper(beside),
        _table(runs, LARGE),
        "## Nobody slowed",
        beside_paper([_best(runs, UNSLOWED)]),
        _table(runs, UNSLOWED),
        "## Cause of the difference",
        CAUSES,
    ]
    title = f"A-SRPT with {LONG}, a tenth of them on a tenth of its paper's servers"
    return Report(title, blocks, {"beside": beside, "runs": found})


def against_paper(runs: Runs) -> list[Beside]:
    return [
        _best(runs, LARGE),
        extreme(runs, f"{LONG}, against {WORST}", -91, [LARGE], min, (WORST,)),
        price(runs, f"{LONG}, {AGAINST_PERFECT}", 14, LARGE),
    ]


def _best(runs: Runs, case: Case) -> Beside:
    return extreme(runs, f"{LONG}, against {BEST}", -31, [case], max, (BEST,))


def causes(runs: Runs) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """What becomes of the claims of `against_paper` in other set-ups, by name."""
    best, worst, _ = against_paper(runs)
    unslowed = _best(runs, UNSLOWED)
    found: dict[str, dict[str, Sequence[float]]] = {
        its.what: {
            "its reserve off": its.ours[DEFAULT],
            "times from the first submission on (equation 8)": runs.changes(
                LARGE, replace(LARGE, policy=other), "since_first"
            ),
        }
        for its, other in ((best, BEST), (worst, WORST))
    }
    found[best.what] |= {
        "nobody slowed": unslowed.ours[PAPER],
        "nobody slowed, its queue not held": unslowed.ours[UNHELD],
        "nobody slowed, its reserve off": unslowed.ours[DEFAULT],
    }
    return found


def _table(runs: Runs, its: Case) -> str:
    rows = {name: replace(its, policy=name) for name in (*OURS, BEST, WORST)}
    rows = runs.there(rows | {f"{PAPER}, perfect": replace(its, prediction=PERFECT)})
    told = (
        ("thousand hours", "total", ",.1f"),
        ("counted from the first submission", "since_first", ",.0f"),
        ("mean in line, h", "wait", ",.1f"),
        ("most in line", "queue_max", ",.0f"),
        ("slow-down by spreading, mean", "slowdown", ".1f"),
        ("makespan, h", "makespan", ",.0f"),
        ("load", "load", ".2f"),
        ("whole run s", "run_s", ".0f"),
    )
    cells = [
        (name, *(format(runs.median(case, of), form) for _, of, form in told))
        for name, case in rows.items()
    ]
    headings = ("medians", *(heading for heading, *_ in told))
    return markdown_table(headings, cells, numbers=range(1, len(headings)))


if __name__ == "__main__":
    main("asrpt_large", measure, PHILLY)
