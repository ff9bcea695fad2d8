"""Rows of few columns that offsets cut, row by row: the segment of each, or what is copied to it.

Nothing is written down for all rows: a million ids of ten rows a segment, written and read again,
took half of the time of the gradient of a sum.
"""

from __future__ import annotations

from llvmlite import ir

from ..codegen.block import is_below, least
from ..codegen.functions import emitter, inlined, inner
from ..codegen.lanes import I32, LANES
from ..codegen.listing import set_eight
from ..codegen.memory import word
from ..segment_words import (
    ID_SIZE,
    ID_STRIDE,
    IDS,
    NUM_COLUMNS,
    NUM_INPUTS,
    NUM_SEGMENTS,
    OPERANDS,
)
from ..words import ITEMSIZE, LINE
from .segment import FEW_COLUMNS, _copier, id_from

# Words that a list has room for behind its last: most runs are written without a branch.
SPILL = 2 * LANES


@inner
def offset_at(ids, k):
    return id_from(ids[0] + k * ids[1], ids[2])


@inner
def segment_of(ids, segments, n):
    """The last segment that begins at a row or before; -1 where none does."""
    low, high = 0, segments + 1
    while low < high:
        middle = (low + high) // 2
        if offset_at(ids, middle) <= n:
            low = middle + 1
        else:
            high = middle
    return low - 1


@inlined
def end_of(ids, segments, s, rows):
    """Where the rows end that a number stands for: of a segment, or in front of or behind all."""
    return offset_at(ids, s + 1) if s < segments else rows


@inner
def list_spans(ids, first, after, rows, segments, listed, s):
    """The segments of rows, the first in the place of those outside.

    From that of the first row on; how many are inside, and the segment of the row behind them.
    """
    n, inside = first, 0
    while n < after:
        stop = end_of(ids, segments, s, rows)
        upto, there = least(stop, after), is_below(s, segments)
        own = s if there else 0
        at, end = listed + 8 * (n - first), listed + 8 * (upto - first)
        set_eight(at, own)
        set_eight(at + 8 * LANES, own)
        at += 8 * SPILL
        while at < end:
            set_eight(at, own)
            at += 8 * LANES
        if there:
            inside += upto - n
        if stop <= after and s < segments:
            s += 1
        n = upto
    return inside, s


def _repeated(item: int, columns: int):
    """``repeated(address)``, ``nothing()`` and ``put(target, line)`` of a line of packed rows."""
    kind = ir.VectorType(ir.IntType(8 * item), columns)
    lanes = LINE // item
    line = ir.VectorType(ir.IntType(8 * item), lanes)

    @emitter
    def repeated(builder, address):
        row = builder.load(builder.inttoptr(address, kind.as_pointer()))
        row.align = item
        which = ir.Constant(ir.VectorType(I32, lanes), [k % columns for k in range(lanes)])
        return builder.shuffle_vector(row, ir.Constant(kind, ir.Undefined), which)

    @emitter
    def nothing(builder):
        return ir.Constant(line, None)

    @emitter
    def put(builder, target, value):
        builder.store(value, builder.inttoptr(target, line.as_pointer())).align = item

    return repeated, nothing, put


def make_spread_kernel(element: str):
    """``kernel(p, begin, end)`` over rows: bits of the row of their segment, or zeros."""
    item, result_at = ITEMSIZE[element], OPERANDS + 3
    copy, clear = _copier(item)

    @inner
    def set_rows(p, first, upto, source, there):
        columns, result_column = word(p, NUM_COLUMNS), word(p, result_at + 2)
        result, result_row = word(p, result_at), word(p, result_at + 1)
        for n in range(first, upto):
            if there:
                copy(result + n * result_row, result_column, source, word(p, OPERANDS + 2), columns)
            else:
                clear(result + n * result_row, result_column, columns)

    def packed_for(columns: int):
        repeated, nothing, put = _repeated(item, columns)
        size, per_line = columns * item, LINE // (columns * item)

        @inner
        def set_lines(p, n, upto, end, source, there):
            """Rows up to one, maybe more: those up to the end are written later."""
            line = nothing()
            if there:
                line = repeated(source)
            result = word(p, result_at)
            while n < upto and n + per_line <= end:
                put(result + n * size, line)
                n += per_line
            if n < upto:
                set_rows(p, n, upto, source, there)

        return set_lines

    @inlined
    def spread(p, begin, end, set_lines):
        ids = (word(p, IDS), word(p, ID_STRIDE), word(p, ID_SIZE))
        segments, rows = word(p, NUM_SEGMENTS), word(p, NUM_INPUTS)
        values, value_row = word(p, OPERANDS), word(p, OPERANDS + 1)
        n, s = begin, segment_of(ids, segments, begin)
        while n < end:
            upto = least(end_of(ids, segments, s, rows), end)
            there = is_below(s, segments)
            source = values + s * value_row
            if set_lines is None:
                set_rows(p, n, upto, source, there)
            else:
                set_lines(p, n, upto, end, source, there)
            n, s = upto, s + 1

    few = tuple((columns, packed_for(columns)) for columns in FEW_COLUMNS)

    def kernel(p, begin, end):
        columns, done = word(p, NUM_COLUMNS), 0
        if word(p, OPERANDS + 2) == item and word(p, result_at + 2) == item:
            for wide, set_lines in few:
                if columns == wide and word(p, result_at + 1) == wide * item:
                    spread(p, begin, end, set_lines)
                    done = 1
        if done == 0:
            spread(p, begin, end, None)

    return kernel
