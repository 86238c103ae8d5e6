"""`policy = "carma"` against all others: mean JCT, makespan and p99 JCT at once.

Tuned on some traces, judged on others (`families`). All that is compared ran in this very run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from statistics import geometric_mean, median

from benchmarks.harness import Report, bullets, columns, verdict
from carmad.config import Settings
from carmad.core.ports import Policy
from lab.data import DATA
from lab.lucid.runs import PREEMPTION_S
from lab.main import main
from lab.own import bound
from lab.own.families import JUDGING, TUNING, Family, case
from lab.own.runs import (
    ADDITIVE,
    FREE,
    KNOWN,
    MEASURED,
    NOTHING,
    OURS,
    PREDICTED,
    PREEMPTING,
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
QUICK = ("sjf_ffs", "castor")  # with less known: the rivals that predictions matter to
SLOW = "cuckoo"  # takes minutes on some clusters: only in these families
FOR_SLOW = ("lab", "trace 1", "heavy-60", "Cuckoo")

MAKESPAN, P99, WAITS = 1.01, 1.05, 2.0
JCT = {KNOWN: 0.65, PREDICTED: 0.75, WRONG: 0.9}

Variant = Callable[[Settings], Policy]


def _without(**fields: object) -> Variant:
    return lambda settings: replace(carma(settings), **fields)  # type: ignore[arg-type]


def _unshared(settings: Settings) -> Policy:
    ours = carma(settings)
    alone = replace(ours.rules.known, filters=(only_idle(settings),))
    return replace(ours, rules=ours.rules._replace(known=alone))


def _floor(settings: Settings) -> Policy:
    """One line of `Ranked`: ageing order, MAGM's rank and conditions but for the test of risk."""
    ours = carma(settings)
    return Ranked("floor", ours.rules.known.filters, most_free_memory, ours.order)


ABLATIONS: Mapping[str, Variant] = {
    "order by service alone (no ageing)": _without(ageing=float("inf")),
    "order by arrival": _without(ageing=0.0),
    "never shares": _unshared,
    "holds no GPUs": _without(hold=0),
    "the floor: one line of `Ranked`": _floor,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """Ratios of one trace: JCT to the best rival's, makespan to the best, p99 to MAGM's."""

    rival: str
    jct: float
    bound: float  # what no policy's JCT can fall below, to the same
    free: float  # ours if sharing cost nothing, to the same
    makespan: float
    p99: float
    ooms: int  # more than MAGM's
    waits: float
    unfinished: int


EXPLANATION = f"""\
Ratios, medians over a family's traces (lowest to highest).

- JCT: mean, to the best rival's, all with the same knowledge. Rivals: {", ".join(RIVALS)}
  ({SLOW}: only for {", ".join(FOR_SLOW)}); where less is known, {", ".join(QUICK)}, on each
  family's first trace.
- Bound: what no policy's JCT can fall below (`lab.own.bound`). Where it is above the goal,
  this cannot be reached; a bound below it does not say that it can.
- Free: the policy's own JCT if sharing slowed nobody down, to the best rival's in this world, with
  durations known. What is above it is the cost of sharing, not of scheduling.
- Makespan: to the best of all, {" and ".join(SHARING)} (FIFO, shared) among them.
- p99 JCT: to magm's.
- OOM and unfinished: crashes and lost jobs, more than magm's, at most.
- Waits: the user who waits longest, on average, relative to the same under magm; the worst trace
  is judged."""


def measure(tuning: bool = False) -> Report:
    """With --tuning, the same on the traces for tuning; not kept."""
    families = TUNING if tuning else JUDGING
    conditions = [*product((OURS,), (KNOWN, PREDICTED, WRONG, NOTHING))]
    conditions += product((PREEMPTING,), (KNOWN, PREDICTED, WRONG))
    judged = {each: _judged(families, *each) for each in conditions}
    tables = {
        f"{condition.what.capitalize()}: {ours}": _table(
            judged[ours, condition], JCT.get(condition)
        )
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
        f" {PREEMPTION_S:.0f} s, and so may {PREEMPTING}"
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
            _judge(family, number, ours, condition, rivals)
            for number in range(len(family.cases) if rivals is RIVALS else 1)
        ]
        for family in families
    }


@cache
def _ran(family: Family, number: int, policy: str | Variant, condition: Condition) -> Ran:
    return run(case(family, number), policy, condition)


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
        ours.ooms - fifo.ooms,
        longest_wait(ours, fifo),
        ours.unfinished - fifo.unfinished,
    )


def _table(found: Mapping[Family, list[Judged]], goal: float | None) -> str:
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
        (f"JCT ≤ {goal}" if goal else "JCT", cell("jct", goal)),
        ("bound", cell("bound", None)),
        ("free", cell("free", None)),
        (f"makespan ≤ {MAKESPAN}", cell("makespan", MAKESPAN)),
        (f"p99 ≤ {P99}", cell("p99", P99)),
        ("OOM", lambda row: f"{max(each.ooms for each in row[1]):+d}"),
        (f"waits ≤ {WAITS:.0f}", cell("waits", WAITS, max)),
        ("unfinished", lambda row: f"{max(each.unfinished for each in row[1]):+d}"),
        text=(0, 1),
    )


def _ablated(families: Sequence[Family]) -> str:
    """Variants, relative to the policy as it is; and how they compare under another truth."""

    def runs(policy: str | Variant, condition: Condition = KNOWN) -> list[Ran]:
        return [_ran(family, 0, policy, condition) for family in families]

    rows = [(name, *_means(runs(variant), runs(OURS))) for name, variant in ABLATIONS.items()]
    rows.append((PREEMPTING, *_means(runs(PREEMPTING), runs(OURS))))
    for truth in (KNOWN, MEASURED, ADDITIVE):
        base = runs("sjf_ffs", truth)
        rows.append((f"{truth.what}; sjf_ffs = 1: {OURS}", *_means(runs(OURS, truth), base)))
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
