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

# What has been met, a bit for each of sixteen columns: a NaN, and above it a zero below 0.
ANY_NAN = (1 << SIXTEEN) - 1


def extremes_of_rows(monoid: Monoid, operands: Operands, count: int, asks: bool):
    """``found(addresses, strides, index, column, ahead)`` of some rows and sixteen columns.

    Two states of eight columns, and what has been met: without a NaN, and of a zero without a
    negative one, they are those of any order. If it ``asks``, rows so far ahead are brought near.
    """
    sign = ">" if monoid.combine is larger else "<"
    place = operands.full_at[0]
    edge = operands.edges[place]
    integers = ir.VectorType(I32, SIXTEEN)

    def joined(values, join):
        while len(values) > 1:
            values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    @emitter
    def found(builder, addresses, strides, index, column, ahead):
        base, stride = (a[place] for a in (addresses, strides))
        at = builder.add(base, builder.mul(index, stride))
        at = builder.add(at, builder.mul(column, I64(edge.item)))
        below = builder.mul(ahead, stride)
        rows = []
        for _ in range(count):
            rows.append(load_sixteen(builder, edge, at, I64(0)))
            if asks:
                emit_prefetch(builder, builder.add(at, below))
            at = builder.add(at, stride)
        v = joined(rows, lambda a, b: better_of(builder, a, b, sign))
        pairs = zip(rows[::2], rows[1::2] or rows, strict=True)
        nans = [builder.fcmp_unordered("uno", a, b) for a, b in pairs]
        negative = ir.Constant(integers, [-(2**31)] * SIXTEEN)
        signs = [
            builder.icmp_signed("==", builder.bitcast(row, integers), negative) for row in rows
        ]
        nan, below_zero = (
            builder.zext(builder.bitcast(joined(masks, builder.or_), ir.IntType(SIXTEEN)), I64)
            for masks in (nans, signs)
        )
        met = builder.or_(nan, builder.shl(below_zero, I64(SIXTEEN)))
        halves = [builder.fpext(half, DOUBLES) for half in halves_of(builder, v)]
        made = [(half,) for half in halves]
        return (*made, met)

    return found


@emitter
def has_zero(builder, state):
    """Whether a lane of a single vector is 0."""
    (v,) = state
    return any_of(builder, builder.fcmp_ordered("==", v, ir.Constant(DOUBLES, None)))
