"""Tiles, walks and workspaces, without a GPU."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cells import DTYPES, ELEMENTS, OPS
from pullback.core.problem import Problem
from pullback.gpu.layout import choose_walk, merge
from pullback.gpu.tiles import (
    AHEAD_BYTES,
    ALONE,
    FEW,
    IN_FLIGHT,
    LONG,
    MANY,
    MOST_WARPS,
    Tile,
    choose_gather_tile,
    choose_run_tiles,
    choose_stages,
    choose_tile,
    room_of,
)

WORKS = ("pointwise", "fold", "scan", "both ways")
LENGTHS = (1, 2, 7, 31, 1024, 1025, 5000, 65_537, 8_000_000, 3 * 10**9)


def is_power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("item", [2, 4, 8])
@pytest.mark.parametrize("across", [False, True])
def test_tiles_are_sound(work, item, across):
    for length, units in itertools.product(LENGTHS, LENGTHS):
        tile = choose_tile(work, item, length, units, 1, across)
        assert tile == choose_tile(work, item, length, units, 1, across)
        assert is_power(tile.units)
        assert is_power(tile.block)
        assert 1 <= tile.warps <= MOST_WARPS
        assert is_power(tile.warps)
        # 64 KiB of an operand at most.
        assert tile.units * tile.block * item <= 2**16
        assert tile.chunk % tile.block == 0
        assert (tile.chunks - 1) * tile.chunk < max(length, 1) <= tile.chunks * tile.chunk


@pytest.mark.parametrize(
    ("work", "length", "units", "expected"),
    [
        ("fold", 4096, 4096, "whole"),
        ("fold", 50_000, 4096, "blocks"),
        ("fold", 8_000_000, 2, "chunks"),
        ("scan", 1024, 4096, "whole"),
        ("scan", 50_000, 4096, "blocks"),
        ("scan", 8_000_000, 1, "chunks"),
        ("both ways", 1025, 64, "whole"),
        ("both ways", 5000, 64, "blocks"),
        ("both ways", 8_000_000, 2, "chunks"),
    ],
)
def test_every_schedule_is_reached(work, length, units, expected):
    tile = choose_tile(work, 4, length, units)
    found = "whole" if tile.is_whole(length) else "chunks" if tile.is_split else "blocks"
    assert found == expected


@pytest.mark.parametrize(
    ("item", "held", "most"),
    [(4, 1, 32768), (4, 2, 16384), (2, 1, 32768), (2, 2, 32768), (2, 4, 16384), (8, 1, 16384)],
)
def test_rows_that_are_looked_at_twice_are_held(item, held, most):
    assert choose_tile("fold", item, most, 4096, held=held).is_whole(most)
    assert not choose_tile("fold", item, most + 1, 4096, held=held).is_whole(most + 1)
    # Not by a few programs: others would be idle.
    assert not choose_tile("fold", item, most, 64, held=held).is_whole(most)


@pytest.mark.parametrize(
    ("item", "held", "tail"), [(4, 1, 16384), (4, 2, 16384), (2, 1, 32768), (8, 2, 8192)]
)
def test_rows_too_long_to_be_held_keep_their_tail(item, held, tail):
    for length in (2**15 + 1, 2**16):
        tile = choose_tile("fold", item, length, 4096, held=held, tailed=held)
        if not tile.is_whole(length):
            assert (tile.tail, tile.chunks) == (tail, 1)
            # What is left for the loop is whole blocks, and ends where the tail begins.
            assert tile.tail >= tile.block
    assert not choose_tile("fold", item, 2**16 + 1, 4096, held=held, tailed=held).tail
    assert not choose_tile("fold", item, 2**16, 64, held=held, tailed=held).tail
    # Of three operands there is less of each, and of many not a block.
    assert is_power(choose_tile("fold", item, 2**16, 4096, tailed=3).tail)
    assert not choose_tile("fold", item, 2**16, 4096, tailed=16).tail
    # A row that is looked at once, if it is not held, is not.
    assert not choose_tile("fold", item, 2**16, 4096, held=held).tail


def test_cores_hold_a_row_together():
    """From sm_90 on, up to eight; AMD's cores have twice the registers."""
    for length, cores in ((16384, 1), (20_000, 2), (65536, 4), (131_072, 8)):
        tile = choose_tile("fold", 4, length, 4096, held=2, tailed=2, room=room_of("sm_90"))
        assert tile.is_whole(length)
        assert (tile.cores, tile.chunks, tile.tail) == (cores, 1, 0)
    too_long = choose_tile("fold", 4, 131_073, 4096, held=2, tailed=2, room=room_of("sm_100"))
    assert (too_long.cores, too_long.is_whole(131_073)) == (1, False)
    # What is read once anyway needs nobody to hold it.
    assert choose_tile("fold", 4, 65536, 4096, held=1, room=room_of("sm_90")).cores == 1
    amd = choose_tile("fold", 4, 32768, 4096, held=2, tailed=2, room=room_of("gfx942"))
    assert (amd.is_whole(32768), amd.cores, amd.warps) == (True, 1, 2 * MOST_WARPS)
    assert (
        choose_tile("fold", 4, 65536, 4096, held=2, tailed=2, room=room_of("gfx90a")).tail == 16384
    )
    for arch in ("sm_75", "sm_89", "interpreter"):
        assert room_of(arch) == ALONE


def test_short_rows_share_a_program():
    tile = choose_tile("fold", 4, 8, 100_000)
    assert tile.block == 8
    assert tile.units * tile.block >= 1024


def test_few_rows_are_cut_only_where_they_are_long():
    assert not choose_tile("fold", 4, LONG // 2, 1).is_split
    assert choose_tile("fold", 4, 4 * LONG, 1).is_split
    assert not choose_tile("fold", 4, 4 * LONG, 10_000).is_split


def test_segment_tiles():
    for item, columns in itertools.product((2, 4, 8), (1, 3, 64, 1000)):
        for rows, segments in itertools.product((0, 5, 4096, 10**6, 10**9), (1, 70, 10**6)):
            runs = choose_run_tiles(item, rows, columns, segments)
            assert is_power(runs.chunk)
            assert runs.chunk % runs.long.rows == 0
            for tile in (choose_gather_tile(item, columns), runs.short, runs.long):
                assert is_power(tile.rows)
                assert is_power(tile.columns)
                assert is_power(tile.warps)
                assert tile.rows * tile.columns * item <= 2**14


@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.parametrize("work", WORKS[1:])
def test_enough_is_asked_for_at_once(work, item):
    """Down columns and along rows, wherever there is enough to ask for."""
    for length, units, across in (
        (4096, 4096, True),
        (4096, 8192, True),
        (512, 16384, True),
        (20_000, 128, False),
        (100_000, 512, False),
        (8_000_000, 2, False),
        (2_000_000, 64, True),
    ):
        tile = choose_tile(work, item, length, units, 1, across)
        programs = -(-units // tile.units) * tile.chunks
        asked = programs * tile.units * tile.block * item
        # Registers allow a scan half of it, a quarter where its elements are narrower than what it
        # computes in, and half of that of each of two operands if it runs both ways.
        share = {"fold": 0.9, "scan": item / 8, "both ways": item / 16}[work]
        assert asked >= share * IN_FLIGHT, (length, units, tile)
        if work != "fold":
            # Blocks ahead make up for it, with half of the programs at once where there are many,
            # and three on each of 132 cores if they run both ways.
            operands, at_once = 1, programs if programs <= FEW else programs // 2
            if work == "both ways":
                operands, at_once = 2, min(programs, 3 * 132)
            nbytes = operands * tile.units * tile.block * item
            ahead = choose_stages(nbytes, programs) - 1
            assert at_once * nbytes * ahead >= IN_FLIGHT, (length, units, tile)
            assert ahead * nbytes <= AHEAD_BYTES
        assert programs >= FEW, (length, units, tile)


def test_positions_of_chunks_fit_their_type():
    """Where a chunk ends, which may be past the row, in 32 bits as long as offsets have them."""
    for length in (2**30, 2**30 - 12345, 2**31 - 2**20 - 1, 2**31 - 2):
        walk = choose_walk((1, length), (1,), [(length, 1)], [0], False)
        for work in WORKS[1:]:
            tile = choose_tile(work, 4, length, 1)
            assert walk.wide or tile.chunks * tile.chunk < 2**31


def test_a_single_segment_is_enough_for_many_programs():
    runs = choose_run_tiles(4, 10**6, 64, 1)
    assert 10**6 // runs.chunk >= MANY


def test_merge():
    assert merge([2, 3, 4], [[12, 4, 1], [12, 4, 1]]) == ([24], [[1], [1]])
    assert merge([2, 1, 4], [[4, 9, 1]]) == ([8], [[1]])
    assert merge([2, 3], [[3, 1], [1, 2]]) == ([2, 3], [[3, 1], [1, 2]])


def test_lanes_lie_where_memory_is_contiguous():
    rows = choose_walk((64, 128), (1,), [(128, 1), (128, 1)], [0, 1], False)
    assert not rows.across
    assert (rows.units, rows.axis) == (64, (128,))
    columns = choose_walk((64, 128), (0,), [(128, 1), (128, 1)], [0, 1], False)
    assert columns.across
    assert (columns.units, columns.axis) == (128, (64,))
    bent = choose_walk((4, 5, 6), (0, 2), [(30, 6, 1), (0, 1, 0)], [0], False)
    assert bent.axis == (4, 6)
    assert not bent.across


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.permutations(range(5)),
    st.data(),
)
def test_a_walk_visits_every_element_once(shape, order, data):
    """Offsets of a walk over a permuted tensor, each taken once."""
    order = [d for d in order if d < len(shape)]
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d], step = step, step * shape[d]
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    pointwise = data.draw(st.booleans())
    walk = choose_walk(shape, axes, [tuple(strides)], [0], pointwise)
    sizes = (walk.units, *walk.outer, *walk.axis)
    steps = (walk.unit_strides[0], *walk.outer_strides[0], *walk.axis_strides[0])
    offsets = [
        sum(i * s for i, s in zip(index, steps, strict=True))
        for index in itertools.product(*map(range, sizes))
    ]
    assert sorted(offsets) == list(range(math.prod(shape)))
    if not pointwise:
        # Along the axis the order is that of the definition.
        along = [shape[a] for a in axes]
        first = [
            sum(i * strides[a] for i, a in zip(index, axes, strict=True))
            for index in itertools.product(*map(range, along))
        ]
        walked = [
            sum(i * s for i, s in zip(index, walk.axis_strides[0], strict=True))
            for index in itertools.product(*map(range, walk.axis))
        ]
        assert walked == first


def test_large_tensors_have_wide_offsets():
    narrow = choose_walk((2**20, 1024), (1,), [(1024, 1)], [0], False)
    wide = choose_walk((2**20 + 1, 1024), (1,), [(1024, 1)], [0], False)
    assert not narrow.wide
    assert wide.wide
    apart = choose_walk((4, 1024), (1,), [(2**30, 1)], [0], False)
    assert apart.wide


BOUNDED = ("sum", "softmax", "cumsum", "cummax_backward", "cumprod_backward")
SHAPES = [
    ((2, 2_000_000), (1,)),
    ((2_000_000, 3), (0,)),
    ((64, 100_000), (1,)),
    ((300, 40, 50), (1,)),
    ((3, 70_000, 2), (1,)),
    ((4000, 5, 31), (0,)),
    ((20_000, 3, 5, 7), (0,)),
    ((4096, 4096), (0,)),
    ((5, 7), (0,)),
]


def steps_in(order, gaps, shape, item):
    """Strides of a tensor whose dimensions lie in an order, with gaps after some."""
    steps, step = [0] * len(shape), item
    for d, gap in zip(order, gaps, strict=True):
        steps[d], step = step, step * shape[d] + (item if gap else 0)
    return tuple(steps)


@given(st.sampled_from(SHAPES), st.sampled_from(BOUNDED), st.sampled_from(ELEMENTS), st.data())
def test_workspace_bound(place, name, element, data):
    """``workspace_size`` suffices whatever the strides, which differ between operands."""
    pytest.importorskip("triton")
    from pullback.gpu.launch import Launch, workspace_bound

    shape, axes = place
    problem = Problem(OPS[name], element, shape, axes)
    item, rank = DTYPES[element].itemsize, len(shape)
    strides, room = {}, room_of(data.draw(st.sampled_from(["sm_80", "sm_90", "gfx942"])))
    for operand in (o.name for o in (*problem.reads, *problem.writes)):
        order = data.draw(st.permutations(range(rank)))
        gaps = data.draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
        steps = steps_in(order, gaps, problem.shape_of(operand), item)
        negative = data.draw(st.sampled_from([1, -1]))
        strides[operand] = (*steps[:-1], negative * steps[-1])
    in_place = data.draw(st.booleans())
    needed = Launch(problem, strides, in_place, room=room).workspace
    assert needed <= workspace_bound(problem, room)


def test_workspace_of_dimensions_that_do_not_merge():
    """Columns that lie in groups of 31 leave tiles part empty, and ask for more."""
    pytest.importorskip("triton")
    from pullback.gpu.launch import Launch, workspace_bound

    problem = Problem(OPS["cumsum"], "bf16", (4000, 5, 31), (0,))
    together = dict.fromkeys(("x", "y"), (310, 62, 2))
    apart = dict.fromkeys(("x", "y"), (320, 64, 2))
    needed = {Launch(problem, s, in_place=False).workspace for s in (together, apart)}
    assert workspace_bound(problem, ALONE) == max(needed)


def test_tile_is_plain_data():
    assert Tile(1, 2, 1, 2, 1) == Tile(1, 2, 1, 2, 1)
    assert Tile(1, 2, 1, 2, 3).is_split
