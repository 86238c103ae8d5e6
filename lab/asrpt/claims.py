"""The A-SRPT paper's main claims: figures 5 to 8, its predictions, and table II."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from carmad.readable import number
from lab.asrpt import large, mapping, page, testbed
from lab.asrpt.mapping import ALL_LAYOUTS, FASTER
from lab.asrpt.page import AGAINST_PERFECT, Beside
from lab.asrpt.runs import MORE_SEEDS, PAPER, SEEDS, UNHELD, Case, Result
from lab.claims import Bound, Claim, median_interval

TWICE = "Philly's jobs"  # the claim is made once, of the number of jobs
# What `large` has, too, which is nearer to the paper's 75,000 jobs.
ALSO_LONG = (
    "number of jobs, against any baseline: least",
    "number of jobs, against any baseline: most",
    AGAINST_PERFECT,
)


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    short = {its.what: its for its in page.against_paper(_runs(read("asrpt"), SEEDS))}
    for its in short.values():
        if its.what not in ALSO_LONG and not its.what.startswith(TWICE):
            yield _claim(its)
    for name, its in zip(
        ALSO_LONG, large.against_paper(_runs(read("asrpt_large"), 1)), strict=True
    ):
        yield _because(_claim(its), "in windows of at most 2,000 jobs", short[name].ours[PAPER])
    small = _runs(read("asrpt_testbed"), MORE_SEEDS)
    lead, price = map(_claim, testbed.against_paper(small))
    yield _because(lead, "durations known to it", testbed.knowing(small).ours[PAPER])
    yield price
    prediction = read("asrpt_prediction")
    forest = prediction["judged"][0]
    passing = _right(prediction["spread"], "σ = 0.08, all pass")
    why = (
        "a third of Philly's runs end early, which no earlier run tells; were there none:"
        f" {number(passing)} %"
    )
    yield Claim("predicted correctly", 60, (100 * forest["right"],), "%", why)
    cases = [mapping.Case(**row) for row in read("asrpt_mapping")["cases"]]
    faster = median(mapping.longer(cases, ALL_LAYOUTS + FASTER))
    each = 100 * fmean(c.ours_ms / c.best_ms - 1 for c in cases if c.model == ALL_LAYOUTS)
    (three,) = mapping.longer(cases, "VGG19", draws=1)
    why = (
        "over all layouts, as the paper's is not printed; as the paper has it, of the means over a"
        f" draw's cases, of which the slowest count most: case by case {number(each)} %. With a"
        f" server's bandwidth for each of its GPUs, not equation 6's share: {number(faster)} %; of"
        f" the layout with three stages alone: {number(three)} %"
    )
    what = "table II: VGG19's iteration, above the optimum"
    yield Claim(what, 6.2, mapping.longer(cases, ALL_LAYOUTS), "%", why, bound=Bound.AT_MOST)
    took = tuple(case.ours_took_ms for case in cases if case.model == "VGG19")
    what, why = "table II: time of a placement", "another machine"
    yield Claim(what, 1.94, took, "ms", why, bound=Bound.AT_MOST)


def _claim(its: Beside) -> Claim:
    """With what becomes of it if the baselines take other servers, and if its queue is not held."""
    price = its.what.endswith(AGAINST_PERFECT)
    claim = Claim(its.what, its.paper, tuple(its.ours[PAPER]), "%", price=price)
    if its.on_servers:
        claim = _because(claim, "its baselines on its servers, not by index", its.on_servers)
    return _because(claim, "its queue not held", its.ours[UNHELD]) if UNHELD in its.ours else claim


def _because(claim: Claim, what: str, values: Sequence[float]) -> Claim:
    """The claim, with a set-up in which the values are these."""
    other = replace(claim, ours=tuple(values))
    why = f"{what}: {_interval(values)}, {other.verdict}"
    return replace(claim, why="; ".join(filter(None, (claim.why, why))))


def _interval(values: Sequence[float]) -> str:
    middle = number(median(values))
    if len(values) == 1:
        return f"{middle} %"
    low, high = map(number, median_interval(values))
    return f"{middle} % ({low} to {high})"


def _right(tried: Sequence[Mapping[str, Any]], what: str) -> float:
    """How many of all jobs the forest predicts correctly then, in percent."""
    ((forest, *_),) = (each["judged"] for each in tried if each["what"] == what)
    return 100.0 * float(forest["right"])


def _runs(read: Any, count: int) -> page.Runs:
    rows = [{**row, "case": Case(**row["case"])} for row in read["runs"]]
    return page.Runs({row["case"]: Result(**row) for row in rows}, count)
