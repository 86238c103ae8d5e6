"""The fidelity benchmark's arithmetic; the benchmark itself measures the agreement."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from carma_simulator.demo.sharing import argv
from carma_simulator.experiment import JobOutcome, Load, Task
from carma_simulator.metrics import figures
from carmad.core.jobs.attempt import Cause
from carmad.gpu import emulated_job
from carmad.paths import python
from lab.simulator import fidelity
from lab.simulator.emulation import PLAIN, SHORT_S, TOO_LARGE, Overheads, overheads, profile
from lab.simulator.fidelity import Comparison
from tests.extras.carma_simulator.outcomes import attempt, job, outcome

MEASURED = Overheads(first_kernel_s=0.9, end_s=0.0, oom_s=0.1)


def calibrated(name: str, ready_s: float | None, end_s: float) -> JobOutcome:
    """Launched 100 s after the first of them."""
    cause = Cause.SUCCESS if ready_s is not None else Cause.GPU_OOM
    ready_at = None if ready_s is None else 100.0 + ready_s
    tried = replace(attempt(100.0, 100.0 + end_s, cause=cause), ready_at=ready_at)
    return job(99.0, tried, name=name)


def test_overheads_are_medians_over_all_calibrations() -> None:
    first = outcome(
        calibrated(PLAIN.model, 0.8, 0.8 + SHORT_S + 0.3),
        calibrated(PLAIN.model, 1.0, 1.0 + SHORT_S + 0.2),
        calibrated(TOO_LARGE.model, None, 1.5),
    )
    second = outcome(
        calibrated(PLAIN.model, 2.0, 9.0 + SHORT_S),
        calibrated(TOO_LARGE.model, None, 1.2),
        calibrated(TOO_LARGE.model, None, 1.3),
    )
    found = overheads([first, second])
    assert found.first_kernel_s == pytest.approx(1.0)
    assert found.end_s == pytest.approx(0.2)
    assert found.oom_s == pytest.approx(0.3)


def test_who_runs_out_of_memory_early_is_gone_at_once() -> None:
    good, bad = calibrated(PLAIN.model, 1.0, 4.0), calibrated(TOO_LARGE.model, None, 0.6)
    assert overheads([outcome(good, bad)]).oom_s == 0.0


def test_a_profile_is_what_the_emulated_job_asks_for_on_average(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = Load(memory_mib=5_000, sm_active=0.5, sm_occupancy=0.2, dram_active=0.98)
    asked: list[tuple[float, float, float]] = []

    class Watched:
        def launch(self, *demand: float) -> None:
            asked.append(demand)  # type: ignore[arg-type]

        def allocate(self, mib: int) -> None: ...

        def rate(self) -> float:
            return 1.0

        def suspended_s(self) -> float:
            return 0.0

    task = Task(name="train", submit_s=0.0, duration_s=0.01, load=told)
    options = emulated_job.read(argv(task, warmup_s=0.0, seed=3)[len(python("")) :])
    emulated_job.train(options, [Watched()], 0)  # type: ignore[list-item]
    found = profile(told, seed=3)
    assert len(set(asked)) == emulated_job.EPOCHS
    assert max(dram for _, _, dram in asked) == 1.0  # no job asks for more than there is
    means = tuple(fmean(column) for column in zip(*asked, strict=True))
    assert (found.sm_active, found.sm_occupancy, found.dram_active) == pytest.approx(means)
    assert found.memory_mib == 5_000


def test_differences_are_from_the_daemons_median_and_judged_by_their_size() -> None:
    makespan = Comparison("magm", "makespan", "s", (100.0, 90.0, 120.0), 94.0, bound=5.0)
    assert makespan.difference == pytest.approx(-6.0)
    assert makespan.met is False
    assert makespan.cells[2:] == ("100.0 s (90.0–120.0)", "94.0 s", "-6.0 %", "MISSED")
    crashes = Comparison("magm", "OOM crashes", "", (0, 1, 0), 2)
    assert crashes.difference == 2
    assert crashes.met is None
    assert crashes.cells[2:] == ("0 (0–1)", "2", "+2", "")


def test_each_figure_of_the_runs_stands_beside_the_simulators() -> None:
    done = job(0.0, attempt(5.0, 15.0))
    again = job(10.0, attempt(10.0, 12.0, cause=Cause.GPU_OOM), attempt(20.0, 40.0))
    rows = fidelity.compare("magm", [outcome(done, again)], outcome(done))
    found = {row.what: (row.daemon, row.simulator) for row in rows}
    assert found == {
        "makespan": ((40.0,), 15.0),
        "mean JCT": ((22.5,), 15.0),  # of 15 and 30
        "mean wait": ((6.5,), 5.0),  # of 5 and 8
        "OOM crashes": ((1,), 0),
        "jobs finished": ((2,), 1),
    }


def test_how_far_apart_two_runs_put_a_job() -> None:
    a, b, c = (
        outcome(job(0.0, attempt(0.0, first)), job(5.0, attempt(5.0, second)))
        for first, second in ((10.0, 20.0), (12.0, 19.0), (10.0, 21.0))
    )
    # Jobs that end later and jobs that end earlier do not cancel out.
    assert fidelity.apart_s([(a, b)]) == pytest.approx(1.5)
    assert fidelity.apart_s([(a, b), (a, c), (b, c)]) == pytest.approx(1.5)


def test_the_trace_is_the_first_with_which_magm_runs_out_of_memory() -> None:
    magm = next(variant for variant in fidelity.variants() if variant.name == "magm")
    crashes = [
        figures(fidelity.simulated(magm, fidelity.trace(seed), MEASURED)).oom_crashes
        for seed in range(fidelity.SEED + 1)
    ]
    assert crashes[-1] > 0 and not any(crashes[:-1])


def test_the_trace_has_30_jobs_with_the_means_that_it_promises() -> None:
    tasks = fidelity.trace().tasks
    assert len(tasks) == 30
    assert sum(task.duration_s for task in tasks) == pytest.approx(30 * 12.0)
    assert tasks[0].submit_s == 0.0
    assert tasks[-1].submit_s == pytest.approx(29 * 2.0)
