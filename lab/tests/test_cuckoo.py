"""The ground truth of Cuckoo's benchmark, and how it rates models."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from math import isclose, log
from operator import truediv
from statistics import fmean, stdev

import pytest

from carma_simulator.conformance import InterferenceRules
from carma_simulator.experiment import Trace
from carma_simulator.hardware import parse
from carma_simulator.traces.generators import cuckoo as cuckoo_trace
from carma_testing import check_rules
from carmad.config import Settings
from carmad.core.jobs.attempt import Mode
from carmad.core.jobs.findings import StageTimes
from lab.cuckoo import pairs, truth
from lab.cuckoo.page import report
from lab.cuckoo.paper import PREDICTED, TABLES
from lab.cuckoo.runs import (
    ALL,
    HEADLINE,
    IN_STEP,
    SENDING,
    VARIANTS,
    Case,
    Result,
    Variant,
    cases,
    run,
)
from lab.cuckoo.workload import (
    BUSY,
    FASTEST,
    GPUS,
    KINDS_THERE,
    MEANS_S,
    SIGMAS,
    SPAN_S,
    alone_s,
    load,
    trace,
)
from lab.data import DATA
from policies.cuckoo import CuckooSettings
from policies.cuckoo.interleaving import Asynchronous, Phases
from policies.cuckoo.policy import cuckoo

needs_data = pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data")

COMPUTES = StageTimes(0.0, 0.1, 0.2)
LOADS = StageTimes(0.3, 0.0, 0.0)
SENDS = StageTimes(0.0, 0.01, 0.02, 0.5, "backward")


def test_two_that_always_compute_are_as_slow_as_lambda_says() -> None:
    assert truth.speeds((COMPUTES, COMPUTES), 1.5, 2.0) == pytest.approx((1 / 1.5, 1 / 1.5))


def test_who_loads_disturbs_nobody() -> None:
    assert truth.speeds((COMPUTES, LOADS), 2.0, 2.0) == pytest.approx((1.0, 1.0))


def test_two_that_mostly_send_share_the_network() -> None:
    one, other = truth.speeds((SENDS, SENDS), 1.0, 2.0)
    assert 0.5 <= one < 0.6 and 0.5 <= other < 0.6
    assert truth.speeds((SENDS, SENDS), 1.0, 1.0) == pytest.approx((1.0, 1.0))


def test_a_short_iteration_does_not_wait_for_a_long_one() -> None:
    short, long = StageTimes(0.09, 0.003, 0.007), StageTimes(0.9, 0.03, 0.07)
    assert min(truth.speeds((short, long), 2.0, 2.0)) > 0.9
    together = Asynchronous().iteration_s((Phases.of([short]), Phases.of([long])))
    assert together.item() > 5 * alone_s(short)  # in the paper's model it does


def test_gradients_for_the_next_forward_pass_travel_while_it_loads() -> None:
    job = StageTimes(0.3, 0.1, 0.1, 0.35)
    assert alone_s(job) == pytest.approx(0.5)
    assert alone_s(replace(job, sync="backward")) == pytest.approx(0.75)


@needs_data
def test_a_job_alone_takes_what_its_profile_says_on_every_kind_of_gpu() -> None:
    for source in ("Muri", "table 3"):
        for task in trace(source, 0, 60).tasks:
            speeds = dict(task.speeds)
            first, *_ = task.stages
            assert tuple(each.gpu for each in task.stages) == KINDS_THERE
            for each in task.stages:
                assert speeds[each.gpu] == pytest.approx(alone_s(first) / alone_s(each))
                # Cuckoo's model has no gradients travel while a batch is loaded.
                modelled = Asynchronous().iteration_s((Phases.of([each]),)).item()
                if each.sync == "backward":
                    assert modelled == pytest.approx(alone_s(each))
                else:
                    assert modelled >= alone_s(each) * (1 - 1e-9)


@needs_data
def test_a_fast_gpu_is_less_busy() -> None:
    task = next(task for task in trace("Muri", 0).tasks if task.name == "VGG16-b16")
    rtx, a100, a10 = KINDS_THERE
    busy = [load(task, kind).sm_active for kind in (a100, rtx, a10)]
    assert busy == sorted(busy) and busy[0] < busy[-1]
    kinds = {node.kind.name for node in parse(GPUS).nodes}
    assert kinds == set(KINDS_THERE)


def test_lambda_is_found_and_judged_on_models_that_were_not_seen() -> None:
    """The measured speeds are those of λ = 1.4."""
    made = []
    for a in range(8):
        for b in range(a, 8):
            jobs = tuple(pairs._divided(0.1 * (1 + n), 0.3 + 0.08 * n) for n in (a, b))
            pair = pairs.Pair(frozenset((str(a), str(b))), (jobs[0], jobs[1]), (1.0, 1.0))
            [measured] = pairs._shares([pair], 1.4)
            made.append(replace(pair, measured=measured))
    found = pairs._judged("made up", "GPU shares", made, pairs._shares)
    assert found.gpu == 1.4
    assert isclose(found.group, 0.0, abs_tol=1e-12) and isclose(found.job, 0.0, abs_tol=1e-12)
    wrong = pairs._judged("made up", "λ = 2", made, pairs._fixed(pairs._shares, 2.0))
    assert wrong.gpu is None and wrong.group > 0.05
    for seen, unseen in pairs._splits(made):
        models = [frozenset().union(*(made[n].models for n in half)) for half in (seen, unseen)]
        assert seen and unseen and not models[0] & models[1]


def test_every_row_of_the_paper_is_a_variant_that_can_be_made() -> None:
    named = {what for rows in TABLES.values() for what in rows} | set(PREDICTED)
    assert named <= set(ALL)
    policy = cuckoo(Settings(policy="cuckoo"), CuckooSettings())
    for variant in ALL.values():
        assert (variant.of(policy) is policy) is False
    assert Variant({"weight": 0.2}).of(policy).packer.weight == 0.2


@needs_data
def test_runs_end_and_every_job_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few = trace("Muri", 0, 24)
    few = replace(few, tasks=tuple(replace(task, submit_s=0.0) for task in few.tasks))
    monkeypatch.setattr("lab.cuckoo.runs.trace", lambda stages, seed: few)
    packed, alone = (run(Case(HEADLINE, what, 0)) for what in ("Cuckoo", "fifo"))
    for result in (packed, alone):
        assert result.finished == result.jobs == 24
        assert result.kept + result.broken + result.late + result.lucky == 24
        assert isclose(result.met, (result.kept + result.lucky) / 24)
    assert alone.slowdown == pytest.approx(1.0)
    assert packed.slowdown > 1.0
    assert packed.jct < alone.jct


@pytest.mark.long
@needs_data
def test_pairs_of_the_simulated_world_are_those_of_its_stages() -> None:
    jobs = trace("Muri", 0, 60)
    world = truth.FreeRunning(jobs)
    one, other = jobs.tasks[:2]
    kind = KINDS_THERE[1]
    told = [next(s for s in task.stages if s.gpu == kind) for task in (one, other)]
    loads = load(one, kind), load(other, kind)
    expected = truth.speeds((told[0], told[1]), truth.LAMBDA_GPU, truth.LAMBDA_NETWORK)
    first, _ = world.speeds(loads, Mode.STREAMS)
    assert first == pytest.approx(expected[0])
    assert world.speeds((*loads, loads[1]), Mode.STREAMS)[0] <= first
    no_server = {"work_is_conserved_in_mixed_company": "it knows jobs, and no MPS server"}
    for each in (world, truth.InStep(jobs)):
        rules = InterferenceRules(each, [load(task, kind) for task in jobs.tasks])
        check_rules(rules, no_server)


def test_the_page_tells_of_every_run_and_how_far_it_is_from_the_paper() -> None:
    results = [_result(case) for case in cases()]
    found = [pairs.Found("Lucid", model, 10, 1.5, 0.2, None, 0.3) for model in pairs.MODELS]
    made = report(results, found)
    text = made.page({"date": "today"})
    for what in ALL:
        assert what.removeprefix("w = ") in text
    line = next(line for line in text.splitlines() if "Muri-P, JCT" in line)
    assert "1.07" in line and "+0.93" in line  # all others take twice as long as Cuckoo
    assert len(json.loads(json.dumps(made.data["beside"], default=asdict))["headline"]) > 20


def _result(case: Case) -> Result:
    jct = 100.0 if case.what == "Cuckoo" else 200.0
    numbers = (jct, 2 * jct, 0.5, 1.0, 1.1)
    return Result(case.setting, case.what, case.seed, 4, 4, *numbers, 2, 1, 1, 0, 9, 1.0)


def test_groups_are_in_step_where_the_truth_is() -> None:
    for variant in VARIANTS.values():
        assert variant.made(Settings(policy="cuckoo"), IN_STEP[1]).packer.in_step
    free = Variant().made(Settings(policy="cuckoo"), SENDING[1]).packer
    assert free.model == Asynchronous(gpu=2.0) and not free.in_step


@needs_data
@pytest.mark.parametrize("source", list(MEANS_S))
def test_durations_have_the_calibrated_mean_and_deadlines_follow_them(source: str) -> None:
    jobs, as_generated = trace(source, 0), cuckoo_trace(0)
    durations = [task.duration_s / dict(task.speeds)[FASTEST] for task in jobs.tasks]
    assert fmean(durations) == pytest.approx(MEANS_S[source][0])
    assert stdev(map(log, durations)) == pytest.approx(SIGMAS[source], rel=0.05)
    promised = (task.deadline_s or 0.0 for task in jobs.tasks)
    shares = sorted(map(truediv, promised, durations))
    before = sorted((task.deadline_s or 0.0) / task.duration_s for task in as_generated.tasks)
    assert shares == pytest.approx(before)


@needs_data
def test_many_jobs_come_when_the_paper_says() -> None:
    count = Counter(min(int(task.submit_s // SPAN_S), 29) for task in trace("table 3", 0).tasks)
    calm = set(range(1, 30)) - {*BUSY}
    assert count.total() == 521 and count[0] == 100
    assert min(count[span] for span in BUSY) >= max(count[span] for span in calm)


@needs_data
def test_on_a_slower_gpu_all_of_an_iteration_is_slower_by_table_3() -> None:
    [_, a100, a10] = trace("table 3", 0, 24).tasks[0].stages
    slower = alone_s(a10) / alone_s(a100)
    assert 1.9 < slower < 3 and a10.load_s / a100.load_s == pytest.approx(slower)


def test_in_step_the_shorter_iteration_waits_for_the_longer() -> None:
    short, long = StageTimes(0.09, 0.003, 0.007), StageTimes(0.9, 0.03, 0.07)
    world = truth.InStep(Trace("none", ()), 2.0)
    round_s = alone_s(long) / world.speed(long, short)
    assert world.speed(short, long) == pytest.approx(alone_s(short) / round_s)
    assert world.speed(short, long) < 0.2
