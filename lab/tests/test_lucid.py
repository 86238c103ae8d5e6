"""The input of Lucid's benchmark to the simulator, and how it evaluates the outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

pytest.importorskip("interpret", reason="needs carma-gpu[policies]")

from sklearn.tree import DecisionTreeClassifier

from carma_simulator import interference
from carma_simulator.experiment import Attempt, JobOutcome, Load, Task, Trace
from carmad.core.jobs.attempt import Cause, JobId, Mode
from carmad.core.jobs.states import JobState
from carmad.learning.files import find_model
from carmad.learning.models import Tree
from lab.data import DATA
from lab.lucid import packing, packing_tree, page, runs, sensitivity_page, timing, workload
from lab.lucid.findings import Runs
from policies.lucid.traits import MODEL

public = pytest.mark.skipif(not DATA.exists(), reason="the public traces are not at ../shared/data")


@pytest.fixture
def given() -> Iterator[None]:
    """Models of nothing, and interference as learned."""
    runs._take(runs.Given({}, "learned"))
    yield
    runs._GIVEN.clear()


@pytest.mark.long
@public
def test_the_week_is_the_papers_and_its_long_jobs_are_the_busy_ones() -> None:
    week = workload.week(workload.TEST)
    assert week.tasks[0].submit_s == 0
    assert 6 * 86_400 < week.tasks[-1].submit_s < 7 * 86_400
    over_jobs, over_time = workload.busy(week)
    assert over_time > 1.2 * over_jobs
    assert all(task.load.model and task.load.memory_mib < 24_576 for task in week.tasks)
    assert week == workload.week(workload.TEST)
    assert week != workload.week(workload.TEST, seed=1)


@pytest.mark.long
@public
def test_each_sample_gets_gpus_by_what_its_jobs_ask_for() -> None:
    samples = [workload.sample(workload.TEST, number) for number in workload.SAMPLES]
    assert [round(workload.asked(each.tasks), 1) for each in samples] == [*workload.ASKED]
    assert max(task.gpus for each in samples for task in each.tasks) <= runs.WIDEST
    assert len({task.name for task in samples[0].tasks}) == len(samples[0].tasks)
    assert round(workload.service_rate(864 / workload.PARTS), 2) == runs.OFF_BELOW


@public
def test_figure_12_leaves_out_the_busiest_or_the_least_busy_configurations() -> None:
    low, median, high = (
        workload.busy(workload.sample(workload.TEST, 0, busy))[0]
        for busy in ("low", "median", "high")
    )
    assert low < 0.8 * median < 0.8 * high


def test_work_beyond_the_week_is_not_asked_for_within_it() -> None:
    week_s = 7 * 86_400.0
    tasks = [
        Task(name="", submit_s=0.0, duration_s=2 * week_s, gpus=2),
        Task(name="", submit_s=week_s / 2, duration_s=week_s / 4, gpus=4),
    ]
    assert workload.asked(tasks) == 3.0


@public
def test_mixed_precision_is_part_of_a_models_name(tmp_path: Path) -> None:
    """The second pair of the file: ResNet18 at 0.97 beside MobileNetV3, which gains nothing."""
    measured = interference.make(workload.pairs(tmp_path))
    mobile, amp, plain = (Load(model, 32) for model in ("MobileNetV3", "ResNet18 amp", "ResNet18"))
    assert measured.speeds((mobile, amp), Mode.STREAMS) == (1.0, 0.97)
    assert measured.speeds((mobile, plain), Mode.STREAMS) == (0.983, 1.0)


def test_submissions_are_counted_by_ten_minutes() -> None:
    tasks = [
        Task(name="", submit_s=at, duration_s=1.0, gpus=gpus)
        for at, gpus in ((1300.0, 2), (1301.0, 1), (2600.0, 8))
    ]
    assert workload._bins(tasks, begin=100.0) == (1200.0, [(2, 3), (0, 0), (1, 8)])


@pytest.mark.usefixtures("given")
def test_an_ablation_changes_the_policy_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, one to profile on: light jobs share the other one, unless sharing is off."""
    light = Load("m", 1, memory_mib=2000, sm_active=0.05, sm_occupancy=0.01, dram_active=0.01)
    tasks = tuple(
        Task(name=f"t{n}", submit_s=10.0 * n, duration_s=4000.0, load=light, expected_s=4000.0)
        for n in range(6)
    )
    monkeypatch.setattr(runs, "trace", lambda name: Trace("six", tasks))
    made = runs.settings("lucid", replace(runs.PROFILER, gpus=1))
    case = runs.Case("", "", "", "1x2xRTX3090-24GB", made, "truth", interference="conserving")
    whole, alone = runs.run(case), runs.run(replace(case, ablation={"sharing": "off"}))
    assert whole.finished == alone.finished == 6
    assert whole.slowdown > 1.0 == pytest.approx(alone.slowdown, abs=1e-6)
    assert whole.queue < alone.queue
    assert whole.lost_s >= 200 and whole.profiled == 0.0


def test_only_the_policies_paper_gives_what_a_policy_is_told() -> None:
    cases = runs.cases() + [case for case in runs.sensitivity() if case.table != "muri"]
    knows = {(case.settings.policy, case.knows) for case in cases}
    assert {policy for policy, known in knows if known == "profiled"} == {"lucid"}
    assert {known for policy, known in knows if policy in ("fifo", "horus", "tiresias")} == {
        "nothing"
    }
    assert all(
        case.settings.limits.preemption == (case.settings.policy == "tiresias") for case in cases
    )
    headline = [case for case in cases if case.table == "headline"]
    assert len({(case.trace, case.gpus) for case in headline}) == len(workload.SAMPLES), (
        "all policies have the same GPUs"
    )


def test_who_ended_while_profiled() -> None:
    profiling = replace(runs.PROFILER, gpus=8)
    short, long = _attempt(0, 150), _attempt(0, 250)
    sent_back = replace(short, cause=Cause.PROFILED)
    assert runs._ended_profiled(_job(short), profiling)
    assert not runs._ended_profiled(_job(long), profiling)
    assert not runs._ended_profiled(_job(sent_back, long), profiling)
    assert not runs._ended_profiled(_job(short), replace(profiling, gpus=0))


def _attempt(begin: float, end: float) -> Attempt:
    return Attempt((), Mode.EXCLUSIVE, begin, begin + 10, end, Cause.SUCCESS)


def _job(*attempts: Attempt) -> JobOutcome:
    task = Task(name="t", submit_s=0.0, duration_s=100.0)
    return JobOutcome(JobId(1), task, JobState.SUCCEEDED, attempts, 110.0, 0.0)


@public
def test_pairs_whose_utilisations_fit_are_nearly_all_free_of_interference() -> None:
    guarded, careful, anyhow = (
        packing.pack("none", lambda _: 0, None, guard)
        for guard in (packing.GUARD, packing.ALL_OF_IT, None)
    )
    assert (round(guarded.free, 3), round(guarded.found, 3)) == (0.976, 0.882)
    assert (round(careful.free, 3), round(careful.found, 3)) == (0.995, 0.694)
    assert anyhow.free < 0.85


def test_plans_are_made_for_a_full_line() -> None:
    idle, joined, one, full = timing.latencies(plans=1)
    assert idle.placed >= 30 and joined.placed > 0
    assert (one.placed, full.placed) == (1, 0)
    assert min(each.median_ms for each in (idle, joined, one, full)) > 0


def test_the_page_sets_ours_beside_the_papers() -> None:
    """The samples' JCTs are 1 to 5 hours under the first policy, 6 to 10 under the next."""
    results = [_result(case, jct=1.0 + n) for n, case in enumerate(runs.cases())]
    found = Runs(results)
    claims = list(page.against_table_4(found))
    assert [each.claim.paper for each in claims[:6]] == [36.85, 9.41, 9.03, 10.49, 9.02, 6.84]
    assert [each.claim.ours for each in claims[:6]] == [3.0, 8.0, 13.0, 18.0, 23.0, 28.0]
    assert (claims[1].low, claims[1].high) == (6.0, 10.0)
    ratios = list(page.against_lucid(found))
    assert ratios[0].claim.ours == pytest.approx(3 / 28)  # formed sample by sample
    assert (ratios[0].low, ratios[0].high) == (pytest.approx(1 / 26), pytest.approx(5 / 30))
    assert ratios[0].claim.paper == pytest.approx(36.85 / 6.84)


@pytest.mark.long
@public
def test_the_pages_have_a_table_for_every_case() -> None:
    cases = runs.cases()
    main = page.report([_result(case, 1.0 + n) for n, case in enumerate(cases)], [], {})
    assert all(f"| {case.what} " in main.page({}) for case in cases if case.table != "loads")
    claims = main.data["claims"]
    assert isinstance(claims, dict)
    assert claims["figure 11: queue, without binder : whole"].claim.paper == 1.4

    cases = [*runs.sensitivity(), *runs.tuned(runs.TUNED[0])]
    results = [_result(case, 1.0 + n) for n, case in enumerate(cases)]
    other = sensitivity_page.report(results, runs.TUNED[0])
    assert all(f"| {case.what} " in other.page({}) for case in cases if case.table == "muri")
    claims = other.data["claims"]
    assert isinstance(claims, dict)
    assert len(claims) == 1 + 3 + len(runs.THRESHOLDS) + 4 * len(runs.LIMITS_S)


def _result(case: runs.Case, jct: float) -> runs.Result:
    return runs.Result(
        case.table, case.what, case.trace, case.gpus, 10, 10, jct, jct / 2, jct * 9, 0.0, 1.0,
        0, 0, 1.5, 3, 0.5, 20.0, 0.2, 30.0, 1.0,
    )  # fmt: skip


@public
def test_the_shipped_tree_is_what_the_public_pairs_teach() -> None:
    shipped = find_model(MODEL, Tree, {})
    assert shipped == packing_tree.fit(packing.rows(), shipped.source, 0.0, shipped.errors)


def _configurations() -> list[dict[str, object]]:
    random = Random(8)
    rows: list[dict[str, object]] = []
    for n in range(120):
        busy = random.random()
        label = packing_tree.CLASSES[(busy > 0.3) + (busy > 0.7)]
        figures = {name: random.random() for name in packing_tree.FEATURES}
        figures["gpu_utilization"] = busy
        rows.append({**figures, "label": label, "model": f"net{n % 12}"})
    return rows


def test_the_packing_tree_finds_the_thresholds_and_is_pruned_to_them() -> None:
    tree = packing_tree.train(_configurations(), "nowhere", 7.0)
    assert len(tree.nodes) == 5
    thresholds = sorted(node.threshold for node in tree.nodes if node.feature >= 0)
    assert thresholds == pytest.approx([0.3, 0.7], abs=0.05)
    assert dict(tree.errors)["accuracy"] > 0.9
    assert (tree.rows, tree.trained_at, tree.source) == (120, 7.0, "nowhere")


def test_a_tree_value_predicts_what_scikit_learn_does() -> None:
    rows = _configurations()
    for n, row in enumerate(rows):
        row["label"] = packing_tree.CLASSES[(n % 5) // 2]  # noise: the tree is deep
    values = np.array([[row[name] for name in packing_tree.FEATURES] for row in rows], dtype=float)
    labels = [packing_tree.CLASSES.index(str(row["label"])) for row in rows]
    grown = DecisionTreeClassifier(random_state=0, min_samples_leaf=4).fit(values, labels)
    tree = packing_tree.converted(grown, "", 120, 0.0, ())
    unseen = np.random.default_rng(0).random((200, len(packing_tree.FEATURES)))
    told = [
        tree.predict(dict(zip(packing_tree.FEATURES, row, strict=True))) for row in unseen.tolist()
    ]
    assert told == [packing_tree.CLASSES[c] for c in grown.predict(unseen)]
    importance = dict(tree.importance())
    assert [importance[name] for name in packing_tree.FEATURES] == pytest.approx(
        grown.feature_importances_.tolist()
    )


def test_a_class_that_no_row_has_is_never_told() -> None:
    rows = [row for row in _configurations() if row["label"] != "medium"]
    tree = packing_tree.fit(rows, "", 0.0)
    assert tree.predict({"gpu_utilization": 0.9}) == "jumbo"
    assert tree.nodes[0].counts[1] == 0


def test_a_job_is_labelled_by_what_its_neighbours_keep_of_their_speed() -> None:
    speeds = packing_tree.average_speeds(
        [("a", "b", 0.9, 0.7), ("a", "c", 1.0, 0.9), ("c", "c", 0.8, 0.6)]
    )
    assert speeds == pytest.approx({"a": 0.8, "b": 0.9, "c": (1.0 + 0.8 + 0.6) / 3})
    assert [packing_tree.label(s) for s in (0.95, 0.949, 0.85, 0.849)] == [
        "tiny",
        "medium",
        "medium",
        "jumbo",
    ]
