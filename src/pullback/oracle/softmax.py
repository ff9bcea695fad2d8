"""softmax, log_softmax, sparsemax and entmax15 over one axis.

The forward is max-shifted (docs/softmax.md), which decides the special rows: with a nan, a +inf
or nothing but -inf in it (x - max is inf - inf), the whole row is nan. A -inf beside finite
numbers gives 0, and -inf for log_softmax. The backward is IEEE on the formula. With a mask, what
it leaves out is 0, -inf for log_softmax, and has gradient 0.

sparsemax and entmax15 are sums over the elements in front, from the largest on. Element x is in the
support if and only if what those above it exceed it by, Σ (xj - x), or Σ ((xj - x)/2)², is less
than 1, which is decided exactly. A row whose largest element is +inf is the limit of one whose
largest elements grow together: they share 1. With a nan in it, or nothing but -inf, there is none.
"""

from __future__ import annotations

import mpmath
from mpmath import mpf

from .scan import OUTSIDE, scan
from .special import INF, NAN, ONE, ZERO, Term, exp, extreme, log_of_sum, number, sqrt, total
from .table import EXACT, LOGS, define

Row = list[Term]


@define("softmax", scan, "y")
def softmax(x: Row) -> Row:
    if not x or not extreme(x, 1).is_finite:
        return [Term(NAN) for _ in x]
    whole = total(exp(t) for t in x)
    return [exp(t) / whole for t in x]


@define("softmax_backward", scan, "dx", EXACT)
def softmax_backward(dy: Row, y: Row) -> Row:
    dot = total(b * d for b, d in zip(y, dy, strict=True))
    return [b * (d - dot) for b, d in zip(y, dy, strict=True)]


@define("log_softmax", scan, "y", LOGS)
def log_softmax(x: Row) -> Row:
    if not x or not extreme(x, 1).is_finite:
        return [Term(NAN) for _ in x]
    whole = log_of_sum(total(exp(t) for t in x), extreme(x, 1))
    return [t - whole for t in x]


@define("log_softmax_backward", scan, "dx")
def log_softmax_backward(dy: Row, y: Row) -> Row:
    whole = total(dy)
    return [d - exp(b) * whole for b, d in zip(y, dy, strict=True)]


def _without_projection(x: Row) -> Row | None:
    """What comes of a row that is not of numbers; None if it is, but for -inf."""
    if not x:
        return []
    top = extreme(x, 1)
    if top.is_finite:
        return None
    if top.value != INF:
        return [Term(NAN) for _ in x]
    shared = ONE / number(sum(t.value == INF for t in x))
    return [shared if t.value == INF else ZERO for t in x]


def _descending(x: Row, half: int) -> list[mpf]:
    """The finite elements below the largest by how much, halved if ``half`` is 2."""
    top = extreme(x, 1).value
    return sorted(((t.value - top) / half for t in x if t.is_finite), reverse=True)


@define("sparsemax", scan, "y", EXACT)
def sparsemax(x: Row) -> Row:
    special = _without_projection(x)
    if special is not None:
        return special
    count, front = 0, mpf(0)
    for z in _descending(x, 1):
        if not front - count * z < 1:
            break
        count, front = count + 1, front + z
    top, tau = extreme(x, 1).value, Term((front - 1) / count)
    found = (Term(t.value - top) - tau for t in x)
    return [y if y.value > 0 else ZERO for y in found]


@define("entmax15", scan, "y", EXACT)
def entmax15(x: Row) -> Row:
    special = _without_projection(x)
    if special is not None:
        return special
    count, front, squares = 0, mpf(0), mpf(0)
    for z in _descending(x, 2):
        if not squares - 2 * z * front + count * z * z < 1:
            break
        count, front, squares = count + 1, front + z, squares + z * z
    mean = front / count
    tau = Term(mean - mpmath.sqrt((1 - (squares - count * mean * mean)) / count))
    top = extreme(x, 1).value
    found = (Term((t.value - top) / 2) - tau for t in x)
    return [y * y if y.value > 0 else ZERO for y in found]


def _on_support(weights: Row, dy: Row, y: Row) -> Row:
    """s·(dy - Σ s·dy / Σ s) where s is not 0; nan where y is."""
    inside = [s.value > 0 for s in weights]
    given = [(s, d) for s, d, there in zip(weights, dy, inside, strict=True) if there]
    whole, sum_of_weights = total(s * d for s, d in given), total(s for s, _ in given)
    found = []
    for s, d, b, there in zip(weights, dy, y, inside, strict=True):
        outside = Term(NAN) if b.is_nan else ZERO
        found.append(s * (d - whole / sum_of_weights) if there else outside)
    return found


@define("sparsemax_backward", scan, "dx", EXACT)
def sparsemax_backward(dy: Row, y: Row) -> Row:
    return _on_support([ONE if b.value > 0 else ZERO for b in y], dy, y)


@define("entmax15_backward", scan, "dx")
def entmax15_backward(dy: Row, y: Row) -> Row:
    return _on_support([sqrt(b) if b.value > 0 else ZERO for b in y], dy, y)


OUTSIDE[log_softmax] = Term(-INF)
