"""Float32 lanes that know how far off they are, for elements of sixteen bits.

A formula that subtracts rounded numbers is computed on float64 lanes, which know more bits than an
element keeps. Where a float32 result and all numbers as near to it as its error round to the same
element, that element is what float64 lanes give, bit for bit. The other lanes are doubtful, and
loops leave them to float64 lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from llvmlite import ir

from ...formulas.bind import primitives_of
from ...formulas.record import RowFormula, parameters
from ..words import CONSTANT_NAMES
from .lanes import DOUBLE, I32, LANES, doubles, scratch_builder
from .positions import Position
from .single_calls import (
    EIGHT_FLOATS,
    SingleCall,
    elements,
    row_elements,
    row_numbers,
    single_call,
    uses_singles,
)
from .singles import EXP_LEAST, LEAST, NotInSingles, Single, Trace, as_single
from .storage import I16, Edge, from_float

BOUNDED = ("f16", "bf16")
UNIT = 2.0**-24
# What bounds are widened by: they are rounded themselves, and so is what float64 lanes give.
SLACK = 1.02
# Bits of a float32 that bfloat16 cuts off, and half of what they come to.
CUT, HALF_OF_CUT = 0xFFFF, 0x8000


def _units(number: Single) -> float:
    """What the first of its two float32 is off by."""
    return number.units + (0.0 if number.low is None else 0.5)


class BoundedTrace(Trace):
    """Lanes whose numbers may be sums of rounded ones, since each knows its bound.

    What is stored is found along with whether it is sure. Results are those of float64 lanes, or of
    float32 lanes that are off by ``theirs`` units: there, sums leave out what is dear to find.
    """

    def __init__(self, builder, count: int, edge: Edge, theirs: float = 0.0):
        super().__init__(builder, count)
        self.stored_as, self.native_half = edge.element, edge.native_half
        self.theirs, self.settles = theirs, not theirs
        self.left_out = False
        if self.stored_as == "f16":
            self.least_element = 2.0**-24
        self._products: list[tuple[Single, Single]] = []
        self.keeps_low = False

    def is_zero(self, a: Single):
        # Of what is not 0 but outside of the range of two float32, the first is NaN.
        return self.compare("==", a.v, self.number(0.0))

    def sum_of_rounded(self, a: Single, b: Single) -> Single:
        if b.units > a.units:
            a, b = b, a
        errors = [s.error for s in (a, b) if s.error is not None]
        of_a, of_b = _units(a), _units(b)
        if a.product and a.least < EXP_LEAST:
            self._products.append(a.product)
        self.left_out = self.left_out or bool(a.parts or b.parts)
        if (b.seldom or not self.settles) and not errors:
            made = self.single(self.builder.fadd(a.v, b.v), exact=False)
            sizes = [self.call("llvm.fabs", v) for v in (a.v, made.v)]
            self.doubt(self.compare(">", *sizes))
            made.units = of_a + 2 * of_b + 1.0
            return made
        # What b is off by goes by its size, which is at most that of a and of the sum.
        if a.product:
            one, other = a.product
            made = self.single(self.fma(one.v, other.v, b.v), exact=False)
            error = self._size_of_product(one, other, (_units(one) + _units(other) + of_b) * UNIT)
        else:
            made = self.single(self.builder.fadd(a.v, b.v), exact=False)
            error = self._scaled(a.v, (of_a + of_b) * UNIT)
        made.units = of_b + 1.0
        for more in errors:
            error = self.builder.fadd(error, more)
        made.error = error
        return made

    def _scaled(self, v, scale: float):
        return self.builder.fmul(self.call("llvm.fabs", v), self.number(scale * SLACK))

    def _size_of_product(self, one: Single, other: Single, scale: float):
        if other.positive:
            one, other = other, one
        size = one.v if one.positive else self.call("llvm.fabs", one.v)
        return self.builder.fmul(size, self._scaled(other.v, scale))

    def results(self, values) -> list:
        """What a formula gave, as it is stored; doubtful where another result is as near."""
        found = []
        for value in values:
            number = as_single(self, value)
            self.doubt(self.builder.fcmp_unordered("uno", number.v, number.v))
            units = _units(number) + self.theirs
            if number.error is None and self.stored_as == "bf16":
                found.append(self._stored_by_units(number.v, units))
            else:
                found.append(self._stored_between(*self._bounds(number, units)))
        return found

    def _stored_by_units(self, v, units: float):
        """bfloat16 of what is off by some units of its last place.

        Bits that are cut off and lie near the half are near 0 with the half added.
        """
        builder = self.builder
        near = 1 << math.ceil(math.log2(max(2.0, units * SLACK)))
        bits = builder.bitcast(v, ir.VectorType(I32, self.count))
        moved = builder.add(bits, bits.type([HALF_OF_CUT + near] * self.count))
        rest = builder.and_(moved, bits.type([CUT & -(2 * near)] * self.count))
        self.doubt(builder.icmp_unsigned("==", rest, bits.type([0] * self.count)))
        return self._upper_half(moved)

    def _bounds(self, number: Single, units: float):
        """Numbers below and above of what it stands for; one more unit, since they are rounded."""
        builder = self.builder
        scale = (units + 1.0) * UNIT * SLACK
        if number.error is None:
            return [builder.fmul(number.v, self.number(1.0 + s)) for s in (-scale, scale)]
        size = self.call("llvm.fabs", number.v)
        self._doubt_vanishing(size)
        error = self.fma(size, self.number(scale), number.error)
        return [builder.fsub(number.v, error), builder.fadd(number.v, error)]

    def _doubt_vanishing(self, size) -> None:
        """A product may have lost bits below the range of a float32, of which its bound is one."""
        builder, zero = self.builder, self.number(0.0)
        for product in self._products:
            small = self.compare("<", size, self.number(LEAST))
            for factor in product:
                if not factor.positive:  # it hardly ever is 0
                    small = builder.and_(small, builder.fcmp_unordered("!=", factor.v, zero))
            self.doubt(small)

    def _stored_between(self, below, above):
        """What both of two numbers are stored as."""
        builder = self.builder
        if self.stored_as == "f16":
            found = [from_float(builder, v, "f16", self.native_half) for v in (below, above)]
            self.doubt(builder.icmp_unsigned("!=", *found))
            return found[0]
        kind = ir.VectorType(I32, self.count)
        halves = kind([HALF_OF_CUT] * self.count)
        moved = [builder.add(builder.bitcast(v, kind), halves) for v in (below, above)]
        apart = builder.icmp_unsigned(">", builder.xor(*moved), kind([CUT] * self.count))
        self.doubt(apart)
        return self._upper_half(moved[0])

    def _upper_half(self, bits):
        builder = self.builder
        upper = builder.lshr(bits, bits.type([16] * self.count))
        return builder.trunc(upper, ir.VectorType(I16, self.count))


class BoundedCall(SingleCall):
    """A formula function on float32 lanes that gives elements as they are stored."""

    placed = ("index",)
    trace: BoundedTrace

    def __init__(
        self,
        function: Callable,
        full,
        row,
        known,
        edge: Edge,
        known_elements: frozenset[str] = frozenset(),
        theirs: float = 0.0,
    ):
        super().__init__(function, full, row, known, known_elements)
        self._edge, self._theirs = edge, theirs

    def _trace(self, builder, count: int) -> BoundedTrace:
        return BoundedTrace(builder, count, self._edge, self._theirs)

    def stored(self, builder, v, edge: Edge):
        return v


def bounded_call(function: Callable, full, row, known, element: str) -> BoundedCall | None:
    """A function that is bounded on float32 lanes, or None.

    It is worth it for an exp alone. What takes little more than its elements take to be rounded is
    often halfway between two: of ``a + 0.3*(b - a)`` every tenth is, but for the rounding of 0.3.
    """
    if "exp" not in primitives_of(function):
        return None
    return _tried(function, full, row, known, element)


def shorter_call(
    function: Callable, full, row, known, element: str, known_elements: frozenset[str]
) -> BoundedCall | None:
    """A shorter way to the elements that a function on float32 lanes gives, or None."""
    theirs = single_call(function, full, row, known, known_elements)
    if theirs is None:
        return None
    call = _tried(function, full, row, known, element, known_elements, theirs.trace.units)
    return call if call and call.trace.left_out else None


def _tried(
    function: Callable,
    full,
    row,
    known,
    element: str,
    known_elements: frozenset[str] = frozenset(),
    theirs: float = 0.0,
) -> BoundedCall | None:
    """A call, if bounds are known of all that the function does."""
    if element not in BOUNDED or not {*full} & {*parameters(function)}:
        return None
    one, zero = doubles(1.0), ir.Constant(EIGHT_FLOATS, None)
    const, rows = [one] * len(CONSTANT_NAMES), [one] * len(row)
    try:
        call = BoundedCall(function, full, row, known, Edge(element), known_elements, theirs)
        call.emit(
            scratch_builder(), LANES, row_numbers(const, 1), elements([zero] * len(full)),
            row_elements(rows, 1), row_numbers([one] * len(known), 1),
            [lambda trace: Position(trace, DOUBLE(0.0), False)],
        )  # fmt: skip
    except NotInSingles:
        return None
    return call


@cache
def uses_bounds(
    formula: RowFormula, full: tuple[str, ...], row: tuple[str, ...], element: str
) -> bool:
    """Whether ``apply`` is bounded, and nothing of the formula in float32 otherwise."""
    if formula.apply is None or uses_singles(formula, full, row):
        return False
    formula = formula.usual.formula if formula.usual else formula
    known: tuple[str, ...] = ("", *(n for step in formula.passes for n in step.names))
    return bounded_call(formula.apply, full, row, known, element) is not None
