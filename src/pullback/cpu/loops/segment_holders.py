"""Gradients of one column that few rows of each segment have a part in, with ids in any order.

Threads share the rows, eight at a time: most are given 0 at once, those that hold what the formula
looks for are listed, and counted in a table that each part of the rows has to itself. Then those
listed are given the number of their segment. Ties of a maximum, a million rows in 100000 segments,
took 2.4 ms when one thread folded what all had listed.
"""

from __future__ import annotations

from ...formulas.record import RowFormula
from ..codegen.block import is_below, least
from ..codegen.functions import inlined
from ..codegen.lanes import LANES
from ..codegen.listing import make_are_inside
from ..codegen.memory import set_word, word
from ..codegen.operands import Operands
from ..codegen.part_tables import (
    STATE_BYTES,
    clear_elements,
    copy_element,
    count_one,
    fill_line,
    holders_of,
)
from ..segment_words import HOLDER_SLICES, ID_STRIDE, IDS, NUM_INPUTS, NUM_SEGMENTS, PARTS
from ..words import ITEMSIZE, LINE
from .segment import id_from
from .segment_parts import Parts

# Rows that are looked at before those listed are counted.
BLOCK = 256


class Lists:
    """Where the rows of each part are listed, behind the tables: how many, numbers, segments."""

    def __init__(self, parts: Parts):
        numbers_at, item = parts.numbers_at, parts.operands.edge.item

        @inlined
        def room_of(p):
            """Bytes of the list of a part."""
            return 8 * ((word(p, NUM_INPUTS) + word(p, PARTS) - 1) // word(p, PARTS) + 2 * LANES)

        @inlined
        def list_at(p, part):
            numbers = (item * word(p, NUM_SEGMENTS) + LINE - 1) // LINE * LINE
            return numbers_at(p) + numbers + part * 2 * room_of(p)

        self.room_of, self.list_at = room_of, list_at


def make_find_kernel(parts: Parts, ids: str):
    """``kernel(p, begin, end)`` over parts of the rows: zeros, lists and counts."""
    operands, states, size = parts.operands, parts.states, ITEMSIZE[ids]
    lists, fill, are_inside = Lists(parts), fill_line(states), make_are_inside(size)
    list_at, room_of = lists.list_at, lists.room_of
    holders, holder = (holders_of(parts.formula, operands, size, some) for some in (LANES, 1))
    clear, clear_one = clear_elements(operands, LANES), clear_elements(operands, 1)
    memory_of, table_bytes, part_bytes = parts.memory_of, parts.table_bytes, parts.part_bytes
    states_at = parts.states_at

    def kernel(p, begin, end):
        addresses, _ = memory_of(p)
        rows, segments, all_parts = word(p, NUM_INPUTS), word(p, NUM_SEGMENTS), word(p, PARTS)
        ids_at, stride = word(p, IDS), word(p, ID_STRIDE)
        for part in range(begin, end):
            table = states_at(p) + part * part_bytes(p)
            for line in range(table, table + table_bytes(p), LINE):
                fill(line)
            first, after = part * rows // all_parts, (part + 1) * rows // all_parts
            numbers = list_at(p, part) + 8
            owners, found, counted = numbers + room_of(p), 0, 0
            for start in range(first, after, BLOCK):
                stop = least(start + BLOCK, after)
                n = start
                if stride == size:
                    while n + LANES <= stop and are_inside(ids_at + n * size, segments):
                        at = ids_at + n * size
                        found = holders(addresses, n, at, numbers, owners, found)
                        clear(addresses, n)
                        n += LANES
                while n < stop:
                    at = ids_at + n * stride
                    if is_below(id_from(at, size), segments):
                        found = holder(addresses, n, at, numbers, owners, found)
                    clear_one(addresses, n)
                    n += 1
                for k in range(counted, found):
                    count_one(table + STATE_BYTES * word(owners, k))
                counted = found
            set_word(numbers - 8, 0, found)

    return kernel


def make_give_kernel(parts: Parts):
    """``kernel(p, begin, end)`` over slices of the lists: what those listed are given."""
    lists, copy = Lists(parts), copy_element(parts.operands)
    list_at, room_of = lists.list_at, lists.room_of
    memory_of, numbers_at, item = parts.memory_of, parts.numbers_at, parts.operands.edge.item

    def kernel(p, begin, end):
        (addresses, _), given = memory_of(p), numbers_at(p)
        for unit in range(begin, end):
            part, own = unit // HOLDER_SLICES, unit % HOLDER_SLICES
            numbers = list_at(p, part) + 8
            owners, found = numbers + room_of(p), word(numbers - 8, 0)
            for k in range(own * found // HOLDER_SLICES, (own + 1) * found // HOLDER_SLICES):
                copy(addresses, word(numbers, k), given + item * word(owners, k))

    return kernel


def make_kernel(formula: RowFormula, element: str, operands: Operands, what: str, ids: str):
    """The kernel of a phase: ``"find holders"`` or ``"give holders"``."""
    parts = Parts(formula, element, operands, 1)
    return make_find_kernel(parts, ids) if what == "find holders" else make_give_kernel(parts)
