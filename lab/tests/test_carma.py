"""The CARMA paper's loads and runs: figures as they are read, and simulations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from carma_simulator import metrics
from carma_simulator.catalogue import find
from carma_simulator.demo.jobs import GPUS, demo_trace
from carma_simulator.experiment import Load, Physics, Task, Trace
from carma_simulator.traces.sources import load
from carmad.config import Monitor, Settings
from lab.carma import figures, heavy60
from lab.carma.catalogue import ROWS, from_figures, rewritten
from lab.carma.paper import MAGM, before_the_figures, compared, light_times, wide_alone
from lab.data import read
from lab.simulator import emulation

needs_data = pytest.mark.skipif(
    not figures.FIGURES.is_file(), reason="the public data are not there"
)


@needs_data
class TestFigures:
    def test_a_plateau_is_found_for_every_task_that_was_submitted(self) -> None:
        submitted = Counter(row["task"] for row in read(figures.SUBMISSIONS))
        found = {task: len(runs) for task, runs in figures.busy_seconds().items()}
        assert found == submitted

    def test_the_runs_as_a_whole(self) -> None:
        alone, magm = figures.whole("exclusive"), figures.whole("magm")
        assert alone.makespan_s / 3600 == pytest.approx(10.64, abs=0.005)
        assert magm.makespan_s / alone.makespan_s == pytest.approx(1 - 0.297, abs=0.0005)
        assert magm.smact == pytest.approx(0.852, abs=0.0005)
        assert magm.energy_mj / alone.energy_mj == pytest.approx(1 - 0.176, abs=0.0005)


@needs_data
class TestCatalogue:
    def test_what_is_committed_is_what_the_command_derives(self) -> None:
        table = ROWS.read_text()
        assert rewritten(table, list(from_figures())) == table

    def test_a_task_is_busy_as_long_in_table_4_as_in_the_figures(self) -> None:
        shown = {row["task"]: row for row in read(figures.TASKS)}
        for row in read("carma/tasks.csv"):
            if row["task"] in shown:
                seen = shown[row["task"]]
                ours = find(row["model"], int(row["batch_size"]), row["dataset"])
                assert ours is not None
                busy_s = float(seen["smact"]) * float(seen["duration_s"])
                assert ours.sm_active * float(row["duration_s"]) == pytest.approx(busy_s, rel=0.002)

    def test_heavy_60_is_simulated_as_it_was_measured(self) -> None:
        trace = load(f"carma:{heavy60.TRACE}")
        ours = compared(trace, MAGM, heavy60.ASSUMED)
        alone, magm = figures.whole("exclusive"), figures.whole("magm")
        assert ours.alone_h == pytest.approx(alone.makespan_s / 3600, rel=0.03)
        assert ours.makespan_h == pytest.approx(magm.makespan_s / 3600, rel=0.03)
        assert ours.smact == pytest.approx(magm.smact, rel=0.03)
        assert ours.energy_mj == pytest.approx(magm.energy_mj, rel=0.03)


def a_task(name: str, load: Load, gpus: int = 1) -> Task:
    return Task(name=name, submit_s=0.0, duration_s=100.0, gpus=gpus, load=load)


def loads(trace: Trace) -> list[float]:
    return [round(task.load.sm_active, 3) for task in trace.tasks]


def test_an_ablation_changes_the_tasks_it_names_and_no_others() -> None:
    light, large = find("resnet18", 32, "cifar100"), find("mobilenet_v2", 64, "imagenet")
    assert light and large
    trace = Trace("two", (a_task("resnet18_cifar100", light), a_task("mobilenet2", large, gpus=2)))
    assert loads(light_times(2.0)(trace)) == [round(2 * light.sm_active, 3), large.sm_active]
    assert [task.exclusive for task in wide_alone(trace).tasks] == [False, True]
    guessed = [before_the_figures(task) for task in trace.tasks]
    assert guessed[0] == light
    assert guessed[1].sm_active == pytest.approx(0.758, abs=0.002)  # 0.84 · 25.44 / 25.70, ^1.5
    assert replace(guessed[1], sm_active=0, sm_occupancy=0, dram_active=0) == replace(
        large, sm_active=0, sm_occupancy=0, dram_active=0
    )


def test_sharing_saves_time_and_energy_in_the_demo() -> None:
    trace = Trace("demo", demo_trace())
    alone, together = (
        metrics.figures(
            emulation.simulated(
                trace,
                GPUS,
                Settings(policy=policy, monitor=Monitor(period_s=0.1, window_s=0.7)),
                declared=False,
                end_s=0.0,
                physics=Physics(first_kernel_s=0.8, oom_s=0.3, stop_s=0.2),
            )
        )
        for policy in ("exclusive", "magm")
    )
    assert together.makespan_s and alone.makespan_s
    assert together.makespan_s < 0.85 * alone.makespan_s
    assert together.energy_mj < 0.95 * alone.energy_mj
    assert together.oom_crashes
