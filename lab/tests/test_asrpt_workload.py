"""The workload of A-SRPT's runs, and the page on how it is predicted."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from statistics import fmean, median

import pytest

from carma_simulator.experiment import Experiment
from carma_simulator.hardware import parse
from carma_simulator.workload import Workload
from carmad.core.jobs.recurrence import group

pytest.importorskip("sklearn", reason="training needs carma-gpu[policies]")

from carmad.learning.training import forest
from lab.asrpt import layouts, prediction, workload

needs_data = pytest.mark.skipif(
    not workload.PHILLY.exists(), reason="the public traces are not here"
)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 12, 16, 24, 32, 64, 128])
def test_every_layout_has_its_gpus_and_room_for_its_parameters(gpus: int) -> None:
    options = dict(layouts.options(gpus))
    assert ("gpt-175b" in options) is (gpus >= 64)
    for choices in options.values():
        for layout in choices:
            assert layout.gpus == gpus
            for stage in layout.stages:
                parameters = stage.weights_mib / layouts.VALUE_MIB
                assert parameters * layouts.PARAMETER_BYTES <= layouts.ROOM_BYTES
            for one, other in pairwise(layout.stages):  # what one passes on, the other takes
                passed, taken = (one.replicas * one.out_mib, other.replicas * other.in_mib)
                assert passed == pytest.approx(taken) and passed > 0
            assert layout.stages[0].in_mib == layout.stages[-1].out_mib == 0


def test_a_network_takes_as_long_however_it_is_cut() -> None:
    """In GPU seconds of a mini-batch; VGG19 has all 144 million parameters."""
    for name, choices in layouts.options(8):
        spent = {
            sum(s.replicas * (s.forward_s + s.backward_s) for s in layout.stages)
            for layout in choices
        }
        assert max(spent) == pytest.approx(min(spent)), name
    vgg = dict(layouts.options(1))["vgg19"][0].stages[0]
    assert vgg.weights_mib / layouts.VALUE_MIB == pytest.approx(143_667_240, rel=1e-3)


@pytest.mark.long
@needs_data
def test_jobs_recur_as_published_and_durations_stay_phillys() -> None:
    jobs = workload.whole(seed=1, jobs=60_000)
    sizes = Counter(jobs.group.tolist())
    recurring = sum(n for n in sizes.values() if n >= workload.RECURS) / 60_000
    assert recurring == pytest.approx(0.65, abs=0.04)
    _, durations, gpus, _ = workload._philly(60_000)
    assert jobs.duration_s.tolist() == durations.tolist()
    demands = [jobs.demands[g] for g in jobs.group]
    assert demands == jobs.gpus.tolist() == gpus.tolist()
    mean_s = workload.DAYS * 86_400 / workload.JOBS
    assert jobs.at_s[-1] / 60_000 == pytest.approx(mean_s, rel=0.3)
    assert len(set(jobs.users)) < 1.1 * workload.USERS


@needs_data
def test_runs_of_a_group_that_passed_are_near_each_other() -> None:
    """Of a large group most jobs are near one of its longer ones; of jobs at random few are."""
    jobs = workload.whole(seed=1, jobs=60_000)
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


@pytest.mark.long
@needs_data
def test_the_simulator_tells_groups_as_the_benchmark_does(monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(workload.whole, jobs=5_000)
    monkeypatch.setattr(workload, "whole", small)
    trace = workload.made(900, single_gpu=0.5)
    assert len(trace.tasks) == 900 and trace.tasks[0].submit_s == 0.0
    assert workload.load(trace) > 0
    single = sum(task.gpus == 1 for task in trace.tasks) / 900
    assert single == pytest.approx(0.5, abs=0.06)
    for task in trace.tasks:
        assert task.layout and task.layout.gpus == task.gpus and task.iteration_s > 0
    submitted = Workload(Experiment(trace, parse("2x8xV100-32GB")))
    known = workload.learned(single_gpu=0.5, how=forest.medians)
    groups = [group(submitted.spec(n)) for n in range(1, 901)]
    seen = sum(g in known.seconds for g in groups) / 900
    assert 0.2 < seen < 0.9
    right = forest.measure(known.seconds, groups, [task.duration_s for task in trace.tasks])
    assert right and right.right > 0.2, "the table is of these groups"


@pytest.mark.long
@needs_data
def test_the_page_is_of_the_numbers() -> None:
    jobs = workload.whole(jobs=3_000)
    found = prediction.compared(jobs, prediction.taught(jobs))
    page = prediction.report(found, [], [], [], []).page({"date": "today"})
    by_name = {each.learner: each for each in found}
    assert set(by_name) == {"forest", "mean", "median"}
    assert f"{by_name['median'].right:.1%}".replace("%", " %") in page
    assert by_name["forest"].known == by_name["mean"].known > 0.2
