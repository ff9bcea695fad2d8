"""The largest or smallest elements of packed columns, on float32 lanes as they are stored.

See :mod:`.extremes`: sixteen columns at a time, rows in any order; whoever asks is told of what the
order would show in.
"""

from __future__ import annotations

from llvmlite import ir

from ...formulas.folds import larger
from ...formulas.record import Monoid
from .block import emit_prefetch
from .extremes import better_of
from .functions import emitter
from .lanes import DOUBLES, I32, I64
from .operands import Operands
from .sixteen import SIXTEEN, any_of, halves_of, load_sixteen


def extremes_of_rows(monoid: Monoid, operands: Operands, count: int, asks: bool):
    """``found(addresses, strides, index, column, ahead)`` of some rows and sixteen columns.

    Two states of eight columns, and bits of those where a NaN is: without one, and of a zero
    without a negative one, they are those of any order. If it ``asks``, rows so far ahead are
    brought near.
    """
    sign = ">" if monoid.combine is larger else "<"
    place = operands.full_at[0]
    edge = operands.edges[place]

    @emitter
    def found(builder, addresses, strides, index, column, ahead):
        base, stride = (a[place] for a in (addresses, strides))
        at = builder.add(base, builder.mul(index, stride))
        at = builder.add(at, builder.mul(column, I64(edge.item)))
        below = builder.mul(ahead, stride)
        best = nan = before = None
        for k in range(count):
            row = load_sixteen(builder, edge, at, I64(0))
            if asks:
                emit_prefetch(builder, builder.add(at, below))
            at = builder.add(at, stride)
            best = row if best is None else better_of(builder, best, row, sign)
            if k % 2 or k == count - 1:
                other = row if before is None else before
                here = builder.fcmp_unordered("uno", row, other)
                nan = here if nan is None else builder.or_(nan, here)
            before = None if k % 2 else row
        met = builder.zext(builder.bitcast(nan, ir.IntType(SIXTEEN)), I64)
        states = [(builder.fpext(half, DOUBLES),) for half in halves_of(builder, best)]
        return (*states, met)

    return found


def negative_zeros(operands: Operands):
    """``found(addresses, strides, index, column)``: whether one is in a row, of sixteen columns."""
    place = operands.full_at[0]
    edge, integers = operands.edges[place], ir.VectorType(I32, SIXTEEN)

    @emitter
    def found(builder, addresses, strides, index, column):
        at = builder.add(addresses[place], builder.mul(index, strides[place]))
        row = builder.bitcast(load_sixteen(builder, edge, at, column), integers)
        return any_of(builder, builder.icmp_signed("==", row, integers([-(2**31)] * SIXTEEN)))

    return found


@emitter
def has_zero(builder, state):
    """Whether a lane of a single vector is 0."""
    (v,) = state
    return any_of(builder, builder.fcmp_ordered("==", v, ir.Constant(DOUBLES, None)))
