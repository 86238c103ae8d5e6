"""The Cuckoo paper's main claims: tables 9 to 14, its model of pairs, and its overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lab.claims import Bound, Claim
from lab.cuckoo.page import Beside, Runs, variants
from lab.cuckoo.paper import CUCKOO_MET, FIFO_MET
from lab.cuckoo.runs import HEADLINE, Result

EASY = (
    "pairs hardly slow each other down with the paper's table 1, so packing nearly doubles the"
    " capacity, and Cuckoo misses no deadline"
)
CUCKOO = "tables 9-14: Cuckoo, deadlines met"
BESIDE = "the variant's over Cuckoo's, in the paper's set-up"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    tables = read("cuckoo")
    runs = Runs([Result(**{**row, "setting": tuple(row["setting"])}) for row in tables["runs"]])
    met, *rows = variants(runs, HEADLINE)
    assert met.what == CUCKOO
    yield Claim(CUCKOO, CUCKOO_MET, tuple(met.values), "%", EASY, FIFO_MET)
    for its in rows:
        if its.unit == "x":
            # Where the variant does better, Cuckoo pays for something else.
            price = its.paper < 1
            yield Claim(its.what, its.paper, tuple(its.values), "×", BESIDE, 1.0, price=price)
        elif its.what.split(": ")[1] != "None, deadlines met":  # what the load was calibrated on
            yield _lead(met, its)
    yield Claim(
        "figure 11: precision of AM", 98.7, (), "%", "durations are known exactly in the simulator"
    )
    errors = {row["model"]: row["group"] for row in tables["pairs"][:2]}
    why = "on the pairs that Lucid's authors measured: other models and GPUs"
    for model, paper in (("AM", 13.5), ("Muri-P", 20.2)):
        what = f"figure 10: error of {model}'s iteration times"
        yield Claim(what, paper, (100 * errors[model],), "%", why, bound=Bound.AT_MOST)
    plans = read("cuckoo_plans")["plans"]
    worst_s = tuple(plan["worst_ms"] / 1000 for plan in plans if plan["queued"] == 2000)
    why = "on 16 and on 512 GPUs; another machine"
    yield Claim("time of a plan for 2,000 jobs", 3, worst_s, "s", why, bound=Bound.AT_MOST)


def _lead(cuckoo: Beside, other: Beside) -> Claim:
    """No variant meets less than no deadline: the share itself would always be an effect."""
    lead = tuple(ours - its for ours, its in zip(cuckoo.values, other.values, strict=True))
    what = f"{other.what}: Cuckoo's lead"
    return Claim(what, cuckoo.paper - other.paper, lead, "points", EASY)
