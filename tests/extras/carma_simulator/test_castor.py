"""Castor, simulated."""

from dataclasses import replace

import pytest

from carma_simulator import interference as simulated
from carma_simulator.experiment import Experiment, Load, Physics, Task, Trace
from carma_simulator.hardware import Cluster, Node
from carma_simulator.run import simulate
from carma_simulator.workload import Workload
from carmad import registry
from carmad.config import Settings
from carmad.core.jobs.attempt import Cause
from carmad.gpu.kinds import GpuKind
from policies.castor.policy import castor

A100 = GpuKind("a100", 40_960, 50.0, 400.0, 1.0)


BIG = Load("net", 64, 30_000, sm_active=0.3, dram_active=0.1, batch_mib=24_000, fixed_share=0.25)


SMALL = replace(BIG, memory_mib=12_000, batch_mib=4_000)


@pytest.fixture
def simulated_castor(monkeypatch):
    """Two on a GPU train at 1/1.25 of their speed, and the policy knows it."""

    class Mild:
        name = "mild"

        def speeds(self, loads, mode):
            return (1 / 1.25,) * len(loads)

    def policy(settings):
        made = castor(settings)
        known = replace(made.sharing, interference=lambda *_, **__: (1.25, 1.25))
        return replace(made, sharing=known)

    monkeypatch.setattr(simulated, "make", lambda name: Mild())
    monkeypatch.setattr(registry, "bare_policy", policy)


def replay(*tasks, **settings):
    cluster = Cluster((Node("n0", A100, 1),))
    experiment = Experiment(
        Trace("by hand", tasks), cluster, Settings(**settings), "oracle", physics=Physics()
    )
    return simulate(experiment).jobs


# The first is profiled alone until its end at 310, and its twin is known by that. The long one is
# profiled until 510. It leaves 28,960 MiB, in which the twin's 30,000 fit in two parts: 18,000.
FIRST = Task(name="split", submit_s=0.0, duration_s=300.0, load=BIG, resizable=True)


LONG = Task(name="long", submit_s=1.0, duration_s=20_000.0, load=SMALL)


TWIN = replace(FIRST, submit_s=400.0, duration_s=1_000.0)


def test_a_job_is_profiled_and_its_twin_shares_with_its_batch_split(simulated_castor):
    first, long, twin = (job.attempts[0] for job in replay(FIRST, LONG, TWIN))
    assert (first.launched_at, first.ended_at, long.launched_at) == (0.0, 310.0, 310.0)
    assert (twin.launched_at, twin.ready_at, twin.cause) == (510.0, 520.0, Cause.SUCCESS)
    together_s = 1_000 * (1 + 0.25) * 1.25  # two passes, and company
    assert twin.ended_at == pytest.approx(520 + together_s)
    assert long.ended_at == pytest.approx(320 + 20_000 + together_s * (1 - 1 / 1.25))


def test_a_twin_that_cannot_be_split_waits(simulated_castor):
    tasks = (replace(task, resizable=False) for task in (FIRST, LONG, TWIN))
    _, long, twin = (job.attempts[0] for job in replay(*tasks))
    assert twin.launched_at == long.ended_at == 320.0 + 20_000


def test_a_resizable_task_as_the_core_is_told_of_it():
    experiment = Experiment(
        Trace("by hand", (FIRST, LONG)), Cluster((Node("n0", A100, 1),)), estimator="oracle"
    )
    workload = Workload(experiment)
    assert [workload.spec(id).batch_size for id in (1, 2)] == [64, None]
    assert [workload.estimate(id).batch_mib for id in (1, 2)] == [24_000, 0]
    assert workload.load(1, A100, 4).memory_mib == 12_000
    assert workload.estimate(1).accumulating(4).mib == 12_000
    assert workload.full_rate(1, A100) == 1
    assert workload.full_rate(1, A100, 4) == pytest.approx(1 / 1.75)


def test_parts_cost_as_much_where_the_speed_of_a_kind_is_told():
    task = replace(FIRST, speeds=((A100.name, 0.5),))
    workload = Workload(Experiment(Trace("by hand", (task,)), Cluster((Node("n0", A100, 1),))))
    assert workload.full_rate(1, A100) == 0.5
    assert workload.full_rate(1, A100, 4) == pytest.approx(0.5 / 1.75)
