"""What of a formula is computed on float32 lanes; asked without compiling.

A kernel on float32 lanes and one on float64 lanes are the same where nothing is, and are compiled
once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from llvmlite import ir

from ...formulas.bind import primitives_of
from ...formulas.folds import is_itself
from ...formulas.record import Monoid, RowFormula, parameters, repeats
from ..words import CONSTANT_NAMES
from .lanes import I32, LANES, as_tuple, doubles, scratch_builder
from .singles import FLOAT, NotInSingles, Trace, in_singles, inverse_of
from .storage import Edge, from_float

EIGHT_FLOATS = ir.VectorType(FLOAT, LANES)


class SingleCall:
    """A formula function on float32 lanes.

    ``emit(builder, count, const, full, row, known)`` takes lists of what gives a ``Single`` for a
    ``Trace``, and gives the results as vectors of float32, and the lanes that are doubtful.
    ``divisors`` are the known values, by place, that something is divided by. What is ``placed``
    by names, beside those, it may be given likewise. Of values that are elements of the row,
    ``elements_known``, the second float32 is 0.
    """

    placed: tuple[str, ...] = ()
    trace: Trace  # of the last time

    divisors: frozenset[int] = frozenset()

    def __init__(self, function: Callable, full, row, known, elements_known=frozenset()):
        self._function, self._wanted = in_singles(function), parameters(function)
        self._elements_known = elements_known
        tuples = {"const": CONSTANT_NAMES, "full": full, "row": row, "known": known}
        tuples["index"] = self.placed
        self._places = {n: (t, k) for t, names in tuples.items() for k, n in enumerate(names)}
        missing = [n for n in self._wanted if n not in self._places]
        if missing:
            raise NotInSingles(f"{missing} in float32")

    def emit(self, builder, count: int, const, full, row, known, index=()):
        trace = self.trace = self._trace(builder, count)
        given = {"const": const, "full": full, "row": row, "known": known, "index": index}

        def number(name: str) -> Any:
            place, k = self._places[name]
            made = given[place][k](trace)
            if name in self._elements_known:
                made.low = trace.number(0.0)
            return made

        values = self._function(*(number(name) for name in self._wanted))
        return trace.results(as_tuple(values)), trace.doubtful

    def _trace(self, builder, count: int) -> Trace:
        return Trace(builder, count)

    def stored(self, builder, v, edge: Edge):
        """A result as it is stored."""
        return from_float(builder, v, edge.element, edge.native_half)


def elements(values) -> list:
    """Vectors of float32."""
    return [lambda trace, v=v: trace.element(v) for v in values]


def row_elements(values, times: int) -> list:
    """Elements of rows, eight float64 each: for eight lanes, or two times the same."""
    return [lambda trace, v=v: trace.of_elements([v] * times) for v in values]


def row_numbers(values, times: int) -> list:
    """Numbers of rows, eight float64 each: for eight lanes, or two times the same."""
    return [lambda trace, v=v: trace.of_doubles([v] * times) for v in values]


def numbers_of_one_row(values, times: int) -> list:
    """The same where all eight are the same."""

    def number(trace: Trace, v):
        made = trace.of_doubles([v] * times)
        made.alone = trace.builder.extract_element(v, I32(0))
        return made

    return [partial(number, v=v) for v in values]


@cache
def elements_known(formula: RowFormula, full: tuple[str, ...]) -> frozenset[str]:
    """Values known of a row that are elements of it: what passes select of them as they are."""
    selected = [
        step.monoid.state
        for step in formula.passes
        if step.monoid and step.monoid.selects and not step.close and is_itself(step.monoid.lift)
        if {*parameters(step.monoid.lift)} <= {*full}
    ]
    return frozenset(name for state in selected for name in state)


def single_call(
    function: Callable, full, row, known, known_elements: frozenset[str] = frozenset()
) -> SingleCall | None:
    """A function on float32 lanes, or None where it is to be computed in float64.

    What reads no element is computed once for a row, or column: nothing is gained by float32.
    """
    if not {*full} & {*parameters(function)}:
        return None
    one, zero = doubles(1.0), ir.Constant(EIGHT_FLOATS, None)
    const, divisors = [one] * len(CONSTANT_NAMES), set[int]()
    rows, fulls = [one] * len(row), [zero] * len(full)
    numbers = [partial(_noted, k=k, divisors=divisors) for k in range(len(known))]
    try:
        call = SingleCall(function, full, row, known, known_elements)
        call.emit(
            scratch_builder(), LANES, row_numbers(const, 1), elements(fulls), row_elements(rows, 1),
            numbers,
        )  # fmt: skip
    except NotInSingles:
        return None
    call.divisors = frozenset(divisors)
    return call


def _noted(trace: Trace, k: int, divisors: set[int]):
    """A number of a row that notes whether something is divided by it."""
    made = trace.of_doubles([doubles(1.0)])

    def inverse():
        divisors.add(k)
        return inverse_of(made)

    made.inverse = inverse
    return made


def lift_call(formula: RowFormula, monoid: Monoid, full, row, known) -> SingleCall | None:
    """What a lift is on float32 lanes, or None.

    It is worth it for an exp alone. Of a reduction it would be seen in the result, where a
    logarithm of the total may cancel. Passes that are taken again look for a difference.
    """
    seen = formula.finish and not formula.lifts_singles
    if seen or repeats(formula) or not primitives_of(monoid.lift) & {"exp"}:
        return None
    return single_call(monoid.lift, full, row, known, elements_known(formula, tuple(full)))


@cache
def uses_singles(formula: RowFormula, full: tuple[str, ...], row: tuple[str, ...]) -> bool:
    """Whether float32 lanes compute any of a formula on operands of these names."""
    known: tuple[str, ...] = ("",)
    for step in formula.passes:
        if step.monoid and lift_call(formula, step.monoid, full, row, known):
            return True
        known += step.names
    return formula.apply is not None and single_call(formula.apply, full, row, known) is not None
