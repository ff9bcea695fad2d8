"""Reductions. A formula sees the reduced elements as one row in C order; dy and y are single terms.

Infinities and nan follow IEEE on the formula as written, with the exceptions of docs/reduce.md:
a norm2 or std with y = 0, or a logsumexp with y = -inf, has gradient 0 whatever dy is; max and
min give dy where x equals y (nan equals nan) and 0 elsewhere, also for an infinite dy.
logsumexp with +inf in the row is +inf; its gradient there is dy · exp(inf - inf), a nan, and 0
beside it. The mean of a row with an infinity is infinite or nan, so var and std are nan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .parts import masked, stretched
from .special import (
    INF,
    NAN,
    ONE,
    ZERO,
    Term,
    exp,
    extreme,
    log_of_sum,
    number,
    product,
    same,
    sqrt,
    total,
)
from .table import (
    EXACT,
    LOGS,
    Definition,
    check_option,
    define,
    full_shape,
    map_rows,
    normalized_axes,
)

Row = list[Term]
Axis = int | Sequence[int] | None


def reduction(
    definition: Definition, operands: Mapping[str, Any], *, axis: Axis = None, **options: Any
) -> tuple[np.ndarray, ...]:
    """Feed the elements along the axes to the formula; outputs have the keepdims shape."""
    definition = replace(definition, per_row=definition.per_row | set(definition.outputs))
    return _over_axes(definition, operands, axis, options)


def spread(
    definition: Definition,
    operands: Mapping[str, Any],
    *,
    shape: Sequence[int] | None = None,
    axis: Axis = None,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """Feed the row x and, of every other operand, one element to the formula; outputs are rows.

    ``shape`` stands for an x of which only the extent matters.
    """
    if not definition.per_row:
        others = set(definition.operands) - {"x"}
        definition = replace(definition, per_row=frozenset(others))
    if operands.get("x") is None and shape is not None:
        operands = {**operands, "x": np.zeros(shape)}
    return _over_axes(definition, operands, axis, options)


def _over_axes(
    definition: Definition, operands: Mapping[str, Any], axis: Axis, options: Mapping[str, Any]
) -> tuple[np.ndarray, ...]:
    arrays = definition.gather(operands)
    shape = full_shape(definition, arrays)
    if operands.get("where") is not None:
        arrays["where"] = stretched(operands["where"], shape)
        definition = masked(definition, empty=EMPTY.get(definition.formula))
    return map_rows(definition, arrays, shape, normalized_axes(axis, len(shape)), options)


# The extremes of a row of which a mask lets nothing in; without a mask there is none.
EMPTY: dict[Any, Term] = {}


@define("sum", reduction, "y", EXACT)
def sum_(x: Row) -> Term:
    return total(x)


@define("sum_backward", spread, "dx", EXACT)
def sum_backward(dy: Term, x: Row) -> Row:
    return [dy for _ in x]


@define("mean", reduction, "y", EXACT)
def mean(x: Row) -> Term:
    return total(x) / number(len(x)) if x else Term(NAN)


@define("mean_backward", spread, "dx")
def mean_backward(dy: Term, x: Row) -> Row:
    return [dy / number(len(x)) for _ in x]


@define("max", reduction, "y")
def max_(x: Row) -> Term:
    return _extreme("max", x, 1)


@define("min", reduction, "y")
def min_(x: Row) -> Term:
    return _extreme("min", x, -1)


EMPTY |= {max_: Term(-INF), min_: Term(INF)}


def _extreme(name: str, x: Row, sign: int) -> Term:
    if not x:
        raise ValueError(f"{name} of no elements")
    return extreme(x, sign)


@define("max_backward", spread, "dx")
@define("min_backward", spread, "dx")
def extreme_backward(dy: Term, x: Row, y: Term, *, ties: str = "split") -> Row:
    """dy goes to the elements that equal the given y; ``ties`` says to which, or how split."""
    check_option("ties", ties, ("split", "all", "first", "last"))
    equal = [i for i, term in enumerate(x) if same(term, y)]
    share = dy / number(len(equal)) if ties == "split" and equal else dy
    chosen = set({"first": equal[:1], "last": equal[-1:]}.get(ties, equal))
    return [share if i in chosen else ZERO for i in range(len(x))]


@define("prod", reduction, "y")
def prod(x: Row) -> Term:
    return product(x)


@define("prod_backward", spread, "dx")
def prod_backward(dy: Term, x: Row) -> Row:
    """dy times the product of the others: those before times those after."""
    before, after = [ONE], [ONE]
    for head, tail in zip(x, reversed(x), strict=True):
        before.append(before[-1] * head)
        after.append(after[-1] * tail)
    n = len(x)
    return [dy * (before[j] * after[n - 1 - j]) for j in range(n)]


@define("norm2", reduction, "y")
def norm2(x: Row) -> Term:
    return sqrt(total(t * t for t in x))


@define("norm2_backward", spread, "dx")
def norm2_backward(dy: Term, x: Row, y: Term) -> Row:
    return [dy * t / y if y.value != 0 else ZERO for t in x]


@define("logsumexp", reduction, "y", LOGS)
def logsumexp(x: Row) -> Term:
    return log_of_sum(total(exp(t) for t in x), extreme(x, 1)) if x else Term(-INF)


@define("logsumexp_backward", spread, "dx")
def logsumexp_backward(dy: Term, x: Row, y: Term) -> Row:
    return [dy * exp(t - y) if y.value != -INF else ZERO for t in x]


def _centered(x: Row) -> Row:
    middle = mean(x)
    return [t - middle for t in x]


def _freedom(x: Row, correction: float) -> Term:
    return number(max(len(x) - correction, 1))


@define("var", reduction, "y")
def var(x: Row, *, correction: float = 1) -> Term:
    """Sum of (x - mean)² over max(n - correction, 1)."""
    return total(c * c for c in _centered(x)) / _freedom(x, correction) if x else Term(NAN)


@define("var_backward", spread, "dx")
def var_backward(dy: Term, x: Row, *, correction: float = 1) -> Row:
    return [dy * number(2) * c / _freedom(x, correction) for c in _centered(x)]


@define("std", reduction, "y")
def std(x: Row, *, correction: float = 1) -> Term:
    return sqrt(var(x, correction=correction))


@define("std_backward", spread, "dx")
def std_backward(dy: Term, x: Row, y: Term, *, correction: float = 1) -> Row:
    if y.value == 0:
        return [ZERO for _ in x]
    return [dy * c / (_freedom(x, correction) * y) for c in _centered(x)]
