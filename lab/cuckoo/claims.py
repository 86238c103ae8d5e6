"""The Cuckoo paper's main claims: tables 9 to 14, its model of pairs, and its overhead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lab.claims import Claim

LEFT_OUT = ("calibrated", "None, deadlines met", "figure 11")  # nothing shown: calibrated, or known
EASY = (
    "pairs hardly slow each other down with the paper's table 1, so packing nearly doubles the"
    " capacity, and Cuckoo misses no deadline"
)
CUCKOO, UNPACKED = (
    "tables 9-14: Cuckoo, deadlines met",
    "table 1: not packed, deadlines met (calibrated)",
)
HEADLINE = ["Muri", "free running"]
BESIDE = "the variant's over Cuckoo's, in the paper's set-up"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    tables = read("cuckoo")
    headline, met = tables["beside"]["headline"], _met(tables["runs"])
    told = {its["what"]: its["paper"] for its in headline}
    for its in headline:
        what = its["what"]
        if any(each in what for each in LEFT_OUT):
            continue
        if what == CUCKOO:
            yield Claim(what, told[what], met["Cuckoo"], "%", EASY, told[UNPACKED])
        elif its["unit"] == "x":
            ours = (its["low"], its["ours"], its["high"])
            yield Claim(what, its["paper"], ours, "×", BESIDE, 1.0)
        else:
            variant = what.partition(": ")[2].partition(",")[0]
            both = zip(met["Cuckoo"], met[variant], strict=True)
            lead = tuple(mine - other for mine, other in both)
            what = f"{what}: Cuckoo's lead"
            yield Claim(what, told[CUCKOO] - its["paper"], lead, "points", EASY)
    yield Claim(
        "figure 11: precision of AM", 98.7, (), "%", "durations are known exactly in the simulator"
    )
    errors = {row["model"]: row["group"] for row in tables["pairs"][:2]}
    why = "on the pairs that Lucid's authors measured: other models and GPUs"
    for model, paper in (("AM", 13.5), ("Muri-P", 20.2)):
        what = f"figure 10: error of {model}'s iteration times"
        yield Claim(what, paper, (100 * errors[model],), "%", why, at_most=True)
    plans = read("cuckoo_plans")["plans"]
    worst_s = tuple(plan["worst_ms"] / 1000 for plan in plans if plan["queued"] == 2000)
    why = "on 16 and on 512 GPUs; another machine"
    yield Claim("time of a plan for 2,000 jobs", 3, worst_s, "s", why, at_most=True)


def _met(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, tuple[float, ...]]:
    """Deadlines met in the paper's set-up, in %, by variant: a value per seed."""
    found: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for run in runs:
        if run["setting"] == HEADLINE:
            found[run["what"]][run["seed"]] = 100 * run["met"]
    return {what: tuple(by_seed[n] for n in sorted(by_seed)) for what, by_seed in found.items()}
