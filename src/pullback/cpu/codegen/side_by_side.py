"""Lanes with a place of their own in memory each: segments of few columns side by side.

What a group of lanes is about lies in a scratch of words: how many rows each lane has, whether it
has any place at all, and where its part of every operand begins. A lane that is done reads a zero
and writes to a word that nobody reads.
"""

from __future__ import annotations

from llvmlite import ir

from ..segment_words import OPERANDS, ORDER
from .block import emit_word
from .few_columns import joined, load_part, part, store_part
from .functions import emitter, inner
from .lanes import DOUBLE, DOUBLES, I32, I64, LANES, doubles, splat
from .memory import set_word
from .operands import Operands
from .storage import Edge, narrow

# Words of the scratch: of each lane how many rows it has, whether it is there, the first of its
# rows, its segment and its column; zeros; words to be written over; the places of each operand.
COUNTS, THERE, FIRST, SEGMENT, COLUMN = (LANES * k for k in range(5))
ZERO, SPARE = 5 * LANES, 5 * LANES + LANES // 2
PLACES = 6 * LANES
_LONGS = ir.VectorType(I64, LANES)


def scratch_words(operands: Operands) -> int:
    return PLACES + LANES * operands.count


@emitter
def lanes_at(builder, group, k):
    """1.0 in lanes that have a row k, 0.0 in the others."""
    counts = _words(builder, group, COUNTS)
    inside = builder.icmp_signed("<", splat(builder, k), counts)
    return builder.select(inside, doubles(1.0), doubles(0.0))


@emitter
def with_extents(builder, const, group):
    """The constants of formulas with the number of rows of each lane as the extent."""
    if const[0] is None:
        return const
    extent = builder.sitofp(_words(builder, group, COUNTS), DOUBLES)
    return (extent, *const[1:])


@inner
def set_lanes(group, lane, columns, segment, first, rows, there):
    """One segment in as many lanes as there are columns."""
    for c in range(lane, lane + columns):
        set_word(group, COUNTS + c, rows)
        set_word(group, THERE + c, there)
        set_word(group, FIRST + c, first)
        set_word(group, SEGMENT + c, segment)


@inner
def no_lanes(group, columns):
    """No lane is there, and what is read in the place of one is zero."""
    for lane in range(LANES):
        set_lanes(group, lane, 1, 0, 0, 0, 0)
        set_word(group, COLUMN + lane, lane % columns)
    for k in range(LANES // 2):
        set_word(group, ZERO + k, 0)


def _pointer(builder, group, at: int):
    return builder.inttoptr(builder.add(group, I64(8 * at)), _LONGS.as_pointer())


def _words(builder, group, at: int):
    v = builder.load(_pointer(builder, group, at))
    v.align = 8
    return v


class SideBySide:
    """Loads and stores of lanes with a segment and a column of their own.

    Rows are ``ordered`` where their numbers are to be looked up; outputs are by segment where the
    kernel ``writes_rows``. Columns lie packed in so many lanes, all those of a segment.
    """

    def __init__(self, operands: Operands, ordered: bool, writes_rows: bool, packed: int = 1):
        self._operands, self._ordered, self._packed = operands, ordered, packed
        self._heads = range(0, LANES, packed)
        full, row = operands.full_at, operands.row_at
        self.place = self._place([*row, *(operands.output_at if writes_rows else ())])
        self.fetch = self._fetch(full, by_row=True)
        self.fetch_rows = self._fetch(row, by_row=False)
        self.put = self._put(by_row=True)
        self.put_rows = self._put(by_row=False)

    def _place(self, by_segment):
        """``place(p, group)``: where each lane has its part of every operand."""
        operands, ordered = range(self._operands.count), self._ordered

        @emitter
        def place(builder, p, group):
            column, segment, first = (_words(builder, group, k) for k in (COLUMN, SEGMENT, FIRST))
            for o in operands:
                at = OPERANDS + 3 * o
                base, row_step, step = (
                    splat(builder, emit_word(builder, p, I64(at + k))) for k in range(3)
                )
                place = builder.add(base, builder.mul(column, step))
                # Of rows in order the number is looked up for every one of them.
                if o in by_segment or not ordered:
                    row = segment if o in by_segment else first
                    place = builder.add(place, builder.mul(row, row_step))
                builder.store(place, _pointer(builder, group, PLACES + LANES * o)).align = 8

        return place

    def _offsets(self, builder, block, group, k, by_row: bool):
        """Of each lane: whether it takes part, and what row is to be added to its places."""
        asked = COUNTS if by_row else THERE
        k = k if by_row else I64(0)
        active = {
            lane: builder.icmp_signed("<", k, emit_word(builder, group, I64(asked + lane)))
            for lane in self._heads
        }
        rows = dict.fromkeys(self._heads, k)
        if by_row and self._ordered:
            order = emit_word(builder, block, I64(ORDER))
            for lane in self._heads:
                here = builder.add(k, emit_word(builder, group, I64(FIRST + lane)))
                here = builder.select(active[lane], here, I64(0))
                rows[lane] = emit_word(builder, order, here)
        return active, rows

    def _addresses(self, builder, block, group, o: int, active, rows, instead: int):
        """Where each lane, or so many, has elements of an operand, or what stands for them."""
        other = builder.add(group, I64(8 * instead))
        step = emit_word(builder, block, I64(OPERANDS + 3 * o + 1))
        for lane in self._heads:
            base = emit_word(builder, group, I64(PLACES + LANES * o + lane))
            at = builder.add(base, builder.mul(rows[lane], step))
            yield builder.select(active[lane], at, other)

    def put_known(self, count: int, pitch: int, slots: int):
        """``put(group, table, values)``: the last ``count`` of them to a table of segments."""

        @emitter
        def put(builder, group, table, values):
            segment, column = (_words(builder, group, k) for k in (SEGMENT, COLUMN))
            row = builder.mul(segment, splat(builder, I64(8 * pitch * slots)))
            place = builder.add(row, builder.mul(column, splat(builder, I64(8))))
            place = builder.add(place, splat(builder, table))
            spare = builder.add(group, I64(8 * SPARE))
            for lane in range(LANES):
                there = emit_word(builder, group, I64(THERE + lane))
                is_there = builder.icmp_signed("!=", there, I64(0))
                first = builder.extract_element(place, I32(lane))
                for slot, v in enumerate(values[len(values) - count :]):
                    at = builder.add(first, I64(8 * pitch * slot))
                    at = builder.select(is_there, at, spare)
                    value = builder.extract_element(v, I32(lane))
                    builder.store(value, builder.inttoptr(at, DOUBLE.as_pointer()))

        return put

    def _fetch(self, places, by_row: bool):
        """``fetch(p, group, k)`` of the elements of row k of every lane, or of its segment."""
        edges = self._operands.edges

        @emitter
        def fetch(builder, p, group, k):
            active, rows = self._offsets(builder, p, group, k, by_row)
            items = []
            for o in places:
                found = self._addresses(builder, p, group, o, active, rows, ZERO)
                parts = [load_part(builder, at, edges[o], self._packed) for at in found]
                items.append(edges[o].widen(builder, joined(builder, parts)))
            return tuple(items or [Edge.zero()])

        return fetch

    def _put(self, by_row: bool):
        """``put(p, group, k, values)``: what ``fetch`` would read."""
        edges, outputs = self._operands.edges, self._operands.finished

        @emitter
        def put(builder, p, group, k, values):
            active, rows = self._offsets(builder, p, group, k, by_row)
            given = values
            for o, w in outputs:
                edge = edges[o]
                v = narrow(builder, given[w], edge.element, edge.native_half)
                found = self._addresses(builder, p, group, o, active, rows, SPARE)
                for k, at in enumerate(found):
                    store_part(builder, at, part(builder, v, k, self._packed), edge)

        return put
