"""softmax and log_softmax over one axis.

The forward is max-shifted (docs/softmax.md), which decides the special rows: with a nan, a +inf
or nothing but -inf in it (x - max is inf - inf), the whole row is nan. A -inf beside finite
numbers gives 0, and -inf for log_softmax. The backward is IEEE on the formula. With a mask, what
it leaves out is 0, -inf for log_softmax, and has gradient 0.
"""

from __future__ import annotations

from .scan import OUTSIDE, scan
from .special import INF, NAN, Term, exp, extreme, log_of_sum, total
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


OUTSIDE[log_softmax] = Term(-INF)
