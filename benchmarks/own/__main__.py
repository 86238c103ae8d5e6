"""`policy = "carma"` against all others: mean JCT, makespan and p99 JCT at once.

Tuned on some traces, judged on others (`families`). All that is compared ran in this very run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median

from benchmarks.harness.data import DATA
from benchmarks.harness.main import main
from benchmarks.harness.report import Report, bullets
from benchmarks.harness.rows import columns, verdict
from benchmarks.own import bound
from benchmarks.own.families import JUDGING, TUNING, Family, case
from benchmarks.own.runs import (
    ADDITIVE,
    KNOWN,
    NOTHING,
    PREDICTED,
    WRONG,
    Condition,
    Ran,
    longest_wait,
    run,
)
from carmad.config import Settings
from carmad.core.ports import Policy
from policies.carma.policy import carma
from policies.filters import unoccupied
from policies.ranked import Ranked

OURS = "carma"
SHARING = ("magm", "first_fit")  # FIFO, shared
RIVALS = ("sjf_ffs", "lucid", "castor", "asrpt", "cuckoo", "tiresias")
QUICK = ("sjf_ffs", "lucid", "castor")  # with less known: the rivals that predictions matter to
ONCE = ("cuckoo",)  # takes seconds: on the first trace of each family only
FEW = 1  # traces of a family where less is known, for ablations, and to show those tuned on

MAKESPAN, P99, WAITS = 1.01, 1.05, 2.0
JCT = {KNOWN: 0.65, PREDICTED: 0.75, WRONG: 0.9}

Variant = Callable[[Settings], Policy]


def _without(**fields: object) -> Variant:
    return lambda settings: replace(carma(settings), **fields)  # type: ignore[arg-type]


def _floor(settings: Settings) -> Policy:
    """One line of `Ranked`: ageing order, MAGM's rank and conditions but for the test of risk."""
    ours = carma(settings)
    return Ranked("floor", ours.memory, ours.magm.rank, ours.order)


def _unshared(settings: Settings) -> Policy:
    ours = carma(settings)
    return replace(ours, memory=(unoccupied(settings), *ours.memory))


ABLATIONS: Mapping[str, Variant] = {
    "order by service alone (no ageing)": _without(ageing=float("inf")),
    "order by arrival": _without(ageing=0.0),
    "joins whoever has the memory": _without(selective=False),
    "never shares": _unshared,
    "holds no GPUs": _without(hold=0),
    "holds GPUs for jobs of one, too": _without(hold=1),
    "the floor: one line of `Ranked`": _floor,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """Ratios of one trace: JCT to the best rival's, makespan to the best, p99 to MAGM's."""

    rival: str
    jct: float
    bound: float  # what no policy's JCT can fall below, to the same
    makespan: float
    p99: float
    ooms: int  # more than MAGM's
    waits: float
    unfinished: int


EXPLANATION = f"""\
Ratios, medians over a family's traces (lowest to highest).

- JCT: mean, to the best rival's, all with the same knowledge. Rivals: {", ".join(RIVALS)}
  ({", ".join(ONCE)} on the first trace of each family only); where less is known, and on the traces
  for tuning, {", ".join(QUICK)}, on the first trace.
- Bound: what no policy's JCT can fall below (`benchmarks.own.bound`). Where it is above the goal,
  this cannot be reached; a bound below it does not say that it can.
- Makespan: to the best of all, {" and ".join(SHARING)} (FIFO, shared) among them.
- p99 JCT: to magm's.
- OOM and unfinished: crashes and lost jobs, more than magm's, at most.
- Waits: the user who waits longest, on average, relative to the same under magm."""


def measure() -> Report:
    judged = {each: _judged(JUDGING, each) for each in (KNOWN, PREDICTED, WRONG, NOTHING)}
    tuned = _judged(TUNING, KNOWN)
    ablations = _ablated()
    tables = [
        (f"Judged: {condition.what}", _table(found, JCT.get(condition)))
        for condition, found in judged.items()
    ]
    tables += [(f"Tuned: {KNOWN.what}", _table(tuned, None)), ("Ablations", ablations)]
    tables += [("Traces to judge by", _listed(JUDGING)), ("Traces for tuning", _listed(TUNING))]
    blocks = [EXPLANATION]
    for heading, table in tables:
        blocks += [f"## {heading}", table]
    data = {
        "judged": {condition.name: _plain(found) for condition, found in judged.items()},
        "tuned": _plain(tuned),
    }
    return Report(
        "A policy of our own",
        blocks,
        data,
        ["simulated; no MPS, no preemption (but for tiresias), `limits.backfill` 0"],
    )


def _listed(families: Sequence[Family]) -> str:
    return bullets(f"{family.name}: {family.what}" for family in families)


def _judged(families: Sequence[Family], condition: Condition) -> dict[Family, list[Judged]]:
    rivals = RIVALS if condition is KNOWN and families is JUDGING else QUICK
    return {
        family: [
            _judge(family, number, condition, rivals)
            for number in range(len(family.cases) if rivals is RIVALS else FEW)
        ]
        for family in families
    }


def _judge(family: Family, number: int, condition: Condition, rivals: Sequence[str]) -> Judged:
    this = case(family, number)
    names = [name for name in (*SHARING, *rivals) if number == 0 or name not in ONCE]
    others = {name: run(this, name, condition) for name in names}
    ours = run(this, OURS, condition)
    rival = min(
        (name for name in names if name not in SHARING), key=lambda name: others[name].jct_s
    )
    best_s, fifo = others[rival].jct_s, others["magm"]
    return Judged(
        rival,
        ours.jct_s / best_s,
        bound.mean_jct_s(this) / best_s,
        ours.makespan_s / min(other.makespan_s for other in others.values()),
        ours.p99_s / fifo.p99_s,
        ours.ooms - fifo.ooms,
        longest_wait(ours, fifo),
        ours.unfinished - fifo.unfinished,
    )


def _table(found: Mapping[Family, list[Judged]], goal: float | None) -> str:
    def cell(name: str, limit: float | None) -> Callable[[tuple[Family, list[Judged]]], str]:
        def text(row: tuple[Family, list[Judged]]) -> str:
            values = [getattr(each, name) for each in row[1]]
            text = f"{median(values):.2f}"
            if len(values) > 1:
                text += f" ({min(values):.2f}–{max(values):.2f})"
            return text if limit is None else f"{text} {verdict(median(values) <= limit)}"

        return text

    return columns(
        list(found.items()),
        ("family", lambda row: f"{row[0].name}, {len(row[1])}"),
        ("best rival", lambda row: ", ".join(sorted({each.rival for each in row[1]}))),
        (f"JCT ≤ {goal}" if goal else "JCT", cell("jct", goal)),
        ("bound", cell("bound", None)),
        (f"makespan ≤ {MAKESPAN}", cell("makespan", MAKESPAN)),
        (f"p99 ≤ {P99}", cell("p99", P99)),
        ("OOM", lambda row: f"{max(each.ooms for each in row[1]):+d}"),
        (f"waits ≤ {WAITS:.0f}", cell("waits", WAITS)),
        ("unfinished", lambda row: f"{max(each.unfinished for each in row[1]):+d}"),
        text=(0, 1),
    )


def _ablated() -> str:
    """Variants, relative to the policy as it is; and how it compares under another truth."""
    cases = [case(family, n) for family in JUDGING for n in range(FEW)]
    whole = [run(this, OURS, KNOWN) for this in cases]
    rows = [
        (name, *_means([run(this, variant, KNOWN) for this in cases], whole))
        for name, variant in ABLATIONS.items()
    ]
    ours, theirs = ([run(this, name, ADDITIVE) for this in cases] for name in (OURS, "sjf_ffs"))
    rows.append((f"sjf_ffs = 1; {ADDITIVE.what}", *_means(ours, theirs)))
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


def _plain(found: Mapping[Family, list[Judged]]) -> dict[str, list[Judged]]:
    return {family.name: each for family, each in found.items()}


if __name__ == "__main__":
    main("own", measure, DATA)
