"""Where the rows of each segment begin and end, and what each row belongs to.

Runs of sorted ids are found beforehand where they are short: to look for the end of each while it
is folded took half of the time of a sum of one column in runs of ten.
"""

from __future__ import annotations

from ..codegen.block import least
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.listing import make_list_changes
from ..codegen.memory import set_word, word
from ..codegen.storage import ITEMSIZE
from ..codegen.vectors import stack
from ..segment_words import (
    ID_STRIDE,
    IDS,
    NUM_INPUTS,
    NUM_SEGMENTS,
    RUN_SIZE,
    RUN_STRIDE,
    RUNS,
    STARTS,
)
from .segment import id_at, id_from, make_id_at

# Rows at a time whose ids are compared with those before.
BLOCK = 256


@inner
def _start_in_order(p, segment):
    return word(word(p, STARTS), segment)


@inner
def _stop_in_order(p, segment, first):
    return word(word(p, STARTS), segment + 1)


@inlined
def _offset_at(p, segment):
    return id_from(word(p, RUNS) + segment * word(p, RUN_STRIDE), word(p, RUN_SIZE))


@inner
def _start_of_run(p, segment):
    """The offset of a segment, or the first row whose id is at least ``segment``."""
    if word(p, RUN_SIZE) != 0:
        return _offset_at(p, segment)
    low, high = 0, word(p, NUM_INPUTS)
    while low < high:
        middle = (low + high) // 2
        if id_at(p, middle) < segment:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _stop_of_run(p, segment, first):
    """The offset of the next segment, or the first row after ``first`` with another id."""
    if word(p, RUN_SIZE) != 0:
        return _offset_at(p, segment + 1)
    rows, after = word(p, NUM_INPUTS), first
    while after < rows and id_at(p, after) == segment:
        after += 1
    return after


def runs(together: bool):
    """``start(p, segment)`` and ``stop(p, segment, first)``.

    Rows lie ``together``, or their numbers were put in order.
    """
    return (_start_of_run, _stop_of_run) if together else (_start_in_order, _stop_in_order)


@inner
def _mark(starts, before, segment, n, segments):
    """Row n is the first behind an id, and those of segments up to another begin there."""
    for s in range(max(before + 1, 0), least(segment, segments) + 1):
        set_word(starts, s, n)


def make_starts_kernel(ids: str):
    """``kernel(p, begin, end)`` over rows with sorted ids: where the rows of segments begin."""
    id_at, size = make_id_at(ids), ITEMSIZE[ids]
    list_changes, lists = make_list_changes(size), stack(BLOCK + LANES)

    def kernel(p, begin, end):
        starts, segments, rows = word(p, RUNS), word(p, NUM_SEGMENTS), lists()
        total, at, stride = word(p, NUM_INPUTS), word(p, IDS), word(p, ID_STRIDE)
        if begin == 0:
            _mark(starts, -1, id_at(p, 0), 0, segments)
        for start in range(max(begin, 1), end, BLOCK):
            after, found, alone = least(start + BLOCK, end), 0, start
            if stride == size:
                alone = start + (after - start) // LANES * LANES
                for n in range(start, alone, LANES):
                    found = list_changes(at + n * size, n, rows, found)
            for n in range(alone, after):
                set_word(rows, found, n)
                found += id_at(p, n) != id_at(p, n - 1)
            for k in range(found):
                n = word(rows, k)
                _mark(starts, id_at(p, n - 1), id_at(p, n), n, segments)
        if end == total:
            _mark(starts, id_at(p, total - 1), segments, total, segments)

    return kernel
