"""The A-SRPT paper's main claims: figures 5 to 8, its predictions, and table II."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lab.asrpt import page, testbed
from lab.asrpt.runs import PAPER, Case, Result
from lab.claims import Bound, Claim

WINDOWS = "five windows of jobs; which servers its baselines take, the paper does not say"
TWICE = "Philly's jobs"  # the claim is made once, of the number of jobs
PRICE = "against perfect prediction"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    for its in (
        *page.against_paper(_runs(read("asrpt"))),
        *testbed.against_paper(_runs(read("asrpt_testbed"))),
    ):
        if not its.what.startswith(TWICE):
            ours, price = tuple(its.ours[PAPER]), its.what.endswith(PRICE)
            yield Claim(its.what, its.paper, ours, "%", WINDOWS, price=price)
    forest = read("asrpt_prediction")["judged"][0]
    why = "jobs of PAI's trace that recur; the paper does not say which it took"
    yield Claim("predicted correctly", 60, (100 * forest["right"],), "%", why)
    cases = [case for case in read("asrpt_mapping")["cases"] if case["model"] == "VGG19"]
    longer = 100 * (sum(c["ours_ms"] for c in cases) / sum(c["best_ms"] for c in cases) - 1)
    why = "of the layout with three stages; 12 % over all layouts: the paper's is not printed"
    what = "table II: VGG19's iteration, above the optimum"
    yield Claim(what, 6.2, (longer,), "%", why, bound=Bound.AT_MOST)
    took = tuple(case["ours_took_ms"] for case in cases)
    what, why = "table II: time of a placement", "another machine"
    yield Claim(what, 1.94, took, "ms", why, bound=Bound.AT_MOST)


def _runs(read: Any) -> page.Runs:
    rows = [{**row, "case": Case(**row["case"])} for row in read["runs"]]
    return page.Runs({row["case"]: Result(**row) for row in rows})
