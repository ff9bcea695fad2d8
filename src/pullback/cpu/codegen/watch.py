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
from .registers import any_piece, pieces

_BITS = ir.VectorType(I64, LANES)


@dataclass(frozen=True)
class _Range:
    """Magnitudes that are moderate, zero being so anyway."""

    low: float
    high: float


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
    """What has been seen: a lane's sign bit is set once one of its numbers was not moderate."""
    return (builder.bitcast(_filled(0), ir.VectorType(ir.DoubleType(), LANES)),)


def _look(position: int, moderate: _Range):
    """Look at one vector of a tuple, or of each of several tuples.

    A difference of bits is below 0 where a magnitude lies outside, and all of them are joined by
    one instruction each: AVX2 has no comparison of unsigned numbers.
    """

    def outside(builder, value):
        size = builder.and_(builder.bitcast(value, _BITS), _filled(2**63 - 1))
        found = builder.sub(_filled(bits_of(moderate.high)), size)
        if moderate.low > 0.0:
            below = builder.sub(size, _filled(bits_of(moderate.low)))
            found = builder.or_(found, builder.and_(below, builder.sub(_filled(0), size)))
        return found

    @emitter
    def look(builder, seen, values):
        tuples = values if isinstance(values[0], tuple) else [values]
        found = builder.bitcast(seen[0], _BITS)
        for one in tuples:
            found = builder.or_(found, outside(builder, one[position]))
        return (builder.bitcast(found, seen[0].type),)

    return look


@emitter
def look_away(builder, seen, anything):
    """What stands in for a look where none is needed."""
    return seen


@emitter
def was_moderate(builder, seen):
    """Whether plain arithmetic was safe for all that has been seen."""
    parts = pieces(builder, [builder.bitcast(seen[0], _BITS)])
    signs = [builder.icmp_signed("<", v, ir.Constant(v.type, None)) for (v,) in parts]
    return builder.not_(any_piece(builder, signs))


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
        self.factor = self.carry = self.gradient = self.row_gradient = look_away
        if scaled is None:
            return
        self.factor = _look(full.index(scaled.factor), factor)
        self.carry = _look(-1, carry)
        if gradient and scaled.gradient in full:
            self.gradient = _look(full.index(scaled.gradient), gradient)
        if gradient and scaled.gradient in row:
            self.row_gradient = _look(row.index(scaled.gradient), gradient)
