"""A-SRPT, simulated."""

from dataclasses import replace

import pytest

from carma_simulator.experiment import Experiment, Physics, Task, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carmad.plugin import Layout, Stage
from policies.asrpt.heavy_edge import extremes
from tests.policies.test_asrpt import HURRIED, LINKS, SETTINGS


def task(name, submit_s, duration_s, gpus=1, layout=None):
    alpha = extremes(layout, LINKS, 4).fastest_s if layout else 0.0
    return Task(
        name=name,
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        layout=layout,
        iteration_s=alpha,
    )


def ends(settings, *tasks):
    experiment = Experiment(
        Trace("by hand", tasks),
        parse("2x4xA100-40GB"),
        replace(settings, policy="asrpt"),
        interference="none",
        physics=Physics(first_kernel_s=0.0),
    )
    outcome = simulate(experiment)
    return {
        job.task.name: (job.attempts[-1].launched_at, job.attempts[-1].ended_at)
        for job in outcome.jobs
    }


def test_a_little_trace():
    """All GPUs are taken until 100, and half of them until 160. In the machine `wide` is done at
    30 + 50, `short` at 20 + 5: it goes first."""
    tasks = (
        task("first", 0.0, 100.0, 4),
        task("second", 0.0, 160.0, 4),
        task("wide", 10.0, 100.0, 4),
        task("short", 20.0, 40.0, 1),
    )
    told = ends(SETTINGS, *tasks)
    assert told["first"][0] == told["second"][0] == 0.0
    assert told["short"] == pytest.approx((100.0, 140.0))
    assert told["wide"][0] == pytest.approx(140.0)


def test_patience_pays_in_a_little_trace():
    """Three of four are taken on both servers, one of them until 50: the pair waits for it."""
    pair = Layout((Stage(2, 0.1, 0.2, weights_mib=500.0),))
    tasks = (
        task("a", 0.0, 900.0, 3),
        task("b", 0.0, 900.0, 2),
        task("c", 0.0, 50.0, 1),
        task("pair", 10.0, 400.0, 2, pair),
    )
    patient = ends(SETTINGS, *tasks)["pair"]
    assert patient == pytest.approx((50.0, 450.0))
    hurried = ends(replace(SETTINGS, plugins={"policies.asrpt": HURRIED}), *tasks)["pair"]
    assert hurried[0] == pytest.approx(10.0)
    assert hurried[1] > 1000.0
