"""The gradient of a product by counts: dx[j] = dy·Π_{i≠j} x[i] without a scan.

One pass gives the scaled product of the factors that are neither zero nor infinite nor NaN, the
sign of the infinite ones, and how many there are of each. Taking x[j] out of it is a division that
cannot go wrong; what the others are is known by their counts.
"""

from __future__ import annotations

from dataclasses import replace

from .folds import (
    HELD_PRODUCT,
    NARROW_FACTORS,
    begin_narrow,
    both,
    end_far_narrow,
    end_narrow,
    far_held_product,
    is_near,
    look_at_size,
    multiplied,
    multiply,
    normalised,
    plain_product,
    scaled_product,
    value,
)
from .primitives import INF, NAN, absolute, exponent, isnan, ldexp, mantissa, where
from .record import Monoid, Pass, RowFormula, ScanFormula, Usual


def is_ordinary(x):
    return (x != 0) & (absolute(x) < INF)


def ordinary(x):
    """The factor itself, or 1 with the sign of one that is counted."""
    return where(is_ordinary(x), x, where(x < 0, -1.0, 1.0))


def counted(x):
    f = ordinary(x)
    return (
        mantissa(f),
        exponent(f),
        where(x == 0, 1.0, 0.0),
        where(absolute(x) == INF, 1.0, 0.0),
        where(isnan(x), 1.0, 0.0),
    )


def counts_joined(m1, e1, zeros1, infs1, nans1, m2, e2, zeros2, infs2, nans2):
    m, e = scaled_product(m1, e1, m2, e2)
    return m, e, zeros1 + zeros2, infs1 + infs2, nans1 + nans2


def product_of_others(dy, x, product_m, product_e, zeros, infs, nans):
    f = ordinary(x)
    value = ldexp(product_m * mantissa(dy) / mantissa(f), product_e + exponent(dy) - exponent(f))
    zeros, infs = zeros - where(x == 0, 1.0, 0.0), infs - where(absolute(x) == INF, 1.0, 0.0)
    nans = nans - where(isnan(x), 1.0, 0.0)
    # Mantissas of dy and of the product carry the sign; inf times it is inf of that sign.
    # Without one it is 0, whose derivative by dy is a number.
    large = where(infs > 0, where(product_m / mantissa(f) < 0, -INF, INF), 0.0) * dy
    value = where(infs > 0, large, value)
    value = where(zeros > 0, where(infs > 0, NAN, 0.0 * dy), value)
    return where(nans > 0, NAN, value)


# The same of elements narrower than float64, which hold what a product divided by one of them is:
# what a row gives to its ordinary elements, and to those that are counted, is known beforehand.


def counted_as_it_is(x):
    _, _, zeros, infs, nans = counted(x)
    return ordinary(x), 0.0, zeros, infs, nans


def held_counts_joined(m1, e1, zeros1, infs1, nans1, m2, e2, zeros2, infs2, nans2):
    m, e = far_held_product(m1, e1, m2, e2)
    return m, e, zeros1 + zeros2, infs1 + infs2, nans1 + nans2


def both_counted(m1, e1, zeros1, infs1, nans1, m2, e2, zeros2, infs2, nans2):
    m, e = both(m1, e1, m2, e2)
    return m, e, zeros1 + zeros2, infs1 + infs2, nans1 + nans2


def counts_joined_briefly(m1, e1, zeros1, infs1, nans1, m2, e2, zeros2, infs2, nans2):
    m, e = plain_product(m1, e1, m2, e2)
    return m, e, zeros1 + zeros2, infs1 + infs2, nans1 + nans2


def with_counts(value, sign, dy, zeros, infs, nans):
    """A product of ordinary factors together with so many others."""
    value = where(infs > 0, where(sign < 0, -INF, INF) * dy, value)
    value = where(zeros > 0, where(infs > 0, NAN, 0.0 * dy), value)
    return where(nans > 0, NAN, value)


def gains(dy, product_m, product_e, zeros, infs, nans):
    value = ldexp(product_m * dy, product_e)
    return (
        with_counts(value, product_m, dy, zeros, infs, nans),
        with_counts(value, product_m, dy, zeros - 1.0, infs, nans),
        with_counts(value, product_m, dy, zeros, infs - 1.0, nans),
        with_counts(value, product_m, dy, zeros, infs, nans - 1.0),
    )


def gain_without(x, gain, of_zero, of_inf, of_nan):
    special = where(x == 0, of_zero, where(isnan(x), of_nan, of_inf))
    return where(is_ordinary(x), gain, special) / ordinary(x)


def ordinary_and_counts(x):
    m, _, zeros, infs, nans = counted_as_it_is(x)
    return m, zeros, infs, nans


def begin_counted(product_m, zeros, infs, nans):
    product, least = begin_narrow(product_m)
    return product, least, zeros, infs, nans


def multiplied_and_counted(product, least, zeros1, infs1, nans1, factor, zeros2, infs2, nans2):
    product, least = multiplied(product, least, factor)
    return product, least, zeros1 + zeros2, infs1 + infs2, nans1 + nans2


def look_at_size_of_counted(product, least, zeros_met, infs_met, nans_met):
    product, least = look_at_size(product, least)
    return product, least, zeros_met, infs_met, nans_met


def end_counted(product_e, product, zeros_met, infs_met, nans_met):
    m, e = end_narrow(product_e, product)
    return m, e, zeros_met, infs_met, nans_met


def end_far_counted(product_e, product, zeros_met, infs_met, nans_met):
    m, e = end_far_narrow(product_e, product)
    return m, e, zeros_met, infs_met, nans_met


def normalised_and_counted(product_m, product_e, zeros, infs, nans):
    m, e = normalised(product_m, product_e)
    return m, e, zeros, infs, nans


COUNTED = Monoid(
    counted_as_it_is,
    held_counts_joined,
    (1.0, 0.0, 0.0, 0.0, 0.0),
    ("product_m", "product_e", "zeros", "infs", "nans"),
    brief=counts_joined_briefly,
    briefly=3,
    brief_holds=is_near,
    stretch=replace(
        NARROW_FACTORS,
        carried=("product", "least", "zeros_met", "infs_met", "nans_met"),
        lift=ordinary_and_counts,
        nothing=(1.0, 0.0, 0.0, 0.0),
        begin=begin_counted,
        join=multiplied_and_counted,
        look=look_at_size_of_counted,
        end=end_counted,
        end_far=end_far_counted,
        meet=both_counted,
        brought_near=normalised_and_counted,
    ),
)
GAINS = ("gain", "of_zero", "of_inf", "of_nan")


# A product that is neither 0 nor infinite nor NaN has no such factor: there is nothing to count.


def gain_and_product(dy, product_m, product_e):
    return ldexp(product_m * dy, product_e), product_m


def has_counted(product):
    return (product == 0) | (absolute(product) == INF) | isnan(product)


def gain_over(x, gain):
    return gain / x


ORDINARY_GAIN = RowFormula(
    (Pass(HELD_PRODUCT, gain_and_product, ("gain", "product")),), apply=gain_over
)
GAINS_BY_COUNTS = RowFormula(
    (Pass(COUNTED, gains, GAINS),), apply=gain_without, usual=Usual(ORDINARY_GAIN, has_counted)
)

# The same with the sign of dy for a gradient of 0, as it is where the counts are looked at.


def gains_and_zeros(dy, product_m, product_e, zeros, infs, nans):
    gain, of_zero, of_inf, of_nan = gains(dy, product_m, product_e, zeros, infs, nans)
    return gain, of_zero, of_inf, of_nan, zeros


def gain_or_zero(x, gain, of_zero, of_inf, of_nan, zeros):
    special = where(x == 0, of_zero, where(isnan(x), of_nan, of_inf))
    chosen = where(is_ordinary(x), gain, special)
    return where(zeros > where(x == 0, 1.0, 0.0), chosen, chosen / ordinary(x))


# The same by products before and after, which are products of the factors at zeros too.


def others(dy, before, after):
    return dy * (before * after)


BEFORE_AND_AFTER = ScanFormula(
    Monoid(value, multiply, (1.0,), ("after",)),
    others,
    inclusive=False,
    against=True,
    prefix=Monoid(value, multiply, (1.0,), ("before",)),
)

PRODUCT_BY_COUNTS = RowFormula(
    (
        Pass(
            Monoid(
                counted,
                counts_joined,
                (1.0, 0.0, 0.0, 0.0, 0.0),
                ("product_m", "product_e", "zeros", "infs", "nans"),
            )
        ),
    ),
    apply=product_of_others,
    in_doubles=GAINS_BY_COUNTS,
    differentiable=BEFORE_AND_AFTER,
)
SEGMENT_PRODUCT_BY_COUNTS: RowFormula = replace(
    PRODUCT_BY_COUNTS,
    in_doubles=RowFormula((Pass(COUNTED, gains_and_zeros, (*GAINS, "zeros")),), apply=gain_or_zero),
)
