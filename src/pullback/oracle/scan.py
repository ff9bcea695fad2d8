"""Scans. A formula sees one row, first element first; ``reverse`` flips rows before and after.

Infinities and nan: a term which contains one counts as IEEE has it, with these exceptions, all
from docs/scan.md. cummax and cummin: the first nan holds the extreme from its place on.
logcumsumexp_backward: dx is 0 where x is -inf, and a position with y = -inf contributes
nothing, whatever dy is there. Where x = y = +inf the weight exp(inf - inf) is nan; a finite x
before or after it gets weight exp(x - inf) = 0 from there, and no nan.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from .parts import in_runs, marks_of, masked, stretched
from .special import INF, ONE, ZERO, Term, exp, extreme, log_of_sum, product
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


def scan(
    definition: Definition,
    operands: Mapping[str, Any],
    *,
    axis: int = -1,
    reverse: bool = False,
    exclusive: bool | None = None,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """Feed rows along one axis, or the runs they are cut into, to the formula."""
    arrays = definition.gather(operands)
    shape = full_shape(definition, arrays)
    axes = normalized_axes(int(axis), len(shape))
    extent = shape[axes[0]] if axes else 1
    marks = marks_of(operands, extent)
    if marks is not None:
        if operands.get("offsets") is not None:
            marks = marks.reshape([extent if a in axes else 1 for a in range(len(shape))])
        arrays["resets"] = stretched(marks, shape)
    if marks is not None or exclusive:
        first = FIRST.get(definition.formula)
        definition = in_runs(definition, reverse, bool(exclusive), first)
    if operands.get("where") is not None:
        arrays["where"] = stretched(operands["where"], shape)
        definition = masked(definition, OUTSIDE.get(definition.formula, ZERO))
    return map_rows(definition, arrays, shape, axes, options, -1 if reverse else 1)


# What an exclusive scan begins with, and what a mask leaves in the places it does not let in.
FIRST: dict[Any, Term] = {}
OUTSIDE: dict[Any, Term] = {}


@define("cumsum", scan, "y", EXACT)
def cumsum(x: Row) -> Row:
    return list(accumulate(x, Term.__add__))


@define("cumsum_backward", scan, "dx", EXACT)
def cumsum_backward(dy: Row) -> Row:
    """x[j] is a term of every y[i] with i >= j."""
    return cumsum(dy[::-1])[::-1]


@define("cumprod", scan, "y")
def cumprod(x: Row) -> Row:
    return list(accumulate(x, Term.__mul__))


@define("cumprod_backward", scan, "dx")
def cumprod_backward(dy: Row, x: Row) -> Row:
    """dx[j] = sum over i >= j of dy[i] · product of x[0..i] without x[j]."""
    if not all(term.is_finite for term in [*dy, *x]):
        return [_cumprod_partial(dy, x, j) for j in range(len(x))]
    # Two shortcuts, exact on finite numbers, keep long rows affordable: the product without
    # x[j] is y[i] / x[j] where x[j] is not 0, and every term is 0 after an earlier zero.
    y = cumprod(x)
    sums = cumsum_backward([d * t for d, t in zip(dy, y, strict=True)])
    dx = []
    for j, (term, before) in enumerate(zip(x, [ONE, *y[:-1]], strict=False)):
        if term.value != 0:
            dx.append(sums[j] / term)
        else:
            dx.append(_cumprod_partial(dy, x, j) if before.value != 0 else ZERO)
    return dx


def _cumprod_partial(dy: Row, x: Row, j: int) -> Term:
    """The definition, word by word: the derivative with respect to x[j]."""
    others = product(x[:j])
    result = dy[j] * others
    for d, factor in zip(dy[j + 1 :], x[j + 1 :], strict=True):
        others = others * factor
        result = result + d * others
    return result


@define("cummax", scan, "y")
def cummax(x: Row) -> Row:
    return list(accumulate(x, lambda a, b: extreme([a, b], 1)))


@define("cummin", scan, "y")
def cummin(x: Row) -> Row:
    return list(accumulate(x, lambda a, b: extreme([a, b], -1)))


@define("cummax_backward", scan, "dx", EXACT)
def cummax_backward(dy: Row, x: Row, *, ties: str = "first") -> Row:
    return _onto_holder(dy, x, cummax(x), ties)


@define("cummin_backward", scan, "dx", EXACT)
def cummin_backward(dy: Row, x: Row, *, ties: str = "first") -> Row:
    return _onto_holder(dy, x, cummin(x), ties)


def _onto_holder(dy: Row, x: Row, running: Row, ties: str) -> Row:
    """Sum dy[i] onto the first or last position up to i whose x is the extreme of x[0..i].

    For "last" too the first nan keeps the extreme; torch hands it on to each later nan.
    """
    check_option("ties", ties, ("first", "last"))
    dx = [ZERO] * len(x)
    holder = 0
    for i, (d, term, best) in enumerate(zip(dy, x, running, strict=True)):
        was_nan = x[holder].is_nan
        is_new = not was_nan and (best.is_nan or best.value != x[holder].value)
        is_tie = not best.is_nan and term.value == best.value
        if is_new or (is_tie and ties == "last"):
            holder = i
        dx[holder] = dx[holder] + d
    return dx


@define("logcumsumexp", scan, "y", LOGS)
def logcumsumexp(x: Row) -> Row:
    sums = accumulate((exp(t) for t in x), Term.__add__)
    return [log_of_sum(s, top) for s, top in zip(sums, cummax(x), strict=True)]


@define("logcumsumexp_backward", scan, "dx")
def logcumsumexp_backward(dy: Row, x: Row, y: Row) -> Row:
    """dx[k] = sum over i >= k of dy[i] · exp(x[k] - y[i]), as exp(x[k]) · Σ dy[i] · exp(-y[i])."""
    parts = [ZERO if b.value == -INF else d * exp(ZERO - b) for d, b in zip(dy, y, strict=True)]
    sums = cumsum_backward(parts)
    return [ZERO if a.value == -INF else exp(a) * s for a, s in zip(x, sums, strict=True)]


FIRST |= {
    cumsum: ZERO,
    cumprod: ONE,
    cummax: Term(-INF),
    cummin: Term(INF),
    logcumsumexp: Term(-INF),
}
