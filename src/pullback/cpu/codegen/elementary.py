"""exp, log and ldexp on lanes, in plain arithmetic with explicit fma: the same bits on every CPU.

``exp`` comes in two degrees: 13 for float64 results (below 1 ULP) and 7 for float32 and narrower
ones (relative error 2**-34).
"""

from __future__ import annotations

import math

from ...formulas.folds import GUARDED, ldexp_of_sum
from . import lanes
from .lanes import (
    EXPONENT_MAGIC,
    exponent,
    fma,
    mantissa,
    normal_power_of_two,
    power_of_magic,
    power_of_two,
    rint,
    where,
)

INVERSE_LN2 = 1.0 / math.log(2.0)
LN2_HIGH = float.fromhex("0x1.62e42fefa3800p-1")
LN2_LOW = float.fromhex("0x1.ef35793c76730p-45")
# exp(x) is 0 or inf beyond these, in float64.
EXP_LOW, EXP_HIGH = -745.2, 709.79
# From r² up, on |r| <= ln2/2. By tools/fit_exp.py: relative error 2**-34.17.
EXP = tuple(
    float.fromhex(c)
    for c in (
        "0x1.0000003a1afd4p-1",
        "0x1.55555443664c2p-3",
        "0x1.55548dd844034p-5",
        "0x1.1112708e69120p-7",
        "0x1.6d8cf43e0837ep-10",
        "0x1.9f08a575a83dcp-13",
    )
)
SQRT_HALF = math.sqrt(0.5)
# The first has so few bits that a multiple of it by an exponent is exact.
LOG_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LOG_LOW = float.fromhex("0x1.a39ef35793c76p-33")
# Of z, z², ... in R(z), z = s²: 2·atanh(s) = s·(2 + R). By tools/fit_log.py: error 2**-59.49.
LOG = tuple(
    float.fromhex(c)
    for c in (
        "0x1.5555555555592p-1",
        "0x1.999999997ff19p-2",
        "0x1.24924941e1560p-2",
        "0x1.c71c521450a2fp-3",
        "0x1.74663ced85c2bp-3",
        "0x1.39a1e8c56cd3dp-3",
        "0x1.2f03ba622541ap-3",
    )
)


def _horner(r, coefficients):
    p = coefficients[0]
    for c in coefficients[1:]:
        p = fma(r, p, c) if p is coefficients[0] else fma(p, r, c)
    return p


def exp_double(x):
    held = where(x > EXP_HIGH, EXP_HIGH, x)
    held = where(held < EXP_LOW, EXP_LOW, held)
    k = rint(held * INVERSE_LN2)
    r = fma(k, -LN2_LOW, fma(k, -LN2_HIGH, held))
    p = _horner(r, [1.0 / math.factorial(n) for n in range(13, 1, -1)])
    p = fma(p, r * r, r) + 1.0
    # Two factors, so that a subnormal result is rounded once and 2**1024 is reachable.
    half = rint(k * 0.5)
    result = (p * normal_power_of_two(half)) * normal_power_of_two(k - half)
    return where(x < EXP_LOW, 0.0, where(x > EXP_HIGH, math.inf, result))


def exp_single(x):
    # Held so that at the ends the power of two is 0 or inf by its own bits, for which whatever a
    # narrower type can hold leaves room. A NaN passes the comparisons unharmed.
    held = where(x > 710.0, 710.0, x)
    held = where(held < -709.0, -709.0, held)
    magic = fma(held, INVERSE_LN2, EXPONENT_MAGIC)
    r = fma(magic - EXPONENT_MAGIC, -LN2_HIGH, held)
    square = r * r
    low = fma(fma(r, EXP[1], EXP[0]), square, r + 1.0)
    high = fma(fma(r, EXP[5], EXP[4]), square, fma(r, EXP[3], EXP[2]))
    p = fma(high, square * square, low)
    return p * power_of_magic(magic)


def log(v):
    """log by 2*atanh(f/(2+f)) after splitting off the exponent, below 1 ULP."""
    m, e = mantissa(v), exponent(v)
    small = m < SQRT_HALF
    f = where(small, m + m, m) - 1.0
    e = where(small, e - 1.0, e)
    s = f / (f + 2.0)
    z = s * s
    w = z * z
    odd = w * _horner(w, LOG[5::-2])
    even = z * _horner(w, LOG[6::-2])
    half_square = f * f * 0.5
    tail = s * (half_square + (odd + even)) + e * LOG_LOW
    result = e * LOG_HIGH - ((half_square - tail) - f)
    result = where(v == 0.0, -math.inf, result)
    result = where(v == math.inf, v, result)
    result = where(v < 0.0, math.nan, result)
    return where(v == v, result, v)


def ldexp(v, e):
    """v * 2**e for |v| near 1, by two factors of which only the last can round."""
    held = where(e < -2000.0, -2000.0, where(e > 2000.0, 2000.0, e))
    half = rint(held * 0.5)
    return (v * normal_power_of_two(half)) * normal_power_of_two(held - half)


def ldexp_single(v, e):
    """v * 2**e for |v| near 1, where whatever float64 cannot hold is 0 or inf in the result."""
    return v * normal_power_of_two(where(e < -1000.0, -1000.0, where(e > 1000.0, 1000.0, e)))


# A narrow result below 2**-197 is 0, and no sum that a plain kernel may compute is wrong by 2**-334
# (:mod:`.watch`): this much more leaves the first alone and makes the others the same zero.
_UNSIGNED = 2.0**-250


def _ldexp_of_sum(v, e):
    return ldexp_single(v, e) + _UNSIGNED


def _unscaled_sum(v, e):
    return v + _UNSIGNED


def _itself(v):
    return v


def _no_exponent(v):
    return 0.0


def _unscaled(v, e):
    return v


def _product(a, b):
    return a * b


def unguarded(primitives: tuple[tuple[str, object], ...]) -> tuple[tuple[str, object], ...]:
    """The same primitives, with ordinary products in the place of guarded ones."""
    return (*primitives, *((name, _product) for name in GUARDED))


def primitives_for(element: str, plain: bool = False) -> tuple[tuple[str, object], ...]:
    """The primitives of a formula for results of that element type, hashable.

    With ``plain`` numbers are not split into mantissa and exponent: scaled arithmetic becomes
    ordinary arithmetic, of the same roundings as long as nothing leaves the range of a float64.
    """
    if plain:
        scaled = (("mantissa", _itself), ("exponent", _no_exponent), ("ldexp", _unscaled))
    else:
        single = ldexp if element == "f64" else ldexp_single
        scaled = (("mantissa", mantissa), ("exponent", exponent), ("ldexp", single))
    if element != "f64":
        of_sum = _unscaled_sum if plain else _ldexp_of_sum
        scaled = (*scaled, (ldexp_of_sum.__name__, of_sum))
    return (
        *scaled,
        ("where", where),
        ("isnan", lanes.isnan),
        ("exp", exp_double if element == "f64" else exp_single),
        ("log", log),
        ("sqrt", lanes.sqrt),
        ("absolute", lanes.absolute),
        ("maximum", lanes.maximum),
        ("power_of_two", power_of_two),
    )
