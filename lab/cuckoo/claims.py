"""The Cuckoo paper's main claims: tables 9 to 14, its model of pairs, and its overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from carmad.readable import number
from lab.claims import Bound, Claim, SetUp
from lab.cuckoo.page import Runs, variants
from lab.cuckoo.paper import CUCKOO_MET, TABLES
from lab.cuckoo.runs import BUSIER, HEADLINE, IN_STEP, SENDING, Result, Setting

# Of None and of Cuckoo: how hard the deadlines are is the set-up's, and no claim.
DEADLINES = "table 12: None, deadlines met"
CAUSES: dict[str, Setting] = {
    "with jobs so long that Cuckoo misses deadlines": BUSIER,
    "with table 3's stages and λ = 2": SENDING,
    "with groups kept in step, too": IN_STEP,
}
SETTING = "Muri's stages, calibrated on None"


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    tables = read("cuckoo")
    runs = Runs([Result(**{**row, "setting": tuple(row["setting"])}) for row in tables["runs"]])
    elsewhere = {name: _judged(runs, setting) for name, setting in CAUSES.items()}
    for what, claim in _judged(runs, HEADLINE).items():
        tried = (f"{name}: {its[what].told}" for name, its in elsewhere.items() if what in its)
        yield replace(claim, note=SETTING, cause="; ".join(tried))
    note = "durations are known exactly in the simulator"
    yield Claim("figure 11: precision of AM", 98.7, (), "%", note)
    note = (
        "of groups that an executor keeps in step: nobody published such; on Lucid's pairs, which"
        f" nothing does, AM is off by {_error(tables, 'AM')}, Muri-P (paper: 20.2 %) by"
        f" {_error(tables, 'Muri-P')}"
    )
    yield Claim("figure 10: error of AM's iteration times", 13.5, (), "%", note)
    plans = read("cuckoo_plans")["plans"]
    worst_s = max((plan["worst_ms"] / 1000 for plan in plans if plan["queued"] == 2000), default=0)
    note = "the longest of all plans, on 16 and on 512 GPUs; another machine"
    what, ours = "time of a plan for 2,000 jobs", (worst_s,) if worst_s else ()
    yield Claim(what, 3, ours, "s", note, bound=Bound.AT_MOST, whole=True)


def _error(tables: Mapping[str, Any], model: str) -> str:
    for row in tables["pairs"]:
        if row["model"] == model:
            return f"{number(100 * row['group'])} %"
    return "?"


def _judged(runs: Runs, setting: Setting) -> dict[str, Claim]:
    """The claims on the variants, by their names: all as ratios, as the paper has them."""
    met, *rows = variants(runs, setting)
    claims = {}
    for its in rows:
        if its.what == DEADLINES:
            continue
        if its.unit == "x":
            # Where the variant does better, Cuckoo pays for something else.
            paper, ours, price = its.paper, tuple(its.values), its.paper < 1
        else:
            paper, price = met.paper / its.paper, False
            ours = tuple(own / of for own, of in zip(met.values, its.values, strict=True))
        claims[its.what] = Claim(
            its.what, paper, ours, "×", null=1.0, price=price, setup=_setup(runs, setting)
        )
    return claims


def _setup(runs: Runs, setting: Setting) -> tuple[SetUp, ...]:
    """How hard the deadlines are: without packing, and with Cuckoo."""
    if not runs.of("None", setting):
        return ()
    return tuple(
        SetUp(f"{what} meets", paper, 100 * runs.median("met", what, setting), "%")
        for what, paper in (("None", TABLES["table 12"]["None"].met), ("Cuckoo", CUCKOO_MET))
    )
