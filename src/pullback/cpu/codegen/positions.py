"""Positions along the axis on float32 lanes, to be compared with a place that is known of a row.

A float32 holds whole numbers up to 2**24, so a position is two of them, as a place is.
"""

from __future__ import annotations

from llvmlite import ir

from .lanes import DOUBLE, I32
from .singles import FLOAT, Condition, NotInSingles, Single, Trace


class Position:
    """Positions of lanes: side by side from ``front`` on, a float64, or all of them there."""

    __slots__ = ("front", "side_by_side", "trace")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, front, side_by_side: bool):
        self.trace, self.front, self.side_by_side = trace, front, side_by_side

    def __eq__(self, place) -> Condition:  # type: ignore[override]
        if not isinstance(place, Single) or not place.exact:
            raise NotInSingles("a comparison of positions")
        trace, builder = self.trace, self.trace.builder
        ahead = range(trace.count) if self.side_by_side else [0] * trace.count
        if place.alone is not None:
            distance = builder.fptrunc(builder.fsub(place.alone, self.front), FLOAT)
            distance = spread(trace, distance)
        else:
            distance = self._distance(place)
        return Condition(trace, trace.compare("==", distance, trace.kind([*map(float, ahead)])))

    def _distance(self, place: Single):
        """From the front to places: exact where it is short."""
        trace, builder = self.trace, self.trace.builder
        high = builder.fptrunc(self.front, FLOAT)
        low = builder.fptrunc(builder.fsub(self.front, builder.fpext(high, DOUBLE)), FLOAT)
        whole = builder.fsub(place.v, spread(trace, high))
        rest = builder.fneg(spread(trace, low))
        if place.low is not None:
            rest = builder.fadd(place.low, rest)
        return builder.fadd(whole, rest)


def spread(trace: Trace, number):
    """One float32 in all lanes."""
    empty = ir.Constant(trace.kind, ir.Undefined)
    first = trace.builder.insert_element(empty, number, I32(0))
    order = ir.VectorType(I32, trace.count)([0] * trace.count)
    return trace.builder.shuffle_vector(first, empty, order)
