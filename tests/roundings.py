"""How many roundings lie on the longest path to a result, counted by running its formula on counts.

The unit is 2**-53 of the magnitude, the sum of the absolute values of the terms. A sum has the
larger count of its terms and one more, a product or quotient both counts and one more. exp turns
the error of its argument into a relative one, as large as the argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pullback.core.declare import Type
from pullback.formulas.bind import Binder
from pullback.formulas.record import Monoid, RowFormula, parameters
from pullback.tools.case import Case


def tree_depth(extent: int) -> int:
    """Additions on the longest path of a row's sum: lanes of 8 in blocks of 4096, then blocks."""
    return min(-(-extent // 8), 512) + 3 + -(-extent // 4096)


def scan_depth(extent: int) -> int:
    """The same of a scan: a tree of 8 in a chunk, 64 chunks in a block of 512, then blocks."""
    return 3 + min(-(-extent // 8), 64) + -(-extent // 512) + 2


class Condition:
    """A comparison of numbers that are not known."""

    def __and__(self, other: Any) -> Condition:
        return self

    __or__ = __rand__ = __ror__ = __and__

    def __invert__(self) -> Condition:
        return self


@dataclass(frozen=True, eq=False)
class Count:
    """A number that is not known, with the roundings it has.

    ``is_unit`` if it is 0, 1 or -1, ``is_whole`` if it counts such numbers.
    """

    roundings: float = 0.0
    is_unit: bool = False
    is_whole: bool = False

    def _sum(self, other: Any) -> Count:
        if is_zero(other):
            return self
        if self.is_whole and of(other).is_whole:
            return Count(is_whole=True)
        return Count(max(self.roundings, of(other).roundings) + 1)

    def _product(self, other: Any) -> Any:
        other = of(other)
        if self.is_unit:
            return other
        if other.is_unit:
            return self
        return Count(self.roundings + other.roundings + 1)

    __add__ = __radd__ = __sub__ = __rsub__ = _sum
    __mul__ = __rmul__ = __truediv__ = _product

    def __rtruediv__(self, other: Any) -> Count:
        return Count(self.roundings + 1)

    def __neg__(self) -> Count:
        return self

    def _compared(self, other: Any) -> Condition:
        return Condition()

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compared  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0


def of(value: Any) -> Count:
    """A constant has no roundings."""
    return value if isinstance(value, Count) else constant(value in (0.0, 1.0, -1.0))


def constant(is_unit: bool) -> Count:
    return Count(0.0, is_unit, is_unit)


def where(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, bool):
        return a if condition else b
    a, b = of(a), of(b)
    return Count(max(a.roundings, b.roundings), a.is_unit and b.is_unit, a.is_whole and b.is_whole)


def binder(argument: float) -> Binder:
    """Formulas on counts, where the argument of an exp is at most so large."""

    def same(v: Any) -> Count:
        return Count(of(v).roundings)

    return Binder(
        {
            "where": where,
            "isnan": lambda v: Condition(),
            # Good to an ulp itself.
            "exp": lambda v: Count(2 + of(v).roundings * argument),
            "log": lambda v: Count(of(v).roundings + 1),
            "sqrt": lambda v: Count(of(v).roundings + 1),
            "absolute": same,
            "maximum": lambda a, b: where(Condition(), a, b),
            "mantissa": same,
            "exponent": lambda v: Count(),
            "power_of_two": lambda v: Count(),
            "ldexp": lambda v, e: Count(of(v).roundings + 1),
        }
    )


# A term exp(-d) beside one of 1 loses u·d·exp(-d) <= u/e of the sum for the rounding of d, whatever
# d is; exps that multiply each other along a row have arguments that add up to one of its own.
IN_FOLDS = binder(1.0)


class Known(dict[str, Any]):
    """What a formula may ask for by name: operands without roundings, and what was counted."""

    def __init__(self, case: Case):
        super().__init__(first=Condition())
        for o in case.problem.reads:
            if o.type is Type.BOOL:
                self[o.symbol] = Condition()

    def __missing__(self, name: str) -> Count:
        return Count()

    def call(self, function: Any, bind: Binder) -> tuple[Any, ...]:
        found = bind(function)(*(self[n] for n in parameters(function)))
        return found if isinstance(found, tuple) else (found,)

    def fold(self, monoid: Monoid, extent: int, depth: int) -> dict[str, Any]:
        """The state of a row, by name.

        Every factor of a product counts; of a sum, those additions that a term takes part in.
        """
        lifted = self.call(monoid.lift, IN_FOLDS)
        combine = IN_FOLDS(monoid.combine)

        def joined(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
            found = combine(*a, *b)
            return found if isinstance(found, tuple) else (found,)

        many = tuple(Count(1e6) if isinstance(v, Count) and not v.is_whole else v for v in lifted)
        multiplies = any(of(v).roundings > 1.5e6 for v in joined(many, many))
        state = lifted
        for _ in range(max(extent, 1) if multiplies else depth):
            state = joined(state, lifted if multiplies else state)
        return dict(zip(monoid.state, state, strict=True))


def roundings(case: Case, argument: float) -> float:
    """Roundings on the longest path to any result of a case.

    ``argument`` bounds |x - y| where exp(x - y) is taken.
    """
    # A power of two more or less, so that few are counted.
    bound = 2.0 ** math.ceil(math.log2(argument)) if argument else 0.0
    return _counted(case, bound, tree_depth, scan_depth)


@lru_cache(4096)
def _counted(case: Case, argument: float, tree: Any, scan: Any) -> float:
    formula, n, known = case.formula, case.extent, Known(case)
    bind = binder(argument)
    if isinstance(formula, RowFormula):
        for step in formula.passes:
            # What a pass that is taken again gave the time before is where it starts from, any
            # number: what it gives has the roundings of the last time alone.
            if step.monoid:
                known |= known.fold(step.monoid, n, n if case.is_segmented else tree(n))
            if step.close:
                known |= dict(zip(step.gives, known.call(step.close, bind), strict=True))
        last = [formula.finish, formula.apply]
    else:
        for monoid in (formula.prefix, formula.monoid):
            if monoid:
                known |= known.fold(monoid, n, scan(n))
        last = [formula.finish, formula.end]
    results = [r for f in last if f for r in known.call(f, bind)]
    return max(of(r).roundings for r in results)
