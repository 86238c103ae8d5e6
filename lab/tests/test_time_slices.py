"""The evidence page states what was measured on time slices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import ROOT
from lab import RESULTS
from lab.simulator.time_slices import LAB_DAY, errors_by_activity, gains, h100_pairs

KEPT: dict[str, Any] = json.loads((RESULTS / "time_slices.json").read_text())
BUSY, IDLE, BUSY_3090, _ = KEPT["pairs"]


def test_the_results_are_of_the_pairs_that_the_h100_ran() -> None:
    assert [list(each) for each in gains("H100", h100_pairs())] == [BUSY, IDLE]
    assert errors_by_activity() == pytest.approx(KEPT["errors by activity"])


def test_the_evidence_has_the_pairs_and_both_coefficients() -> None:
    text = (ROOT / "docs/evidence.md").read_text().replace("&nbsp;", " ")
    evidence = " ".join(text.split())
    (_, alone_h), *shared_h = KEPT["trace 1"]
    rows = [row for row in KEPT["rows"] if row["workload"] == LAB_DAY.name]
    alone_min, *shared_min = (row["own"][1] for row in rows if "risk" not in row["what"])
    for said in (
        f"both keep it busy: **{BUSY[3]:.2f}**; one leaves it idle at times: **{IDLE[3]:.2f}**",
        f"of the {BUSY[2] + IDLE[2]} whose utilisation by NVML was read",
        f"they do {BUSY[4]:.2f} to {BUSY[5]:.2f} times as much: turns cost a tenth",
        f"they do {IDLE[4]:.2f} to {IDLE[5]:.2f} times as much. It follows",
        f"on an RTX 3090, those that keep it busy do {BUSY_3090[3]:.2f} times as much",
        f"| {alone_min:.0f} min: one job per GPU | jobs slow each other as on an RTX 3090:",
        "**{:.0f} min**; as on the H100: **{:.0f} min**".format(*shared_min),
        f"| {alone_h:.1f} h: one job per GPU | as on an RTX 3090:",
        "**{:.1f} h**; as on the H100: **{:.1f} h**".format(*(hours for _, hours in shared_h)),
    ):
        assert said in evidence
