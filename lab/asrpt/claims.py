"""The A-SRPT paper's main claims: figures 5 to 8, its predictions, and table II."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lab.asrpt.runs import OURS
from lab.claims import Claim

WINDOWS = "five windows of jobs; which servers its baselines take, the paper does not say"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    for its in (*read("asrpt")["beside"], *read("asrpt_testbed")["beside"]):
        median, low, high = its["ours"][OURS[0]]
        yield Claim(its["what"], its["paper"], (low, median, high), "%", WINDOWS)
    forest = read("asrpt_prediction")["judged"][0]
    why = "jobs of PAI's trace that recur; the paper does not say which it took"
    yield Claim("predicted correctly", 60, (100 * forest["right"],), "%", why)
    cases = [case for case in read("asrpt_mapping")["cases"] if case["model"] == "VGG19"]
    longer = 100 * (sum(c["ours_ms"] for c in cases) / sum(c["best_ms"] for c in cases) - 1)
    why = "of the layout with three stages; 12 % over all layouts: the paper's is not printed"
    what = "table II: VGG19's iteration, above the optimum"
    yield Claim(what, 6.2, (longer,), "%", why, at_most=True)
    took = [case["ours_took_ms"] for case in cases]
    why = "another machine"
    yield Claim("table II: time of a placement", 1.94, tuple(took), "ms", why, at_most=True)
