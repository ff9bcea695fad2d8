"""Tiles, walks and workspaces, without a GPU."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cells import DTYPES, OPS
from pullback.core.problem import Problem
from pullback.gpu.layout import choose_walk, merge
from pullback.gpu.tiles import (
    LONG,
    MOST_WARPS,
    Tile,
    choose_gather_tile,
    choose_segment_tile,
    choose_tile,
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
        # 64 KiB of operands at most, even with four of them.
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


def test_short_rows_share_a_program():
    tile = choose_tile("fold", 4, 8, 100_000)
    assert tile.block == 8
    assert tile.units * tile.block >= 1024


def test_few_rows_are_cut_only_where_they_are_long():
    assert not choose_tile("fold", 4, LONG // 2, 1).is_split
    assert choose_tile("fold", 4, 4 * LONG, 1).is_split
    assert not choose_tile("fold", 4, 4 * LONG, 10_000).is_split


def test_segment_tiles():
    small = choose_segment_tile(4, 100_000, 64, 10_000)
    assert small.parts == 1
    assert choose_segment_tile(4, 1_000_000, 64, 10).parts > 1
    for item, columns in itertools.product((2, 4, 8), (1, 3, 64, 1000)):
        for tile in (choose_gather_tile(item, columns), choose_segment_tile(item, 5, columns, 2)):
            assert is_power(tile.rows)
            assert is_power(tile.columns)
            assert is_power(tile.warps)


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
    wide = choose_walk((2**21, 1024), (1,), [(1024, 1)], [0], False)
    assert not narrow.wide
    assert wide.wide
    apart = choose_walk((4, 1024), (1,), [(2**30, 1)], [0], False)
    assert apart.wide


@pytest.mark.parametrize("name", ["sum", "softmax", "cumsum_backward", "cumprod_backward"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 2_000_000), 1),
        ((2_000_000, 3), 0),
        ((64, 100_000), 1),
        ((300, 40, 50), 1),
        ((3, 70_000, 2), 1),
        ((5, 7), 0),
    ],
)
def test_workspace_bound(name, shape, axis):
    """``workspace_size`` suffices whatever the strides."""
    pytest.importorskip("triton")
    from pullback.gpu.launch import Launch, workspace_bound

    problem = Problem(OPS[name], "f32", shape, (axis,))
    bound = workspace_bound(problem)
    item = DTYPES["f32"].itemsize
    for order in itertools.permutations(range(len(shape))):
        steps, step = [0] * len(shape), item
        for d in order:
            steps[d], step = step, step * shape[d] + item
        strides = {n: tuple(steps) for n in (*problem.op.inputs, *problem.op.outputs)}
        assert Launch(problem, strides, in_place=False).workspace <= bound


def test_tile_is_plain_data():
    assert Tile(1, 2, 1, 2, 1) == Tile(1, 2, 1, 2, 1)
    assert Tile(1, 2, 1, 2, 3).is_split
