"""Heavy-Edge: the paper's example, its rules one by one, and what it must never do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carmad.plugin import Layout, Links, Stage, iteration_s, slowest_s
from policies.asrpt.heavy_edge import _graph, _ring, _trees, extremes, heavy_edge, mapping

LINKS = Links(within_mib_s=10_000.0, between_mib_s=1_000.0)

# Figure 2: three stages of two replicas; 20 MB within the first, 1 MB per pair of replicas.
FIGURE_2 = Layout(
    (
        Stage(2, out_mib=1.0, weights_mib=20.0),
        Stage(2, in_mib=1.0, out_mib=1.0, weights_mib=0.5),
        Stage(2, in_mib=1.0, weights_mib=0.5),
    )
)


def rooms(gpus):
    """Random servers with this total number of GPUs."""
    parts = st.lists(st.integers(1, 8), min_size=1, max_size=gpus)
    return parts.map(lambda room: cut(room, gpus))


def cut(room, gpus):
    filled = []
    for part in [*room, gpus]:
        part = min(part, gpus - sum(filled))
        filled += [part] * (part > 0)
    return filled


STAGES = st.builds(
    Stage,
    st.integers(1, 4),
    out_mib=st.sampled_from((0.0, 1.0, 7.0)),
    weights_mib=st.sampled_from((0.0, 3.0, 100.0)),
    tensor=st.sampled_from((1, 1, 2)),
    experts_mib=st.sampled_from((0.0, 2.0)),
)
LAYOUTS = st.builds(
    Layout, st.lists(STAGES, min_size=1, max_size=4).map(tuple), st.sampled_from(("ring", "tree"))
)


def test_the_example_of_figure_2():
    assert heavy_edge(FIGURE_2, (4, 1, 1)) == (0, 0, 0, 0, 1, 2)


def test_servers_are_filled_by_what_they_have():
    assert heavy_edge(FIGURE_2, (1, 4, 1)) == (1, 1, 1, 1, 0, 2)
    # Between the last two stages a pair of replicas has 1 MB, within each of them half of that.
    assert heavy_edge(FIGURE_2, (2, 2, 2)) == (0, 0, 1, 2, 1, 2)


def test_a_server_with_room_for_all_gets_all():
    assert heavy_edge(FIGURE_2, (6,)) == (0,) * 6


def test_a_server_with_one_gpu_takes_who_talks_least():
    """The last two stages are alike; the first one's 20 MB stay together where there is room."""
    layout = Layout(
        (Stage(1, out_mib=9.0), Stage(1, in_mib=9.0, out_mib=4.0), Stage(1, in_mib=4.0))
    )
    assert heavy_edge(layout, (2, 1)) == (0, 0, 1)
    turned = Layout(
        (Stage(1, out_mib=4.0), Stage(1, in_mib=4.0, out_mib=9.0), Stage(1, in_mib=9.0))
    )
    assert heavy_edge(turned, (1, 2)) == (0, 1, 1)
    # Totals are 18, 26 and 8: the one of 8 is taken first.
    assert heavy_edge(layout, (1, 1, 1))[2] == 0


def test_what_stages_exchange_is_divided_among_the_slices_of_both():
    """Each slice of the second stage exchanges 4 MB with the first one, and 6 MB with the third."""
    layout = Layout(
        (
            Stage(1, out_mib=4.0),
            Stage(1, in_mib=4.0, out_mib=6.0, tensor=2),
            Stage(1, in_mib=6.0),
        )
    )
    assert heavy_edge(layout, (3, 1)) == (1, 0, 0, 0)


def test_without_an_edge_the_lowest_slot_is_next():
    assert heavy_edge(Layout((Stage(6),)), (3, 2, 1)) == (0, 0, 0, 1, 1, 2)


def test_a_ring_is_cut_where_it_must_be():
    layout = Layout((Stage(6, weights_mib=100.0),))
    assert heavy_edge(layout, (3, 3)) == (0, 0, 0, 1, 1, 1)


def test_double_binary_trees():
    """Of four: 2-1, 2-3, 0-2 and, mirrored, 1-2, 1-0, 3-1. So 1-2 has two edges."""
    layout = Layout((Stage(4, weights_mib=100.0),), "tree")
    assert heavy_edge(layout, (2, 2)) == (1, 0, 0, 1)
    # Of three, shifted by one: 2-1, 0-2 and 0-2, 1-0. So 0-2 has two.
    assert heavy_edge(Layout((Stage(3, weights_mib=1.0),), "tree"), (2, 1)) == (0, 1, 0)


def test_the_second_tree_of_an_odd_number_is_the_first_shifted_by_one():
    first = [(1, 2), (2, 4), (2, 3), (0, 4)]
    second = [(2, 3), (0, 3), (3, 4), (0, 1)]
    assert sorted(_trees(5)) == sorted(first + second)


def test_a_ring_is_closed_from_three_on():
    rings = {2: [(0, 1)], 3: [(0, 1), (0, 2), (1, 2)]}
    assert {k: sorted(_ring(k)) for k in rings} == rings


def test_what_replicas_exchange_is_divided_among_their_slices():
    """Of three, each sends two thirds of its weights twice, and an expert to each other slice."""
    graph = _graph(Layout((Stage(3, weights_mib=90.0, tensor=2, experts_mib=8.0),)))
    assert graph.weights[0] == {2: 62.0, 4: 62.0, 3: 2.0, 5: 2.0}


def test_an_edge_of_a_tree_counts_half_of_a_rings():
    """1-2 comes first, with 75 MiB of each tree; then a last stage's 100, before 75 of one."""
    layout = Layout((Stage(4, out_mib=50.0, weights_mib=100.0), Stage(1, in_mib=200.0)), "tree")
    assert heavy_edge(layout, (3, 2)) == (1, 0, 0, 1, 0)
    ring = Layout((Stage(4, out_mib=50.0, weights_mib=100.0), Stage(1, in_mib=200.0)))
    assert heavy_edge(ring, (3, 2)) == (0, 0, 0, 1, 1)


def test_no_server_begins_with_an_edge_that_it_has_no_room_for():
    stages = Stage(1, out_mib=9.0, tensor=2), Stage(1, in_mib=9.0, out_mib=4.0, tensor=2)
    assert heavy_edge(Layout((*stages, Stage(1, in_mib=4.0))), (3, 2)) == (1, 1, 0, 0, 0)


def test_slices_stay_together():
    layout = Layout(
        (
            Stage(2, weights_mib=5_000.0, out_mib=900.0, tensor=2, tensor_mib=1.0),
            Stage(2, weights_mib=5_000.0, in_mib=900.0, tensor=2, tensor_mib=1.0),
        )
    )
    for room in ((4, 4), (4, 2, 2), (2, 2, 2, 2), (6, 2)):
        found = mapping(layout, room, LINKS, 8)
        assert found.whole, room
        assert [found.servers[n] for n in range(0, 8, 2)] == [
            found.servers[n] for n in range(1, 8, 2)
        ]
    assert not mapping(layout, (3, 5), LINKS, 8).whole


def test_the_widest_slices_first():
    layout = Layout((Stage(1, tensor=2), Stage(1, tensor=4)))
    assert heavy_edge(layout, (4, 2)) == (1, 1, 0, 0, 0, 0)


def test_experts_that_talk_to_all_are_kept_from_a_stage_that_talks_to_one():
    layout = Layout((Stage(3, experts_mib=50.0, out_mib=1.0), Stage(1, in_mib=1.0)))
    assert heavy_edge(layout, (3, 1)) == (0, 0, 0, 1)


@given(LAYOUTS, st.data())
def test_every_server_gets_as_many_as_it_has_gpus(layout, data):
    room = data.draw(rooms(layout.gpus))
    found = heavy_edge(layout, room)
    assert [found.count(server) for server in range(len(room))] == room


@given(LAYOUTS, st.data())
def test_names_of_servers_do_not_matter(layout, data):
    """Servers with equal room may change places, so the counts are compared by the iteration."""
    room = data.draw(rooms(layout.gpus))
    turned = room[::-1]
    one, other = (iteration_s(layout, heavy_edge(layout, r), LINKS, 8) for r in (room, turned))
    assert one == pytest.approx(other)


@given(LAYOUTS)
def test_the_fewest_servers_are_no_slower_than_one_each(layout):
    assert extremes(layout, LINKS, 8).fastest_s <= slowest_s(layout, LINKS, 8) + 1e-12


def test_where_edges_lead_astray_slices_still_find_room():
    """The 9 MiB join the first and the second; on four GPUs only the first and the third fit."""
    stages = (Stage(1, out_mib=9.0, tensor=2), Stage(1, in_mib=9.0), Stage(1, tensor=2))
    assert heavy_edge(Layout(stages), (4, 1)) == (0, 0, 1, 0, 0)


@given(LAYOUTS, st.lists(st.sampled_from((2, 4, 8)), min_size=16, max_size=16))
def test_servers_of_an_even_size_always_hold_slices_of_two(layout, room):
    room = cut(room, layout.gpus)
    assert mapping(layout, tuple(sorted(room, reverse=True)), LINKS, 8).whole


def test_what_is_fastest_fills_all_servers_but_the_last():
    layout = Layout((Stage(6, 0.1, 0.2, weights_mib=600.0),))
    # 2 · 5/6 · 600 MiB; of a server's bandwidth the second one has 2 of 4 shares.
    assert extremes(layout, LINKS, 4).fastest_s == pytest.approx(0.3 + 1_000 / (2 / 4 * 1_000))
    assert extremes(layout, LINKS, 8).fastest_s == pytest.approx(0.3 + 1_000 / 10_000)
    assert extremes(layout, LINKS, 8).slowest_s == pytest.approx(0.3 + 1_000 / (1 / 8 * 1_000))


def test_what_is_heavy():
    """A replica has an eighth of the 1000 MiB/s between servers: 20 MiB take 0.16 s there."""
    told = {
        mib: extremes(Layout((Stage(2, 0.1, 0.2, weights_mib=mib),)), LINKS, 8)
        for mib in (0.0, 19.0, 20.0)
    }
    assert [each.heavy for each in told.values()] == [False, False, True]
    assert told[20.0].slowest_s == pytest.approx(0.3 + 20 / 125)
    assert told[20.0].fastest_s == pytest.approx(0.3 + 20 / 10_000)
    assert not extremes(Layout((Stage(2),)), LINKS, 8).heavy


def test_the_fewest_servers_hold_slices_of_several_widths():
    """Three and one on a server of four; and where no server holds the slices, all are full."""
    mixed = Layout((Stage(1, 0.1, 0.2, out_mib=100.0, tensor=3), Stage(1, 0.1, 0.2, in_mib=100.0)))
    assert mapping(mixed, (4,), LINKS, 4).iteration_s == extremes(mixed, LINKS, 4).fastest_s
    wide = Layout((Stage(2, 0.1, 0.2, weights_mib=400.0, tensor=8),))
    assert mapping(wide, (4,) * 4, LINKS, 4).iteration_s == extremes(wide, LINKS, 4).fastest_s


def test_slices_are_packed_where_they_leave_the_least_room():
    layout = Layout((Stage(1, tensor=3), Stage(3, tensor=2)))
    assert mapping(layout, (4, 3, 2), LINKS, 4).whole


def test_a_width_that_no_server_holds_is_none():
    wide = Layout((Stage(2, tensor=4),))
    assert extremes(wide, LINKS, 8).width == 4
    assert extremes(wide, LINKS, 4).width == 4
    assert extremes(wide, LINKS, 2).width == 1
