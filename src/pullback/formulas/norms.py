"""norm2 and std with the records that stay within the range of float32.

The records of :mod:`.reduce` count on float64's. Those here stand in where elements narrower than
that are computed in float32: on many cards float64 runs at a sixty-fourth of the speed.
"""

from __future__ import annotations

from dataclasses import replace

from . import reduce
from .folds import add
from .primitives import (
    INF,
    absolute,
    exponent,
    isnan,
    ldexp,
    mantissa,
    maximum,
    power_of_two,
    sqrt,
    where,
)
from .record import Monoid, Pass, RowFormula
from .reduce import (
    SCALED_DEVIATIONS,
    freedom,
    magnitude,
    mean_of,
    root,
    scaled_deviation,
    scaled_square,
    sums_and_peak,
    two_sums,
    value_smaller_and_size,
    variance,
)

# The most that a power of two may have for an exponent so that its inverse is no subnormal number.
MOST = 126.0


def at_most(v, bound):
    return -maximum(-v, -bound)


# norm2: squares of numbers brought near 1 by a power of two. Of a row that is read once, squares of
# large, middling and small numbers each have a sum of their own.


def near_one(v):
    """An exponent whose power of two, either way, is a normal number."""
    return at_most(maximum(exponent(v), 1.0 - MOST), MOST)


def peak_exponent(peak):
    e = near_one(peak)
    return e, power_of_two(-e)


def larger_size(a, b):
    # A NaN shows in the sums, whether it is met here or not.
    return maximum(a, b)


PEAK_SCALE = Pass(
    Monoid(magnitude, larger_size, (0.0,), ("peak",)), peak_exponent, ("peak_e", "peak_scale")
)


def square_by_size(x):
    size = absolute(x)
    large, small = size > 2.0**50, size < 2.0**-50
    near = x * where(large, 2.0**-80, where(small, 2.0**90, 1.0))
    square = near * near
    apart = large | small
    return where(apart, 0.0, square), where(large, square, 0.0), where(small, square, 0.0)


def three_sums(a, b, c, more_a, more_b, more_c):
    return a + more_a, b + more_b, c + more_c


def root_by_size(middle, large, small):
    # Beside large numbers small ones are nothing.
    of_large = sqrt(large + (middle * 2.0**-80) * 2.0**-80) * 2.0**80
    of_middle = sqrt(middle + (small * 2.0**-90) * 2.0**-90)
    of_small = sqrt(small) * 2.0**-90
    return where(large > 0, of_large, where((middle > 0) | isnan(middle), of_middle, of_small))


NORM2_IN_SINGLES = RowFormula(
    (PEAK_SCALE, Pass(Monoid(scaled_square, add, (0.0,), ("total",), sums=1))),
    finish=root,
    online=RowFormula(
        (
            Pass(
                Monoid(
                    square_by_size,
                    three_sums,
                    (0.0, 0.0, 0.0),
                    ("middle", "large", "small"),
                    sums=3,
                )
            ),
        ),
        finish=root_by_size,
    ),
)


# std: deviations from a mean that is rounded; how far it is off, their sum tells.


def times_peak_scale(x, peak_scale):
    return x * peak_scale


def scaled_deviation_and_square(x, peak_scale, mean):
    deviation = x * peak_scale - mean
    return deviation, deviation * deviation


def root_about_mean(shift, total, peak_e, extent, correction):
    about = maximum(total - shift * (shift / extent), 0.0)
    about = where(isnan(total), total, about)
    return ldexp(sqrt(variance(about, extent, correction)), peak_e)


def scaled_mean(total, low, peak, extent):
    # A sum that left the range is taken from the one of smaller numbers.
    e = near_one(peak)
    scale = power_of_two(-e)
    beyond = ldexp(low, 64.0 - e)
    return e, scale, where(absolute(total) < INF, total * scale, beyond) / extent


PEAK_AND_SUMS = Pass(
    Monoid(value_smaller_and_size, sums_and_peak, (0.0,) * 3, ("total", "low", "peak"), sums=2),
    scaled_mean,
    ("peak_e", "peak_scale", "mean"),
)
SCALED_MEAN = Pass(Monoid(times_peak_scale, add, (0.0,), ("total",), sums=1), mean_of, ("mean",))
DEVIATIONS = Pass(
    Monoid(scaled_deviation_and_square, two_sums, (0.0, 0.0), ("shift", "total"), sums=2)
)
STD_IN_SINGLES = RowFormula(
    (PEAK_SCALE, SCALED_MEAN, DEVIATIONS),
    finish=root_about_mean,
    online=RowFormula((PEAK_AND_SUMS, DEVIATIONS), finish=root_about_mean),
)
# bfloat16: numbers of eight digits are not that much closer to each other than to zero. A
# 2**-16th of one is a float32, exactly, and up to 2**16 of them add up to one.


def small_and_size(x):
    return x * 2.0**-16, absolute(x)


def sum_and_peak(total, peak, more, more_peak):
    return total + more, maximum(peak, more_peak)


def mean_by_peak(total, peak, extent):
    e, scale = peak_exponent(peak)
    return e, scale, ldexp(total, 16.0 - e) / extent


STD_OF_FEW_DIGITS = RowFormula(
    (
        Pass(
            Monoid(small_and_size, sum_and_peak, (0.0, 0.0), ("total", "peak"), sums=1),
            mean_by_peak,
            ("peak_e", "peak_scale", "mean"),
        ),
        SCALED_DEVIATIONS,
    ),
    finish=scaled_deviation,
    online=RowFormula((PEAK_AND_SUMS, SCALED_DEVIATIONS), finish=scaled_deviation),
)


# Gradients: the quotient of mantissas, and up to four powers of two for its exponent, which may be
# twice what one holds. What grows does so before it is multiplied, what shrinks afterwards.


def over_norm(dy, y, parts, scale_e):
    quotient = where(y == 0, 0.0, mantissa(dy) / (mantissa(y) * parts))
    e = exponent(quotient) + where(y == 0, 0.0, exponent(dy) - exponent(y)) - scale_e
    gain, grows = mantissa(quotient), e > 0
    up, down = where(grows, e - 1.0, 0.0), where(grows, 0.0, -e)
    up1, down1 = at_most(up, MOST), at_most(down, MOST)
    up2, down2 = at_most(up - up1, MOST), at_most(down - down1, MOST)
    rest = (up - up1 - up2) - (down - down1 - down2)
    gain = where(grows, gain + gain, gain) * power_of_two(rest)
    up1, up2 = power_of_two(up1), power_of_two(up2)
    return up1, up2, gain, power_of_two(-down1), power_of_two(-down2)


def norm2_gain(dy, y):
    return over_norm(dy, y, 1.0, 0.0)


def times_gain(x, up1, up2, gain, down1, down2):
    return ((((x * up1) * up2) * gain) * down1) * down2


GAIN = ("up1", "up2", "gain", "down1", "down2")
NORM2_BACKWARD_IN_SINGLES = RowFormula((Pass(close=norm2_gain, gives=GAIN),), apply=times_gain)


def scale_of_small(y):
    """What keeps the mean of numbers near the smallest from being rounded to one of them."""
    small = (y > 0) & (y < 2.0**-60)
    return where(small, 64.0, 0.0), where(small, 2.0**64, 1.0)


def scaled_by(x, scale):
    return x * scale


def std_gain(total, dy, y, scale_e, extent, correction):
    up1, up2, gain, down1, down2 = over_norm(dy, y, freedom(extent, correction), scale_e)
    return total / extent, up1, up2, gain, down1, down2


def std_backward(x, scale, mean, up1, up2, gain, down1, down2):
    return times_gain(x * scale - mean, up1, up2, gain, down1, down2)


STD_BACKWARD_IN_SINGLES = RowFormula(
    (
        Pass(close=scale_of_small, gives=("scale_e", "scale")),
        Pass(Monoid(scaled_by, add, (0.0,), ("total",), sums=1), std_gain, ("mean", *GAIN)),
    ),
    apply=std_backward,
)


def with_singles(record: RowFormula | None, **by_element: RowFormula | None) -> RowFormula:
    """A record with those that stand in for it in float32; one that says None stays as it is."""
    assert record is not None
    return replace(record, in_singles=tuple((e, r or record) for e, r in by_element.items()))


# The squares of float16, and quotients, are within the range of float32.
NORM2 = with_singles(
    reduce.NORM2, f32=NORM2_IN_SINGLES, bf16=NORM2_IN_SINGLES, f16=reduce.NORM2.in_doubles
)
NORM2_BACKWARD = with_singles(
    reduce.NORM2_BACKWARD,
    f32=NORM2_BACKWARD_IN_SINGLES,
    bf16=NORM2_BACKWARD_IN_SINGLES,
    f16=reduce.NORM2_BACKWARD.in_doubles,
)
STD = replace(
    reduce.STD,
    narrow=with_singles(reduce.STD.narrow, f32=STD_IN_SINGLES, bf16=STD_OF_FEW_DIGITS, f16=None),
)
STD_BACKWARD = replace(
    reduce.STD_BACKWARD,
    narrow=with_singles(
        reduce.STD_BACKWARD.narrow,
        f32=STD_BACKWARD_IN_SINGLES,
        bf16=STD_BACKWARD_IN_SINGLES,
        f16=reduce.STD_BACKWARD.narrow and reduce.STD_BACKWARD.narrow.in_doubles,
    ),
)
