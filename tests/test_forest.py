"""Durations of recurring jobs: the forest, the table made of it, and its predictors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from random import Random
from statistics import fmean, median
from typing import Any

import pytest

from carmad.api.models import detail_out
from carmad.config import Settings
from carmad.core.history import History
from carmad.core.recurrence import group
from carmad.errors import CarmaError
from carmad.models import Lookup, Model
from carmad.sim.experiment import Experiment
from carmad.sim.hardware import parse
from carmad.sim.workload import Workload
from carmad.store import codec
from carmad.testing import a_job, a_spec
from cli import model_view
from estimators.duration import forest as predicting
from estimators.duration import recurrence
from tests.test_models_shown import plain

pytest.importorskip("sklearn", reason="training needs carma-gpu[policies]")

from benchmarks.asrpt import layouts as asrpt_layouts
from benchmarks.asrpt import prediction as asrpt_prediction
from benchmarks.asrpt import workload as asrpt_workload
from carmad.learning import forest

TABLE = Lookup("seconds", "a test", {"ada's": 50.0}, 3, 1e9, (("median error (s)", 2.0),))
needs_data = pytest.mark.skipif(
    not asrpt_workload.PHILLY.exists(), reason="the public traces are not here"
)


def row(n: int, group: str, seconds: float, user: str = "ada") -> dict[str, Any]:
    return {"group": group, "user": user, "duration_s": seconds, "submitted_at": float(n)}


def columns(runs: Mapping[str, list[float]]) -> tuple[list[str], list[str], list[float]]:
    pairs = [(name, each) for name, found in runs.items() for each in found]
    return [name for name, _ in pairs], ["ada"] * len(pairs), [each for _, each in pairs]


# -- what is learned


def test_of_each_group_it_says_about_the_mean() -> None:
    random = Random(1)
    runs = {f"{n:012x}": [(n + 1) * random.uniform(90, 110) for _ in range(40)] for n in range(8)}
    told = forest.grown(*columns(runs))
    assert told.keys() == runs.keys()
    for name, seconds in runs.items():
        assert told[name] == pytest.approx(fmean(seconds), rel=0.03)
    assert told == forest.grown(*columns(runs)), "drawn alike each time"


def test_groups_stay_apart_whose_hashes_are_near() -> None:
    """As 32-bit floats these would be equal."""
    near = {"ffffffffffe0": [100.0] * 20, "ffffffffffff": [900.0] * 20}
    told = forest.grown(*columns(near))
    assert told["ffffffffffe0"] < 200 and told["ffffffffffff"] > 800


def test_nobodys_jobs_move_what_is_told_of_anothers() -> None:
    """In every third tree, a group that ran once would get its neighbour's duration."""
    runs = {"b": [100.0], "c": [90.0, 120.0], **{f"a{n}": [1e6] for n in range(20)}, "d": [1e6]}
    assert forest.grown(*columns(runs))["b"] > 10_000, "as the paper has it"
    told = forest.within_own(*columns(runs))
    assert told["b"] == 100.0
    assert 90.0 <= told["c"] <= 120.0


def test_what_it_is_compared_with() -> None:
    runs = {"a": [1.0, 2.0, 9.0], "b": [5.0]}
    assert forest.means(*columns(runs)) == {"a": 4.0, "b": 5.0}
    assert forest.medians(*columns(runs)) == {"a": 2.0, "b": 5.0}


def test_errors_are_of_jobs_that_ran_before() -> None:
    found = forest.measured({"a": 100.0}, ["a", "a", "a", "new"], [110.0, 112.0, 60.0, 9e9])
    assert found == forest.Errors(
        mean_s=pytest.approx(62 / 3), median_s=12, right=1 / 3, known=0.75
    )
    assert forest.measured({}, ["new"], [1.0]) is None


def test_the_newest_fifth_judges() -> None:
    """Its durations have changed; the order of the rows does not matter."""
    old = [row(n, f"g{n % 4}", 100.0) for n in range(80)]
    new = [row(100 + n, f"g{n % 4}", 140.0) for n in range(20)]
    nobody = [row(300, "", 1e9)]
    model = forest.train([*new, *nobody, *old], "a test", 5.0)
    errors = dict(model.errors)
    assert errors["median error (s)"] == errors["mean error (s)"] == pytest.approx(40)
    assert (
        errors["group's median: median error (s)"] == errors["group's mean: mean error (s)"] == 40
    )
    assert (errors["within 10%"], errors["had run before"]) == (0.0, 1.0)
    assert (model.rows, model.trained_at, set(model.seconds)) == (
        100,
        5.0,
        {"g0", "g1", "g2", "g3"},
    )
    assert all(100 < seconds < 140 for seconds in model.seconds.values()), "from all rows"
    assert forest.since(model, new) == ("median error (s)", pytest.approx(32, abs=3))


@pytest.mark.parametrize("rows", [[], [row(n, f"g{n}", 1.0) for n in range(10)]])
def test_where_nothing_recurs_nothing_is_learned(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(CarmaError, match="no job has run again"):
        forest.train(rows, "a test", 0.0)


# -- the table


def test_it_is_kept_as_json() -> None:
    text = codec.encode_model(TABLE)
    assert json.loads(text)["seconds"] == {"ada's": 50.0}
    assert codec.decode_model(text) == TABLE
    assert (TABLE.predict("ada's"), TABLE.predict("bob's")) == (50.0, 0.0)


def test_it_is_shown() -> None:
    shown = plain(model_view.model(detail_out("forest", TABLE, see_all=False)))
    assert "forest  (lookup)" in shown and "3 rows: a test" in shown
    assert "median error (s)  2" in " ".join(shown.split()).replace(" 2", "  2")
    assert "ada" not in shown


@pytest.mark.parametrize(("days", "often"), [(7.0, "7 days"), (0.04, "58 min")])
def test_how_often_is_told_in_hours_too(days: float, often: str) -> None:
    training = {
        "every_days": days,
        "lacking": "",
        "last_at": None,
        "under_way": False,
        "last_words": [],
    }
    answer: Any = {"models": [], "training": training}
    assert f"trained every {often}, last" in plain(model_view.models(answer))


# -- who predicts


def asked(predictor: Any, models: Mapping[str, Model], past: tuple[float, ...] = ()) -> Any:
    job = a_job(group="ada's")
    known = History()
    for seconds in past:
        known.by_group.add("ada's", seconds)
    return predictor.predict(job, known, models, 0.0)


def test_the_forest_goes_before_the_history_and_what_neither_knows_is_short() -> None:
    predictor = predicting.forest(Settings())
    table = {"forest": TABLE}
    for models, past, seconds, source in (
        (table, (7.0,), 50.0, "forest"),
        ({}, (7.0, 9.0, 90.0), 9.0, "history"),
        ({"forest": Lookup("", "", {"bob's": 1.0}, 1, 0.0)}, (7.0,), 7.0, "history"),
        ({}, (), 0.0, "forest"),
    ):
        said = asked(predictor, models, past)
        assert (said.seconds, said.source) == (seconds, source)
        assert said.notes


def test_mean_and_median_are_of_earlier_runs() -> None:
    runs = (1.0, 2.0, 9.0)
    for predictor, seconds in (
        (recurrence.mean(Settings()), fmean(runs)),
        (recurrence.median(Settings()), median(runs)),
    ):
        said = asked(predictor, {"forest": TABLE}, runs)
        assert (said.seconds, said.source) == (seconds, predictor.name)
        assert said.notes == (f"the {predictor.name} of 3 runs of this job",)
        assert asked(predictor, {}).seconds == 0.0


def test_the_owner_knows_best() -> None:
    sure = a_job(group="ada's", spec=a_spec(expected_s=3.0))
    known = History()
    known.by_group.add("ada's", 7.0)
    for made in (predicting.forest, recurrence.mean, recurrence.median):
        said = made(Settings()).predict(sure, known, {"forest": TABLE}, 0.0)
        assert said is not None and (said.seconds, said.source) == (3.0, "declared")


# -- the workload of the benchmarks


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 12, 16, 24, 32, 64, 128])
def test_every_layout_has_its_gpus_and_room_for_its_parameters(gpus: int) -> None:
    options = dict(asrpt_layouts.options(gpus))
    assert ("gpt-175b" in options) is (gpus >= 64)
    for layouts in options.values():
        for layout in layouts:
            assert layout.gpus == gpus
            for stage in layout.stages:
                parameters = stage.weights_mib / asrpt_layouts.VALUE_MIB
                assert parameters * asrpt_layouts.PARAMETER_BYTES <= asrpt_layouts.ROOM_BYTES
            for one, other in pairwise(layout.stages):  # what one passes on, the other takes
                passed, taken = (one.replicas * one.out_mib, other.replicas * other.in_mib)
                assert passed == pytest.approx(taken) and passed > 0
            assert layout.stages[0].in_mib == layout.stages[-1].out_mib == 0


def test_a_network_takes_as_long_however_it_is_cut() -> None:
    """In GPU seconds of a mini-batch; VGG19 has all 144 million parameters."""
    for name, layouts in asrpt_layouts.options(8):
        spent = {
            sum(s.replicas * (s.forward_s + s.backward_s) for s in layout.stages)
            for layout in layouts
        }
        assert max(spent) == pytest.approx(min(spent)), name
    vgg = dict(asrpt_layouts.options(1))["vgg19"][0].stages[0]
    assert vgg.weights_mib / asrpt_layouts.VALUE_MIB == pytest.approx(143_667_240, rel=1e-3)


@needs_data
def test_jobs_recur_as_published_and_durations_stay_phillys() -> None:
    jobs = asrpt_workload.whole(seed=1, jobs=60_000)
    sizes = Counter(jobs.group.tolist())
    recurring = sum(n for n in sizes.values() if n >= asrpt_workload.RECURS) / 60_000
    assert recurring == pytest.approx(0.65, abs=0.04)
    _, durations, gpus, _ = asrpt_workload._philly(60_000)
    assert jobs.duration_s.tolist() == durations.tolist()
    demands = [jobs.demands[g] for g in jobs.group]
    assert demands == jobs.gpus.tolist() == gpus.tolist()
    mean_s = asrpt_workload.DAYS * 86_400 / asrpt_workload.JOBS
    assert jobs.at_s[-1] / 60_000 == pytest.approx(mean_s, rel=0.3)
    assert len(set(jobs.users)) < 1.1 * asrpt_workload.USERS


@needs_data
def test_runs_of_a_group_that_passed_are_near_each_other() -> None:
    """Of a large group most jobs are near one of its longer ones; of jobs at random few are."""
    jobs = asrpt_workload.whole(seed=1, jobs=60_000)
    runs: dict[int, list[float]] = {}
    for g, seconds in zip(jobs.group.tolist(), jobs.duration_s.tolist(), strict=True):
        runs.setdefault(g, []).append(seconds)
    large = [each for each in runs.values() if len(each) >= 20]
    assert len(large) > 50
    mixed = [jobs.duration_s[n::100].tolist() for n in range(100)]
    assert median(map(near, large)) > 0.6 > 0.3 > median(map(near, mixed))


def near(seconds: list[float]) -> float:
    """The share within 30 % of the longer ones' usual."""
    usual = sorted(seconds)[int(0.7 * len(seconds))]
    return fmean(abs(each / usual - 1) < 0.3 for each in seconds)


@needs_data
def test_the_simulator_tells_groups_as_the_benchmark_does(monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(asrpt_workload.whole, jobs=5_000)
    monkeypatch.setattr(asrpt_workload, "whole", small)
    trace = asrpt_workload.made(900, single_gpu=0.5)
    assert len(trace.tasks) == 900 and trace.tasks[0].submit_s == 0.0
    assert asrpt_workload.load(trace) > 0
    single = sum(task.gpus == 1 for task in trace.tasks) / 900
    assert single == pytest.approx(0.5, abs=0.06)
    for task in trace.tasks:
        assert task.layout and task.layout.gpus == task.gpus and task.iteration_s > 0
    workload = Workload(Experiment(trace, parse("2x8xV100-32GB")))
    known = asrpt_workload.learned(single_gpu=0.5, how=forest.medians)
    groups = [group(workload.spec(n)) for n in range(1, 901)]
    seen = sum(g in known.seconds for g in groups) / 900
    assert 0.2 < seen < 0.9
    right = forest.measured(known.seconds, groups, [task.duration_s for task in trace.tasks])
    assert right and right.right > 0.2, "the table is of these groups"


@needs_data
def test_the_page_is_of_the_numbers() -> None:
    jobs = asrpt_workload.whole(jobs=3_000)
    found = asrpt_prediction.compared(jobs, asrpt_prediction.taught(jobs))
    page = asrpt_prediction.report(found, [], [], [], []).page({"date": "today"})
    by_name = {each.learner: each for each in found}
    assert set(by_name) == {"forest", "mean", "median"}
    assert f"{by_name['median'].right:.1%}".replace("%", " %") in page
    assert by_name["forest"].known == by_name["mean"].known > 0.2
