"""Where the rows of each segment begin and end."""

from __future__ import annotations

from ..codegen.functions import inlined, inner
from ..codegen.memory import word
from ..segment_words import BY_OFFSETS, NUM_INPUTS, STARTS
from .segment import id_at


@inner
def _start_in_order(p, segment):
    return word(word(p, STARTS), segment)


@inner
def _stop_in_order(p, segment, first):
    return word(word(p, STARTS), segment + 1)


@inner
def _start_of_run(p, segment):
    """The offset of a segment, or the first row whose id is at least ``segment``."""
    if word(p, BY_OFFSETS) != 0:
        return id_at(p, segment)
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
    if word(p, BY_OFFSETS) != 0:
        return id_at(p, segment + 1)
    rows, after = word(p, NUM_INPUTS), first
    while after < rows and id_at(p, after) == segment:
        after += 1
    return after


def runs(together: bool):
    """``start(p, segment)`` and ``stop(p, segment, first)``.

    Rows lie ``together``, or their numbers were put in order.
    """
    return (_start_of_run, _stop_of_run) if together else (_start_in_order, _stop_in_order)
