"""What `python -m lab.castor` computes from simulated runs, checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import pytest

from carma_simulator.experiment import Experiment, Load, Task, Trace
from carma_simulator.hardware import parse
from carma_simulator.interference import Conserving, make
from carma_simulator.run import simulate
from carma_simulator.traces.sources import load
from carma_simulator.workload import Workload
from carmad.config import Limits, Settings
from carmad.core.jobs.attempt import JobId, Mode
from carmad.core.jobs.recurrence import group
from lab.castor import gavel, tiresias
from lab.castor.busiest import busiest
from lab.castor.page import report
from lab.castor.paper import SIMULATED
from lab.castor.runs import (
    OF_THE_PAPER,
    POLICIES,
    Case,
    Known,
    Result,
    cases,
    experiment,
    knowing,
    result,
)
from lab.castor.sharing import crowded, decisions
from lab.castor.time_model import Measured, fit
from lab.castor.timing import Taken
from lab.castor.tiresias import Variant, fewest_nodes
from lab.castor.workload import (
    BEGIN_S,
    PACES,
    as_queued,
    batch_shares,
    files,
    muri,
    on,
    profiled_before,
    resizable,
    sampled,
)
from lab.data import DATA
from lab.policies import simulate_with
from policies.castor.pairing import StepModel

BUSY = Load("busy", 32, 1024, sm_active=0.8, sm_occupancy=0.4, dram_active=0.1)
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the public traces are not here")


def a_task(submit_s: float, duration_s: float, **changes: object) -> Task:
    base = Task(name="busy", submit_s=submit_s, duration_s=duration_s, load=BUSY)
    return replace(base, **changes)  # type: ignore[arg-type]


def shared(gpus: str, *tasks: Task, interference: str = "additive") -> Experiment:
    settings = Settings(policy="sjf_ffs")
    return Experiment(Trace("by hand", tasks), parse(gpus), settings, interference=interference)


@pytest.mark.parametrize(("interference", "sharing_s"), [("none", 110), ("additive", 170)])
def test_a_job_that_joins_another(interference: str, sharing_s: float) -> None:
    """Alone the first ends at 1010 and the second takes 110; together, at 1 / 1.6, it takes 170."""
    tasks = (a_task(0, 1000), a_task(200, 100))
    made = shared("1xA100-40GB", *tasks, interference=interference)
    (found,) = decisions(made, simulate(made))
    assert (found.job, found.at, found.beside) == (2, 200.0, (1,))
    assert found.sharing_s == pytest.approx(sharing_s)
    assert found.waiting_s == pytest.approx(810 + 110)
    assert found.benefit == pytest.approx(920 / sharing_s)


def test_what_a_neighbour_has_left_counts_in_its_own_seconds() -> None:
    """The first is slowed by the second from 210 to 370, and has 800 − 160/1.6 − 130 left at 500,
    when the third joins it."""
    tasks = (a_task(0, 1000), a_task(200, 100), a_task(500, 50))
    made = shared("1xA100-40GB", *tasks)
    second, third = decisions(made, simulate(made))
    assert second.beside == third.beside == (1,)
    assert third.waiting_s == pytest.approx(570 + 60)
    assert third.sharing_s == pytest.approx(10 + 80)


def test_a_job_waits_for_as_many_gpus_as_it_wants() -> None:
    """Of two jobs with a GPU each, the longer one decides; both slow the third job equally."""
    tasks = (a_task(0, 400), a_task(0, 1000), a_task(200, 100, gpus=2))
    made = shared("2xA100-40GB", *tasks)
    (found,) = decisions(made, simulate(made))
    assert found.beside == (1, 2)
    assert (found.waiting_s, found.sharing_s) == pytest.approx((920, 170))


def test_starts_that_only_parts_of_a_batch_allow() -> None:
    large = replace(BUSY, memory_mib=25_000)
    tasks = (a_task(0, 300, load=large), a_task(100, 100, load=large), a_task(900, 50, load=large))
    made = shared("1xA100-40GB", *tasks)
    assert crowded(simulate(made)) == 1
    assert crowded(simulate(shared("1xA100-40GB", a_task(0, 300), a_task(100, 100)))) == 0


def test_profiling_beforehand_is_no_part_of_the_figures() -> None:
    trace = Trace("two", (a_task(0, 100, gpus=16), a_task(50, 200), a_task(60, 20, name="other")))
    known = profiled_before(trace)
    earlier, later = known.tasks[:3], known.tasks[3:]
    assert all(t.submit_s == 0 for t in earlier)
    assert [t.submit_s - BEGIN_S for t in later] == [0, 50, 60]
    made = experiment(trace, "3x8xA100-40GB", "fifo")
    workload = Workload(made)
    groups = [group(workload.spec(JobId(id))) for id in range(1, 7)]
    assert len(set(groups)) == 3
    assert set(groups[:3]) == set(groups[3:])  # else nothing that was profiled would be known
    found = result(Case("muri", "two", "24", "fifo", made), simulate(made))
    assert (found.jobs, found.unfinished) == (3, 0)
    assert found.makespan * 3600 == pytest.approx(260)
    assert found.jct * 3600 == pytest.approx((110 + 210 + 30) / 3)
    assert found.large_jct * 3600 == pytest.approx(110 / 3)  # what it contributes, not its mean
    assert found.large_share == pytest.approx(1 / 3)


def test_known_ratios_are_those_of_the_simulator() -> None:
    idle = replace(BUSY, sm_active=0.1)
    trace = Trace("two", (a_task(0, 100), a_task(0, 100, load=idle)))
    made = knowing(experiment(trace, "1xA100-40GB", "fifo"))
    ((name, model),) = made.models
    assert name == "interference"
    assert isinstance(model, Known)
    values = {
        f"{who}.{what}.mean": getattr(job, what)
        for who, job in (("own", idle), ("other", BUSY))
        for what in ("sm_active", "dram_active")
    }
    values |= {"own.memory.share": 0.1, "other.memory.share": 0.1, "mode.mps": 0.0}
    slowed, _ = Conserving().speeds((idle, BUSY), Mode.STREAMS)
    assert model.predict(values) == pytest.approx(1 / slowed)


@needs_data
@pytest.mark.parametrize("family", ["philly", "saturn"])
def test_samples_are_whole_ones_and_part_of_the_next(family: str) -> None:
    path = files(family)[0]
    whole = load(f"sia:{path}").tasks
    trace = sampled(family, 0, 240)
    assert len(trace.tasks) == 240
    assert trace == sampled(family, 0, 240)
    assert trace != sampled(family, 1, 240)
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(trace.tasks))
    assert trace.tasks[-1].submit_s < 9 * 3600
    # An A6000 is 0.6 of an A100; half as many jobs again, of which none can be longer.
    assert max(t.duration_s for t in trace.tasks) >= max(t.duration_s for t in whole) / 0.6 - 1
    assert {task.reference for task in trace.tasks} == {"A6000-48GB"}


@needs_data
def test_gavels_pairs_are_what_the_simulator_does() -> None:
    (one, other), speed = min(gavel.speeds().items(), key=itemgetter(1))
    assert 1 / speed > 10, "sharing may cost that much"
    assert make(gavel.pairs()).speeds((one, other), Mode.MPS)[0] == pytest.approx(speed)
    file = Path(gavel.pairs().removeprefix("measured:"))
    assert file.parent.stat().st_mode & 0o777 == 0o700, "nobody else can have put it there"
    trace = gavel.with_gavels_models(sampled("philly", 0, 20, gavel.GPU), 0)
    assert {task.load for task in trace.tasks} <= set(gavel.loads().values())
    assert len({task.name for task in trace.tasks}) == len({task.load for task in trace.tasks})


@needs_data
def test_muris_busiest_jobs_follow_each_other_the_fastest() -> None:
    tasks = load(f"muri:{DATA}/muri/trace3.csv").tasks
    found = muri(3, 100)
    spans = [tasks[n + 99].submit_s - tasks[n].submit_s for n in range(len(tasks) - 99)]
    assert len(found.tasks) == 100
    assert found.tasks[-1].submit_s == pytest.approx(min(spans))


def test_a_task_takes_as_long_as_on_the_other_gpu() -> None:
    task = a_task(0, 100, reference="A100-40GB")
    there = on("V100-32GB", task)
    assert (there.name, there.reference) == ("busy-32", "V100-32GB")
    assert there.duration_s == pytest.approx(100 / 0.29)


@needs_data
def test_what_of_the_memory_is_the_batchs() -> None:
    shares = batch_shares()
    assert all(0 <= share < 1 for share in shares.values())
    assert shares["resnet50"] > 0.5 > shares["ppo"]
    task, *_ = resizable(Trace("one", (a_task(0, 100, load=replace(BUSY, model="ppo")),))).tasks
    assert (task.resizable, task.load.batch_mib) == (True, 0)


def a_result(case: Case, jct: float) -> Result:
    numbers = (0.5, 10.0, jct, 0.5, 0.2, 0.1, 1.1, 0, 0, 0, (0.5, 2.0))
    row = (case.table, case.workload, case.size, case.what, case.experiment.trace.name, 240, 0)
    return Result(*row, *numbers)


@needs_data
def test_the_page_of_tiresias_has_every_row() -> None:
    asked = tiresias.cases()
    results = [a_result(case, 0.8 if case.what == "castor" else 1.0) for case in asked]
    text = tiresias.report(results).page({})
    assert "nan" not in text
    assert text.count("-20 %") == sum(len(rows) - 1 for rows in tiresias.ROWS.values()) * 2


@needs_data
def test_the_page_of_the_papers_load_has_every_policy_beside_the_papers() -> None:
    asked = cases(["load"])
    text = report([a_result(case, 0.8 if case.what == "castor" else 1.0) for case in asked], [])
    rows = [row for row in text.page({}).splitlines() if "-20 %" in row]
    assert len(rows) == 2 * len(POLICIES)  # castor itself aside, and with a guessing Lucid
    assert rows[0].startswith("| fifo, Philly") and "-42 %" in rows[0] and "70 %" in rows[0]


@needs_data
def test_at_the_papers_load_jobs_are_paced_alike() -> None:
    longer, later = PACES["saturn"]
    own, paced = sampled("saturn", 1).tasks, as_queued("saturn", 1).tasks
    assert [t.duration_s for t in paced] == [pytest.approx(longer * t.duration_s) for t in own]
    assert [t.submit_s for t in paced] == [pytest.approx(later * t.submit_s) for t in own]


@pytest.mark.long
@needs_data
def test_the_page_tells_of_every_table() -> None:
    asked = cases((*OF_THE_PAPER, "gavel"))
    results = [a_result(case, 0.8 if case.what == "castor" else 1.0) for case in asked]
    taken = [Taken("castor", 16, 10, 1.0, 1.2, 2.0, 3.0)]
    text = report(results, taken).page({"date": "today"})
    assert "In 21 of the 22 rows" in text
    assert "philly, pollux" not in text.lower().split("the exception")[0]
    assert "from -20 %" in text
    jct: Sequence[float] = [SIMULATED["philly"][p].jct[0] for p in ("castor", "tiresias")]
    assert jct[0] / jct[1] - 1 == pytest.approx(-0.40, abs=0.005)
    assert "-40 %" in text


class TestTimeModel:
    def test_it_finds_the_model_that_the_steps_came_from(self) -> None:
        true = {
            place: StepModel(0.05, 0.002, comm, 2.5) for place, comm in (("2", 0.1), ("4", 0.4))
        }
        measured = [
            Measured(
                place, batch, model.step_s(batch), model.step_s(batch) - model.compute_s(batch)
            )
            for place, model in true.items()
            for batch in (16, 32, 64, 128)
        ]
        found = fit(measured)
        assert found.keys() == true.keys()
        for place, model in true.items():
            assert found[place].delta == pytest.approx(2.5, rel=1e-2)
            for batch in (8, 48, 256):
                for passes in (1, 4):
                    assert found[place].step_s(batch, passes) == pytest.approx(
                        model.step_s(batch, passes), rel=1e-2
                    )

    def test_one_batch_size_is_not_enough(self) -> None:
        with pytest.raises(ValueError, match="two batch sizes"):
            fit([Measured("1", 8, 0.1, 0.0), Measured("2", 8, 0.1, 0.01)])


class TestTiresias:
    def test_a_job_takes_no_more_nodes_than_it_must(self) -> None:
        free = [tuple(f"{node}/{n}" for n in range(gpus)) for node, gpus in (("a", 8), ("b", 5))]
        assert fewest_nodes(free, 4) == ("b/0", "b/1", "b/2", "b/3")
        assert len(fewest_nodes(free, 12)) == 12
        assert fewest_nodes(free[1:], 6) == ()
        assert fewest_nodes([free[1], free[1]], 10) == ()

    def test_one_that_stays_together_preempts_for_a_whole_node(self) -> None:
        """Of each node two GPUs are idle; the third job wants all eight of one."""
        both = "2x8xA100-40GB"
        tasks = tuple(a_task(at, 4_000, gpus=6, name=f"{at}") for at in (0, 1))
        trace = Trace("three", (*tasks, a_task(3_000, 100, gpus=8, name="wide")))
        settings = Settings(policy="tiresias", limits=Limits(preemption=True))
        made = Experiment(trace, parse(both), settings, "oracle")
        outcome = simulate_with(tiresias._policy(Variant(together=True), settings), made)
        *_, wide = outcome.jobs
        assert len({gpu.rpartition("/")[0] for gpu in wide.attempts[0].gpus}) == 1
        assert sum(len(job.attempts) for job in outcome.jobs) == 4


def test_the_busiest_hours_have_most_jobs() -> None:
    tasks = [a_task(3_600 * at, 60) for at in (0, 10, 11, 12, 30)]
    assert [task.submit_s / 3_600 for task in busiest(tasks, [1.0] * 5)] == [10, 11, 12]
    assert len(busiest(tasks, [9.0, 1.0, 1.0, 1.0, 1.0])) == 1
