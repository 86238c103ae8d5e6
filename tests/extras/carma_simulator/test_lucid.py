"""Lucid, simulated."""

from itertools import pairwise

from carma_simulator.experiment import Experiment, Load, Task, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carmad.config import Profiling, Settings
from carmad.core.jobs.attempt import Cause
from tests.policies.test_lucid import TREE


def task(name, submit_s, duration_s, gpus=1, sm_active=0.3):
    load = Load(name, 32, 4_000, sm_active, sm_active / 2, sm_active / 4)
    return Task(name=name, submit_s=submit_s, duration_s=duration_s, gpus=gpus, load=load)


def run(tasks, cluster, profiling):
    """Durations are predicted by each job's owner."""
    settings = Settings(policy="lucid", profiling=profiling, predictor="declared")
    trace, models = Trace("by hand", tuple(tasks)), (("packing", TREE),)
    return simulate(Experiment(trace, parse(cluster), settings, interference="none", models=models))


def spans(job):
    return [(a.launched_at, a.ended_at, a.cause) for a in job.attempts]


def test_profiled_evicted_and_paired():
    """Utilisation is SMACT ** (2/3): 0.2 makes Tiny, 0.6 Medium."""
    tasks = [task("a", 0, 1000, sm_active=0.2), task("b", 1, 1000, sm_active=0.6), task("c", 2, 50)]
    outcome = run(tasks, "2xA100-40GB", Profiling(gpus=1))
    first, second, third = outcome.jobs
    assert spans(first) == [(0, 202, Cause.PROFILED), (202, 1212, Cause.SUCCESS)]
    assert spans(third) == [(202, 262, Cause.SUCCESS)]  # a test job, over while it is profiled
    profiled, shared = second.attempts
    assert (profiled.launched_at, profiled.cause) == (262, Cause.PROFILED)
    assert shared.gpus == first.attempts[1].gpus
    assert shared.launched_at == 464  # beside the first, as soon as it is known
    assert shared.ended_at == 1474


def test_three_jobs_that_do_not_match_go_one_by_one():
    tasks = [task(name, n, 1000, sm_active=0.9) for n, name in enumerate("abc")]
    outcome = run(tasks, "2xA100-40GB", Profiling(gpus=1))
    ends = sorted(spans(job)[-1][:2] for job in outcome.jobs)
    assert all(one[1] <= other[0] for one, other in pairwise(ends))


def test_profiled_in_place_a_job_is_never_started_twice():
    tasks = [task("a", 0, 1000), task("b", 1, 1000)]
    outcome = run(tasks, "2xA100-40GB", Profiling(gpus=0))
    assert [spans(job) for job in outcome.jobs] == [
        [(0, 1010, Cause.SUCCESS)],
        [(1, 1011, Cause.SUCCESS)],
    ]
