"""Iteration times, checked by hand against equations 4 to 7 of the A-SRPT paper."""

from __future__ import annotations

import pytest

from carmad.config import Links
from carmad.core.jobs.layout import Layout, Stage, iteration_s, slowest_s

LINKS = Links(within_mib_s=1000.0, between_mib_s=100.0)
SIZE = 4


def data_parallel(replicas: int) -> Layout:
    return Layout((Stage(replicas, forward_s=1.0, backward_s=2.0, weights_mib=300.0),))


def test_on_one_gpu_there_is_computing_alone() -> None:
    assert iteration_s(data_parallel(1), ["a"], LINKS, SIZE) == 3.0


def test_a_pass_of_which_nothing_is_told_takes_no_time() -> None:
    assert iteration_s(Layout((Stage(forward_s=1.0),)), "a", LINKS, SIZE) == 1.0
    assert iteration_s(Layout((Stage(backward_s=2.0),)), "a", LINKS, SIZE) == 2.0


def test_weights_are_reduced_within_a_server_that_has_all_replicas() -> None:
    # 2 (k - 1) / k · h / B_intra
    assert iteration_s(data_parallel(3), "aaa", LINKS, SIZE) == pytest.approx(3 + 400 / 1000)


def test_else_at_the_bandwidth_of_the_server_with_the_fewest() -> None:
    # 2 (k - 1) / k · h / (x / g · B_inter), x = 1
    assert iteration_s(data_parallel(3), "aab", LINKS, SIZE) == pytest.approx(3 + 400 / 25)


def test_activations_go_within_and_between_servers() -> None:
    """Equation 5: of the second stage's two replicas one is near the first stage, one is not."""
    layout = Layout((Stage(1, 1.0, 1.0, out_mib=50.0), Stage(2, 1.0, 1.0, in_mib=50.0)))
    assert [(slot.stage, slot.replica) for slot in layout.slots] == [(0, 0), (1, 0), (1, 1)]
    first = 2 + 50 / (1 / 4 * 100) + 50 / 1000  # half of its 2 · 50 MiB stay
    second_far = 2 + 100 / (1 / 4 * 100)
    assert iteration_s(layout, "aab", LINKS, SIZE) == pytest.approx(max(first, second_far))
    assert iteration_s(layout, "aaa", LINKS, SIZE) == pytest.approx(2 + 100 / 1000)


def test_a_stage_with_two_replicas_on_a_server_has_twice_the_bandwidth_for_twice_as_much() -> None:
    layout = Layout((Stage(2, 1.0, 1.0, out_mib=50.0), Stage(2, 1.0, 1.0, in_mib=50.0)))
    assert iteration_s(layout, "aabb", LINKS, SIZE) == pytest.approx(2 + 100 / (1 / 4 * 100))


def test_the_slowest_is_each_replica_for_itself() -> None:
    layout = data_parallel(4)
    assert slowest_s(layout, LINKS, SIZE) == iteration_s(layout, "abcd", LINKS, SIZE)
    assert slowest_s(layout, LINKS, SIZE) == pytest.approx(3 + 450 / 25)


def test_slices_of_a_replica_stay_together_and_reduce_their_part_of_the_weights() -> None:
    layout = Layout((Stage(2, 1.0, 1.0, weights_mib=400.0, tensor=2, tensor_mib=500.0),))
    assert [slot.slice for slot in layout.slots] == [0, 1, 0, 1]
    slices = 2 * 1 / 2 * 500 / 1000
    assert iteration_s(layout, "aaaa", LINKS, SIZE) == pytest.approx(2 + slices + 200 / 1000)
    # Each server has half of the GPUs, and two rings for all of the weights.
    assert slowest_s(layout, LINKS, SIZE) == pytest.approx(2 + slices + 400 / (2 / 4 * 100))


def test_experts_exchange_tokens_with_all_others() -> None:
    layout = Layout((Stage(3, 1.0, 1.0, experts_mib=10.0),))
    assert iteration_s(layout, "aaa", LINKS, SIZE) == pytest.approx(2 + 20 / 1000)
    alone = 2 + 20 / (1 / 4 * 100)
    assert iteration_s(layout, "aab", LINKS, SIZE) == pytest.approx(alone)


def test_only_the_exposed_part_of_the_all_reduce_takes_time() -> None:
    """The coefficient of the backward pass is in the time that is given for it."""
    half = Layout((Stage(3, forward_s=1.0, backward_s=2.0, weights_mib=300.0, exposed_share=0.5),))
    assert iteration_s(half, "aaa", LINKS, SIZE) == pytest.approx(3 + 200 / 1000)
    assert iteration_s(half, "aab", LINKS, SIZE) == pytest.approx(3 + 200 / 25)
    slices = Layout((Stage(1, 1.0, 2.0, tensor=2, tensor_mib=500.0, exposed_share=0.0),))
    assert iteration_s(slices, "aa", LINKS, SIZE) == pytest.approx(3 + 0.5), "these wait for it"


def test_a_synchronous_pipeline_is_filled_drained_and_then_reduces() -> None:
    def pipeline(microbatches: int) -> Layout:
        first = Stage(1, 1.0, 1.0, microbatches=microbatches)
        return Layout((first, Stage(2, 2.0, 4.0, weights_mib=300.0)))

    allreduce = 2 * 1 / 2 * 300 / 1000
    assert iteration_s(pipeline(0), "aaa", LINKS, SIZE) == pytest.approx(6 + allreduce)
    assert iteration_s(pipeline(1), "aaa", LINKS, SIZE) == pytest.approx(2 + 6 + allreduce)
    # Of four micro-batches, one passes both stages (0.5 + 1.5 s), three follow after 1.5 s each.
    assert iteration_s(pipeline(4), "aaa", LINKS, SIZE) == pytest.approx(0.5 + 4 * 1.5 + allreduce)


@pytest.mark.parametrize("times", [(1.0, 3.0, 2.0), (2.0, 2.0, 2.0, 2.0), (5.0, 1.0)])
def test_it_is_the_schedule_played_out(times: tuple[float, ...]) -> None:
    """GPipe: all micro-batches forward through the stages, then all back; a stage takes them one
    at a time."""
    microbatches, end_s = 5, 0.0
    for stages in (times, [2 * forward_s for forward_s in reversed(times)]):
        free_s = [end_s] * len(stages)
        for _ in range(microbatches):
            end_s = 0.0
            for n, stage_s in enumerate(stages):
                end_s = free_s[n] = max(free_s[n], end_s) + stage_s / microbatches
    layout = Layout(tuple(Stage(1, t, 2 * t, microbatches=microbatches) for t in times))
    assert iteration_s(layout, "a" * len(times), LINKS, SIZE) == pytest.approx(end_s)


def test_the_barrier_waits_for_the_longest_all_reduce() -> None:
    """It need not be that of the slowest stage."""
    first = Stage(2, 0.5, 0.5, weights_mib=1000.0, microbatches=2)
    layout = Layout((first, Stage(1, 1.0, 2.0)))
    assert iteration_s(layout, "aaa", LINKS, SIZE) == pytest.approx((1 + 3) / 2 + 3 / 2 + 1.0)


def test_gpus_are_counted_without_naming_each() -> None:
    """Anybody may ask the daemon for a billion of them, which must be refused quickly."""
    layout = Layout((Stage(1024, tensor=1024), Stage(2, tensor=3)))
    assert layout.gpus == 1024 * 1024 + 6
    assert "slots" not in vars(layout)
    few = Layout((Stage(2, tensor=3), Stage(4)))
    assert few.gpus == len(few.slots) == 10
