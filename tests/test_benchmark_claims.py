"""Verdicts on the papers' claims, and the page that collects them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import reproduce
from benchmarks.harness import report
from benchmarks.harness.claims import Claim, Verdict


def claim(paper: float, *ours: float, null: float = 0.0, source: str = "CARMA") -> Claim:
    return Claim(source, "makespan", paper, ours, "%", "a cause", null)


@pytest.mark.parametrize(
    ("its", "verdict"),
    [
        (claim(-36.0, -30.2), Verdict.REPRODUCED),
        (claim(-36.0, -80.0, -20.0, -10.0), Verdict.REPRODUCED),  # in our range
        (claim(-36.0, -80.0, -36.0, 1.0), Verdict.NOT),  # one seed against it
        (claim(-36.0, -23.7), Verdict.DIRECTION),
        (claim(-36.0, -90.0), Verdict.DIRECTION),  # more than the paper's
        (claim(-36.0, 20.0), Verdict.NOT),
        (claim(1.5, 1.4, null=1.0), Verdict.REPRODUCED),
        (claim(1.5, 1.2, null=1.0), Verdict.DIRECTION),
        (claim(1.5, 0.9, null=1.0), Verdict.NOT),
        (claim(-36.0), Verdict.UNTESTED),
    ],
)
def test_a_verdict_is_of_the_effect(its: Claim, verdict: Verdict) -> None:
    assert its.verdict is verdict


def test_the_page_has_the_claims_of_all_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    kept = {
        "carma": [claim(-36.0, -30.2, -28.0), claim(-12.0)],
        "lucid": [claim(2.0, source="Lucid")],
    }
    for name, its in kept.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"claims": [asdict(c) for c in its]}))
    (tmp_path / "speed.json").write_text(json.dumps({"rows": []}))
    page = reproduce.measure()
    text = page.page({})
    assert "From [carma](carma.md)." in text
    assert "-29.1 % (-30.2 to -28.0)" in text
    assert page.data["counts"]["CARMA"] == {Verdict.REPRODUCED: 1, Verdict.UNTESTED: 1}  # type: ignore[index]
    assert "## Castor\n\nFrom no result." in text
