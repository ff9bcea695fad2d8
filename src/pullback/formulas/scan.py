"""Scans. The backward of each is one linear recurrence run against the scan.

Write T[j] for what position j passes on to j − 1. With T[j] = a[j]·(dy[j] + T[j+1]) the gradient is
made of dy[j] + T[j+1]; the fold ``recurrence`` composes such steps. cumsum has a = 1, logcumsumexp
a[j] = exp(y[j−1] − y[j]), cummax a = 0 where a new extreme begins and 1 elsewhere, cumprod a[j] =
x[j] on scaled numbers. Of an exclusive scan dy[j] belongs to what lies before j: T[j] = dy[j] +
a[j]·T[j+1], and the gradient is made of T[j+1] alone. Where a new run ``begins`` nothing is passed
on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from .bind import specialise
from .compose import asking, changed, compose, renamed
from .folds import (
    LOG_TOTAL,
    PEAK,
    PRODUCT,
    TROUGH,
    kept_or_not,
    ldexp_of_sum,
    log_of_state,
    recurrence,
    recurrence_in_runs,
    scaled_product,
    scaled_recurrence,
    scaled_sum,
)
from .primitives import INF, NOWHERE, absolute, exp, exponent, isnan, ldexp, log, mantissa, where
from .record import Monoid, Quiet, Scaled, ScanFormula, parameters
from .runs import BEGINS, cut_into_runs

RECURRENCE = ("factor", "passed")


# cumsum


def sum_step(x):
    return 1.0, x


def sum_step_in_run(x, begins):
    return where(begins, 0.0, 1.0), x


def passed_itself(passed):
    return passed


def passed_in_run(passed, begins):
    return where(begins, 0.0, passed)


def sum_step_backward(dy):
    return 1.0, dy


def sum_step_backward_in_run(dy, begins):
    return where(begins, 0.0, 1.0), where(begins, 0.0, dy)


def dy_and_passed(dy, passed):
    return dy + passed


def _forward(
    whole: Monoid,
    finish: Callable,
    exclusive_in_run: Callable,
    in_run: Monoid | None = None,
    running_product: bool = False,
) -> Callable[..., ScanFormula]:
    """The records of a scan by ``exclusive`` and whether it is cut into runs.

    ``exclusive_in_run`` is ``finish`` for an exclusive scan, which begins a run with nothing.
    """

    @cache
    def record(exclusive: bool, resets: bool, reverse: bool, **_: bool) -> ScanFormula:
        monoid, output = whole, finish
        if resets:
            monoid = in_run or cut_into_runs(whole)
            output = exclusive_in_run if exclusive else finish
        made = ScanFormula(
            monoid,
            output,
            inclusive=not exclusive,
            against=False,
            running_product=running_product and not resets,
        )
        return at_borders(made, reverse)

    return record


def at_borders(record: ScanFormula, reverse: bool) -> ScanFormula:
    """The record with ``begins`` read from the marks of borders.

    A mark stands behind its border in memory order. A scan that runs from the end comes to the
    position before it later: there the mark of the position before in scan order counts.
    """
    name = "resets_before" if reverse else "resets"
    made: ScanFormula = changed(record, lambda function: renamed(function, **{BEGINS: name}))
    return made


cumsum = _forward(
    Monoid(sum_step, kept_or_not, (1.0, 0.0), RECURRENCE),
    passed_itself,
    passed_in_run,
    Monoid(sum_step_in_run, kept_or_not, (1.0, 0.0), RECURRENCE),
)


@cache
def cumsum_backward(exclusive: bool, resets: bool, reverse: bool, **_: bool) -> ScanFormula:
    lift = sum_step_backward_in_run if resets else sum_step_backward
    whole = not (exclusive or resets)
    return at_borders(
        ScanFormula(
            Monoid(lift, kept_or_not, (1.0, 0.0), RECURRENCE),
            passed_itself if exclusive or whole else dy_and_passed,
            inclusive=whole,
            against=True,
        ),
        reverse,
    )


# cumprod: dx[j] = (product before j) * (dy[j] + T[j+1]).


def product_itself(product_m, product_e):
    return ldexp(product_m, product_e)


def product_in_run(product_m, product_e, begins):
    return where(begins, 1.0, ldexp(product_m, product_e))


def product_step(dy, x):
    xm, xe = mantissa(x), exponent(x)
    return xm, xe, xm * mantissa(dy), xe + exponent(dy)


def exclusive_product_step(dy, x):
    return mantissa(x), exponent(x), mantissa(dy), exponent(dy)


def product_gradient(dy, before_m, before_e, passed_m, passed_e):
    m, e = scaled_sum(mantissa(dy), exponent(dy), passed_m, passed_e)
    return ldexp_of_sum(before_m * m, before_e + e)


def exclusive_product_gradient(before_m, before_e, passed_m, passed_e):
    # The last of a run is in no product: inf or NaN before it must not turn its 0 into NaN.
    return where(passed_m == 0, 0.0, ldexp_of_sum(before_m * passed_m, before_e + passed_e))


cumprod = _forward(PRODUCT, product_itself, product_in_run, running_product=True)
PRODUCT_BEFORE = Monoid(PRODUCT.lift, scaled_product, PRODUCT.identity, ("before_m", "before_e"))


def nothing_passed(step_m, step_e, passed_m, passed_e, begins):
    """A step that passes nothing on where a run begins."""
    return (
        where(begins, 0.0, step_m),
        where(begins, NOWHERE, step_e),
        where(begins, 0.0, passed_m),
        where(begins, NOWHERE, passed_e),
    )


def product_step_in_run(dy, x, begins):
    am, ae, bm, be = product_step(dy, x)
    return nothing_passed(am, ae, bm, be, begins)


def exclusive_product_step_in_run(dy, x, begins):
    am, ae, bm, be = exclusive_product_step(dy, x)
    return nothing_passed(am, ae, bm, be, begins)


def product_gradient_in_run(dy, before_m, before_e, passed_m, passed_e, begins):
    m, e = where(begins, 1.0, before_m), where(begins, 0.0, before_e)
    return product_gradient(dy, m, e, passed_m, passed_e)


def exclusive_product_gradient_in_run(before_m, before_e, passed_m, passed_e, begins):
    m, e = where(begins, 1.0, before_m), where(begins, 0.0, before_e)
    return exclusive_product_gradient(m, e, passed_m, passed_e)


@cache
def cumprod_backward(exclusive: bool, resets: bool, reverse: bool, **_: bool) -> ScanFormula:
    step: Callable = product_step
    gradient: Callable = product_gradient
    if exclusive:
        step, gradient = exclusive_product_step, exclusive_product_gradient
    if resets:
        step = exclusive_product_step_in_run if exclusive else product_step_in_run
        gradient = exclusive_product_gradient_in_run if exclusive else product_gradient_in_run
    monoid = Monoid(
        step,
        scaled_recurrence,
        (1.0, 0.0, 0.0, NOWHERE),
        ("factor_m", "factor_e", "passed_m", "passed_e"),
    )
    prefix = PRODUCT_BEFORE
    if resets:
        monoid, prefix = cut_into_runs(monoid), cut_into_runs(prefix, "border_before")
    record = ScanFormula(
        monoid,
        gradient,
        inclusive=False,
        against=True,
        prefix=prefix,
        scaled=Scaled(factor="x", gradient="dy"),
    )
    return at_borders(record, reverse)


# cummax and cummin: dy flows to where the running extreme began (ties "first"), or was last met
# (ties "last"). The first NaN keeps it from there on.


def peak_itself(peak):
    return peak


def peak_in_run(peak, begins):
    return where(begins, -INF, peak)


def trough_in_run(peak, begins):
    return where(begins, INF, peak)


def greater(x, before):
    return x > before


def greater_or_equal(x, before):
    return x >= before


def less(x, before):
    return x < before


def less_or_equal(x, before):
    return x <= before


beats = greater


def is_new(x, before, first):
    """Whether a new extreme begins here; ``beats`` is bound for each kind and ties policy."""
    return first | beats(x, before) | (isnan(x) & (before == before))


def extreme_step(dy, x, before, first):
    here = is_new(x, before, first)
    return where(here, 0.0, 1.0), where(here, 0.0, dy)


def extreme_gradient(dy, x, before, first, passed):
    return where(is_new(x, before, first), dy + passed, 0.0)


def exclusive_extreme_step(dy, x, before, first):
    # The first of all has seen nothing: its dy is nobody's.
    here = is_new(x, before, first)
    return where(here, 0.0, 1.0), where(first, 0.0, dy)


def exclusive_extreme_gradient(x, before, first, passed):
    return where(is_new(x, before, first), passed, 0.0)


def _extreme_backward(extreme: Monoid, beating: dict[str, Callable]) -> Callable[..., ScanFormula]:
    @cache
    def record(ties: str, exclusive: bool, resets: bool, reverse: bool, **_: bool) -> ScanFormula:
        new = specialise(is_new, beats=beating[ties])
        step: Callable = extreme_step
        gradient: Callable = extreme_gradient
        if exclusive:
            step, gradient = exclusive_extreme_step, exclusive_extreme_gradient
        step, gradient = specialise(step, is_new=new), specialise(gradient, is_new=new)
        prefix = replace(extreme, state=("before",))
        if resets:
            # The first of a run is the first there is.
            step, gradient, new = (_first_of_run(f) for f in (step, gradient, new))
            prefix = cut_into_runs(prefix, "border_before")
        return at_borders(
            ScanFormula(
                Monoid(step, kept_or_not, (1.0, 0.0), RECURRENCE),
                gradient,
                inclusive=False,
                against=True,
                prefix=prefix,
                # Where no extreme begins, all of dy is passed on.
                quiet=Quiet(unless=new, lift=sum_step_backward),
            ),
            reverse,
        )

    return record


def _first_of_run(function: Callable) -> Callable:
    """The same function, for which every run has a first position."""
    name = function.__name__
    asks = parameters(function)
    lines = [f"return {name}({', '.join('first | begins' if n == 'first' else n for n in asks)})"]
    return compose(f"{name}_in_run", asking(function, [BEGINS]), lines, **{name: function})


cummax = _forward(PEAK, peak_itself, peak_in_run)
cummin = _forward(TROUGH, peak_itself, trough_in_run)
cummax_backward = _extreme_backward(PEAK, {"first": greater, "last": greater_or_equal})
cummin_backward = _extreme_backward(TROUGH, {"first": less, "last": less_or_equal})


# logcumsumexp: every exponent is <= 0 because y never falls along the scan.


def log_of_state_in_run(peak, total, begins):
    return where(begins, -INF, peak + log(total))


def log_step_backward(dy, y, y_before):
    # Equal values, infinite ones included, pass everything on.
    factor = where(y_before == y, 1.0, exp(y_before - y))
    return factor, factor * dy


def log_step_backward_in_run(dy, y, y_before, begins):
    factor, passed = log_step_backward(dy, y, y_before)
    return where(begins, 0.0, factor), where(begins, 0.0, passed)


def logcumsumexp_gradient(dy, x, y, passed):
    return where(x == -INF, 0.0, exp(x - y) * (dy + passed))


# Of an exclusive scan, dx[k] = Σ_{j>k} dy[j]·exp(x[k] − y[j]), and x[k] ≤ y[j]. The sum is kept as
# exp(−base)·total with the least y as its base, which is the one nearest to k.


def weighed_step(dy, y):
    return where(y == -INF, INF, y), where(y == -INF, 0.0, dy)


def weighed_sum(base1, total1, base2, total2):
    down = where(base1 == base2, 1.0, exp(-absolute(base1 - base2)))
    nearer = (base2 <= base1) | isnan(base2)
    total = where(nearer, total1 * down + total2, total1 + total2 * down)
    return where(nearer, base2, base1), total


def exclusive_logcumsumexp_gradient(x, base, total):
    return where((x == -INF) | (total == 0), 0.0, exp(x - base) * total)


WEIGHED = Monoid(weighed_step, weighed_sum, (INF, 0.0), ("base", "total"))
logcumsumexp = _forward(
    LOG_TOTAL,
    log_of_state,
    log_of_state_in_run,
)


def weighed_step_in_run(dy, y, begins):
    base, total = weighed_step(dy, y)
    return where(begins, INF, base), where(begins, 0.0, total)


@cache
def logcumsumexp_backward(exclusive: bool, resets: bool, reverse: bool, **_: bool) -> ScanFormula:
    if exclusive:
        cut = cut_into_runs(replace(WEIGHED, lift=weighed_step_in_run))
        monoid = cut if resets else WEIGHED
        gradient: Callable = exclusive_logcumsumexp_gradient
    else:
        step: Callable = log_step_backward_in_run if resets else log_step_backward
        fold = recurrence_in_runs if resets else recurrence
        monoid = Monoid(step, fold, (1.0, 0.0), RECURRENCE)
        gradient = logcumsumexp_gradient
    record = ScanFormula(
        monoid,
        gradient,
        inclusive=False,
        against=True,
        before=() if exclusive else (("y", -INF),),
    )
    return at_borders(record, reverse)
