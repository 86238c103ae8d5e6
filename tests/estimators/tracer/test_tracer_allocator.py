"""The model of the caching allocator: PyTorch's documented rules, and general invariants."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.tracer.allocator import MIB, Allocator, Options, OutOfMemory, options

SIZES = st.one_of(
    st.integers(1, 4096), st.integers(1, 3 * MIB), st.integers(MIB, 64 * MIB), st.just(10 * MIB)
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), SIZES),
        st.tuples(st.just("release"), st.integers(0, 200)),
        st.tuples(st.just("empty"), st.just(0)),
    ),
    max_size=120,
)
OPTIONS = st.sampled_from(
    [
        Options(),
        Options(expandable=True),
        Options(max_split=24 * MIB),
        Options(expandable=True, max_split=24 * MIB),
        Options(divisions=4),
        Options(expandable=True, large_segment=30 * MIB),
    ]
)


def play(events: list[tuple[str, int]], chosen: Options) -> tuple[Allocator, dict[int, int]]:
    """The allocator afterwards, and the bytes by name of what is live in it."""
    allocator, live = Allocator(chosen), dict[int, int]()
    for number, (what, value) in enumerate(events):
        if what == "allocate":
            allocator.allocate(number, value)
            live[number] = value
        elif what == "empty":
            allocator.empty_cache()
        elif live:
            name = sorted(live)[value % len(live)]
            allocator.release(name)
            del live[name]
    return allocator, live


@given(EVENTS, OPTIONS)
def test_blocks_never_overlap_and_account_for_all_that_is_reserved(
    events: list[tuple[str, int]], chosen: Options
) -> None:
    allocator, live = play(events, chosen)
    blocks = sorted(allocator.blocks(), key=lambda block: block.address)
    assert all(one.address + one.size <= two.address for one, two in pairwise(blocks))
    assert sum(block.size for block in blocks) == allocator.reserved
    assert sum(block.size for block in blocks if not block.free) == allocator.allocated
    assert sum(live.values()) <= allocator.allocated <= allocator.reserved
    assert sum(not block.free for block in blocks) == len(live)


@given(EVENTS, OPTIONS)
def test_neighbours_know_each_other_and_free_ones_are_merged(
    events: list[tuple[str, int]], chosen: Options
) -> None:
    for block in play(events, chosen)[0].blocks():
        if block.after is not None:
            assert block.after.before is block
            assert block.after.address == block.address + block.size
            assert not (block.free and block.after.free)


@given(EVENTS, OPTIONS)
def test_nothing_stays_when_all_is_released_and_the_cache_emptied(
    events: list[tuple[str, int]], chosen: Options
) -> None:
    allocator, live = play(events, chosen)
    for name in live:
        allocator.release(name)
    assert allocator.allocated == 0
    assert all(b.free and b.before is None and b.after is None for b in allocator.blocks())
    allocator.empty_cache()
    assert allocator.reserved == 0


@given(EVENTS, OPTIONS)
def test_it_is_deterministic(events: list[tuple[str, int]], chosen: Options) -> None:
    def shape(allocator: Allocator) -> list[tuple[int, int, bool]]:
        return sorted((b.address, b.size, b.free) for b in allocator.blocks())

    assert shape(play(events, chosen)[0]) == shape(play(events, chosen)[0])


@pytest.mark.parametrize(
    ("nbytes", "allocated", "reserved"),
    [
        (0, 0, 0),
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is not split off
        (30 * MIB + 1, 30 * MIB + 512, 32 * MIB),  # more than 1 MiB is
    ],
)
def test_requests_are_rounded_as_pytorch_does(nbytes: int, allocated: int, reserved: int) -> None:
    allocator = Allocator()
    allocator.allocate("a", nbytes)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = Allocator()
    for name, size in (("large", 60), ("small", 40), ("larger", 80)):
        allocator.allocate(name, size * MIB)
    for name in ("large", "small", "larger"):
        allocator.release(name)
    allocator.allocate("new", 30 * MIB)
    assert sorted(b.size // MIB for b in allocator.blocks() if b.free) == [10, 60, 80]


def test_small_requests_never_use_large_segments() -> None:
    allocator = Allocator()
    allocator.allocate("large", 30 * MIB)
    allocator.release("large")
    allocator.allocate("small", 1000)
    assert allocator.reserved == 32 * MIB


def test_emptying_the_cache_keeps_segments_in_use() -> None:
    allocator = Allocator()
    for name in "ab":
        allocator.allocate(name, 4 * MIB)  # of one segment of 20 MiB
    allocator.allocate("c", 50 * MIB)
    allocator.release("a")
    allocator.release("c")
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB


def test_at_its_capacity_it_empties_the_cache_before_it_gives_up() -> None:
    allocator = Allocator(capacity=100 * MIB)
    allocator.allocate("a", 60 * MIB)
    allocator.release("a")
    allocator.allocate("b", 80 * MIB)
    assert allocator.reserved == 80 * MIB
    with pytest.raises(OutOfMemory, match="30 MiB asked for, 80 held"):
        allocator.allocate("c", 30 * MIB)
    assert allocator.reserved == allocator.allocated == 80 * MIB


def test_expandable_segments_grow_where_others_fragment() -> None:
    def peak(chosen: Options) -> int:
        allocator = Allocator(chosen)
        for size in (40, 50, 60, 70):  # each too large for what the last one left
            allocator.allocate("x", size * MIB)
            allocator.release("x")
        return allocator.reserved

    assert peak(Options()) == 220 * MIB
    assert peak(Options(expandable=True)) == 80 * MIB  # in pages of 20 MiB


def test_expandable_segments_give_whole_pages_back_and_grow_again() -> None:
    allocator = Allocator(Options(expandable=True))
    allocator.allocate("a", 30 * MIB)
    allocator.allocate("b", 50 * MIB)
    allocator.release("b")
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB
    allocator.allocate("c", 30 * MIB)  # 10 MiB are there
    assert allocator.reserved == 60 * MIB


def test_blocks_over_the_split_limit_stay_whole() -> None:
    def reserved(chosen: Options) -> int:
        allocator = Allocator(chosen)
        allocator.allocate("a", 100 * MIB)
        allocator.release("a")
        allocator.allocate("b", 30 * MIB)
        return allocator.reserved

    assert reserved(Options()) == 100 * MIB
    assert reserved(Options(max_split=64 * MIB)) == 130 * MIB


def test_requests_are_rounded_up_between_powers_of_two() -> None:
    allocator = Allocator(Options(divisions=4))
    allocator.allocate("a", 1200)  # below four times 512 it is multiples of 512
    assert allocator.allocated == 1536
    allocator.allocate("b", 65 * MIB)
    assert allocator.allocated == 1536 + 80 * MIB


def test_the_variable_is_read_as_pytorch_writes_it() -> None:
    text = "expandable_segments:True, max_split_size_mb:128,roundup_power2_divisions:8"
    assert options(text) == (Options(True, 128 * MIB, 8), ())
    assert options("large_segment_size_mb:40")[0].large_segment == 40 * MIB
    assert options("expandable_segments:False") == (Options(), ())
    assert options("") == (Options(), ())


def test_what_is_not_modelled_is_said() -> None:
    chosen, notes = options("backend:cudaMallocAsync,roundup_power2_divisions:[256:1,>:8]")
    assert chosen == Options()
    assert notes == (
        "the allocator's option backend:cudaMallocAsync is not modelled",
        "the allocator's option roundup_power2_divisions:[256:1,>:8] is not modelled",
    )
