"""The Cuckoo paper's main claims: tables 9 to 14, its model of pairs, and its overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from carmad.readable import number
from lab.claims import Bound, Claim
from lab.cuckoo.page import Beside, Runs, variants
from lab.cuckoo.paper import CUCKOO_MET, FIFO_MET
from lab.cuckoo.runs import BUSIER, HEADLINE, IN_STEP, SENDING, Result, Setting

CALIBRATED = "table 12: None, deadlines met"
CUCKOO = "tables 9-14: Cuckoo, deadlines met"
CAUSES: dict[str, Setting] = {
    "with jobs so long that Cuckoo misses deadlines": BUSIER,
    "with table 3's stages and λ = 2": SENDING,
    "with groups kept in step, too": IN_STEP,
}
SETTING = "with Muri's stages, calibrated on None"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    tables = read("cuckoo")
    runs = Runs([Result(**{**row, "setting": tuple(row["setting"])}) for row in tables["runs"]])
    elsewhere = {name: _judged(runs, setting) for name, setting in CAUSES.items()}
    for what, claim in _judged(runs, HEADLINE).items():
        found = (
            f"{number(its[what].median)} {claim.unit} {name} ({its[what].verdict})"
            for name, its in elsewhere.items()
            if what in its
        )
        yield replace(claim, why=f"{SETTING}; run, too: {', '.join(found)}")
    yield Claim(
        "figure 11: precision of AM", 98.7, (), "%", "durations are known exactly in the simulator"
    )
    errors = {(row["data"], row["model"]): row["group"] for row in tables["pairs"]}
    data = tables["pairs"][0]["data"] if errors else ""
    for model, paper in (("AM", 13.5), ("Muri-P", 20.2)):
        what = f"figure 10: error of {model}'s iteration times"
        alike = 100 * errors[data, f"{model}, iterations made even"]
        free = 100 * errors[data, "free running"]
        why = (
            f"on Lucid's pairs, which nothing keeps in step: {number(alike)} % if iterations are"
            f" taken as equally long, {number(free)} % by a model in which nobody waits"
        )
        yield Claim(what, paper, (100 * errors[data, model],), "%", why, bound=Bound.AT_MOST)
    plans = read("cuckoo_plans")["plans"]
    worst_s = tuple(plan["worst_ms"] / 1000 for plan in plans if plan["queued"] == 2000)
    why = "on 16 and on 512 GPUs; another machine"
    yield Claim("time of a plan for 2,000 jobs", 3, worst_s, "s", why, bound=Bound.AT_MOST)


def _judged(runs: Runs, setting: Setting) -> dict[str, Claim]:
    """The claims on the variants, by their names, without the figure that durations rest on."""
    met, *rows = variants(runs, setting)
    assert met.what == CUCKOO
    claims = (
        # Where the variant does better, Cuckoo pays for something else.
        Claim(its.what, its.paper, tuple(its.values), "×", "", 1.0, price=its.paper < 1)
        if its.unit == "x"
        else _lead(met, its)
        for its in rows
        if its.what != CALIBRATED
    )
    own = Claim(CUCKOO, CUCKOO_MET, tuple(met.values), "%", "", FIFO_MET)
    return {claim.what: claim for claim in (own, *claims)}


def _lead(cuckoo: Beside, other: Beside) -> Claim:
    """No variant meets less than no deadline: the share itself would always be an effect."""
    lead = tuple(ours - its for ours, its in zip(cuckoo.values, other.values, strict=True))
    what = f"{other.what}: Cuckoo's lead"
    return Claim(what, cuckoo.paper - other.paper, lead, "points", "")
