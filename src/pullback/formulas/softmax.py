"""softmax and log_softmax.

With s = Σ y·dy, the Jacobian diag(y) − y·yᵀ gives dx = y·(dy − s). For log_softmax the Jacobian is
I − 1·exp(y)ᵀ, so dx = dy − exp(y)·Σ dy.
"""

from __future__ import annotations

from .folds import LOG_TOTAL, PEAK, TOTAL, add
from .primitives import INF, NAN, absolute, exp, log, where
from .record import Monoid, Pass, RowFormula


def exp_below_peak(x, peak):
    return exp(x - peak)


EXP_TOTAL = Monoid(exp_below_peak, add, (0.0,), ("total",), sums=1)


def share(lifted, total):
    return lifted / total


def softmax(x, peak, total):
    return share(exp_below_peak(x, peak), total)


def log_of_total(total):
    return log(total)


def log_softmax(x, peak, log_total):
    return (x - peak) - log_total


def total_of_state(peak, total):
    # What exp(x - peak) sums up to where that is inf - inf.
    return peak, where(absolute(peak) == INF, NAN, total)


def log_total_of_state(peak, total):
    return peak, where(absolute(peak) == INF, NAN, log(total))


SOFTMAX = RowFormula(
    (Pass(PEAK), Pass(EXP_TOTAL)),
    apply=softmax,
    from_lifted=share,
    heavy=True,
    online=RowFormula(
        (Pass(LOG_TOTAL, total_of_state, ("peak", "total")),), apply=softmax, heavy=True
    ),
)
LOG_SOFTMAX = RowFormula(
    (Pass(PEAK), Pass(EXP_TOTAL, log_of_total, ("log_total",))),
    apply=log_softmax,
    online=RowFormula(
        (Pass(LOG_TOTAL, log_total_of_state, ("peak", "log_total")),), apply=log_softmax
    ),
)


def y_dot_dy(dy, y):
    return y * dy


def softmax_backward(dy, y, total):
    return y * (dy - total)


def upstream(dy):
    return dy


def log_softmax_backward(dy, y, total):
    return dy - exp(y) * total


SOFTMAX_BACKWARD = RowFormula(
    (Pass(Monoid(y_dot_dy, add, (0.0,), ("total",), sums=1)),), apply=softmax_backward
)
LOG_SOFTMAX_BACKWARD = RowFormula(
    (Pass(Monoid(upstream, TOTAL.combine, (0.0,), ("total",), sums=1)),),
    apply=log_softmax_backward,
    heavy=True,
)
