"""The largest or smallest element of packed rows, on float32 lanes or, of float64, on those.

A comparison is exact in any type, so elements need not become float64 for it. Which of several
equal elements is taken, and which NaN, depends on the order; no bit does but where a NaN is there
or the result is a zero, which may have either sign. That is told, and then all is folded in order.
"""

from __future__ import annotations

import math
from functools import partial

from llvmlite import ir

from ...formulas.folds import is_itself, larger, smaller
from ...formulas.record import Monoid
from .functions import emitter
from .lanes import DOUBLES, I32, I64, LANES, expected
from .operands import Operands
from .sixteen import FLOATS, SIXTEEN, any_of, halves_of, load_sixteen

# Element types that a float32 holds.
IN_FLOATS = ("f32", "f16", "bf16")
# Vectors folded side by side, so that a comparison need not wait for the one before.
TOGETHER = 4


def elements_of(operands: Operands) -> int:
    """Elements of a vector that are compared at a time."""
    return LANES if operands.edges[0].element == "f64" else SIXTEEN


def is_extreme(monoid: Monoid | None, operands: Operands) -> bool:
    """Whether a pass looks for the largest or smallest element of a row."""
    if monoid is None or monoid.combine not in (larger, smaller) or not is_itself(monoid.lift):
        return False
    if len(operands.full) != 1 or not operands.packed or operands.flipped:
        return False
    return operands.edges[0].element in (*IN_FLOATS, "f64")


def is_float_extreme(monoid: Monoid | None, operands: Operands) -> bool:
    """Whether it does so among elements of a type that float32 holds."""
    return is_extreme(monoid, operands) and operands.edges[0].element in IN_FLOATS


def widened_selected(builder, v):
    """Eight float32 that were selected as float64, a NaN as arithmetic would leave it.

    A conversion does that too, but LLVM leaves it out where the one back follows.
    """
    bits = builder.bitcast(v, ir.VectorType(I32, LANES))
    quiet = builder.bitcast(builder.or_(bits, bits.type([1 << 22] * LANES)), v.type)
    return builder.fpext(builder.select(builder.fcmp_unordered("uno", v, v), quiet, v), DOUBLES)


def better_of(builder, a, b, sign: str):
    """Of two numbers the one that the comparison is for; the second, where one is NaN."""
    return builder.select(builder.fcmp_ordered(sign, a, b), a, b)


def extreme_of(monoid: Monoid, operands: Operands):
    """``begin()``, ``step(state, seen, addresses, index)`` and ``end(state, seen)``.

    ``seen`` says whether a NaN has been. ``end`` gives the states of eight lanes, and whether the
    result is sure to be that of any order.
    """
    largest = monoid.combine is larger
    sign, worst = (">", -math.inf) if largest else ("<", math.inf)
    edge, count = operands.edges[0], elements_of(operands)
    kind = DOUBLES if count == LANES else FLOATS
    better = partial(better_of, sign=sign)

    def load(builder, base, index):
        if count == SIXTEEN:
            return load_sixteen(builder, edge, base, index)
        at = builder.add(base, builder.mul(index, I64(edge.item)))
        v = builder.load(builder.inttoptr(at, kind.as_pointer()))
        v.align = edge.item
        return v

    # Loop nests hold sixteen float32 as eight float64 of the same bits.
    @emitter
    def begin(builder):
        lanes = builder.bitcast(kind([worst] * count), DOUBLES)
        return tuple([lanes] * TOGETHER)

    @emitter
    def step(builder, state, seen, addresses, index):
        made, loaded = [], []
        for k, v in enumerate(state):
            x = load(builder, addresses[0], builder.add(index, I64(k * count)))
            loaded.append(x)
            v = better(builder, builder.bitcast(v, kind), x)
            made.append(builder.bitcast(v, DOUBLES))
        pairs = zip(loaded[::2], loaded[1::2], strict=True)
        nans = [builder.fcmp_unordered("uno", a, b) for a, b in pairs]
        any_nan = nans[0]
        for nan in nans[1:]:
            any_nan = builder.or_(any_nan, nan)
        bits = builder.zext(builder.bitcast(any_nan, ir.IntType(count)), I64)
        state_ = tuple(made)
        return (state_, builder.or_(seen, bits))

    @emitter
    def end(builder, state, seen):
        items = [builder.bitcast(v, kind) for v in state]
        v = items[0]
        for other in items[1:]:
            v = better(builder, v, other)
        if count == SIXTEEN:
            v = better(builder, *halves_of(builder, v))
        zero = v.type([0.0] * LANES)
        beyond = any_of(builder, builder.fcmp_ordered(sign, v, zero))
        at_zero = any_of(builder, builder.fcmp_ordered("==", v, zero))
        clear = builder.or_(beyond, builder.not_(at_zero))
        sure = builder.and_(clear, builder.icmp_signed("==", seen, I64(0)))
        wide = (builder.fpext(v, DOUBLES) if count == SIXTEEN else v,)
        return (wide, expected(builder, sure))

    return begin, step, end
