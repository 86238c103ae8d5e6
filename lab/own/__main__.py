"""`policy = "carma"` against all others: mean JCT, makespan and p99 JCT at once.

Tuned on some traces, judged on others (`families`). All that is compared ran in this very run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from statistics import geometric_mean, median

from benchmarks.harness import Report, bullets, columns, verdict
from carmad.config import Settings
from carmad.core.placing.view import Policy
from lab.data import DATA
from lab.lucid.runs import PREEMPTION_S
from lab.main import main
from lab.own import bound, results
from lab.own.families import JUDGING, TUNING, Family, case
from lab.own.runs import (
    ADDITIVE,
    FREE,
    HOST_MIB,
    KNOWN,
    MEASURED,
    NOTHING,
    OURS,
    PREDICTED,
    SUSPENDING,
    WRONG,
    Condition,
    Ran,
    longest_wait,
    run,
)
from policies.builtin import most_free_memory
from policies.carma.policy import carma
from policies.filters import only_idle
from policies.ranked import Ranked

SHARING = ("magm", "first_fit")  # FIFO, shared
RIVALS = ("sjf_ffs", "lucid", "castor", "asrpt", "cuckoo", "tiresias")
QUICK = ("sjf_ffs", "castor", "tiresias")  # with less known: the best rivals, on any family
SLOW = "cuckoo"  # takes minutes on some clusters: only for its own jobs
FOR_SLOW = ("Cuckoo",)

JCT, MAKESPAN, P99, WAITS = 1.1, 1.03, 1.1, 2.0

Variant = Callable[[Settings], Policy]


def _with(**rules: float) -> Variant:
    def variant(settings: Settings) -> Policy:
        ours = carma(settings)
        return replace(ours, rules=replace(ours.rules, **rules))  # type: ignore[arg-type]

    return variant


def _unshared(settings: Settings) -> Policy:
    ours = carma(settings)
    alone = replace(ours.rules.fits, filters=(only_idle(settings),))
    return replace(ours, rules=replace(ours.rules, fits=alone))


def _floor(settings: Settings) -> Policy:
    """One line of `Ranked`: the same order and memory, MAGM's rank, and the first blocks all."""
    ours = carma(settings)
    return Ranked("floor", ours.rules.fits.filters, most_free_memory, ours.order, idle_first=True)


ABLATIONS: Mapping[str, Variant] = {
    "order by service alone (ageing 10⁹ instead of 2)": _with(ageing=1e9),
    "ageing 10": _with(ageing=10.0),
    "ageing 1": _with(ageing=1.0),
    "order by arrival": _with(ageing=0.0),
    "joins wherever memory suffices": _with(busy=float("inf")),
    "never joins a busy GPU, however short": _with(short=0.0),
    "never joins a busy GPU because it hardly adds to that": _with(most=0.0),
    "a GPU is busy from 0.7": _with(busy=0.7),
    "a GPU is busy from 0.95": _with(busy=0.95),
    "never shares": _unshared,
    "holds GPUs for the overdue alone": _with(hold=0),
    "the floor: one line of `Ranked`": _floor,
}
OF_SUSPENSION: Mapping[str, Variant] = {
    "suspends who has 1.5 times as much left (3)": _with(longer=1.5),
    "suspends who has 8 times as much left": _with(longer=8.0),
    "suspends only if its cost is repaid 100 times (10)": _with(repaid=100.0),
    "suspends, and holds GPUs for the overdue alone": _with(hold=0),
    "suspends, and joins wherever memory suffices": _with(busy=float("inf")),
}


NAMES = {variant: name for name, variant in (*ABLATIONS.items(), *OF_SUSPENSION.items())}


@dataclass(frozen=True, slots=True)
class Judged:
    """Ratios of one trace: JCT to the best rival's, makespan to the best, p99 to MAGM's."""

    rival: str
    jct: float
    bound: float  # what no policy's JCT can fall below, to the same
    free: float  # ours if sharing cost nothing, to the same
    makespan: float
    p99: float
    sjf_ffs: float
    magm: float
    suspensions: int
    ooms: int  # more than MAGM's
    waits: float
    unfinished: int


EXPLANATION = f"""\
Ratios, medians over a family's traces (lowest to highest).

- JCT: mean, to the best rival's, all with the same knowledge. Rivals: {", ".join(RIVALS)}
  ({SLOW}: only for {", ".join(FOR_SLOW)}); where less is known, {", ".join(QUICK)}.
- To sjf_ffs and to magm: JCT, relative to theirs.
- Bound: what no policy's JCT can fall below (`lab.own.bound`). Where it is above the goal,
  this cannot be reached; a bound below it does not say that it can.
- Free: the policy's own JCT if sharing slowed nobody down, to the best rival's in this world, with
  durations known. What is above it is the cost of sharing, not of scheduling.
- Makespan: to the best of all, {" and ".join(SHARING)} (FIFO, shared) among them.
- p99 JCT: to magm's.
- OOM and unfinished: crashes and lost jobs, more than magm's, at most.
- Waits: the user who waits longest, on average, relative to the same under magm; the worst trace
  is judged. A job that is suspended waits.
- Suspended: suspensions in a trace."""


def measure(tuning: bool = False, kept: str = "", budget_s: float = inf) -> Report:
    """With --tuning, the same on the traces for tuning; not written. `kept`: a file to which each
    run is added, and whose runs are not made again; `budget_s`: processor time after which no
    further run begins, and no page is written."""
    families = TUNING if tuning else JUDGING
    results.begin(kept, budget_s)
    known = KNOWN, NOTHING, WRONG, PREDICTED
    conditions = [(ours, condition) for condition in known for ours in (OURS, SUSPENDING)]
    judged = {each: _judged(families, *each) for each in conditions}
    tables = {
        f"{condition.what.capitalize()}: {ours}": _table(judged[ours, condition])
        for ours, condition in judged
    }
    tables["Ablations, on the first trace of each family"] = _ablated(families)
    tables["Traces to judge by"] = _listed(JUDGING)
    tables["Traces for tuning"] = _listed(TUNING)
    sections = (block for heading, table in tables.items() for block in (f"## {heading}", table))
    data = {
        f"{ours}, {condition.name}": {family.name: runs for family, runs in found.items()}
        for (ours, condition), found in judged.items()
    }
    notes = [
        "simulated; no MPS, `limits.backfill` 0; tiresias may preempt, at a cost of"
        f" {PREEMPTION_S:.0f} s; {SUSPENDING}: at the cost that `[suspend]` has by default,"
        f" {HOST_MIB // 1024} GB of the host's memory for each GPU, moves allowed"
    ]
    blocks = [EXPLANATION, *sections]
    return Report("A policy of our own", blocks, {"judged": data}, notes, kept=not tuning)


def _listed(families: Sequence[Family]) -> str:
    return bullets(f"{family.name}: {family.what}" for family in families)


def _judged(
    families: Sequence[Family], ours: str, condition: Condition
) -> dict[Family, list[Judged]]:
    rivals = RIVALS if condition is KNOWN else QUICK
    return {
        family: [
            _judge(family, number, ours, condition, rivals) for number in range(len(family.cases))
        ]
        for family in families
    }


@cache
def _ran(
    family: Family,
    number: int,
    policy: str | Variant,
    condition: Condition,
    suspends: bool = False,
) -> Ran:
    name = policy if isinstance(policy, str) else NAMES[policy]
    key = f"{family.name}, {family.what}, {number}, {name}, {condition.name}, {suspends}"
    return results.recall(key, lambda: run(case(family, number), policy, condition, suspends))


def _judge(
    family: Family, number: int, policy: str, condition: Condition, rivals: Sequence[str]
) -> Judged:
    this = case(family, number)
    names = [name for name in (*SHARING, *rivals) if name != SLOW or family.name in FOR_SLOW]
    others = {name: _ran(family, number, name, condition) for name in names}
    ours = _ran(family, number, policy, condition)
    rival = min(
        (name for name in names if name not in SHARING), key=lambda name: others[name].jct_s
    )
    best_s, fifo = others[rival].jct_s, others["magm"]
    return Judged(
        rival,
        ours.jct_s / best_s,
        bound.mean_jct_s(this) / best_s,
        _ran(family, number, policy, FREE).jct_s / best_s,
        ours.makespan_s / min(other.makespan_s for other in others.values()),
        ours.p99_s / fifo.p99_s,
        ours.jct_s / others["sjf_ffs"].jct_s,
        ours.jct_s / fifo.jct_s,
        ours.suspensions,
        ours.ooms - fifo.ooms,
        longest_wait(ours, fifo),
        ours.unfinished - fifo.unfinished,
    )


def _table(found: Mapping[Family, list[Judged]]) -> str:
    def cell(
        name: str, limit: float | None, judge: Callable[[list[float]], float] = median
    ) -> Callable[[tuple[Family, list[Judged]]], str]:
        def text(row: tuple[Family, list[Judged]]) -> str:
            values = [getattr(each, name) for each in row[1]]
            text = f"{median(values):.2f}"
            if len(values) > 1:
                text += f" ({min(values):.2f}–{max(values):.2f})"
            return text if limit is None else f"{text} {verdict(judge(values) <= limit)}"

        return text

    return columns(
        list(found.items()),
        ("family", lambda row: f"{row[0].name}, {len(row[1])}"),
        ("best rival", lambda row: ", ".join(sorted({each.rival for each in row[1]}))),
        (f"JCT ≤ {JCT}", cell("jct", JCT)),
        ("bound", cell("bound", None)),
        ("free", cell("free", None)),
        ("to sjf_ffs", cell("sjf_ffs", None)),
        ("to magm", cell("magm", None)),
        (f"makespan ≤ {MAKESPAN}", cell("makespan", MAKESPAN)),
        (f"p99 ≤ {P99}", cell("p99", P99)),
        ("OOM", lambda row: f"{max(each.ooms for each in row[1]):+d}"),
        (f"waits ≤ {WAITS:.0f}", cell("waits", WAITS, max)),
        ("unfinished", lambda row: f"{max(each.unfinished for each in row[1]):+d}"),
        ("suspended", lambda row: f"{median(each.suspensions for each in row[1]):.0f}"),
        text=(0, 1),
    )


def _ablated(families: Sequence[Family]) -> str:
    """Variants, relative to the policy as it is; and how they compare under another truth."""

    def runs(
        policy: str | Variant, condition: Condition = KNOWN, suspends: bool = False
    ) -> list[Ran]:
        return [_ran(family, 0, policy, condition, suspends) for family in families]

    rows = [(name, *_means(runs(variant), runs(OURS))) for name, variant in ABLATIONS.items()]
    rows.append((SUSPENDING, *_means(runs(SUSPENDING), runs(OURS))))
    for name, variant in OF_SUSPENSION.items():
        rows.append((name, *_means(runs(variant, suspends=True), runs(OURS))))
    for truth in (KNOWN, MEASURED, ADDITIVE):
        base = runs("sjf_ffs", truth)
        rows.append((f"{truth.what}; sjf_ffs = 1: {OURS}", *_means(runs(OURS, truth), base)))
        if truth is not MEASURED:  # under MPS nobody can be suspended
            both = runs(SUSPENDING, truth)
            rows.append((f"the same: {SUSPENDING}", *_means(both, base)))
        rows.append(("the same: never shares", *_means(runs(_unshared, truth), base)))
    return columns(
        rows,
        ("all rules = 1, geometric means", "{0[0]}"),
        ("JCT", "{0[1]:.3f}"),
        ("makespan", "{0[2]:.3f}"),
        ("p99 JCT", "{0[3]:.3f}"),
    )


def _means(runs: Sequence[Ran], base: Sequence[Ran]) -> Iterator[float]:
    for name in ("jct_s", "makespan_s", "p99_s"):
        pairs = zip(runs, base, strict=True)
        yield geometric_mean(getattr(one, name) / getattr(other, name) for one, other in pairs)


if __name__ == "__main__":
    main("own", measure, DATA)
