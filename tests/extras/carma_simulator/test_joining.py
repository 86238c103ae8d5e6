"""Who may join a GPU before it has settled, simulated."""

from dataclasses import replace

import pytest

from carma_simulator.experiment import Experiment, Load, Physics, Task, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carmad.config import Monitor, Settings
from carmad.core.jobs.attempt import Cause

POLICIES = ("magm", "lug", "rr", "best_fit", "carma")


EARLY = Settings(monitor=Monitor(known_window_s=5.0))


def simulated(tasks, gpus, policy, settings=EARLY):
    outcome = simulate(
        Experiment(
            Trace("by hand", tasks),
            parse(gpus),
            replace(settings, policy=policy),
            estimator="none",
            physics=Physics(first_kernel_s=1.5),
        )
    )
    assert not any(a.cause is Cause.GPU_OOM for job in outcome.jobs for a in job.attempts)
    return outcome.makespan_s


def small(n, duration_s, mib, load, **changes):
    its = Load("small", 32, mib, sm_active=load, sm_occupancy=load / 2, dram_active=load / 4)
    return Task(name="small", submit_s=n * 0.3, duration_s=duration_s, load=its, **changes)


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_shorter_than_the_window_share(policy):
    tasks = tuple(small(n, 20.0, 4_900, 0.15, declared_mib=5_000) for n in range(6))
    assert simulated(tasks, "1xA100-40GB", policy) < 55
    assert simulated(tasks, "1xA100-40GB", policy, Settings()) > 100  # the paper's window


@pytest.mark.parametrize("policy", POLICIES)
def test_tasks_of_a_sweep_tell_what_the_others_need_while_they_run(policy):
    tasks = tuple(small(n, 60.0, 4_900, 0.2) for n in range(12))
    assert simulated(tasks, "3xA100-40GB", policy) < 100
    assert simulated(tasks, "3xA100-40GB", policy, Settings()) > 150
