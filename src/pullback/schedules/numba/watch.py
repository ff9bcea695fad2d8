"""Watching that unscaled products stay where they are exact.

With every factor in [2**-80, 2**80] or zero, and every carry below 2**100, the product of a chunk
stays within 2**±640 and nothing on the way to an output overflows, or underflows to anything that
is not zero in a type narrower than float64. Then plain arithmetic has the bits of the scaled one.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .lanes import LANES, Lanes, absolute, doubles, where
from .vectors import unpack, vectors

FACTOR_LIMIT = 2.0**80
CARRY_LIMIT = 2.0**100
_SEEN = vectors(2)


@intrinsic
def nothing_seen(context):
    """(largest, smallest non-zero) magnitude of nothing."""

    def codegen(ctx, builder, sig, args):
        return ctx.make_tuple(builder, _SEEN, [doubles(0.0), doubles(1.0)])

    return _SEEN(), codegen


def watch_factor(operand: int):
    """Look at one of the full operands."""

    @intrinsic
    def look(context, seen, full):
        def codegen(ctx, builder, sig, args):
            high, low = (Lanes(builder, v) for v in unpack(builder, args[0]))
            v = Lanes(builder, unpack(builder, args[1])[operand])
            size = absolute(v)
            high = where(size > high, size, high)
            counted = where(v == 0.0, 1.0, size)
            low = where(counted < low, counted, low)
            return ctx.make_tuple(builder, _SEEN, [high.v, low.v])

        return _SEEN(_SEEN, full), codegen

    return look


@intrinsic
def watch_carry(context, seen, state):
    """Look at a carry, brought to the scale of a factor."""

    def codegen(ctx, builder, sig, args):
        high, low = (Lanes(builder, v) for v in unpack(builder, args[0]))
        for v in unpack(builder, args[1]):
            size = absolute(Lanes(builder, v)) * (FACTOR_LIMIT / CARRY_LIMIT)
            # A NaN counts as too large.
            high = where(size <= high, high, where(size == size, size, float("inf")))
        return ctx.make_tuple(builder, _SEEN, [high.v, low.v])

    return _SEEN(_SEEN, state), codegen


@intrinsic
def was_moderate(context, seen):
    """Whether plain arithmetic was safe for all that has been seen."""

    def codegen(ctx, builder, sig, args):
        high, low = (Lanes(builder, v) for v in unpack(builder, args[0]))
        fine = (high <= FACTOR_LIMIT) & (low >= 1.0 / FACTOR_LIMIT)
        bits = builder.bitcast(fine.v, ir.IntType(LANES))
        return builder.icmp_unsigned("==", bits, ir.IntType(LANES)(2**LANES - 1))

    return types.boolean(_SEEN), codegen


@intrinsic
def look_away(context, seen, anything):
    """What stands in for a look where scaled arithmetic needs none."""

    def codegen(ctx, builder, sig, args):
        return args[0]

    return _SEEN(_SEEN, anything), codegen
