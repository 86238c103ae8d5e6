"""The A-SRPT paper's main claims: figures 5 to 8, its predictions, and table II."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from lab.asrpt import large, mapping, page, testbed
from lab.asrpt.mapping import ALL_LAYOUTS, FASTER
from lab.asrpt.page import AGAINST_PERFECT, Beside
from lab.asrpt.runs import MORE_SEEDS, PAPER, SEEDS, UNHELD, Case, Result
from lab.claims import Bound, Claim

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
        claim = _claim(its)
        many = short[name].on_servers or short[name].ours[PAPER]
        told = claim.otherwise("in windows of at most 2,000 jobs", many)
        yield replace(claim, note="; ".join(filter(None, ("one window", claim.note, told))))
    small = _runs(read("asrpt_testbed"), MORE_SEEDS)
    lead, price = map(_claim, testbed.against_paper(small))
    known = lead.otherwise("durations known to it", testbed.knowing(small).ours[PAPER])
    yield replace(lead, cause=f"{lead.cause}; {known}")
    yield price
    prediction = read("asrpt_prediction")
    right = 100 * prediction["judged"][0]["right"]
    note = "Philly's jobs, which come back as PAI's do: PAI's own are not at hand"
    claim = Claim("predicted correctly", 60, (right,), "%", note, whole=True)
    passing = _right(prediction["spread"], "σ = 0.08, all pass")
    told = claim.otherwise("were there none", (passing,))
    why = f"a third of Philly's runs end early, which no earlier run tells; {told}"
    yield replace(claim, cause=why)
    cases = [mapping.Case(**row) for row in read("asrpt_mapping")["cases"]]
    each = 100 * fmean(c.ours_ms / c.best_ms - 1 for c in cases if c.model == ALL_LAYOUTS)
    what = "table II: VGG19's iteration, above the optimum"
    claim = Claim(what, 6.2, mapping.longer(cases, ALL_LAYOUTS), "%", price=True)
    others = {
        "the one with three stages": mapping.longer(cases, "VGG19", draws=1),
        "the mean over cases, not of sums": (each,),
    }
    told = "; ".join(claim.otherwise(how, values) for how, values in others.items())
    faster = mapping.longer(cases, ALL_LAYOUTS + FASTER)
    yield replace(
        claim,
        note=f"all layouts, as the paper's is not printed; {told}",
        cause=claim.otherwise("with a server's bandwidth for each of its GPUs", faster),
    )
    took = tuple(case.ours_took_ms for case in cases if case.model == "VGG19")
    what, note = "table II: time of a placement", "“under two milliseconds”; another machine"
    yield Claim(what, 2, took, "ms", note, bound=Bound.AT_MOST)


def _claim(its: Beside) -> Claim:
    """All policies on the servers that A-SRPT takes: from which its baselines take theirs the paper
    does not say, and whoever takes them by index loses by that alone."""
    by_index, price = tuple(its.ours[PAPER]), its.what.endswith(AGAINST_PERFECT)
    ours = tuple(its.on_servers) or by_index
    claim = Claim(its.what, its.paper, ours, "%", price=price)
    unheld = its.ours.get(UNHELD, ())
    note, others = "", {"its queue not held": unheld}
    if its.on_servers:
        note = "its baselines on its servers"
        others = {"its baselines take servers by index": by_index, "and its queue not held": unheld}
    told = (claim.otherwise(how, values) for how, values in others.items() if values)
    return replace(claim, note=note, cause="; ".join(told))


def _right(tried: Sequence[Mapping[str, Any]], what: str) -> float:
    """How many of all jobs the forest predicts correctly then, in percent."""
    ((forest, *_),) = (each["judged"] for each in tried if each["what"] == what)
    return 100.0 * float(forest["right"])


def _runs(read: Any, count: int) -> page.Runs:
    rows = [{**row, "case": Case(**row["case"])} for row in read["runs"]]
    return page.Runs({row["case"]: Result(**row) for row in rows}, count)
