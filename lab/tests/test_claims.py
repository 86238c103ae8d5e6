"""Verdicts on the papers' claims, and the page that collects them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import ROOT
from lab import RESULTS, reproduce
from lab.claims import Bound, Claim, Verdict, median_interval
from lab.cuckoo import claims as cuckoo
from lab.cuckoo.paper import CUCKOO_MET, FIFO_MET
from lab.cuckoo.runs import BUSIER, HEADLINE, IN_STEP, SENDING, Result, Setting


def claim(paper: float, *ours: float, null: float = 0.0) -> Claim:
    return Claim("makespan", paper, ours, "%", "a cause", null)


@pytest.mark.parametrize(
    ("its", "verdict"),
    [
        (claim(-36.0, -30.2), Verdict.REPRODUCED),
        (claim(-36.0, -80.0, -31.0, -20.0), Verdict.REPRODUCED),
        (claim(-36.0, -80.0, -36.0, 1.0), Verdict.UNDECIDED),  # three values decide little
        (claim(-36.0, -23.7), Verdict.WEAKER),
        (claim(-36.0, -20.0, -10.0, 1.0), Verdict.NOT),  # no effect is as likely
        (claim(-36.0, -90.0), Verdict.STRONGER),
        (claim(-36.0, 20.0), Verdict.NOT),
        (claim(1.5, 1.4, null=1.0), Verdict.REPRODUCED),
        (claim(1.5, 1.2, null=1.0), Verdict.WEAKER),
        (claim(1.5, 0.9, null=1.0), Verdict.NOT),
        (claim(-36.0), Verdict.UNTESTED),
        (replace(claim(14.0, 2.0), price=True), Verdict.STRONGER),  # it costs less
        (replace(claim(14.0, -1.0), price=True), Verdict.STRONGER),
        (replace(claim(14.0, 30.0), price=True), Verdict.WEAKER),
        (replace(claim(3.0, 0.4), bound=Bound.AT_MOST), Verdict.REPRODUCED),
        (replace(claim(3.0, 4.0), bound=Bound.AT_MOST), Verdict.NOT),
        (replace(claim(3.0, 0.4, 0.5, 4.0), bound=Bound.AT_MOST), Verdict.UNDECIDED),
        (replace(claim(2.0, 3.0), bound=Bound.AT_LEAST), Verdict.REPRODUCED),
        (replace(claim(2.0, 1.0), bound=Bound.AT_LEAST), Verdict.NOT),
    ],
)
def test_a_verdict_is_of_the_medians_interval(its: Claim, verdict: Verdict) -> None:
    assert its.verdict is verdict


def test_one_stray_seed_of_ten_decides_nothing() -> None:
    assert claim(-36.0, *[-35.0] * 9, 40.0).verdict is Verdict.REPRODUCED
    assert median_interval([-35.0] * 9 + [40.0]) == (-35.0, -35.0)


def test_a_claim_names_the_models_of_interference_that_judge_otherwise() -> None:
    its = replace(claim(-36.0, -36.0), under={"none": (-60.0,), "additive": (-33.0,)})
    assert its.disagreeing == {"none": Verdict.STRONGER}
    assert "none: stronger" in its.cells()


def test_deadlines_met_are_judged_by_cuckoos_lead() -> None:
    """No variant meets less than none, so that the share itself would always be an effect."""

    def run(what: str, seed: int, met: float, setting: Setting = HEADLINE) -> dict[str, object]:
        return asdict(Result(setting, what, seed, 4, 4, 9.0, 9.0, met, *[1] * 8))

    seeds = ((0, 0.8, 0.5), (1, 0.7, 0.7))
    files = {
        "cuckoo": {
            "runs": [
                *(run("Cuckoo", seed, met) for seed, met, _ in seeds),
                *(run("Blossom", seed, met) for seed, _, met in seeds),
                *(run("None", seed, 0.4) for seed, *_ in seeds),
                *(run(what, 0, met, SENDING) for what, met in (("Cuckoo", 0.9), ("Blossom", 0.8))),
                *(run(what, 0, 0.5, BUSIER) for what in ("Cuckoo", "Blossom")),
                *(run(what, 0, 0.5, IN_STEP) for what in ("Cuckoo", "Blossom")),
            ],
            "pairs": [],
        },
        "cuckoo_plans": {"plans": []},
    }
    found = cuckoo.claims(files.__getitem__)
    own, lead, *times, untested = islice(found, 7)
    assert (own.paper, own.null, own.verdict) == (CUCKOO_MET, FIFO_MET, Verdict.REPRODUCED)
    assert [each.unit for each in times] == ["×"] * 4  # None's deadlines: what it rests on
    assert untested.verdict is Verdict.UNTESTED
    assert (lead.paper, lead.unit) == (pytest.approx(30.14), "points")
    assert lead.ours == pytest.approx((30.0, 0.0))
    assert lead.verdict is Verdict.UNDECIDED
    assert "10.0 points with table 3's stages and λ = 2 (weaker)" in lead.why
    assert "0 points with groups kept in step, too (not reproduced)" in lead.why


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
    assert "-29.1 % (-30.2 to -28; 2)" in text or "-29.1 % (-30.2 to -28.0; 2)" in text
    assert page.data["counts"] == {"CARMA": {Verdict.REPRODUCED: 1, Verdict.UNTESTED: 1}}


def test_the_committed_page_and_the_evidence_are_of_the_committed_results() -> None:
    kept = json.loads((RESULTS / "reproduce.json").read_text())["counts"]
    assert reproduce.measure().data["counts"] == kept, "run python -m lab.reproduce"
    every, ours = sum(map(Counter, kept.values()), Counter()), kept["CARMA"]
    evidence = " ".join((ROOT / "docs/evidence.md").read_text().split())
    assert (
        f"Of the {reproduce.testable(every)} claims that public data can test,"
        f" {reproduce.held(every)} are reproduced within a quarter of the paper's effect, or"
        f" stronger; of CARMA's own {reproduce.testable(ours)}, {reproduce.held(ours)}."
    ) in evidence
