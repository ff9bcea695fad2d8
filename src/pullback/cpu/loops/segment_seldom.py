"""Gradients that few rows of each segment have a part in, of few columns, with ids in any order.

Those rows are looked for by all threads, each in blocks of its own, and listed; only they are
folded, in row order, and computed again. Ties of a maximum, a million rows of one element in
100000 segments, took 2.2 ms when every row was folded and then computed.
"""

from __future__ import annotations

from typing import Any

from ...formulas.record import RowFormula
from ..codegen.bind import element_emitter, per_element
from ..codegen.block import emit_word, is_below, least
from ..codegen.elementary import primitives_for
from ..codegen.functions import emitter, inlined, inner
from ..codegen.lanes import I64, LANES
from ..codegen.listing import list_holding, make_list_eight, make_rooms, words_at
from ..codegen.memory import set_word, word
from ..codegen.operands import Operands
from ..codegen.vectors import counting, no_vectors, zero_vectors
from ..segment_words import HELD, NUM_COLUMNS, NUM_INPUTS, NUM_SEGMENTS, SELDOM_BLOCK, SELDOM_WORDS
from .segment_spans import segment_of
from .segment_tables import (
    Loops,
    id_at,
    ids_of,
    make_fold_kernel,
    make_lists,
    places_of,
    repeat_last,
)

BLOCK = SELDOM_BLOCK
# Bytes from the count of a block to the numbers of its rows, and on to their segments.
NUMBERS_AT, SEGMENTS_AT = 8, 8 + 8 * (BLOCK + LANES)
_LIST_EIGHT = make_list_eight(8)


@inlined
def _block_at(p, block):
    return word(p, HELD) + block * (8 * SELDOM_WORDS)


def _make_listed(formula: RowFormula, element: str, operands: Operands, pitch: int):
    """``list_rows(const, full, own, n, after, by, found, numbers, segments)``: how many then.

    Of the rows from n on, whose segments are listed, those in which the formula's condition holds
    of an element.
    """
    primitives = primitives_for(element)
    emit: Any = element_emitter(formula.seldom, primitives, operands.full, operands.row, ("",))
    index, none = counting.function, no_vectors.function

    @emitter
    def list_rows(builder, const, full, own, n, after, by, found, numbers, segments):
        places = index(builder, I64(0), I64(0))
        (truth,) = emit(builder, [places], const, full, own, none(builder))
        rows = [emit_word(builder, by, I64(r)) for r in range(LANES // pitch)] if pitch > 1 else by
        return list_holding(builder, truth.v, n, after, rows, found, (numbers, segments))

    return list_rows


def make_find_kernel(loops: Loops, by_offsets: bool):
    """``kernel(p, begin, end)`` over blocks of rows: zeros, and a list of those that matter."""
    formula, element, operands = loops.formula, loops.element, loops.operands
    list_rows = _make_listed(formula, element, operands, loops.pitch)
    list_segments, _ = make_lists(loops, by_offsets)
    rows, lists, side, memory_of = loops.rows, loops.lists, loops.side, loops.memory_of
    fetch_next, fetch_rows, put_next = rows.fetch_next, rows.fetch_rows, rows.put_next
    constants, zeros = operands.constants, zero_vectors(len(operands.outputs))

    @inner
    def keep_inside(ids, segments, found, numbers, owners):
        """Without those that belong to no segment."""
        kept = 0
        for k in range(found):
            n, own = word(numbers, k), word(owners, k)
            set_word(numbers, kept, n)
            set_word(owners, kept, own)
            if by_offsets:
                kept += is_below(segment_of(ids, segments, n), segments)
            else:
                kept += is_below(id_at(ids, n), segments)
        return kept

    def kernel(p, begin, end):
        const, memory, columns = constants(p), memory_of(p), word(p, NUM_COLUMNS)
        segments, total, listed, ids = (
            word(p, NUM_SEGMENTS),
            word(p, NUM_INPUTS),
            lists(),
            ids_of(p),
        )
        s = segment_of(ids, segments, begin * BLOCK) if by_offsets else 0
        for block in range(begin, end):
            first, after = block * BLOCK, least(block * BLOCK + BLOCK, total)
            at = _block_at(p, block)
            numbers, owners, found = at + NUMBERS_AT, at + SEGMENTS_AT, 0
            inside, s = list_segments(p, ids, first, after, segments, listed, s)
            for n in range(first, after, side):
                by, left = listed + 8 * (n - first), after - n
                full, own = fetch_next(memory, columns, n, left), fetch_rows(memory, columns, by)
                found = list_rows(const, full, own, n, after, by, found, numbers, owners)
                put_next(memory, columns, n, left, zeros())
            if inside < after - first:
                found = keep_inside(ids, segments, found, numbers, owners)
            set_word(at, 0, found)
            if found > 0:
                repeat_last(numbers, found, side)
                repeat_last(owners, found, side)

    return kernel


class Held:
    """What a fold reads instead of all rows: those that were listed."""

    def __init__(self, loops: Loops):
        fetch = loops.rows.fetch
        self.rooms = make_rooms(1, BLOCK + LANES)

        @inlined
        def fetch_listed(memory, columns, rooms, k):
            return fetch(memory, columns, rooms[0] + 8 * k)

        @inner
        def list_rows(p, block, segments, listed, rooms):
            """Of the rows listed in a block those of some segments; how many there are."""
            at = _block_at(p, block)
            numbers, owners, count = at + NUMBERS_AT, at + SEGMENTS_AT, word(at, 0)
            (low, most), found, whole = segments, 0, count // LANES * LANES
            for k in range(0, whole, LANES):
                eight = words_at(numbers + 8 * k)
                found = _LIST_EIGHT(owners + 8 * k, low, most, found, listed, eight, rooms)
            for k in range(whole, count):
                s = word(owners, k)
                set_word(listed, found, s)
                set_word(rooms[0], found, word(numbers, k))
                found += is_below(s - low, most)
            return found

        self.fetch_listed, self.list_rows = fetch_listed, list_rows


def make_give_kernel(loops: Loops):
    """``kernel(p, begin, end)`` over blocks of rows: what those that were listed are given."""
    formula, element, operands = loops.formula, loops.element, loops.operands
    known, primitives = loops.known_before(1), primitives_for(element)
    apply = per_element(
        formula.apply, primitives, operands.full, operands.row, known, len(operands.outputs)
    )
    rows, read = loops.rows, loops.table.read(0, len(known) - 1, known=True)
    fetch, fetch_rows, put, side = rows.fetch, rows.fetch_rows, rows.put, loops.side
    constants, memory_of = operands.constants, loops.memory_of

    def kernel(p, begin, end):
        const, memory, columns = constants(p), memory_of(p), word(p, NUM_COLUMNS)
        states = places_of(p, False)[1]
        for block in range(begin, end):
            at = _block_at(p, block)
            for k in range(0, word(at, 0), side):
                numbers, owners = at + NUMBERS_AT + 8 * k, at + SEGMENTS_AT + 8 * k
                full, own = fetch(memory, columns, numbers), fetch_rows(memory, columns, owners)
                values = apply(counting(0, 0), const, full, own, read(states, owners))
                put(memory, columns, numbers, values)

    return kernel


def make_kernel(
    formula: RowFormula,
    element: str,
    operands: Operands,
    pitch: int,
    dense: bool,
    what: str,
    by_offsets: bool = False,
):
    """The kernel of a phase: ``"find"``, ``"held"``, a fold of what was found, or ``"give"``."""
    loops = Loops(formula, element, operands, pitch, dense)
    if what == "find":
        return make_find_kernel(loops, by_offsets)
    return make_fold_kernel(loops, Held(loops)) if what == "held" else make_give_kernel(loops)
