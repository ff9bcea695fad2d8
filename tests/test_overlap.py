"""Overlap answers against a brute-force set of the bytes each view covers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pullback.memory import overlap
from pullback.memory.view import view


@dataclass(frozen=True)
class Memory:
    """A made-up view; the answers never read memory, so any address will do."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int = 4

    def elements(self):
        for index in itertools.product(*map(range, self.shape)):
            yield self.address + sum(i * s for i, s in zip(index, self.strides, strict=True))

    def byte_list(self):
        return [start + k for start in self.elements() for k in range(self.itemsize)]


@st.composite
def memories(draw, max_rank=4):
    rank = draw(st.integers(0, max_rank))
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank)))
    steps = draw(st.lists(st.integers(-14, 14), min_size=rank, max_size=rank))
    itemsize = draw(st.sampled_from([2, 4, 8]))
    address = 4096 + draw(st.integers(-30, 30)) * itemsize
    # Strides that are no multiple of the item size cannot come from view(), but must not fool it.
    unit = draw(st.sampled_from([itemsize, itemsize, itemsize, 1]))
    return Memory(address, shape, tuple(s * unit for s in steps), itemsize)


@settings(max_examples=300, deadline=None)
@given(memories())
def test_bounds_are_tight(m):
    covered = m.byte_list()
    expected = (min(covered), max(covered) + 1) if covered else (m.address, m.address)
    assert overlap.byte_bounds(m) == expected


@settings(max_examples=600, deadline=None)
@given(memories())
@example(Memory(4096, (2, 5), (12, 8)))  # interleaved, yet disjoint: 0 8 16 24 32, 12 20 28 36 44
@example(Memory(4096, (3, 5), (12, 8)))  # one more row and 0 + 3*8 meets 2*12 + 0
@example(Memory(4096, (2, 3), (12, -4)))
@example(Memory(4096, (4,), (0,)))
@example(Memory(4096, (1, 4), (0, 4)))
@example(Memory(4096, (0, 4), (0, 0)))
@example(Memory(4096, (2, 2, 2), (24, 8, 12)))
def test_self_overlap_is_exact(m):
    covered = m.byte_list()
    assert overlap.self_overlaps(m) == (len(set(covered)) != len(covered))


@settings(max_examples=600, deadline=None)
@given(memories(max_rank=3), memories(max_rank=3))
@example(Memory(4096, (4,), (8,)), Memory(4100, (4,), (8,)))
@example(Memory(4096, (4,), (8,)), Memory(4100, (4,), (12,)))
@example(Memory(4096, (), ()), Memory(4096, (), ()))
@example(Memory(4096, (4,), (-4,)), Memory(4088, (4,), (-4,)))
def test_overlap_is_exact(a, b):
    expected = not set(a.byte_list()).isdisjoint(b.byte_list())
    assert overlap.overlaps(a, b) == expected
    assert overlap.overlaps(b, a) == expected


def test_adjacent_is_disjoint():
    a, b = Memory(4096, (4,), (4,)), Memory(4112, (4,), (4,))
    assert not overlap.overlaps(a, b)
    assert overlap.overlaps(a, Memory(4108, (4,), (4,)))


def test_large_views_are_answered_exactly_and_at_once():
    big = 10**9
    assert not overlap.self_overlaps(Memory(4096, (2, big), (12, 8)))
    assert overlap.self_overlaps(Memory(4096, (3, big), (12, 8)))
    assert not overlap.overlaps(Memory(4096, (big,), (8,)), Memory(4100, (big,), (8,)))
    assert overlap.overlaps(Memory(4096, (big,), (8,)), Memory(4100, (big,), (12,)))


def test_too_hard_counts_as_overlap(monkeypatch):
    a = Memory(4096, (6, 6, 6, 6), (4 * 30, 4 * 42, 4 * 70, 4 * 105))
    b = Memory(4096 + 4 * 23, (6, 6, 6, 6), (4 * 66, 4 * 78, 4 * 110, 4 * 130))

    def refuse(*args, **kwargs):
        raise np.exceptions.TooHardError

    assert isinstance(overlap.overlaps(a, b), bool)
    monkeypatch.setattr(np, "shares_memory", refuse)
    assert overlap.overlaps(a, b) is True


def test_address_range_extremes():
    low = Memory(4, (2,), (4,))
    high = Memory(2**47 - 64, (4,), (-4,))
    assert not overlap.overlaps(low, high)
    assert overlap.overlaps(high, high)
    assert overlap.overlaps(low, low)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (Memory(64, (2, 3), (12, 4)), Memory(64, (2, 3), (12, 4)), True),
        (Memory(64, (1, 3), (12, 4)), Memory(64, (1, 3), (400, 4)), True),
        (Memory(64, (2, 3), (12, 4)), Memory(64, (2, 3), (4, 8)), False),
        (Memory(64, (2, 3), (12, 4)), Memory(68, (2, 3), (12, 4)), False),
        (Memory(64, (2, 3), (12, 4)), Memory(64, (3, 2), (12, 4)), False),
        (Memory(64, (4,), (8,), 8), Memory(64, (4,), (8,), 4), False),
        (Memory(64, (), ()), Memory(64, (), ()), True),
    ],
)
def test_same_memory(a, b, same):
    assert overlap.same_memory(a, b) is same
    assert overlap.same_memory(b, a) is same


def test_on_real_arrays():
    base = np.zeros((4, 6), np.float32)
    whole = view(base, "base")
    flipped = view(base[::-1], "flipped")
    assert overlap.overlaps(whole, flipped)
    assert not overlap.same_memory(whole, flipped)
    assert not overlap.self_overlaps(flipped)
    assert not overlap.overlaps(view(base[:, ::2], "even"), view(base[:, 1::2], "odd"))
    assert not overlap.self_overlaps(view(base.T, "transposed"))
    assert overlap.self_overlaps(view(np.broadcast_to(base[0], (3, 6)), "broadcast"))
    windows = np.lib.stride_tricks.sliding_window_view(base[0], 3)
    assert overlap.self_overlaps(view(windows, "windows"))
    assert overlap.same_memory(whole, view(base[:], "again"))
