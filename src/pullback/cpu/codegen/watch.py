"""Watching that unscaled products stay where they are exact.

Narrow types need only be kept from overflow: with every factor in [2**-80, 2**80] or zero, and
every carry below 2**100, the product of a chunk stays within 2**±640, and what underflows in
float64 is zero in the result, of either sign. A float64 result must not meet a subnormal on its
way either: with factors in [2**-30, 2**30], carries in [2**-160, 2**160] and gradients in
[2**-200, 2**200], or zero, products of a chunk with its carry stay within 2**±400, and a sum of
them that is not zero is above 2**-500. Then plain arithmetic has the bits of the scaled one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from llvmlite import ir

from ...formulas.record import Scaled
from .functions import emitter
from .lanes import I64, LANES, constant

FACTOR, CARRY, GRADIENT = 0, 1, 2
_BITS = ir.VectorType(I64, LANES)


@dataclass(frozen=True)
class _Range:
    """Magnitudes that are moderate, zero being so anyway."""

    low: float
    high: float

    @property
    def width(self) -> int:
        return bits_of(self.high) - bits_of(self.low)


def bits_of(size: float) -> int:
    """The bits of a magnitude, which are in the order of the magnitudes, NaN above inf."""
    return struct.unpack("<q", struct.pack("<d", size))[0]


_NARROW = (_Range(2.0**-80, 2.0**80), _Range(0.0, 2.0**100), None)
_FLOAT64 = (
    _Range(2.0**-30, 2.0**30),
    _Range(2.0**-160, 2.0**160),
    _Range(2.0**-200, 2.0**200),
)


def _filled(value: int) -> ir.Constant:
    return constant([value] * LANES, I64)


@emitter
def nothing_seen(builder):
    """For factors, carries and gradients, how far above the low end of its range one has been."""
    nothing = builder.bitcast(_filled(0), ir.VectorType(ir.DoubleType(), LANES))
    return tuple([nothing] * 3)


def _look(what: int, position: int, moderate: _Range):
    """Look at one vector of a tuple, or of each of several tuples.

    In unsigned numbers, where what is below the low end is far above.
    """

    def further(builder, value, before):
        size = builder.and_(builder.bitcast(value, _BITS), _filled(2**63 - 1))
        above = builder.sub(size, _filled(bits_of(moderate.low)))
        after = builder.select(builder.icmp_unsigned(">", above, before), above, before)
        if moderate.low > 0.0:
            counts = builder.icmp_signed("!=", size, _filled(0))
            after = builder.select(counts, after, before)
        return after

    @emitter
    def look(builder, seen, values):
        items = list(seen)
        tuples = values if isinstance(values[0], tuple) else [values]
        found = builder.bitcast(items[what], _BITS)
        for one in tuples:
            found = further(builder, one[position], found)
        items[what] = builder.bitcast(found, items[what].type)
        return tuple(items)

    return look


@emitter
def look_away(builder, seen, anything):
    """What stands in for a look where none is needed."""
    return seen


def _verdict(ranges):
    """Whether plain arithmetic was safe for all that has been seen."""

    @emitter
    def was_moderate(builder, seen):
        fine = constant([1] * LANES, ir.IntType(1))
        for v, moderate in zip(seen, ranges, strict=True):
            width = _filled(moderate.width if moderate else 0)
            inside = builder.icmp_unsigned("<=", builder.bitcast(v, _BITS), width)
            fine = builder.and_(fine, inside)
        bits = builder.bitcast(fine, ir.IntType(LANES))
        return builder.icmp_unsigned("==", bits, bits.type(2**LANES - 1))

    return was_moderate


class Watch:
    """Looks of a plain kernel at factors and gradients among its operands, and at its carries.

    Of a state the last component is looked at: what it passes on. Without ``scaled`` it looks at
    nothing.
    """

    def __init__(
        self, element: str, full: tuple[str, ...], row: tuple[str, ...], scaled: Scaled | None
    ):
        ranges = _FLOAT64 if element == "f64" else _NARROW
        factor, carry, gradient = ranges
        self.was_moderate = _verdict(ranges)
        self.factor = self.carry = self.gradient = self.row_gradient = look_away
        if scaled is None:
            return
        self.factor = _look(FACTOR, full.index(scaled.factor), factor)
        self.carry = _look(CARRY, -1, carry)
        if gradient and scaled.gradient in full:
            self.gradient = _look(GRADIENT, full.index(scaled.gradient), gradient)
        if gradient and scaled.gradient in row:
            self.row_gradient = _look(GRADIENT, row.index(scaled.gradient), gradient)
