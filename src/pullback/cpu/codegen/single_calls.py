"""What of a formula is computed on float32 lanes; asked without compiling.

A kernel on float32 lanes and one on float64 lanes are the same where nothing is, and are compiled
once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from llvmlite import ir

from ...formulas.bind import primitives_of
from ...formulas.record import Monoid, RowFormula, parameters, repeats
from ..words import CONSTANT_NAMES
from .lanes import LANES, as_tuple, doubles, scratch_builder
from .singles import FLOAT, NotInSingles, Trace, in_singles, inverse_of

EIGHT_FLOATS = ir.VectorType(FLOAT, LANES)


class SingleCall:
    """A formula function on float32 lanes.

    ``emit(builder, count, const, full, row, known)`` takes lists of what gives a ``Single`` for a
    ``Trace``, and gives the results as vectors of float32, and the lanes that are doubtful.
    ``divisors`` are the known values, by place, that something is divided by.
    """

    divisors: frozenset[int] = frozenset()

    def __init__(self, function: Callable, full, row, known):
        self._function, self._wanted = in_singles(function), parameters(function)
        tuples = {"const": CONSTANT_NAMES, "full": full, "row": row, "known": known}
        self._places = {n: (t, k) for t, names in tuples.items() for k, n in enumerate(names)}
        missing = [n for n in self._wanted if n not in self._places]
        if missing:
            raise NotInSingles(f"{missing} in float32")

    def emit(self, builder, count: int, const, full, row, known):
        trace = Trace(builder, count)
        given = {"const": const, "full": full, "row": row, "known": known}
        places = (self._places[name] for name in self._wanted)
        values = self._function(*(given[place][k](trace) for place, k in places))
        return trace.results(as_tuple(values)), trace.doubtful


def elements(values) -> list:
    """Vectors of float32."""
    return [lambda trace, v=v: trace.single(v) for v in values]


def row_elements(values, times: int) -> list:
    """Elements of rows, eight float64 each: for eight lanes, or two times the same."""
    return [lambda trace, v=v: trace.of_elements([v] * times) for v in values]


def row_numbers(values, times: int) -> list:
    """Numbers of rows, eight float64 each: for eight lanes, or two times the same."""
    return [lambda trace, v=v: trace.of_doubles([v] * times) for v in values]


def single_call(function: Callable, full, row, known) -> SingleCall | None:
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
        call = SingleCall(function, full, row, known)
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
    return single_call(monoid.lift, full, row, known)


@cache
def uses_singles(formula: RowFormula, full: tuple[str, ...], row: tuple[str, ...]) -> bool:
    """Whether float32 lanes compute any of a formula on operands of these names."""
    known: tuple[str, ...] = ("",)
    for step in formula.passes:
        if step.monoid and lift_call(formula, step.monoid, full, row, known):
            return True
        known += step.names
    return formula.apply is not None and single_call(formula.apply, full, row, known) is not None
