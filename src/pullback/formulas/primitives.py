"""The scalar functions a formula may call, as Python floats compute them.

A backend replaces every name listed in ``PRIMITIVES`` with its own version of the same meaning;
the definitions here make a formula an ordinary function that can be called and tested as it is.
"""

from __future__ import annotations

import math

INF = math.inf
NAN = math.nan

# The exponent of zero: below every exponent that a product can reach, so that a zero never sets the
# scale of a sum.
NOWHERE = -(2.0**40)


def where(condition, a, b):
    """``a`` where the condition holds, else ``b``; the other side never leaks in."""
    return a if condition else b


def isnan(v):
    """True for NaN."""
    return v != v


def exp(v):
    """e to the v; +inf past the range, 0 below it."""
    try:
        return math.exp(v)
    except OverflowError:
        return math.inf


def log(v):
    """Natural logarithm; -inf at 0, NaN below 0."""
    if v == 0:
        return -math.inf
    return math.log(v) if v > 0 else math.nan


def sqrt(v):
    """Square root; NaN below 0."""
    return math.sqrt(v) if v >= 0 else math.nan


def absolute(v):
    """The value without its sign."""
    return abs(v)


def maximum(a, b):
    """The larger of two numbers, neither of which is NaN."""
    return a if a >= b else b


def mantissa(v):
    """v / 2**exponent(v): magnitude in [0.5, 1); 0, inf and NaN stay themselves."""
    return math.frexp(v)[0]


def exponent(v):
    """The integer e, as a float, with v = mantissa * 2**e; NOWHERE for 0, and 0 for inf and NaN."""
    if v == 0:
        return NOWHERE
    return float(math.frexp(v)[1]) if math.isfinite(v) else 0.0


def power_of_two(e):
    """2**e for an integer-valued e, held to the normal range [2**-1022, 2**1023]."""
    return 2.0 ** max(-1022.0, min(1023.0, e))


def ldexp(v, e):
    """v * 2**e, rounded once, with overflow to inf and gradual underflow."""
    e = max(-4000.0, min(4000.0, e))
    try:
        return math.ldexp(v, int(e))
    except OverflowError:
        return math.copysign(math.inf, v)


PRIMITIVES = (
    "where",
    "isnan",
    "exp",
    "log",
    "sqrt",
    "absolute",
    "maximum",
    "mantissa",
    "exponent",
    "power_of_two",
    "ldexp",
)
