"""Reductions over one or more axes.

Every backward multiplies dy by the derivative of the reduction by one element; zeros, ties, NaN and
infinities are part of the formula.
"""

from __future__ import annotations

from .folds import (
    FACTORS,
    HELD_PRODUCT,
    LOG_TOTAL,
    PEAK,
    PRODUCT,
    TOTAL,
    TROUGH,
    add,
    log_of_state,
)
from .primitives import (
    INF,
    NAN,
    absolute,
    exp,
    exponent,
    isnan,
    ldexp,
    log,
    mantissa,
    maximum,
    power_of_two,
    sqrt,
    where,
)
from .product import GAINS_BY_COUNTS
from .record import Monoid, Pass, RowFormula, Scaled, ScanFormula


def total_itself(total):
    return total


def mean_of(total, extent):
    return total / extent


def peak_itself(peak):
    return peak


SUM = RowFormula((Pass(TOTAL),), finish=total_itself)
MEAN = RowFormula((Pass(TOTAL),), finish=mean_of)
MAX = RowFormula((Pass(PEAK),), finish=peak_itself)
MIN = RowFormula((Pass(TROUGH),), finish=peak_itself)


def spread(dy):
    return dy


def share(dy, extent):
    return dy / extent


def shared(portion):
    return portion


SUM_BACKWARD = RowFormula(apply=spread, copies=True)
MEAN_BACKWARD = RowFormula((Pass(close=share, gives=("portion",)),), apply=shared)


# max and min: the elements that equal the extreme share dy by the ties policy.


def is_extreme(x, y):
    return (x == y) | (isnan(x) & isnan(y))


def holds(x, y):
    return where(is_extreme(x, y), 1.0, 0.0)


def even_share(dy, count):
    return dy / count


def to_holders(x, y, portion):
    return where(is_extreme(x, y), portion, 0.0)


def dy_to_holders(x, y, dy):
    return where(is_extreme(x, y), dy, 0.0)


def position_or_inf(x, y, index):
    return where(is_extreme(x, y), index, INF)


def position_or_minus_inf(x, y, index):
    return where(is_extreme(x, y), index, -INF)


def to_winner(dy, index, peak):
    return where(index == peak, dy, 0.0)


EXTREME_BACKWARD = {
    "split": RowFormula(
        (Pass(Monoid(holds, add, (0.0,), ("count",), sums=1), even_share, ("portion",)),),
        apply=to_holders,
        seldom=is_extreme,
    ),
    "all": RowFormula(apply=dy_to_holders),
    "first": RowFormula(
        (Pass(Monoid(position_or_inf, TROUGH.combine, (INF,), ("peak",))),), apply=to_winner
    ),
    "last": RowFormula(
        (Pass(Monoid(position_or_minus_inf, PEAK.combine, (-INF,), ("peak",))),), apply=to_winner
    ),
}


# prod: the product of the others is (product before) * (product after), so no division by x, and
# any number of zeros is exact. Of elements narrower than float64 it is the product of all but for
# zeros, infinities and NaN, which are counted, over the element.


def product_itself(product_m, product_e):
    return ldexp(product_m, product_e)


def plain_product(product):
    return product


def product_of_others(dy, before_m, before_e, product_m, product_e):
    return ldexp((before_m * product_m) * mantissa(dy), (before_e + product_e) + exponent(dy))


PROD = RowFormula(
    (Pass(PRODUCT),),
    finish=product_itself,
    in_doubles=RowFormula((Pass(HELD_PRODUCT),), finish=product_itself),
    differentiable=RowFormula((Pass(FACTORS),), finish=plain_product),
)
PROD_BACKWARD = ScanFormula(
    PRODUCT,
    product_of_others,
    inclusive=False,
    against=True,
    prefix=Monoid(PRODUCT.lift, PRODUCT.combine, PRODUCT.identity, ("before_m", "before_e")),
    scaled=Scaled(factor="x", gradient="dy"),
    in_doubles=GAINS_BY_COUNTS,
)


# norm2: squares of numbers brought near 1 by a power of two, which is exact.


def magnitude(x):
    return absolute(x)


def near_one(v):
    """An exponent whose inverse power of two brings v near 1 without overflowing."""
    return maximum(exponent(v), -1000.0)


def peak_exponent(peak):
    e = near_one(peak)
    return e, power_of_two(-e)


def scaled_square(x, peak_scale):
    return (x * peak_scale) * (x * peak_scale)


def root(total, peak_e):
    return ldexp(sqrt(total), peak_e)


def inverse_size(y):
    return where(y == 0, 0.0, power_of_two(-near_one(y)))


def over_norm(dy, y):
    # x*inverse*gain with the power of two taken out of y: dy/y alone may overflow.
    inverse = inverse_size(y)
    return inverse, where(y == 0, 0.0, dy / (y * inverse))


def norm2_backward(x, inverse, gain):
    return (x * inverse) * gain


def square(x):
    return x * x


def plain_root(total):
    return sqrt(total)


def gain_over_norm(dy, y):
    return where(y == 0, 0.0, dy / y)


def plain_norm2_backward(x, gain):
    return x * gain


NORM2 = RowFormula(
    (
        Pass(
            Monoid(magnitude, PEAK.combine, (0.0,), ("peak",)),
            peak_exponent,
            ("peak_e", "peak_scale"),
        ),
        Pass(Monoid(scaled_square, add, (0.0,), ("total",), sums=1)),
    ),
    finish=root,
    in_doubles=RowFormula(
        (Pass(Monoid(square, add, (0.0,), ("total",), sums=1)),),
        finish=plain_root,
    ),
)
NORM2_BACKWARD = RowFormula(
    (Pass(close=over_norm, gives=("inverse", "gain")),),
    apply=norm2_backward,
    in_doubles=RowFormula(
        (Pass(close=gain_over_norm, gives=("gain",)),),
        apply=plain_norm2_backward,
    ),
)


# logsumexp


def finite_peak(peak):
    return where(absolute(peak) == INF, 0.0, peak)


def exp_below(x, shift):
    return exp(x - shift)


def logsumexp(total, shift):
    return log(total) + shift


def logsumexp_backward(dy, x, y):
    return where(y == -INF, 0.0, dy * exp(x - y))


LOGSUMEXP = RowFormula(
    (
        Pass(PEAK, finite_peak, ("shift",)),
        Pass(Monoid(exp_below, add, (0.0,), ("total",), sums=1)),
    ),
    finish=logsumexp,
    online=RowFormula((Pass(LOG_TOTAL),), finish=log_of_state),
)
LOGSUMEXP_BACKWARD = RowFormula(apply=logsumexp_backward, heavy=True)


# var and std: the mean first, then squares about it, over m = max(n - correction, 1). Squares are
# of numbers brought near 1, as in norm2. A sum may leave the range of a float where the mean does
# not; then it is taken from a second sum, of smaller numbers. Narrower elements need none of this.

SMALLER = 2.0**-64
LARGER = 2.0**64


def freedom(extent, correction):
    return maximum(extent - correction, 1.0)


def squared_deviation(x, mean):
    return (x - mean) * (x - mean)


def variance(total, extent, correction):
    return where(extent > 0, total / freedom(extent, correction), NAN)


def deviation(total, extent, correction):
    return sqrt(variance(total, extent, correction))


def value_smaller_and_size(x):
    return x, x * SMALLER, absolute(x)


def sums_and_peak(total, low, peak, more_total, more_low, more_peak):
    return total + more_total, low + more_low, where(peak > more_peak, peak, more_peak)


def scaled_mean(total, low, peak, extent):
    e = -maximum(-near_one(peak), -1000.0)
    scaled = where(absolute(total) < INF, total * power_of_two(-e), low * power_of_two(64.0 - e))
    return e, power_of_two(-e), scaled / extent


def scaled_squared_deviation(x, peak_scale, mean):
    return squared_deviation(x * peak_scale, mean)


def scaled_variance(total, peak_e, extent, correction):
    return ldexp(variance(total, extent, correction), peak_e + peak_e)


def scaled_deviation(total, peak_e, extent, correction):
    return ldexp(deviation(total, extent, correction), peak_e)


MEAN_PASS = Pass(TOTAL, mean_of, ("mean",))
DEVIATIONS = Pass(Monoid(squared_deviation, add, (0.0,), ("total",), sums=1))
SCALED_MEAN_PASS = Pass(
    Monoid(
        value_smaller_and_size, sums_and_peak, (0.0, 0.0, 0.0), ("total", "low", "peak"), sums=2
    ),
    scaled_mean,
    ("peak_e", "peak_scale", "mean"),
)
SCALED_DEVIATIONS = Pass(Monoid(scaled_squared_deviation, add, (0.0,), ("total",), sums=1))
VAR = RowFormula(
    (SCALED_MEAN_PASS, SCALED_DEVIATIONS),
    finish=scaled_variance,
    narrow=RowFormula((MEAN_PASS, DEVIATIONS), finish=variance),
)
STD = RowFormula(
    (SCALED_MEAN_PASS, SCALED_DEVIATIONS),
    finish=scaled_deviation,
    narrow=RowFormula((MEAN_PASS, DEVIATIONS), finish=deviation),
)


def var_gain(total, dy, extent, correction):
    return total / extent, dy / (0.5 * freedom(extent, correction))


def var_backward(x, mean, gain):
    return (x - mean) * gain


def value_and_smaller(x):
    return x, x * SMALLER


def two_sums(total, low, more_total, more_low):
    return total + more_total, low + more_low


def scaled_var_gain(total, low, dy, extent, correction):
    # A mean below 2**100 does not take x out of range. Beside a sum beyond, what SMALLER rounds is
    # nothing.
    fits = absolute(total) < 2.0**100
    mean, gain = var_gain(where(fits, total, low), dy, extent, correction)
    return where(fits, 1.0, SMALLER), mean, gain, where(fits, 1.0, LARGER)


def scaled_var_backward(x, scale, mean, gain, unscale):
    return var_backward(x * scale, mean, gain) * unscale


VAR_BACKWARD = RowFormula(
    (
        Pass(
            Monoid(value_and_smaller, two_sums, (0.0, 0.0), ("total", "low"), sums=2),
            scaled_var_gain,
            ("scale", "mean", "gain", "unscale"),
        ),
    ),
    apply=scaled_var_backward,
    narrow=RowFormula((Pass(TOTAL, var_gain, ("mean", "gain")),), apply=var_backward),
)


def std_gain(total, dy, y, extent, correction):
    inverse, gain = over_norm(dy, y)
    return total / extent, inverse, gain / freedom(extent, correction)


def std_backward(x, mean, inverse, gain):
    return ((x - mean) * inverse) * gain


def plain_std_gain(total, dy, y, extent, correction):
    return total / extent, gain_over_norm(dy, y) / freedom(extent, correction)


def scaled_value(x, inverse):
    return x * inverse


def scaled_std_gain(total, dy, y, extent, correction):
    _, gain = over_norm(dy, y)
    return total / extent, gain / freedom(extent, correction)


def scaled_std_backward(x, inverse, mean, gain):
    return (x * inverse - mean) * gain


STD_BACKWARD = RowFormula(
    (
        Pass(close=inverse_size, gives=("inverse",)),
        Pass(
            Monoid(scaled_value, add, (0.0,), ("total",), sums=1), scaled_std_gain, ("mean", "gain")
        ),
    ),
    apply=scaled_std_backward,
    narrow=RowFormula(
        (Pass(TOTAL, std_gain, ("mean", "inverse", "gain")),),
        apply=std_backward,
        in_doubles=RowFormula((Pass(TOTAL, plain_std_gain, ("mean", "gain")),), apply=var_backward),
    ),
)
