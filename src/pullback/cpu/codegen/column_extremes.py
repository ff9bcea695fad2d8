"""The largest or smallest elements of packed columns, on float32 lanes as they are stored.

See :mod:`.extremes`: sixteen columns at a time, rows in any order; whoever asks is told of what the
order would show in.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...formulas.folds import larger
from ...formulas.record import Monoid
from .block import emit_prefetch
from .extremes import better_of
from .lanes import DOUBLES, I32, I64
from .operands import Operands
from .sixteen import SIXTEEN, any_of, halves_of, load_sixteen
from .vectors import unpack, vectors

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
    one, integers = vectors(1), ir.VectorType(I32, SIXTEEN)
    found_kind = types.Tuple((one, one, types.int64))

    def joined(values, join):
        while len(values) > 1:
            values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    @intrinsic
    def found(context, addresses, strides, index, column, ahead):
        def codegen(ctx, builder, sig, args):
            base, stride = (unpack(builder, a)[place] for a in args[:2])
            at = builder.add(base, builder.mul(args[2], stride))
            at = builder.add(at, builder.mul(args[3], I64(edge.item)))
            below = builder.mul(args[4], stride)
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
            made = [ctx.make_tuple(builder, one, [half]) for half in halves]
            return ctx.make_tuple(builder, found_kind, [*made, met])

        return found_kind(addresses, strides, types.int64, types.int64, types.int64), codegen

    return found


@intrinsic
def has_zero(context, state):
    """Whether a lane of a single vector is 0."""

    def codegen(ctx, builder, sig, args):
        (v,) = unpack(builder, args[0])
        return any_of(builder, builder.fcmp_ordered("==", v, ir.Constant(DOUBLES, None)))

    return types.boolean(vectors(1)), codegen
