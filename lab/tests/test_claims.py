"""Verdicts on the papers' claims, and the page that collects them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import ROOT
from lab import RESULTS, reproduce
from lab.claims import Claim, Verdict
from lab.cuckoo import claims as cuckoo


def claim(paper: float, *ours: float, null: float = 0.0) -> Claim:
    return Claim("makespan", paper, ours, "%", "a cause", null)


@pytest.mark.parametrize(
    ("its", "verdict"),
    [
        (claim(-36.0, -30.2), Verdict.REPRODUCED),
        (claim(-36.0, -80.0, -20.0, -10.0), Verdict.DIRECTION),  # a wide range is no match
        (claim(-36.0, -80.0, -36.0, 1.0), Verdict.NOT),  # one seed against it
        (claim(-36.0, -23.7), Verdict.DIRECTION),
        (claim(-36.0, -90.0), Verdict.DIRECTION),  # more than the paper's
        (claim(-36.0, 20.0), Verdict.NOT),
        (claim(1.5, 1.4, null=1.0), Verdict.REPRODUCED),
        (claim(1.5, 1.2, null=1.0), Verdict.DIRECTION),
        (claim(1.5, 0.9, null=1.0), Verdict.NOT),
        (claim(-36.0), Verdict.UNTESTED),
        (replace(claim(3.0, 0.4), at_most=True), Verdict.REPRODUCED),
        (replace(claim(3.0, 4.0), at_most=True), Verdict.NOT),
        (replace(claim(3.0, 0.4, 0.5, 4.0), at_most=True), Verdict.NOT),  # one beyond the bound
    ],
)
def test_a_verdict_is_of_the_effect(its: Claim, verdict: Verdict) -> None:
    assert its.verdict is verdict


def test_deadlines_met_are_judged_by_cuckoos_lead() -> None:
    """No variant meets less than none, so that the share itself would always be an effect."""

    def row(what: str, paper: float) -> dict[str, object]:
        return {"what": what, "unit": "%", "paper": paper, "ours": 0, "low": 0, "high": 0}

    def run(what: str, seed: int, met: float) -> dict[str, object]:
        return {"setting": cuckoo.HEADLINE, "what": what, "seed": seed, "met": met}

    seeds = ((0, 0.8, 0.5), (1, 0.7, 0.7))
    files = {
        "cuckoo": {
            "beside": {
                "headline": [
                    row(cuckoo.UNPACKED, 49.0),
                    row(cuckoo.CUCKOO, 77.0),
                    row("table 12: Blossom, deadlines met", 47.0),
                ]
            },
            "runs": [
                *(run("Cuckoo", seed, met) for seed, met, _ in seeds),
                *(run("Blossom", seed, met) for seed, _, met in seeds),
            ],
            "pairs": [],
        },
        "cuckoo_plans": {"plans": []},
    }
    found = cuckoo.claims(files.__getitem__)
    own, lead = next(found), next(found)
    assert (own.paper, own.null, own.verdict) == (77.0, 49.0, Verdict.REPRODUCED)
    assert (lead.paper, lead.unit) == (30.0, "points")
    assert lead.ours == pytest.approx((30.0, 0.0))
    assert lead.verdict is Verdict.NOT


def test_the_page_has_each_papers_claims_and_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path)
    kept = {"facts": {"date": "2026-11-22T11:00:00Z"}, "makespan": [-30.2, -28.0]}
    (tmp_path / "tables.json").write_text(json.dumps(kept))

    def claims(read: reproduce.Read) -> Iterator[Claim]:
        yield claim(-36.0, *read("tables")["makespan"])
        yield claim(-12.0)

    monkeypatch.setattr(reproduce, "PAPERS", {"CARMA": claims})
    page = reproduce.measure()
    text = page.page({})
    assert "From [tables](tables.md) of 2026-11-22." in text
    assert "-29.1 % (-30.2 to -28.0)" in text
    assert page.data["counts"] == {"CARMA": {Verdict.REPRODUCED: 1, Verdict.UNTESTED: 1}}


def test_the_committed_page_and_the_readme_are_of_the_committed_results() -> None:
    kept = json.loads((RESULTS / "reproduce.json").read_text())["counts"]
    assert reproduce.measure().data["counts"] == kept, "run python -m lab.reproduce"
    counts = [sum(its.get(verdict, 0) for its in kept.values()) for verdict in Verdict]
    done, direction, missed, untested = counts
    ours = [kept["CARMA"].get(verdict, 0) for verdict in Verdict]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"Of their {sum(counts)} main claims, simulated on public data, {done} are reproduced"
        f" within a quarter of the paper's effect, {direction} in direction only, {missed} are not,"
        f" and {untested} cannot be tested here; of CARMA's {sum(ours)}:"
        f" {ours[0]}, {ours[1]}, {ours[2]} and {ours[3]}."
    ) in readme
