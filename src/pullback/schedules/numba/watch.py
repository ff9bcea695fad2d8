"""Watching that unscaled products stay where they are exact.

Narrow types need only be kept from overflow: with every factor in [2**-80, 2**80] or zero, and
every carry below 2**100, the product of a chunk stays within 2**±640, and what underflows in
float64 is zero in the result. A float64 result must not meet a subnormal on its way either: with
factors in [2**-30, 2**30], carries in [2**-160, 2**160] and gradients in [2**-200, 2**200], or
zero, products of a chunk with its carry stay within 2**±400, and a sum of them that is not zero is
above 2**-500. Then plain arithmetic has the bits of the scaled one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .lanes import LANES, Lanes, absolute, doubles, where
from .vectors import unpack, vectors

_SEEN = vectors(2)


@dataclass(frozen=True)
class _Limits:
    factor: float
    carry: float
    gradient: float
    # Whether carries and gradients may be too small as well.
    below: bool


_NARROW = _Limits(factor=2.0**80, carry=2.0**100, gradient=math.inf, below=False)
_FLOAT64 = _Limits(factor=2.0**30, carry=2.0**160, gradient=2.0**200, below=True)


@intrinsic
def nothing_seen(context):
    """(largest, smallest non-zero) magnitude of nothing, over and under their limits by factors."""

    def codegen(ctx, builder, sig, args):
        return ctx.make_tuple(builder, _SEEN, [doubles(0.0), doubles(1.0)])

    return _SEEN(), codegen


def _look(position: int, limit: float, below: bool):
    """Look at one vector of a tuple."""

    @intrinsic
    def look(context, seen, values):
        def codegen(ctx, builder, sig, args):
            high, low = (Lanes(builder, v) for v in unpack(builder, args[0]))
            size = absolute(Lanes(builder, unpack(builder, args[1])[position]))
            scaled = size * (1.0 / limit)
            # A NaN counts as too large.
            high = where(scaled <= high, high, where(scaled == scaled, scaled, math.inf))
            if below:
                counted = where(size == 0.0, 1.0, size * limit)
                low = where(counted < low, counted, low)
            return ctx.make_tuple(builder, _SEEN, [high.v, low.v])

        return _SEEN(_SEEN, values), codegen

    return look


@intrinsic
def look_away(context, seen, anything):
    """What stands in for a look where none is needed."""

    def codegen(ctx, builder, sig, args):
        return args[0]

    return _SEEN(_SEEN, anything), codegen


@intrinsic
def was_moderate(context, seen):
    """Whether plain arithmetic was safe for all that has been seen."""

    def codegen(ctx, builder, sig, args):
        high, low = (Lanes(builder, v) for v in unpack(builder, args[0]))
        fine = (high <= 1.0) & (low >= 1.0)
        bits = builder.bitcast(fine.v, ir.IntType(LANES))
        return builder.icmp_unsigned("==", bits, ir.IntType(LANES)(2**LANES - 1))

    return types.boolean(_SEEN), codegen


class Watch:
    """Looks of a plain kernel at factors and gradients among its operands, and at its carries.

    Of a state the last component is looked at: what it passes on. ``on`` is whether to look at all.
    """

    def __init__(self, element: str, full: tuple[str, ...], row: tuple[str, ...], on: bool):
        limits = _FLOAT64 if element == "f64" else _NARROW
        self.factor = self.carry = self.gradient = self.row_gradient = look_away
        if not on:
            return
        self.factor = _look(full.index("x"), limits.factor, below=True)
        self.carry = _look(-1, limits.carry, limits.below)
        if math.isfinite(limits.gradient):
            if "dy" in full:
                self.gradient = _look(full.index("dy"), limits.gradient, below=True)
            if "dy" in row:
                self.row_gradient = _look(row.index("dy"), limits.gradient, below=True)
