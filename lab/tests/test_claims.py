"""Verdicts on the papers' claims, and the page that collects them."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import ROOT
from lab import RESULTS, reproduce
from lab.carma import claims as carma
from lab.castor import claims as castor
from lab.claims import Bound, Claim, SetUp, Verdict, median_interval
from lab.cuckoo import claims as cuckoo
from lab.cuckoo.runs import BUSIER, HEADLINE, IN_STEP, SENDING, Result, Setting

NEITHER = ("Cuckoo", "Blossom")


def claim(paper: float, *ours: float, null: float = 0.0, whole: bool = False) -> Claim:
    return Claim("makespan", paper, ours, "%", null=null, whole=whole)


def five(paper: float, value: float, null: float = 0.0) -> Claim:
    return claim(paper, *[value] * 5, null=null)


BUSY = SetUp("fifo queues", 10.0, 8.0, "h")
IDLE = SetUp("fifo queues", 10.0, 7.0, "h")


@pytest.mark.parametrize(
    ("its", "verdict"),
    [
        # The median decides.
        (five(-36.0, -30.2), Verdict.REPRODUCED),
        (five(-36.0, -27.0), Verdict.REPRODUCED),  # 0.75 of the effect
        (five(-36.0, -26.9), Verdict.WEAKER),
        (five(-36.0, -45.0), Verdict.REPRODUCED),  # 1.25
        (five(-36.0, 0.0), Verdict.NOT),
        (five(-36.0, 20.0), Verdict.NOT),
        (five(1.5, 1.4, null=1.0), Verdict.REPRODUCED),
        (five(1.5, 1.2, null=1.0), Verdict.WEAKER),  # of a ratio, what is above 1
        (five(1.5, 0.9, null=1.0), Verdict.NOT),
        (claim(-36.0, *[-35.0] * 9, 40.0), Verdict.REPRODUCED),  # one stray seed of ten
        (replace(five(14.0, 30.0), price=True), Verdict.WEAKER),
        (replace(five(14.0, -1.0), price=True, setup=(BUSY,)), Verdict.STRONGER),  # it costs less
        # Noise does not help.
        (claim(-36.0, -80.0, -60.0, -50.0, -31.0, -20.0), Verdict.UNDECIDED),
        (claim(-36.0, -30.0, -30.0, -30.0, -20.0, -20.0), Verdict.UNDECIDED),
        (claim(-36.0, -20.0, -20.0, -10.0, 1.0, 1.0), Verdict.UNDECIDED),
        # Few draws decide nothing, whatever they say; one figure does where nothing is drawn.
        (claim(-36.0, -36.0), Verdict.INDICATIVE),
        (claim(-36.0, -36.0, -36.0, -36.0, -36.0), Verdict.INDICATIVE),
        (claim(-36.0, -36.0, whole=True), Verdict.REPRODUCED),
        (claim(-36.0, -18.0, whole=True), Verdict.WEAKER),
        # Stronger only where the set-up is the paper's.
        (five(-36.0, -90.0), Verdict.ELSEWHERE),  # none is known
        (replace(five(-36.0, -90.0), setup=(BUSY,)), Verdict.STRONGER),
        (replace(five(-36.0, -90.0), setup=(BUSY, IDLE)), Verdict.ELSEWHERE),
        (replace(five(-36.0, -36.0), setup=(IDLE,)), Verdict.REPRODUCED),
        # Limits.
        (replace(five(3.0, 0.4), bound=Bound.AT_MOST), Verdict.REPRODUCED),
        (replace(five(3.0, 4.0), bound=Bound.AT_MOST), Verdict.NOT),
        (replace(claim(3.0, 0.4, 0.5, 0.6, 4.0, 4.0), bound=Bound.AT_MOST), Verdict.UNDECIDED),
        (replace(five(2.0, 3.0), bound=Bound.AT_LEAST), Verdict.REPRODUCED),
        (replace(five(2.0, 1.0), bound=Bound.AT_LEAST), Verdict.NOT),
        # Nothing to judge, or judged on what it was chosen by.
        (claim(-36.0), Verdict.UNTESTED),
        (replace(claim(-36.0), due=True), Verdict.DUE),
        (replace(five(-36.0, -36.0), fitted=True), Verdict.FITTED),
    ],
)
def test_a_verdict_follows_the_rule(its: Claim, verdict: Verdict) -> None:
    assert its.verdict is verdict


def test_a_row_says_what_the_figures_alone_would_say() -> None:
    assert "indicative (weaker)" in claim(-36.0, -18.0).cells()
    assert "another set-up (stronger)" in five(-36.0, -90.0).cells()
    mixed = claim(-36.0, -80.0, -60.0, -50.0, -31.0, 1.0)
    assert "undecided (not reproduced to stronger)" in mixed.cells()
    assert "fifo queues 10.0 h (7.00)" in replace(mixed, setup=(IDLE,)).cells()
    assert (
        mixed.otherwise("busier", [-36.5] * 5) == "busier: -36.5 % (-36.5 to -36.5; 5), reproduced"
    )


def test_what_is_not_reproduced_has_a_tested_cause_or_says_so() -> None:
    weaker = five(-36.0, -18.0)
    assert weaker.cells()[-1] == "no cause tested"
    assert replace(weaker, cause="the load").cells()[-1] == "the load"
    assert five(-36.0, -36.0).cells()[-1] == claim(-36.0).cells()[-1] == ""


def test_where_a_median_lies() -> None:
    assert median_interval([-35.0] * 9 + [40.0]) == (-35.0, -35.0)


def test_a_claim_names_the_models_of_interference_that_judge_otherwise() -> None:
    its = claim(-36.0, -36.0, whole=True)
    its = replace(its, under={"none": (-10.0,), "additive": (-33.0,)})
    assert its.disagreeing == {"none": Verdict.WEAKER}
    assert "none: weaker" in its.cells()


def test_deadlines_met_are_judged_as_ratios() -> None:
    """In points, whoever meets few deadlines would leave much to gain."""

    def run(what: str, seed: int, met: float, setting: Setting = HEADLINE) -> dict[str, object]:
        return asdict(Result(setting, what, seed, 4, 4, 9.0, 9.0, met, *[1] * 8))

    mets = ((0.8, 0.5), (0.8, 0.5), (0.8, 0.4), (0.9, 0.5), (0.8, 0.6))
    files = {
        "cuckoo": {
            "runs": [
                *(run("Cuckoo", seed, met) for seed, (met, _) in enumerate(mets)),
                *(run("Blossom", seed, met) for seed, (_, met) in enumerate(mets)),
                *(run("None", seed, 0.5) for seed in range(5)),
                *(run(what, 0, met, SENDING) for what, met in (("Cuckoo", 0.9), ("Blossom", 0.8))),
                *(run(what, 0, 0.5, setting) for what in NEITHER for setting in (BUSIER, IN_STEP)),
            ],
            "pairs": [],
        },
        "cuckoo_plans": {"plans": [{"queued": 2000, "worst_ms": ms} for ms in (9.0, 400.0)]},
    }
    found = {its.what: its for its in cuckoo.claims(files.__getitem__)}
    ratio = found["table 12: Blossom, deadlines met"]
    assert (ratio.paper, ratio.null, ratio.unit) == (pytest.approx(77.16 / 47.02), 1.0, "×")
    assert sorted(ratio.ours) == pytest.approx([0.8 / 0.6, 1.6, 1.6, 1.8, 2.0])
    assert [(each.what, each.ours) for each in ratio.setup] == [
        ("None meets", pytest.approx(50.0)),
        ("Cuckoo meets", pytest.approx(80.0)),
    ]
    assert "with table 3's stages and λ = 2: 1.12 ×, indicative (weaker)" in ratio.cause
    assert "table 12: None, deadlines met" not in found  # the set-up's
    assert found["figure 10: error of AM's iteration times"].verdict is Verdict.UNTESTED
    assert found["time of a plan for 2,000 jobs"].ours == (0.4,)  # the worst, no mean of clusters


def test_carmas_traces_are_judged_in_their_own_order() -> None:
    own, others = (-18.2,), (-30.0,) * 9
    files = {
        "carma_tables": {
            "claims": [{"what": what, "paper": 30.6} for what in ("SMACT, magm, recovery only",)],
            "orders": {"conserving": {"SMACT, magm, recovery only": [*own, *others]}},
            "oracle's crashes": [0] * 10,
            "rests on": {"as above": {"magm, recovery only": {"smact_change": 30.0}}},
        },
        "carma_trace2": {"paper": -30.0, "makespans": {"conserving": [*own, *others]}},
    }
    *_, trace2 = islice(carma.claims(files.__getitem__), 3)
    assert (trace2.ours, trace2.verdict) == (own, Verdict.WEAKER)
    assert "in ten orders: -30.0 % (-30.0 to -30.0; 10), reproduced" in trace2.note


def test_the_page_has_each_papers_claims_and_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path)
    monkeypatch.setattr(reproduce, "BEFORE", tmp_path / "before.csv")
    (tmp_path / "before.csv").write_text(
        "paper,claim,before,judged as,why\n"
        "CARMA,makespan,reproduced,,\n"
        "CARMA,energy,stronger,makespan,the same twice\n"
        "CARMA,share,stronger,-,of the set-up\n"
    )
    kept = {"facts": {"date": "2026-11-22T11:00:00Z"}, "makespan": [-30.2, -28.0]}
    (tmp_path / "tables.json").write_text(json.dumps(kept))

    def claims(read: reproduce.Read) -> Iterator[Claim]:
        yield claim(-36.0, *read("tables")["makespan"])
        yield replace(claim(-12.0), what="JCT")

    monkeypatch.setattr(reproduce, "PAPERS", {"CARMA": claims})
    page = reproduce.measure()
    text = " ".join(page.page({}).split())
    assert "From [tables](tables.md) of 2026-11-22." in text
    assert "-29.1 % (-30.2 to -28; 2)" in text or "-29.1 % (-30.2 to -28.0; 2)" in text
    assert page.data["counts"] == {"CARMA": {Verdict.INDICATIVE: 1, Verdict.UNTESTED: 1}}
    assert page.data["verdicts"] == {
        "CARMA": {"makespan": Verdict.INDICATIVE, "JCT": Verdict.UNTESTED}
    }
    assert "| CARMA | makespan | reproduced | indicative | too few draws |" in text
    assert "| CARMA | energy | stronger | indicative: makespan | the same twice |" in text
    assert "| CARMA | share | stronger | no claim | of the set-up |" in text


def test_what_is_still_to_be_run_counts_among_what_can_be_tested() -> None:
    counts = Counter([Verdict.REPRODUCED, Verdict.DUE, Verdict.UNTESTED, Verdict.FITTED])
    assert (reproduce.held(counts), reproduce.testable(counts)) == (1, 2)


def test_castor_s_set_up_is_how_crowded_fifo_and_the_baseline_are() -> None:
    read = lambda name: json.loads((RESULTS / f"{name}.json").read_text())  # noqa: E731
    setups = {its.what: [each.what for each in its.setup] for its in castor.claims(read)}
    shares = ["fifo's share of queueing", "tiresias's share of queueing"]
    assert setups["mean JCT against tiresias, Philly"] == shares
    assert setups["mean JCT against fifo, Philly"] == shares[:1]


def test_every_changed_verdict_has_a_reason() -> None:
    verdicts = reproduce.measure().data["verdicts"]
    with reproduce.BEFORE.open(newline="") as file:
        for paper, what, _, elsewhere, _ in list(csv.reader(file))[1:]:
            assert elsewhere == "-" or (elsewhere or what) in verdicts[paper]
    assert all(why for *_, why in reproduce.changed(verdicts))


def test_the_committed_page_and_what_rests_on_it_are_of_the_committed_results() -> None:
    kept = json.loads((RESULTS / "reproduce.json").read_text())
    rows = sum(map(len, kept["verdicts"].values()))  # by name: each has its own
    assert rows == sum(sum(its.values()) for its in kept["counts"].values())
    assert reproduce.measure().data["verdicts"] == kept["verdicts"], "run python -m lab.reproduce"
    every, ours = sum(map(Counter, kept["counts"].values()), Counter()), kept["counts"]["CARMA"]
    count = f"{reproduce.held(every)} of the {reproduce.testable(every)} claims"
    own = f"{reproduce.held(ours)} of CARMA's own {reproduce.testable(ours)}"
    for page in ("README.md", "docs/evidence.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert count in text, page
        assert own in text, page


def test_the_readme_says_how_far_gpumemnet_is_off() -> None:
    timm = json.loads((RESULTS / "memory_timm.json").read_text())["judged"]
    its, every = timm["GPUMemNet, where it answers"], timm["Horus"]["n"]
    told = (
        f"GPUMemNet answers for {its['n'] / every:.0%} of {every:,} measured runs,"
        f" and is off by {its['absolute'][0] / 1024:.1f} GiB in the median"
    )
    assert told in " ".join((ROOT / "README.md").read_text().replace("&nbsp;", " ").split())
