"""Scans. The backward of each is one linear recurrence run against the scan.

Write T[j] for what position j passes on to j − 1, so that T[j] = a[j]·(dy[j] + T[j+1]); the fold
``recurrence`` composes such steps. cumsum has a = 1, logcumsumexp a[j] = exp(y[j−1] − y[j]),
cummax a = 0 where a new extreme begins and 1 elsewhere, cumprod a[j] = x[j] on scaled numbers.
"""

from __future__ import annotations

from dataclasses import replace

from .bind import specialise
from .folds import (
    PEAK,
    PRODUCT,
    TROUGH,
    recurrence,
    scaled_product,
    scaled_recurrence,
    scaled_sum,
)
from .primitives import INF, NOWHERE, absolute, exp, exponent, isnan, ldexp, log, mantissa, where
from .record import Monoid, Quiet, Scaled, ScanFormula

RECURRENCE = ("factor", "passed")


# cumsum: T[j] = dy[j] + T[j+1] is already the gradient.


def sum_step(x):
    return 1.0, x


def passed_itself(passed):
    return passed


def sum_step_backward(dy):
    return 1.0, dy


CUMSUM = ScanFormula(
    Monoid(sum_step, recurrence, (1.0, 0.0), RECURRENCE),
    passed_itself,
    inclusive=True,
    against=False,
)
CUMSUM_BACKWARD = ScanFormula(
    Monoid(sum_step_backward, recurrence, (1.0, 0.0), RECURRENCE),
    passed_itself,
    inclusive=True,
    against=True,
)


# cumprod: dx[j] = (product before j) * (dy[j] + T[j+1]).


def product_itself(product_m, product_e):
    return ldexp(product_m, product_e)


def product_step(dy, x):
    xm, xe = mantissa(x), exponent(x)
    return xm, xe, xm * mantissa(dy), xe + exponent(dy)


def cumprod_backward(dy, before_m, before_e, passed_m, passed_e):
    m, e = scaled_sum(mantissa(dy), exponent(dy), passed_m, passed_e)
    return ldexp(before_m * m, before_e + e)


CUMPROD = ScanFormula(PRODUCT, product_itself, inclusive=True, against=False)
CUMPROD_BACKWARD = ScanFormula(
    Monoid(
        product_step,
        scaled_recurrence,
        (1.0, 0.0, 0.0, NOWHERE),
        ("factor_m", "factor_e", "passed_m", "passed_e"),
    ),
    cumprod_backward,
    inclusive=False,
    against=True,
    prefix=Monoid(PRODUCT.lift, scaled_product, PRODUCT.identity, ("before_m", "before_e")),
    scaled=Scaled(factor="x", gradient="dy"),
)


# cummax and cummin: dy flows to where the running extreme began (ties "first"), or was last met
# (ties "last"). The first NaN keeps it from there on.


def peak_itself(peak):
    return peak


def greater(x, before):
    return x > before


def greater_or_equal(x, before):
    return x >= before


def less(x, before):
    return x < before


def less_or_equal(x, before):
    return x <= before


beats = greater


def begins(x, before, first):
    """Whether a new extreme begins here; ``beats`` is bound for each kind and ties policy."""
    return first | beats(x, before) | (isnan(x) & (before == before))


def extreme_step(dy, x, before, first):
    here = begins(x, before, first)
    return where(here, 0.0, 1.0), where(here, 0.0, dy)


def extreme_backward(dy, x, before, first, passed):
    return where(begins(x, before, first), dy + passed, 0.0)


def extreme_backward_formula(beating, extreme):
    begun = specialise(begins, beats=beating)
    return ScanFormula(
        Monoid(specialise(extreme_step, begins=begun), recurrence, (1.0, 0.0), RECURRENCE),
        specialise(extreme_backward, begins=begun),
        inclusive=False,
        against=True,
        prefix=replace(extreme, state=("before",)),
        # Where no extreme begins, all of dy is passed on.
        quiet=Quiet(unless=begun, lift=sum_step_backward),
    )


CUMMAX = ScanFormula(PEAK, peak_itself, inclusive=True, against=False)
CUMMIN = ScanFormula(TROUGH, peak_itself, inclusive=True, against=False)
CUMMAX_BACKWARD = {
    "first": extreme_backward_formula(greater, PEAK),
    "last": extreme_backward_formula(greater_or_equal, PEAK),
}
CUMMIN_BACKWARD = {
    "first": extreme_backward_formula(less, TROUGH),
    "last": extreme_backward_formula(less_or_equal, TROUGH),
}


# logcumsumexp: every exponent is <= 0 because y never falls along the scan.


def log_step(x):
    return x, 1.0


def log_add(peak1, total1, peak2, total2):
    # The smaller side is scaled down; equal peaks need no exp, which keeps inf - inf out.
    down = where(peak1 == peak2, 1.0, exp(-absolute(peak1 - peak2)))
    first = (peak1 >= peak2) | isnan(peak1)
    total = where(first, total1 + total2 * down, total1 * down + total2)
    return where(first, peak1, peak2), total


def logcumsumexp(peak, total):
    return peak + log(total)


def log_step_backward(dy, y, y_before):
    # Equal values, infinite ones included, pass everything on.
    factor = where(y_before == y, 1.0, exp(y_before - y))
    return factor, factor * dy


def logcumsumexp_backward(dy, x, y, passed):
    return where(x == -INF, 0.0, exp(x - y) * (dy + passed))


LOGCUMSUMEXP = ScanFormula(
    Monoid(log_step, log_add, (-INF, 0.0), ("peak", "total")),
    logcumsumexp,
    inclusive=True,
    against=False,
)
LOGCUMSUMEXP_BACKWARD = ScanFormula(
    Monoid(log_step_backward, recurrence, (1.0, 0.0), RECURRENCE),
    logcumsumexp_backward,
    inclusive=False,
    against=True,
    before=(("y", -INF),),
)
