"""The duration of a round of collocated jobs: table 4 of the Cuckoo paper, and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carmad.plugin import StageTimes
from lab.cuckoo.muri import Exclusive
from policies.cuckoo.interleaving import Asynchronous, Phases, eff_values, rounds, standalone

AM = Asynchronous(2.0, 2.0)  # as in table 4
RESNET = StageTimes(10, 37, 76, 98)
BERT = StageTimes(10, 72, 61, 363, "backward")


def one(stages):
    return Phases.of([stages]).at(0)


def lasts(model, *jobs):
    return float(model.iteration_s([one(job) for job in jobs]))


# -- table 4: BERT (job 1) begins, ResNet (job 0) is a stage behind


TABLE_4 = """
    0    0    0    0    0    0   10
    0    0    0   72    0    0   72
   74  152    0    0  122  363  363
    0    0   98    0    0    0   98
    0    0    0    0    0    0   10
    0    0    0   72    0    0   72
"""


def test_the_working_example_to_the_millisecond():
    steps = AM.steps([one(BERT), one(RESNET)])
    rows = [[*map(float, (*s.used[1], *s.used[0], s.length))] for s in steps]
    printed = [[float(cell) for cell in line.split()] for line in TABLE_4.strip().splitlines()]
    assert [*rows, *rows[:2]] == printed, "the next round is as this one"
    assert lasts(AM, BERT, RESNET) == 543


def test_the_other_order_takes_longer():
    """10; ResNet's 37; BERT's 72 doubled beside ResNet's 76, of which 72 get done, and 98 through
    the network; then BERT's 363, in which all the rest is done."""
    assert lasts(AM, RESNET, BERT) == 10 + 37 + 144 + 363


# -- by hand


def test_alone_a_job_loads_and_computes_and_hides_what_is_shorter():
    for sync in ("backward", "forward"):
        assert lasts(AM, StageTimes(10, 37, 76, 98, sync)) == 10 + 37 + 98
        assert lasts(AM, StageTimes(10, 37, 99, 98, sync)) == 10 + 37 + 99
    assert lasts(Exclusive(), RESNET) == 10 + 37 + 76 + 98, "Muri knows of no overlap"


def test_two_that_only_load_and_only_compute_do_not_meet():
    assert lasts(AM, StageTimes(100, 0, 0), StageTimes(0, 30, 60)) == 100 + 30 + 60
    assert lasts(AM, StageTimes(0, 30, 60), StageTimes(100, 0, 0)) == 100
    assert lasts(Exclusive(), StageTimes(0, 30, 60), StageTimes(100, 0, 0)) == 100


def test_two_that_only_compute_gain_nothing():
    """Forward 30; 60 backward beside the other's 30 and 60, all doubled: 120 if the first waits for
    them, of which the other gets 30 of its 60 done; 30."""
    job = StageTimes(0, 30, 60, 0, "backward")
    assert lasts(AM, job, job) == 30 + 120 + 30 == 2 * lasts(AM, job)


def test_what_an_iteration_ends_with_is_waited_for_and_else_not_before_the_round_does():
    other = StageTimes(0, 1, 0)
    assert lasts(AM, StageTimes(0, 10, 0, 100, "backward"), other) == 10 + 100
    first = AM.steps([one(StageTimes(0, 10, 0, 100, "forward")), one(other)])
    assert [float(step.length) for step in first] == [0, 10, 1, 99], "it goes on in the next stage"


def test_lambda_is_for_those_who_use_the_same():
    job = StageTimes(0, 0, 0, 10, "backward")
    late = StageTimes(0, 0, 0, 10)
    assert lasts(AM, late, job) == 20, "both want the network in the last stage"
    assert lasts(Asynchronous(2.0, 1.5), late, job) == 15
    assert lasts(Asynchronous(9.0), late, job) == 20
    both = [one(StageTimes(0, 0, 60)), one(StageTimes(0, 10, 0))]
    assert float(Asynchronous(3.0).iteration_s(both)) == 30 + 50


def test_of_three_each_slows_each():
    """The first two are not done when the third communicates: in turns, three times as long."""
    late, last = StageTimes(0, 0, 0, 10), StageTimes(0, 0, 0, 10, "backward")
    steps = AM.steps([one(late), one(late), one(last)])
    assert len(steps) == 5 and [float(step.length) for step in steps] == [0, 0, 0, 0, 30]


def test_muri_takes_the_slowest_of_each_stage_in_the_better_order():
    """10 | 363, 113 | 10, 133 | 98: the two orders are one cycle apart from the other."""
    one_way, other_way = lasts(Exclusive(), RESNET, BERT), lasts(Exclusive(), BERT, RESNET)
    assert (one_way, other_way) == (363 + 113 + 133, 98 + 133 + 363)
    with pytest.raises(ValueError, match="of three resources"):
        lasts(Exclusive(), *[RESNET] * 4)


# -- in arrays, and whatever the times


times = st.floats(0, 100).map(lambda value: round(value, 3))
jobs = st.builds(StageTimes, times, times, times, times, st.sampled_from(["backward", "forward"]))


@given(st.lists(jobs, min_size=2, max_size=4), st.sampled_from([AM, Asynchronous(1.3, 1.7)]))
def test_nobody_is_faster_in_company(group, model):
    alone = [lasts(model, job) for job in group]
    assert lasts(model, *group) >= max(alone) - 1e-9


@given(st.lists(jobs, min_size=2, max_size=3))
def test_without_interference_it_is_no_longer_than_one_after_the_other(group):
    assert lasts(Asynchronous(1.0, 1.0), *group) <= sum(lasts(AM, job) for job in group) + 1e-6


@given(st.lists(jobs, min_size=1, max_size=8), st.sampled_from([AM, Exclusive()]))
def test_a_table_of_many_says_what_one_pair_does(group, model):
    phases = Phases.of(group)
    table = rounds(model, phases, phases)
    for i, first in enumerate(group):
        assert standalone(model, phases)[i] == lasts(model, first)
        for j, other in enumerate(group):
            better = min(lasts(model, first, other), lasts(model, other, first))
            assert table[i, j] == pytest.approx(better)


def test_eff_value_of_the_working_example():
    both = Phases.of([RESNET, BERT])
    eff = eff_values(standalone(AM, both), standalone(AM, both), rounds(AM, both, both))
    assert eff[0, 1] == eff[1, 0] == pytest.approx((145 + 445) / 543)
    assert np.allclose(np.diag(eff), [290 / lasts(AM, RESNET, RESNET), 890 / lasts(AM, BERT, BERT)])
