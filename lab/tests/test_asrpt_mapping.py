"""The optimum of `python -m lab.asrpt.mapping`, checked against all mappings."""

from itertools import permutations

import pytest

pytest.importorskip("scipy")

from carmad.config import Links
from carmad.core.jobs.layout import Layout, Stage, iteration_s
from lab.asrpt.mapping import CASES, GPUS, Case, layouts, measured, optimum, report, rooms, slots
from policies.asrpt.heavy_edge import heavy_edge

LINKS = Links(within_mib_s=10_000.0, between_mib_s=1_000.0)
PIPELINE = Layout(
    (
        Stage(2, 0.1, 0.2, out_mib=9.0, weights_mib=5.0),
        Stage(3, 0.1, 0.3, 6.0, 2.0, 40.0),
        Stage(1, 0.1, 0.1, in_mib=6.0),
    )
)


@pytest.mark.parametrize("room", [(3, 2, 1), (2, 2, 2), (4, 2), (5, 1), (1,) * 6])
def test_no_mapping_is_faster_than_the_optimum(room):
    servers = [m for m, gpus in enumerate(room) for _ in range(gpus)]
    best = min(iteration_s(PIPELINE, each, LINKS, 8) for each in set(permutations(servers)))
    counts = optimum(PIPELINE, room, LINKS, 8)
    assert counts.sum(axis=0).tolist() == list(room)
    assert counts.sum(axis=1).tolist() == [2, 3, 1]
    assert iteration_s(PIPELINE, slots(counts), LINKS, 8) == pytest.approx(best)
    assert iteration_s(PIPELINE, heavy_edge(PIPELINE, room), LINKS, 8) >= best - 1e-9


def test_rooms_vary_and_hold_the_job():
    found = rooms(GPUS)
    assert len(found) == CASES
    assert len(set(found)) > CASES / 2
    assert {sum(room) for room in found} == {GPUS}
    assert {layout.gpus for layout in layouts().values()} == {GPUS}


def test_the_page_sets_ours_beside_the_papers():
    cases = [
        Case("VGG19", (8, 8), 110.0, 100.0, 1.0, 50.0),
        Case("VGG19", (4, 8, 4), 100.0, 100.0, 1.0, 70.0),
        Case("GPT-175B", (8, 8), 10.0, 10.0, 0.5, 50.0),
    ]
    others = [Case("VGG19, all layouts", (1, 1), 12.0, 10.0, 0.1, 5.0)]
    text = report(cases, others).page({"date": "today"})
    assert "20.0 %" in text
    assert "| VGG19: longer by" in text
    assert "-1.2 points" in text, "5 % where the paper has 6.2 %"
    assert "1 of 2" in text


def test_a_case_is_measured():
    name, layout = next(iter(layouts().items()))
    case = next(measured(name, layout))
    assert case.ours_ms >= case.best_ms - 1e-6
    assert case.room == rooms(GPUS)[0]
