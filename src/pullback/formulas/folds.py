"""The folds that several ops share.

Numbers that may leave the range of a float inside a product are held as a mantissa and an
exponent, ``m * 2**e``: the same roundings as plain arithmetic, without overflow or underflow.
"""

from __future__ import annotations

from dataclasses import replace

from .primitives import (
    INF,
    absolute,
    exp,
    exponent,
    isnan,
    ldexp,
    log,
    mantissa,
    maximum,
    power_of_two,
    where,
)
from .record import Monoid, Stretch


def value(x):
    return x


def is_itself(function) -> bool:
    """Whether a function gives its only operand back, whatever that is called."""
    code = function.__code__
    return bool(code.co_argcount == 1 and code.co_code == value.__code__.co_code)


def add(a, b):
    return a + b


def multiply(a, b):
    return a * b


def larger(a, b):
    return where((a >= b) | isnan(a), a, b)


def smaller(a, b):
    return where((a <= b) | isnan(a), a, b)


def times(a, b):
    """A product in which a zero wins against inf and NaN, where IEEE 754 makes NaN."""
    product = a * b
    return where(isnan(product) & ((a == 0) | (b == 0)), 0.0, product)


# Guarded products, by name: an ordinary one in their place gives the same bits or NaN.
GUARDED = (times.__name__,)


def linear(a1, b1, a2, b2):
    """Two steps as one. A zero factor stops whatever came before; a zero state passes nothing."""
    return times(a1, a2), b2 + times(a2, b1)


def recurrence(a1, b1, a2, b2):
    """s <- b + a*s, two steps as one. A zero factor stops whatever came before, inf included."""
    return a1 * a2, b2 + where(a2 == 0, 0.0, a2 * b1)


def kept_or_not(a1, b1, a2, b2):
    """The same where every factor is 0 or 1, which is not multiplied with."""
    return a1 * a2, b2 + where(a2 == 0, 0.0, b1)


def recurrence_in_runs(a1, b1, a2, b2):
    """``recurrence`` where a zero factor is a border, which no factor of NaN or inf crosses."""
    factor = where((a1 == 0) | (a2 == 0), 0.0, a1 * a2)
    return factor, b2 + where(a2 == 0, 0.0, a2 * b1)


def scaled(x):
    return mantissa(x), exponent(x)


def scaled_product(m1, e1, m2, e2):
    product = m1 * m2
    return mantissa(product), e1 + e2 + exponent(product)


def factor(x):
    return x, 0.0


def far_held_product(m1, e1, m2, e2):
    """The product of numbers narrower than float64, brought back where it grows out of bounds.

    It is let go by :func:`plain_product` for up to three factors. A factor lies within 2**149 of
    1, four of them and 2**300 within 2**896.
    """
    product = m1 * m2
    size = absolute(product)
    small, large = size < 2.0**-300, size > 2.0**300
    scale = where(small, 2.0**600, where(large, 2.0**-600, 1.0))
    return product * scale, e1 + e2 + where(small, -600.0, where(large, 600.0, 0.0))


def plain_product(m1, e1, m2, e2):
    """The product with a factor, whose exponent is 0."""
    return m1 * m2, e1


def is_near(product_m):
    """Whether :func:`far_held_product` leaves a product where it is."""
    size = absolute(product_m)
    return (size >= 2.0**-300) & (size <= 2.0**300)


# A stretch of factors is multiplied as they are, from 2**512 or 2**300 on. What becomes infinite
# stays so or becomes NaN, and a zero stays a zero, so that the last product tells of either. A
# product below the normal range, whose bits are lost, may come back: ``least`` is the smallest of
# those looked at.


def multiplied(product, least, factor):
    return product * factor, least


def look_at_size(product, least):
    size = absolute(product)
    return product, where(size < least, size, least)


def is_settled(product_m):
    """Whether no factor makes anything but itself or NaN of a product."""
    return (product_m == 0) | (absolute(product_m) == INF) | isnan(product_m)


def begin_wide(product_m):
    return product_m * 2.0**512, INF


def holds_wide(product, least):
    """Looked at after every second factor of float64.

    From below the normal range, 2**-1022, no factor leads to 4, which is 2**-1022 * 2**1024.
    """
    size = absolute(product)
    return (least >= 4.0) & (size >= 2.0**392) & (size <= 2.0**632)


def far_holds_wide(product, least):
    return (least >= 4.0) & (absolute(product) < INF)


def end_wide(product_e, product):
    return product * 2.0**-512, product_e


def end_far_wide(product_e, product):
    return mantissa(product), product_e + (exponent(product) - 512.0)


def begin_narrow(product_m):
    return product_m * 2.0**300, INF


def holds_narrow(product, least):
    """Looked at after every eighth factor narrower than float64, from 2**-149 to 2**128.

    From 2**-300 at least five lead below the normal range, and from there at least six back.
    """
    size = absolute(product)
    return (least >= 2.0**-300) & (size >= 2.0**180) & (size <= 2.0**420)


def far_holds_narrow(product, least):
    return (least >= 2.0**-300) & (absolute(product) < INF)


def end_narrow(product_e, product):
    return product * 2.0**-300, product_e


def end_far_narrow(product_e, product):
    return mantissa(product), product_e + (exponent(product) - 300.0)


def both(m1, e1, m2, e2):
    """Two products of eight, each within 2**120 of 1 or not a number that can be scaled."""
    return m1 * m2, e1 + e2


def normalised(product_m, product_e):
    return mantissa(product_m), product_e + exponent(product_m)


def scaled_sum(m1, e1, m2, e2):
    """The sum of two scaled numbers, normalised."""
    top = maximum(e1, e2)
    total = m1 * power_of_two(e1 - top) + m2 * power_of_two(e2 - top)
    return mantissa(total), top + exponent(total)


def scaled_recurrence(am1, ae1, bm1, be1, am2, ae2, bm2, be2):
    """s <- b + a*s on scaled numbers, two steps as one. Of nothing, inf passes nothing on."""
    am, ae = scaled_product(am1, ae1, am2, ae2)
    bm, be = scaled_sum(bm2, be2, where(bm1 == 0, 0.0, am2 * bm1), ae2 + be1)
    return am, ae, bm, be


def ldexp_of_sum(m, e):
    """The number that a scaled sum stands for.

    A sum in plain arithmetic loses terms that are too small for a float, and their sign with them.
    Where a backend computes either way, what is too small for the result has the sign of neither.
    """
    return ldexp(m, e)


def log_step(x):
    return x, 1.0


def log_add(peak1, total1, peak2, total2):
    """Sums of exponentials, total * exp(peak), added; the smaller side is scaled down."""
    # Equal peaks need no exp, which keeps inf - inf out.
    down = where(peak1 == peak2, 1.0, exp(-absolute(peak1 - peak2)))
    first = (peak1 >= peak2) | isnan(peak1)
    total = where(first, total1 + total2 * down, total1 * down + total2)
    return where(first, peak1, peak2), total


def log_of_state(peak, total):
    return peak + log(total)


LOG_TOTAL = Monoid(log_step, log_add, (-INF, 0.0), ("peak", "total"))
TOTAL = Monoid(value, add, (0.0,), ("total",), sums=1)
PEAK = Monoid(value, larger, (-INF,), ("peak",), selects=True)
TROUGH = Monoid(value, smaller, (INF,), ("peak",), selects=True)
FACTORS_AS_THEY_ARE = Stretch(
    carried=("product", "least"),
    lift=value,
    nothing=(1.0,),
    begin=begin_wide,
    join=multiplied,
    look=look_at_size,
    every=2,
    most=32,
    holds=holds_wide,
    end=end_wide,
    far_holds=far_holds_wide,
    settled=is_settled,
    end_far=end_far_wide,
    meet=both,
    brought_near=normalised,
)
NARROW_FACTORS = replace(
    FACTORS_AS_THEY_ARE,
    begin=begin_narrow,
    every=8,
    most=64,
    holds=holds_narrow,
    end=end_narrow,
    far_holds=far_holds_narrow,
    end_far=end_far_narrow,
)
PRODUCT = Monoid(
    scaled,
    scaled_product,
    (1.0, 0.0),
    ("product_m", "product_e"),
    stretch=FACTORS_AS_THEY_ARE,
)
HELD_PRODUCT = Monoid(
    factor,
    far_held_product,
    (1.0, 0.0),
    ("product_m", "product_e"),
    brief=plain_product,
    briefly=3,
    brief_holds=is_near,
    stretch=NARROW_FACTORS,
)
# The same without a scale, for libraries that differentiate it.
FACTORS = Monoid(value, multiply, (1.0,), ("product",))
