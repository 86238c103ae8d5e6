"""Cuckoo, simulated."""

import pytest

from carma_simulator import interference as simulated
from carma_simulator.experiment import Experiment, Load, Physics, Task, Trace
from carma_simulator.hardware import Cluster, Node
from carma_simulator.run import simulate
from carmad import registry
from carmad.gpu.kinds import GpuKind
from lab.cuckoo.muri import first_in_first_out
from tests.policies.test_cuckoo import COMPUTES, LOADS, NOTHING_LEFT, SETTINGS, in_turns

A100 = GpuKind("a100", 40_960, 50.0, 400.0, 1.0)


@pytest.fixture
def simulated_with(monkeypatch):
    """Two on a GPU train at 1/1.25 of their speed."""

    class Mild:
        name = "mild"

        def speeds(self, loads, mode):
            return (1 / 1.25 if len(loads) > 1 else 1.0,) * len(loads)

    monkeypatch.setattr(simulated, "make", lambda name: Mild())

    def replay(policy, *tasks):
        monkeypatch.setattr(registry, "bare_policy", policy)
        cluster = Cluster((Node("n0", A100, 1),))
        trace = Trace("by hand", tasks)
        return simulate(Experiment(trace, cluster, SETTINGS, "oracle", physics=Physics())).jobs

    return replay


def task(name, submit_s, duration_s, **changes):
    load = Load("net", memory_mib=12_000, sm_active=0.3)
    known = {"stages": COMPUTES, "expected_s": duration_s}
    return Task(
        name=name, submit_s=submit_s, duration_s=duration_s, load=load, **{**known, **changes}
    )


def test_joining_jobs_do_not_keep_off_whose_turn_is_next(simulated_with):
    """One of 40 successive jobs could always join, so that the GPU would never become free."""
    stream = [task(f"{n}", 500.0 * n, 1000.0, stages=(LOADS, COMPUTES)[n % 2]) for n in range(40)]
    alone = task("alone", 10.0, 1000.0, exclusive=True, deadline_s=5000.0)
    [_, alone, *_] = simulated_with(in_turns, stream[0], alone, *stream[1:])
    assert alone.attempts[0].launched_at == pytest.approx(1010.0)


def test_nobody_joins_the_one_that_is_left_of_a_pair(simulated_with):
    """The first plan packs both; the third comes while the longer one is left alone."""
    tasks = (
        task("long", 0.0, 1000.0, deadline_s=1.0),
        task("short", 0.0, 50.0, stages=LOADS, deadline_s=2.0),
        task("third", 300.0, 50.0, stages=LOADS),
    )
    long, short, third = (job.attempts[0] for job in simulated_with(in_turns, *tasks))
    assert short.launched_at == 40.0 and short.ended_at < 300
    assert third.launched_at == pytest.approx(1022.5), long.ended_at


def test_a_pair_is_seen_and_a_deadline_kept_that_fifo_misses(simulated_with):
    """The loader, packed with the first job, joins it when that has settled: 10 s to its first
    kernel, 30 s more.
    The urgent one came last, gains nothing beside the first one, and is next."""
    tasks = (
        task("first", 0.0, 1000.0, stages=NOTHING_LEFT),
        task("loader", 0.0, 100.0, stages=LOADS),
        task("long", 2.0, 5000.0, exclusive=True),
        task("urgent", 3.0, 500.0, stages=NOTHING_LEFT, deadline_s=2000.0),
    )
    first, loader, long, urgent = (job.attempts for job in simulated_with(in_turns, *tasks))
    assert (first[0].launched_at, loader[0].launched_at) == (0.0, 40.0)
    assert loader[0].ended_at == pytest.approx(50 + 125)
    assert first[0].ended_at == pytest.approx(10 + 1000 + 25)
    assert urgent[0].launched_at == pytest.approx(first[0].ended_at)
    assert urgent[0].ended_at < 2003 < urgent[0].ended_at + long[0].ended_at - long[0].launched_at
    fifo = simulated_with(lambda s: in_turns(s, planner=first_in_first_out), *tasks)
    assert fifo[3].attempts[0].ended_at > 2003
