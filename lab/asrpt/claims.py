"""The A-SRPT paper's main claims: figures 5 to 8, its predictions, and table II."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from carmad.readable import number
from lab.asrpt import page, testbed
from lab.asrpt.runs import MORE_SEEDS, PAPER, SEEDS, Case, Result
from lab.claims import Claim, median_interval

TWICE = "Philly's jobs"  # the claim is made once, of the number of jobs
PRICE = "against perfect prediction"
CAUSES: dict[str, str] = {}


def claims(read: Callable[[str], Any]) -> Iterator[Claim]:
    for its in (
        *page.against_paper(_runs(read("asrpt"), SEEDS)),
        *testbed.against_paper(_runs(read("asrpt_testbed"), MORE_SEEDS)),
    ):
        if not its.what.startswith(TWICE):
            ours, price = tuple(its.ours[PAPER]), its.what.endswith(PRICE)
            claim = Claim(its.what, its.paper, ours, "%", CAUSES.get(its.what, ""), price=price)
            yield _with_servers(claim, its) if its.on_servers else claim


def _with_servers(claim: Claim, its: page.Beside) -> Claim:
    """The claim, with what becomes of it where the baselines take A-SRPT's servers."""
    other = replace(claim, ours=tuple(its.on_servers))
    low, high = map(number, median_interval(other.ours))
    servers = (
        f"its baselines fill servers by index; on A-SRPT's servers: {number(other.median)} %"
        f" ({low} to {high}): {other.verdict}"
    )
    return replace(claim, why="; ".join(filter(None, (servers, claim.why))))


def _runs(read: Any, count: int) -> page.Runs:
    rows = [{**row, "case": Case(**row["case"])} for row in read["runs"]]
    return page.Runs({row["case"]: Result(**row) for row in rows}, count)
