"""A-SRPT's benchmark: the paper's baselines, and the results page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="carma-gpu[policies] is not installed")

from benchmarks import harness
from carma_simulator.experiment import JobOutcome, Task, Trace
from carmad.core.jobs.layout import Layout, Stage
from carmad.learning.models import Lookup
from lab import RESULTS
from lab.asrpt import claims, large, layouts, runs, testbed, workload
from lab.asrpt.page import report
from lab.asrpt.runs import ADAPTIVE, DEFAULT, PAPER, PERFECT, UNHELD, Case, Result, cases
from lab.claims import Claim
from lab.data import DATA

needs_data = pytest.mark.skipif(not DATA.exists(), reason="the public traces are not here")
LIGHT = Layout((Stage(2, 0.3, 0.7),))  # parts that do not communicate
PART = 125  # of the servers that leaves two
# Of their 16 GPUs the first job leaves four until it ends; by GPU time the others are in the order
# short, wide, small and long.
TASKS = (
    Task(name="large", submit_s=0, duration_s=1000, gpus=12),
    Task(name="wide", submit_s=1, duration_s=80, gpus=16),
    Task(name="long", submit_s=2, duration_s=500, gpus=8),
    Task(name="short", submit_s=3, duration_s=100, gpus=12),
    Task(name="small", submit_s=4, duration_s=400, gpus=4),
)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("SPJF", ["large", "wide", "short", "small", "long"]),
        ("SPWF", ["large", "short", "wide", "long", "small"]),
        ("WCS-duration", ["large", "small", "wide", "short", "long"]),
        ("WCS-workload", ["large", "small", "short", "wide", "long"]),
        ("WCS-subtime", ["large", "small", "wide", "long", "short"]),
    ],
)
def test_baselines_start_jobs_in_their_order(
    monkeypatch: pytest.MonkeyPatch, policy: str, order: list[str]
) -> None:
    jobs = _run(monkeypatch, Case(len(TASKS), policy, part=PART, prediction=PERFECT))
    started = sorted(jobs, key=lambda job: (job.attempts[0].launched_at, job.id))
    assert [job.task.name for job in started] == order


@pytest.mark.parametrize(("policy", "at"), [(PAPER, 12 * 1000 / 16), (DEFAULT, 0.0)])
def test_the_paper_has_a_job_wait_for_its_turn_on_idle_gpus(
    monkeypatch: pytest.MonkeyPatch, policy: str, at: float
) -> None:
    (job,) = _run(monkeypatch, Case(1, policy, part=PART, prediction=PERFECT), TASKS[:1])
    assert job.attempts[0].launched_at == pytest.approx(at, abs=1)


@pytest.mark.parametrize(("policy", "at"), [(PAPER, 2100.0), (UNHELD, 1575.0)])
def test_the_line_is_held_or_not(monkeypatch: pytest.MonkeyPatch, policy: str, at: float) -> None:
    """The first job runs from 500 s on; the second waits for it to end, and the third could start
    as soon as it has had its turn in the virtual machine."""
    tasks = (
        Task(name="first", submit_s=0, duration_s=1600, gpus=5),
        Task(name="wide", submit_s=0, duration_s=700, gpus=12),
        Task(name="narrow", submit_s=0, duration_s=2200, gpus=4),
    )
    *_, narrow = _run(monkeypatch, Case(3, policy, part=PART, prediction=PERFECT), tasks)
    assert narrow.attempts[0].launched_at == pytest.approx(at, abs=2)


@pytest.mark.parametrize(
    ("policy", "gpus"), [("SPJF", [0, 1]), ("SPJF" + ADAPTIVE, [6, 7]), (DEFAULT, [6, 7])]
)
def test_baselines_fill_servers_in_order_and_a_srpt_the_fullest_first(
    monkeypatch: pytest.MonkeyPatch, policy: str, gpus: list[int]
) -> None:
    """Two servers of 8; the first two jobs leave 8 on the first, then 2 on the second."""
    tasks = (
        Task(name="long", submit_s=0, duration_s=900, gpus=8),
        Task(name="most", submit_s=0, duration_s=9_000, gpus=6),
        Task(name="few", submit_s=2_000, duration_s=100, gpus=2, layout=LIGHT, iteration_s=1.0),
    )
    *_, few = _run(monkeypatch, Case(3, policy, part=PART, prediction=PERFECT), tasks)
    assert [int(gpu.rpartition("/")[2]) for gpu in few.attempts[0].gpus] == gpus


def test_replicas_share_a_mini_batch() -> None:
    """Section III-A: the more there are, the less each computes and passes on."""
    one, four = (dict(layouts.options(gpus))["vgg19"][0].stages[0] for gpus in (1, 4))
    assert four.replicas == 4
    assert four.forward_s == pytest.approx(one.forward_s / 4)


@pytest.mark.long
@needs_data
def test_jobs_come_as_often_and_last_as_long_as_pai_s() -> None:
    jobs = workload.whole(jobs=20_000)
    assert jobs.duration_s.mean() == pytest.approx(5_039)
    part = workload.whole(jobs=20_000, part=5)
    assert part.at_s.tolist() == pytest.approx((5 * jobs.at_s[:4_000]).tolist())


def test_a_load_is_reached_by_arrivals_alone() -> None:
    trace = Trace("", TASKS)
    asked = runs._submitted(Case(len(TASKS), part=PART, load=2.0), trace)
    assert runs.load(asked, 16) == pytest.approx(2.0)
    assert [t.duration_s for t in asked.tasks] == [t.duration_s for t in TASKS]


def test_no_case_is_run_twice_and_all_seeds_have_the_same() -> None:
    asked = cases()
    assert len(asked) == len(set(asked))
    assert {replace(case, seed=1) for case in asked} == {c for c in asked if c.seed == 1}


def test_the_page_has_every_figure_of_complete_results() -> None:
    """All took 1,000 h, but for A-SRPT, which took 600 h, and 1,200 h when nothing is reserved."""
    hours = {PAPER: 600.0, DEFAULT: 1200.0}
    found = [_result(case, hours.get(case.policy, 1000.0)) for case in cases()]
    text = report(found).page({"machine": "none"})
    assert "nan" not in text
    (row,) = (line for line in text.splitlines() if "50 Gb/s, against WCS-duration" in line)
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[2:5] == ["-12 %", "-40 % (-40 to -40)", "+20 % (+20 to +20)"]
    (row,) = (line for line in text.splitlines() if line.startswith("| against perfect"))
    assert [cell.strip() for cell in row.split("|")][3].startswith("+0 %")
    told = {claim.what: claim for claim in _claims(found)}
    assert told["50 Gb/s, against WCS-duration"].ours == pytest.approx((-40.0,) * 5)
    long = told["15,000 jobs, against perfect prediction"]
    assert (
        "in windows of at most 2,000 jobs: 0 % (0 to 0), stronger" in long.why
    )  # it costs nothing
    few = report([_result(case, 1.0) for case in cases(few=True)])
    assert "## Load" in few.page({}) and "## Network" not in few.page({})


def _run(
    monkeypatch: pytest.MonkeyPatch, case: Case, tasks: Sequence[Task] = TASKS
) -> Sequence[JobOutcome]:
    outcomes = []

    def kept(case: Case, outcome: runs.Outcome, *_: object) -> None:
        outcomes.append(outcome)

    monkeypatch.setattr(runs, "_trace", lambda *_: Trace("", tuple(tasks)))
    monkeypatch.setattr(runs, "result", kept)
    runs._run((case, None))
    return outcomes[0].jobs


@pytest.mark.long
@needs_data
def test_on_the_testbed_predictions_are_a_tenth_as_durations_are() -> None:
    model = Lookup("", "", {"a": 500.0}, 1, 0.0)
    small = runs.testbed()[0]
    ((_, asked),) = runs.experiment(small, model).models
    ((_, whole),) = runs.experiment(replace(small, testbed=False, part=PART), model).models
    assert (asked.predict("a"), whole.predict("a")) == (50.0, 500.0)


def test_the_testbed_s_page_has_all_policies() -> None:
    text = testbed.report(_testbed()).page({})
    assert "nan" not in text
    assert "| testbed, against any baseline: most | -44 % | -40 % (-40 to -40)" in _single(text)
    assert "| A-SRPT-Perfect | 0.60 | +0 % (+0 to +0)" in _single(text)


def test_claims_that_the_long_window_has_rest_on_it() -> None:
    text = large.report(_large()).page({})
    assert "nan" not in text
    assert "15,000 jobs, against any baseline: least | -31 % | -40 % (-40 to -40)" in _single(text)
    told = {its.what: its for its in _claims([_result(case, 1000.0) for case in cases()])}
    assert "number of jobs, against any baseline: least" not in told
    long = told["15,000 jobs, against any baseline: least"]
    assert long.ours == pytest.approx((-40.0,))
    assert "its baselines on its servers, not by index: -40.0 %, stronger" in long.why
    assert "in windows of at most 2,000 jobs: 0 % (0 to 0), not reproduced" in long.why


def _large() -> list[Result]:
    return [_result(it, 0.6 if it.policy == PAPER else 1.0) for it in large.cases()]


def _testbed() -> list[Result]:
    """A-SRPT took 0.6 h, and the others 1 h."""
    return [_result(it, 0.6 if it.policy == PAPER else 1.0) for it in runs.testbed()]


def _single(text: str) -> str:
    """Without the columns' padding."""
    return re.sub(" +", " ", text)


def _claims(found: Sequence[Result]) -> list[Claim]:
    """From what the command would write, and the other committed results."""

    def read(name: str) -> Any:
        if name == "asrpt":
            return json.loads(harness._json(report(found).data))
        if name == "asrpt_testbed":
            return json.loads(harness._json(testbed.report(_testbed()).data))
        if name == "asrpt_large":
            return json.loads(harness._json(large.report(_large()).data))
        return json.loads((RESULTS / f"{name}.json").read_text())

    return list(claims.claims(read))


def _result(case: Case, hours: float) -> Result:
    return Result(
        case=case,
        jobs=case.jobs,
        load=3.0,
        total=hours,
        wait=1.0,
        makespan=48.0,
        slowdown=1.1,
        slowest=2.0,
        queue_max=10,
        run_s=60.0,
        plan_s=6.0,
        plans=100,
        longest_plan_s=0.1,
    )
