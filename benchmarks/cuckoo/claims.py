"""The Cuckoo paper's main claims: tables 9 to 14, its model of pairs, and its overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness.claims import Claim

LEFT_OUT = ("calibrated", "None, deadlines met", "figure 11")  # nothing shown: calibrated, or known
EASY = (
    "pairs hardly slow each other down with the paper's table 1, so packing nearly doubles the"
    " capacity, and Cuckoo misses no deadline"
)
BESIDE = "the variant's over Cuckoo's, in the paper's set-up"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    for its in read("cuckoo_few")["beside"]["headline"]:
        if any(each in its["what"] for each in LEFT_OUT):
            continue
        times = its["unit"] == "x"
        ours = (its["low"], its["ours"], its["high"])
        unit, why, null = ("×", BESIDE, 1.0) if times else ("%", EASY, 0.0)
        yield Claim(its["what"], its["paper"], ours, unit, why, null)
    yield Claim(
        "figure 11: precision of AM", 98.7, (), "%", "durations are known exactly in the simulator"
    )
    errors = {row["model"]: row["group"] for row in read("cuckoo")["pairs"][:2]}
    why = "on the pairs that Lucid's authors measured: other models and GPUs"
    for model, paper in (("AM", 13.5), ("Muri-P", 20.2)):
        what = f"figure 10: error of {model}'s iteration times"
        yield Claim(what, paper, (100 * errors[model],), "%", why, at_most=True)
    worst_s = tuple(plan["worst_ms"] / 1000 for plan in read("cuckoo")["plans"])
    why = "100 to 2,000 jobs in line; another machine"
    yield Claim("time of a plan for 2,000 jobs", 3, worst_s, "s", why, at_most=True)
