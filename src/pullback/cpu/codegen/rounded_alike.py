"""Float32 lanes for elements of 16 bits, with the bits that float64 lanes give.

What float32 lanes compute is within two units in its last place, of which a narrow type keeps few:
but for numbers next to the middle between two of those, both are rounded to the same. Sixteen
elements of which one is next to a middle, or doubtful, are left to float64.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ...formulas.bind import primitives_of
from .functions import emitter
from .lanes import I32, I64, expected
from .operands import Operands
from .single_calls import SingleCall, single_call
from .sixteen import SIXTEEN, any_of, emit_sixteen, load_sixteen
from .storage import from_float

# Bits of a float32 that a narrow type does not keep.
_DROPPED = {"bf16": 16, "f16": 13}
# How near to a middle is too near, in units of the last place of a float32.
_NEAR = 4
# Below, float16 keeps less bits: as bits of a float32 without its sign.
_LEAST_NORMAL = {"f16": 0x38800000}


class _OfColumns:
    """Numbers of sixteen columns, which are elements themselves."""

    along_axis = False

    def singles(self, builder, args, lanes: range):
        order = ir.VectorType(I32, len(lanes))(list(lanes))
        parts = [builder.shuffle_vector(v, v, order) for v in args]
        return [lambda trace, v=v: trace.single(v) for v in parts], []


def call_alike(function: Callable, operands: Operands) -> SingleCall | None:
    """A formula function that float32 lanes compute in less time; None where they do not.

    It is worth it for an exp alone: whatever is only read and written waits for memory.
    """
    stored = {edge.element for edge in operands.edges}
    if len(stored) > 1 or not stored <= {*_DROPPED} or not primitives_of(function) & {"exp"}:
        return None
    return single_call(function, operands.full, operands.row, ())


def _near_middle(builder, v, element: str):
    """Which numbers may be rounded otherwise than those that they stand for."""
    dropped, bits = _DROPPED[element], builder.bitcast(v, ir.VectorType(I32, SIXTEEN))

    def number(value: int):
        return bits.type([value] * SIXTEEN)

    # Moved so that the numbers next to the middle are the least.
    moved = builder.sub(bits, number((1 << (dropped - 1)) - _NEAR))
    moved = builder.and_(moved, number((1 << dropped) - 1))
    near = builder.icmp_unsigned("<=", moved, number(2 * _NEAR))
    if element in _LEAST_NORMAL:
        size = builder.sub(builder.and_(bits, number((1 << 31) - 1)), number(1))
        small = builder.icmp_unsigned("<", size, number(_LEAST_NORMAL[element] - 1))
        near = builder.or_(near, small)
    return near


def put_alike(call: SingleCall, operands: Operands):
    """``put(at, column, const)``: whether sixteen packed columns of a row were written."""
    edge, edges = operands.edge, operands.edges

    @emitter
    def put(builder, at, column, const):
        full, row = (
            [load_sixteen(builder, edges[o], at[o], column) for o in places]
            for places in (operands.full_at, operands.row_at)
        )
        values, sure = emit_sixteen(call, builder, const, full, _OfColumns(), row)
        unsure = builder.not_(sure)
        for _, w in operands.finished:
            near = any_of(builder, _near_middle(builder, values[w], edge.element))
            unsure = builder.or_(unsure, near)
        sure = expected(builder, builder.not_(unsure))
        offset = builder.mul(column, I64(edge.item))
        with builder.if_then(sure):
            for o, w in operands.finished:
                v = from_float(builder, values[w], edge.element, edge.native_half)
                place = builder.inttoptr(builder.add(at[o], offset), v.type.as_pointer())
                builder.store(v, place).align = edge.item
        return sure

    return put
